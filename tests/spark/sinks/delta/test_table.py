"""The Delta sink: staged by Spark, committed by delta-rs, once."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.sinks.delta.conftest import NOTE, by_spark, ids, march, put, replaced, rows

from sluice.errors import ConfigError, SinkError
from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import RowsRefusedError
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.slice import Slice

pytestmark = pytest.mark.spark


def test_delta_rows_are_the_same_for_spark_and_are_found_by_statistics(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "t"), "app", ["day"])
    frame = rows(
        spark, 0, 10, day="DATE'2013-01-01' + CAST(id % 3 AS INT)", far="timestamp_seconds(id * 1000000000000)"
    )
    put(sink, frame, 0)
    table = by_spark(spark, sink)
    assert sorted(r.id for r in table.select("id").collect()) == list(range(10))
    assert table.dtypes == frame.dtypes
    for predicate, expected in (
        ("_offset = 7", [7]), ("_run = 'r' AND id < 2", [0, 1]), ("_run = 'other'", []),
        ("day = '2013-01-02'", [1, 4, 7]),
        ("_timestamp >= '2013-01-01 00:00:09'", [9]), ("far > '9999-12-31'", list(range(1, 10))),
    ):  # fmt: skip
        assert sorted(r.id for r in table.where(predicate).select("id").collect()) == expected, predicate


@pytest.mark.parametrize("partition_by", [[], ["_partition"]], ids=["plain", "partitioned"])
def test_delta_rows_of_a_run_are_of_one_version(spark: SparkSession, tmp_path: Path, partition_by: list[str]) -> None:
    (tmp_path / "t1ab").mkdir()
    sink = DeltaSink(str(tmp_path / "t[1]{a,b}* ?"), "app", partition_by)
    put(sink, rows(spark, 0, 10), 0)
    frame, count = sink.rows_of(spark, ["r"])
    put(sink, rows(spark, 10, 14), 1)
    assert (frame.count(), count) == (10, 10)
    assert sink.rows_of(spark, ["r"])[1] == sink.rows(spark).count() == 14
    sink.sweep("p-e1-000001")
    assert sink.rows(spark).count() == 14


@pytest.mark.long
def test_delta_opens_a_table_by_few_commits_however_old_it_is(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "t"), "app")
    empty = sink.stage(rows(spark, 0, 0), "empty")
    for version in range(65):
        staged = sink.stage(rows(spark, version, version + 1), f"e1-{version:06d}") if version % 20 == 0 else empty
        assert sink.commit(staged, rows(spark, 0, 0).schema, version, NOTE)
        last = tmp_path / "t" / "_delta_log" / "_last_checkpoint"
        known = json.loads(last.read_text())["version"] if last.exists() else -1
        table = sink.table()
        assert table.version() - known <= 30
    assert sink.version() == 64
    assert [n["version"] for n in sink.notes(58)] == [64, 63, 62, 61, 60, 59]
    expected = [0, 20, 40, 60]
    assert sorted(ids(tmp_path / "t")) == expected
    assert sorted(r.id for r in by_spark(spark, sink).collect()) == expected


def test_delta_refuses_a_table_partitioned_otherwise_or_with_constraints(spark: SparkSession, tmp_path: Path) -> None:
    put(DeltaSink(str(tmp_path / "t"), "app"), rows(spark, 0, 3), 0)
    with pytest.raises(ConfigError, match="partitioned by"):
        DeltaSink(str(tmp_path / "t"), "app", ["_run"]).check(rows(spark, 0, 0).schema)
    DeltaTable(str(tmp_path / "t")).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(ConfigError, match="CHECK constraints"):
        DeltaSink(str(tmp_path / "t"), "app").check(rows(spark, 0, 0).schema)


def test_delta_table_that_cannot_be_read_is_the_sinks_failure(spark: SparkSession, tmp_path: Path) -> None:
    put(DeltaSink(str(tmp_path / "t"), "app"), rows(spark, 0, 3), 0)
    for file in (tmp_path / "t/_delta_log").glob("*.json"):
        file.write_text("{nonsense")
    with pytest.raises(SinkError, match="failed"):
        DeltaSink(str(tmp_path / "t"), "app").version()


def test_delta_distinguishes_an_empty_commit_from_one_without_a_writer(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "t"), "p")
    assert not sink.is_cut_off()
    for version in range(2):
        put(sink, rows(spark, version, version + 1), version)
    newest = max((tmp_path / "t" / "_delta_log").glob("*.json"))
    whole = newest.read_text()
    newest.write_text("".join(line for line in whole.splitlines(keepends=True) if "commitInfo" not in line))
    assert not sink.is_cut_off()
    newest.write_text("")
    assert sink.is_cut_off()
    newest.write_text(whole)
    assert not sink.is_cut_off()


def by_run(path: Path) -> dict[int, str]:
    table = DeltaTable(str(path)).to_pyarrow_table()
    return dict(zip(table.column("id").to_pylist(), table.column("_run").to_pylist(), strict=True))


def test_delta_commits_an_append_beside_a_replacement(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs calls it a conflict when files went that an append never read."""
    live = DeltaSink(str(tmp_path / "t"), "live")
    put(live, rows(spark, 0, 10), 0)
    stale = [live.table()]
    replaced(DeltaSink(str(tmp_path / "t"), "interval"), march(0, 10), rows(spark, 0, 10), 0)
    real = live.table
    monkeypatch.setattr(live, "table", lambda: stale.pop() if stale else real())
    put(live, rows(spark, 10, 12), 1)
    assert stale == []
    assert ids(tmp_path / "t") == Counter(range(12))


