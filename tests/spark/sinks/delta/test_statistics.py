"""Tables of many columns: a run is judged, and an interval replaced, without opening files of others."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.table import TableAlterer
from deltalake.transaction import AddAction
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from tests.spark.sinks.delta.conftest import NOTE, by_spark, folders, ids, march, put, replaced, rows

from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.delta.evolution import nullable
from sluice_spark.sinks.delta.open_tables import OpenTables
from sluice_spark.sinks.delta.statistics import hidden
from sluice_spark.sinks.delta.table import _SETTINGS, DeltaSink

pytestmark = pytest.mark.spark

LIST = "delta.dataSkippingStatsColumns"


def earlier(path: Path, frame: DataFrame, by: list[str] | None = None, **settings: str) -> DeltaSink:
    """Make the table as earlier versions did, or another writer."""
    schema = Schema.from_json(nullable(frame.schema).json())
    DeltaTable.create(str(path), schema, partition_by=by, configuration={**_SETTINGS, **settings})
    return DeltaSink(str(path), "live", by or [])


def ruin(sink: DeltaSink, *runs: str) -> int:
    """Make files of some runs unreadable."""
    count = 0
    for add in _adds(Path(sink.path)):
        if json.loads(add["stats"])["minValues"]["_run"] in runs:
            Path(sink.path, add["path"]).write_bytes(b"garbage")
            count += 1
    return count


def _adds(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(li) for f in sorted((path / "_delta_log").glob("*.json")) for li in f.read_text().splitlines()]
    return [line["add"] for line in lines if "add" in line]


@pytest.mark.parametrize(
    ("columns", "by", "before"),
    [
        (28, [], False),
        (28, [], True),
        (60, [], False),
        (60, [], True),
        (40, ["place"], False),
        (40, ["place"], True),
        (40, ["_partition"], False),
    ],
)
def test_delta_opens_only_files_that_may_hold_the_rows(
    spark: SparkSession, tmp_path: Path, columns: int, by: list[str], before: bool
) -> None:
    frames = [rows(spark, n * 10, n * 10 + 10, f"run-{n}", columns, place="'x'") for n in range(3)]
    if before:
        earlier(tmp_path / "t", frames[0], by)
    sink = DeltaSink(str(tmp_path / "t"), "live", by)
    for version, frame in enumerate(frames):
        put(sink, frame, version)
    sink.check(frames[0].schema)
    assert ruin(sink, "run-0", "run-1") == 4
    frame, count = sink.rows_of(spark, ["run-2"])
    assert (ids(frame), count) == (Counter(range(20, 30)), 10)
    assert {key: list(found) for key, found in sink.held(march(20, 25)).items()} == {("t", 0): [20, 21, 22, 23, 24]}
    new = rows(spark, 20, 25, "again", columns, place="'x'")
    assert replaced(DeltaSink(sink.path, "interval", by), march(20, 25), new) == {("t", 0): 5}
    assert ids(sink.rows_of(spark, ["run-2", "again"])[0]) == Counter(range(20, 30))


@pytest.mark.long
@pytest.mark.parametrize("columns", [28, 60])
def test_delta_adds_statistics_to_an_earlier_table_once(
    spark: SparkSession, tmp_path: Path, columns: int, caplog: pytest.LogCaptureFixture
) -> None:
    frame = rows(spark, 0, 10, "run-0", columns)
    sink = earlier(tmp_path / "t", frame, **{"delta.logRetentionDuration": "interval 60 days"})
    put(sink, frame, 0)
    there = DeltaTable(sink.path)
    old, metadata, protocol = there.version(), there.metadata(), there.protocol()
    assert hidden(there)
    caplog.set_level("INFO", "sluice")
    for _ in range(3):
        sink.check(frame.schema)
    table = DeltaTable(sink.path)
    assert (table.version(), hidden(table)) == (old + 1, [])
    assert "more columns than readers see statistics of" in caplog.text
    assert (table.metadata().id, table.schema(), table.protocol()) == (metadata.id, there.schema(), protocol)
    assert metadata.configuration.items() <= table.metadata().configuration.items()
    assert ([note["version"] for note in sink.notes(-1)], sink.is_cut_off()) == ([0], False), "what runs go by"
    assert not sink.commit(sink.stage(frame, "p-e1-000000"), frame.schema, 0, NOTE)
    put(sink, rows(spark, 10, 20, "run-1", columns), 1)
    assert ids(by_spark(spark, sink)) == Counter(range(20))


@pytest.mark.long
def test_delta_table_with_columns_of_all_sorts_is_still_sparks_to_change(spark: SparkSession, tmp_path: Path) -> None:
    """Spark refuses a list that names a column without statistics, at each change of the table's metadata."""
    spark.conf.set("spark.databricks.delta.properties.defaults.enableDeletionVectors", "false")
    extra = {
        "`x.y`": "id", "`c-d`": "id", "`c``d`": "id", "flag": "true", "bin": "CAST('x' AS BINARY)",
        "list": "array(id)", "map": "map('a', id)", "s": "struct(id AS u, true AS v, struct('x' AS w) AS inner)",
        "dec": "CAST(id AS DECIMAL(20, 2))", "day": "DATE'2013-01-01'", "ntz": "TIMESTAMP_NTZ'2013-01-01 00:00:00'",
        "place": "'x'",
    }  # fmt: skip
    sink = DeltaSink(str(tmp_path / "t"), "live", ["place"])
    frame = rows(spark, 0, 10, "run-0", 40, **extra)
    put(sink, frame, 0)
    sink.check(frame.schema)
    table = DeltaTable(sink.path)
    assert (hidden(table), table.version()) == ([], 1)
    wanted = table.metadata().configuration[LIST]
    spark.sql(f"ALTER TABLE delta.`{sink.path}` SET TBLPROPERTIES ('{LIST}' = '{wanted}')")
    spark.sql(f"ALTER TABLE delta.`{sink.path}` ADD COLUMN (more STRING)")
    spark.sql(f"OPTIMIZE delta.`{sink.path}`")
    (add,) = [a for a in _adds(Path(sink.path)) if not a["path"].startswith("batches/")]
    seen = json.loads(add["stats"])["minValues"]
    assert {"_run", "_topic", "_partition", "_offset", "_timestamp", "c00", "c30"} <= seen.keys()
    with pytest.raises(IllegalArgumentException, match="list"):
        spark.sql(f"ALTER TABLE delta.`{sink.path}` SET TBLPROPERTIES ('{LIST}' = '{wanted},list')")