def test_delta_replaces_a_slice_of_a_partitioned_table_with_awkward_names(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "t"), "live", ["place"])
    put(sink, rows(spark, 0, 10, place="concat('a b/', id % 2, '=%ü')"), 0)
    new = rows(spark, 3, 7, place="concat('a b/', id % 2, '=%ü')").withColumn("_run", F.lit("new"))
    assert replaced(DeltaSink(sink.path, "interval", ["place"]), march(3, 7), new, 0) == {("t", 0): 4}
    frame = by_spark(spark, sink)
    assert Counter((r.id, r.place) for r in frame.collect()) == Counter((n, f"a b/{n % 2}=%ü") for n in range(10))
    assert ids(frame.where("_run = 'new'")) == Counter([3, 4, 5, 6])
    staged = sink.stage(rows(spark, 0, 2, place="'é %'"), "p-e1-000001")
    everything = Slice([OffsetRange("t", 0, 0, 10)])
    assert sink.replace(everything, staged, frame.schema, 1, NOTE, name="p-e1-000001") == {("t", 0): 10}
    table = DeltaTable(sink.path).to_pyarrow_table()
    assert sorted(zip(table["id"].to_pylist(), table["place"].to_pylist(), strict=True)) == [(0, "é %"), (1, "é %")]


def test_delta_replaces_and_counts_no_rows_that_deletion_vectors_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """A copy of a file's other rows would bring back what was deleted; appending goes on."""
    sink = DeltaSink(str(tmp_path / "t"), "live")
    put(sink, rows(spark, 0, 10), 0)
    spark.sql(f"ALTER TABLE delta.`{sink.path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    spark.sql(f"DELETE FROM delta.`{sink.path}` WHERE id = 7")
    put(sink, rows(spark, 10, 12), 1)
    left = Counter([*range(7), 8, 9, 10, 11])
    assert ids(by_spark(spark, sink)) == left
    found, count = sink.rows_of(spark, ["r"])
    assert (ids(found), count) == (left, 11)
    for enabled in ("true", "false"):  # switched off, what was deleted by vectors still is
        spark.sql(f"ALTER TABLE delta.`{sink.path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = {enabled})")
        with pytest.raises(ConfigError, match="deletion vectors"):
            sink.check_replaceable()
    spark.sql(f"REORG TABLE delta.`{sink.path}` APPLY (PURGE)")
    sink.check_replaceable()
    assert ids(by_spark(spark, sink)) == left
    DeltaSink(str(tmp_path / "none"), "live").check_replaceable()


@pytest.mark.long
def test_delta_sees_deletion_vectors_that_come_between_two_attempts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(str(tmp_path / "t"), "live")
    put(sink, rows(spark, 0, 10), 0)
    real = Slice.find

    def find(self: Slice, *arguments: Any) -> Any:
        found = real(self, *arguments)
        if DeltaTable(sink.path).version() == 1:
            spark.sql(f"ALTER TABLE delta.`{sink.path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
            spark.sql(f"DELETE FROM delta.`{sink.path}` WHERE id = 7")
        return found

    monkeypatch.setattr(Slice, "find", find)
    with pytest.raises(ConfigError, match="deletion vectors"):
        replaced(DeltaSink(sink.path, "interval"), march(3, 9), rows(spark, 3, 7), 0)
    left = Counter([*range(7), 8, 9])
    assert ids(by_spark(spark, sink)) == left


def test_delta_finds_notes_of_any_age(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DeltaSink(str(tmp_path / "t"), "app")
    empty, schema = sink.stage(rows(spark, 0, 0), "empty"), rows(spark, 0, 0).schema
    for version in range(20):
        sink.commit(empty, schema, version, NOTE)
    for count in (1, 3, 20, 21, 100):
        monkeypatch.setattr("sluice_spark.sinks.delta.writer._HISTORY", count)
        assert [n["version"] for n in sink.notes(4)] == list(range(19, 4, -1))
        assert [n["version"] for n in sink.notes(-1)] == list(range(19, -1, -1))


@pytest.mark.long
def test_delta_refuses_files_whose_path_does_not_name_their_partition(spark: SparkSession, tmp_path: Path) -> None:
    """Files in place of such ones would be of no partition. The remedy of the message helps."""
    sink = DeltaSink(str(tmp_path / "t"), "live", ["part"])
    put(sink, rows(spark, 0, 10, part="id % 2"), 0)
    sink.check_replaceable()
    spark.sql(f"ALTER TABLE delta.`{sink.path}` SET TBLPROPERTIES ('delta.randomizeFilePrefixes' = true)")
    spark.sql(f"UPDATE delta.`{sink.path}` SET _run = _run WHERE part = 1")
    new = rows(spark, 3, 7, part="id % 2").withColumn("_run", F.lit("new"))
    with pytest.raises(ConfigError, match="whose path does not name their partition") as refused:
        replaced(DeltaSink(sink.path, "interval", ["part"]), march(3, 7), new, 0)
    alter, update = re.findall(r"(?:ALTER|UPDATE) .+?(?=, then|; then)", refused.value.next_step)
    spark.sql(alter)
    spark.sql(update)
    assert replaced(DeltaSink(sink.path, "interval", ["part"]), march(3, 7), new, 0) == {("t", 0): 4}
    assert by_run(tmp_path / "t") == {n: "new" if 3 <= n < 7 else "r" for n in range(10)}
    assert by_spark(spark, sink).where("part = 1").count() == 5
    DeltaSink(sink.path, "live", ["part"]).check(rows(spark, 0, 1, part="id % 2").schema)  # nothing was taken back


@pytest.mark.long
def test_delta_table_without_partitions_may_have_files_in_any_folder(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "t"), "live")
    put(sink, rows(spark, 0, 10), 0)
    spark.sql(f"ALTER TABLE delta.`{sink.path}` SET TBLPROPERTIES ('delta.randomizeFilePrefixes' = true)")
    spark.sql(f"UPDATE delta.`{sink.path}` SET _run = _run WHERE id < 5")
    new = rows(spark, 3, 7).withColumn("_run", F.lit("new"))
    assert replaced(DeltaSink(sink.path, "interval"), march(3, 7), new, 0) == {("t", 0): 4}
    assert by_run(tmp_path / "t") == {n: "new" if 3 <= n < 7 else "r" for n in range(10)}


def test_delta_commits_no_texts_that_are_longer_than_a_column_allows(spark: SparkSession, tmp_path: Path) -> None:
    """Spark checks the length as it writes; no reader of staged files does. The remedy of the message helps."""
    sink = DeltaSink(str(tmp_path / "t"), "live")
    long = rows(spark, 0, 3).withColumn("name", F.lit("äbcd"))
    kinds = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in long.schema.fields)
    spark.sql(f"CREATE TABLE delta.`{sink.path}` ({kinds.replace('name string', 'name VARCHAR(3)')}) USING delta")
    sink.check(long.schema)
    short = long.withColumn("name", F.when(F.col("id") > 0, "äbc"))
    put(sink, short, 0)
    with pytest.raises(
        RowsRefusedError, match=r"name has texts of up to 4 characters, and is a VARCHAR\(3\)"
    ) as refused:
        put(sink, long, 1)
    assert {offset for _, _, offset in refused.value.rows} == {0, 1, 2}
    (alter,) = re.findall(r"ALTER .+? TYPE STRING", refused.value.next_step)
    spark.sql(alter)
    put(sink, long, 1)
    assert spark.table(f"delta.`{sink.path}`").count() == 6


def test_delta_refuses_a_column_of_a_fixed_length_and_names_the_remedy(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "t"), "live")
    kinds = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in rows(spark, 0, 1).schema.fields)
    spark.sql(f"CREATE TABLE delta.`{sink.path}` ({kinds.replace('_topic string', '_topic CHAR(1)')}) USING delta")
    with pytest.raises(ConfigError, match=r"_topic is a char\(1\), of a limited length") as refused:
        sink.check(rows(spark, 0, 1).schema)
    (alter,) = re.findall(r"ALTER .+? TYPE STRING", refused.value.next_step)
    spark.sql(alter)
    sink.check(rows(spark, 0, 1).schema)