def test_delta_counts_files_whose_log_does_not_name_their_run(spark: SparkSession, tmp_path: Path) -> None:
    frame = rows(spark, 0, 10, "run-0", 40)
    sink = DeltaSink(str(tmp_path / "t"), "live")
    put(sink, frame, 0)
    put(sink, rows(spark, 10, 20, "run-1", 40), 1)
    mixed = rows(spark, 20, 30, "x", 40).withColumn("_run", F.when(F.col("id") < 24, "run-1")).coalesce(1)
    bounds = {key: {"_run": "run-1"} for key in ("minValues", "maxValues")}
    for number, stats in enumerate(({}, {**bounds, "nullCount": {"_run": 6}}, None)):  # writers without runs have none
        mixed.write.parquet(f"{sink.path}/theirs-{number}")
        (file,) = Path(sink.path, f"theirs-{number}").glob("*.parquet")
        path = str(file.relative_to(sink.path))
        table = DeltaTable(sink.path)
        text = None if stats is None else json.dumps({"numRecords": 10, **stats})
        action = AddAction(path, file.stat().st_size, {}, 1, True, text)
        table.create_write_transaction([action], "append", table.schema(), [])
        found, count = sink.rows_of(spark, ["run-1"])
        assert (found.count(), count) == (10 + 4 * (number + 1), 10 + 4 * (number + 1))


def settle(sink: DeltaSink, staged: Staged, schema: StructType, together: threading.Barrier) -> bool:
    together.wait()
    sink.check(schema)
    return sink.commit(staged, schema, 0, NOTE)


@pytest.mark.long
def test_delta_sets_statistics_while_others_commit(spark: SparkSession, tmp_path: Path) -> None:
    frame, together = rows(spark, 0, 4, "run-0", 40), threading.Barrier(4)
    for round_ in range(4):
        path = tmp_path / f"t{round_}"
        earlier(path, frame)
        sinks = [DeltaSink(str(path), f"app-{n}") for n in range(4)]
        staged = [
            sink.stage(rows(spark, n * 4, n * 4 + 4, f"run-{n}", 40), f"p{n}-e1-000000") for n, sink in enumerate(sinks)
        ]
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(partial(settle, schema=frame.schema, together=together), sinks, staged))
        table = DeltaTable(str(path))
        assert hidden(table) == []
        assert ids(path) == Counter(range(16))
        assert [sink.version() for sink in sinks] == [0] * 4


def test_delta_goes_on_with_a_table_whose_properties_cannot_be_set(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    frame = rows(spark, 0, 10, "run-0", 40)
    sink = earlier(tmp_path / "t", frame)
    put(sink, frame, 0)
    put(sink, rows(spark, 10, 20, "run-1", 40), 1)

    monkeypatch.setattr(TableAlterer, "set_table_properties", mock.Mock(side_effect=DeltaError("no")))
    sink.check(frame.schema)
    assert "read every file" in caplog.text
    found, count = sink.rows_of(spark, ["run-1"])
    assert (ids(found), count) == (Counter(range(10, 20)), 10)
    assert list(sink.held(march(5, 7))["t", 0]) == [5, 6]


def test_delta_reads_a_log_once_for_a_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = rows(spark, 0, 10, "run-0", 40)
    put(DeltaSink(str(tmp_path / "t"), "live"), frame, 0)
    opened: list[str] = []
    monkeypatch.setattr("sluice_spark.sinks.delta.handle._OPEN", OpenTables())
    monkeypatch.setattr(
        "sluice_spark.sinks.delta.open_tables.DeltaTable", lambda path: opened.append(path) or DeltaTable(path)
    )
    monkeypatch.setattr("sluice_spark.sinks.delta.handle.DeltaTable", None)
    live, redriven = DeltaSink(str(tmp_path / "t"), "live"), DeltaSink(str(tmp_path / "t"), "live:0")
    for version in (1, 2):
        assert not live.is_cut_off()
        assert (live.version(), redriven.version()) == (version - 1, -1)
        live.check(frame.schema)
        put(live, rows(spark, version * 10, version * 10 + 10, f"run-{version}", 40), version)
        live.sweep(f"p-e1-{version:06d}")
        assert [note["version"] for note in live.notes(version - 1)] == [version]
        assert live.rows_of(spark, [f"run-{version}"])[1] == 10
        replaced(DeltaSink(live.path, f"interval-{version}"), march(2, 4), rows(spark, 2, 4, "again", 40))
    assert len(opened) == 1


def test_delta_sweep_takes_files_that_no_commit_names(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "t"), "live", ["place"])
    kept = sink.stage(rows(spark, 0, 4, place="concat('batches/', id % 2, ' %')"), "p ü-e1-000001")
    dead = sink.stage(rows(spark, 0, 4, place="'x'"), "p ü-e1-000001")
    assert sink.commit(kept, rows(spark, 0, 0, place="'x'").schema, 1, NOTE)
    sink.sweep("p ü-e1-000001")
    assert folders(tmp_path / "t") == {kept.folder.removeprefix("batches/")}, dead.folder
