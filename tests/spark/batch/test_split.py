"""Refused records, and those whose rows break a row rule of the suite, go to the quarantine and not to the sink."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.held import Held
from tests.fixtures.wal import EPOCH, frame, record, span

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice.pipeline.sections import EVERYTHING, Decode
from sluice.ranges import OffsetRange
from sluice.run.actions import TryQuarantined
from sluice_spark.batch.account import PromiseError
from sluice_spark.batch.quarantine import SCHEMA, opened, refused_records
from sluice_spark.batch.split import Split, SplitTally
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.decoders.base import RULE, decode
from sluice_spark.runs.preview import still_refused
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.transforms import transform as transforms
from sluice_spark.transforms.sample import shape_of

pytestmark = pytest.mark.spark


def expect(kind: str, severity: str = "critical", split: bool | None = None, **kwargs: Any) -> dict[str, Any]:
    meta = {} if split is None else {"meta": {"split": split}}
    return {"type": f"expect_column_values_to_{kind}", "kwargs": kwargs, "severity": severity, **meta}


POSITIVE = expect("be_between", column="n", min_value=0, strict_min=True)
NAMED = expect("not_be_null", column="name")
DOUBLED = "SELECT id * 2 AS n, name, _topic, _partition, _offset, _timestamp FROM source"


def pipeline(folder: Path, *expectations: dict[str, Any], split: str = "critical", **keys: Any) -> Pipeline:
    (folder / "suite.json").write_text(json.dumps({"name": "s", "expectations": list(expectations)}))
    spec = {
        "pipeline": "p",
        "source": {"kafka": {"topics": ["t", "u"]}},
        "decode": {"json": {"schema": "id BIGINT, name STRING"}},
        "transform": {"sql": DOUBLED},
        "sink": {"delta": {"path": str(folder / "table")}},
        "quality": {"suite": "suite.json", "split": split},
        **keys,
    }
    (folder / "p.yaml").write_text(yaml.safe_dump(spec))
    return load(folder / "p.yaml")


VALUES: dict[tuple[str, int], list[dict[str, Any] | bytes]] = {
    ("t", 0): [{"id": 1, "name": "a"}, {"id": 0, "name": None}, {"id": 2, "name": None}, b"{", {"id": -1, "name": "b"}],
    ("t", 3): [{"id": 1, "name": "a"}],
    ("u", 0): [{"id": None, "name": "c"}, {"id": -7, "name": "c"}],
}
RANGES = [span(0, len(values), partition, topic) for (topic, partition), values in VALUES.items()]
BETWEEN, NULL = ("expect_column_values_to_be_between", "n"), ("expect_column_values_to_not_be_null", "name")


def records(spark: SparkSession) -> DataFrame:
    made = [
        record(offset, partition, topic, value=value if isinstance(value, bytes) else json.dumps(value).encode())
        for (topic, partition), values in VALUES.items()
        for offset, value in enumerate(values)
    ]
    return frame(spark, made)


def prepare(
    spark: SparkSession,
    spec: Pipeline,
    held: Held,
    ranges: Sequence[OffsetRange],
    within: tuple[int, int] | None = None,
) -> tuple[PreparedBatch, BatchWriter]:
    transform = transforms.transformer(spec)
    schema = shape_of(spark, spec, transform).schema
    sink, quarantine = DeltaSink(spec.sink.config.location, "a"), opened(spec.quarantine_path, "q")
    split = Split.of(spark, spec, schema)
    writer = BatchWriter(spec, "r", transform, schema, sink, quarantine, within, split=split)
    return writer.prepare(None, "b", ranges, held), writer


def prepared(spark: SparkSession, spec: Pipeline) -> tuple[PreparedBatch, BatchWriter, Held]:
    held = Held(records(spark).persist())
    done, writer = prepare(spark, spec, held, RANGES)
    writer.commit(0, done, {}, "b")
    return done, writer, held


def offsets(rows: DataFrame) -> Counter[tuple[str, int, int]]:
    return Counter((r[0], r[1], r[2]) for r in rows.select("_topic", "_partition", "_offset").collect())


@pytest.mark.parametrize("rows", ["one", "filter"])
def test_split_sends_rows_that_break_a_rule_to_the_quarantine(spark: SparkSession, tmp_path: Path, rows: str) -> None:
    sql = DOUBLED if rows == "one" else f"{DOUBLED} WHERE id IS NOT NULL"
    spec = pipeline(tmp_path, POSITIVE, NAMED, transform={"sql": sql}, rows=rows)
    done, writer, held = prepared(spark, spec)
    counts = {(a.range.topic, a.range.partition): a.counts for a in done.accounts}
    assert {key: (c.written, c.filtered, c.quarantined) for key, c in counts.items()} == {
        ("t", 0): (1, 0, 4),
        ("t", 3): (1, 0, 0),
        ("u", 0): (1, 0, 1) if rows == "one" else (0, 1, 1),
    }
    good = [("t", 0, 0), ("t", 3, 0), *([("u", 0, 0)] if rows == "one" else [])]
    assert offsets(writer.sink.rows(spark)) == Counter(good)
    assert writer.sink.rows(spark).columns == writer.schema.names
    found = writer.quarantine.rows(spark).collect()
    assert {(r._topic, r._partition, r._offset): (r._errors[0].rule, r._errors[0].column) for r in found} == {
        ("t", 0, 1): BETWEEN,  # the first in the order of the suite
        ("t", 0, 2): NULL,
        ("t", 0, 3): ("json", None),
        ("t", 0, 4): BETWEEN,
        ("u", 0, 1): BETWEEN,
    }
    assert len(found) == 5
    assert held.asked == [RANGES, RANGES], "the transform may make a row of several records: all are read again"
    if rows == "filter":
        return
    judged = writer.judged(held.records)  # blame falls on records that decoded
    assert judged.count() == sum(map(len, VALUES.values()))
    assert judged.where(f"`{RULE}` = 'json'").count() == 1
    now = pipeline(tmp_path, NAMED)  # a dry run of a redrive goes by the suite of now
    tried = still_refused(now, TryQuarantined(tmp_path / "not used"), lambda: spark)
    assert (tried["records"], tried["decodable"]) == (5, 2)
    assert tried["still"] == [
        {"rule": NULL[0], "column": NULL[1], "records": 2}, {"rule": "json", "column": None, "records": 1},
    ]  # fmt: skip


def test_split_does_not_hide_a_transform_that_loses_records(spark: SparkSession, tmp_path: Path) -> None:
    spec = pipeline(tmp_path, POSITIVE, NAMED, transform={"sql": f"{DOUBLED} WHERE id IS NOT NULL"})
    with pytest.raises(PromiseError, match="rows: one"):
        prepared(spark, spec)


def test_split_without_a_transform_reads_only_partitions_with_such_rows(spark: SparkSession, tmp_path: Path) -> None:
    spec = pipeline(tmp_path, {**POSITIVE, "kwargs": {"column": "id", "min_value": 0}}, transform={"sql": EVERYTHING})
    done, writer, held = prepared(spark, spec)
    assert sum(a.counts.quarantined for a in done.accounts) == 3
    assert held.asked == [RANGES, [RANGES[0], RANGES[2]]]
    assert offsets(writer.sink.rows(spark)) == Counter(
        [("t", 0, 0), ("t", 0, 1), ("t", 0, 2), ("t", 3, 0), ("u", 0, 0)]
    )


def test_split_reads_a_batch_without_such_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    spec = pipeline(tmp_path, expect("be_between", column="n", min_value=-100))
    held = Held(records(spark).where("value != '{'"))
    done, _ = prepare(spark, spec, held, [span(0, 3), *RANGES[1:]])
    assert done.quarantine is None
    assert sum(a.counts.written for a in done.accounts) == 6
    assert len(held.asked) == 1


def test_split_counts_what_several_tasks_let_pass_and_again_if_that_is_unknown(
    spark: SparkSession, tmp_path: Path
) -> None:
    some = ("'t' AS _topic", "INT(id % 2 * 3) AS _partition", "id AS _offset", "IF(id % 6 = 0, NULL, id % 3 - 1) AS n")
    rows = spark.range(60).selectExpr(*some)
    split, again = Split.of(spark, pipeline(tmp_path, POSITIVE), rows.schema), list[DataFrame]()
    for observed in (True, False):
        tally = SplitTally(split, rows.repartition(4), lambda: again.append(rows) or rows, RANGES)
        assert {r.n for r in tally.frame.collect()} == {1, None}
        if not observed:
            tally._observation.__dict__.pop("_jo", None)
            tally.__dict__["_observation"] = None
        assert tally.counts == {("t", 0): 10, ("t", 3): 20}
        assert bool(again) is not observed


def test_split_refuses_an_expectation_that_must_split_and_cannot(spark: SparkSession, tmp_path: Path) -> None:
    def refused(**keys: Any) -> str:
        spec = pipeline(tmp_path, expect("be_unique", column="n", split=True), split="none", **keys)
        with pytest.raises(ConfigError) as caught:
            Split.of(spark, spec, shape_of(spark, spec, transforms.transformer(spec)).schema)
        return caught.value.what

    assert "single rows" in refused()
    assert "rows: many" in refused(rows="many")


def test_split_does_not_judge_records_outside_of_an_interval(spark: SparkSession, tmp_path: Path) -> None:
    spec = pipeline(tmp_path, POSITIVE, NAMED)
    began = int(EPOCH.timestamp() * 1000)
    done, _ = prepare(spark, spec, Held(records(spark)), RANGES, (began + 1000, began + 3000))
    counts = [(c.written, c.filtered, c.quarantined) for c in (a.counts for a in done.accounts)]
    assert counts == [(0, 3, 2), (0, 1, 0), (0, 1, 1)]
    assert done.quarantine.rows == 3


def test_quarantine_keeps_refused_records_verbatim_and_no_others(spark: SparkSession) -> None:
    headers = [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}]
    records = [
        record(0, value=b'{"i": 1}'),
        record(1, value=b'{"i": "x"}', headers=headers),
        record(2, value=None, key=None, partition=4),
        record(3, value=b"\x00?", topic="u"),
    ]
    spec = Decode(json={"schema": "i INT NOT NULL"})
    decoded = decode(frame(spark, records), spec)
    refused = refused_records(decoded, "the run", spec)
    assert refused.dtypes == [(field.name, field.dataType.simpleString()) for field in SCHEMA]
    first, second, third = sorted(refused.collect(), key=lambda row: row._offset)
    assert (bytes(first.key), bytes(first.value), [h.asDict() for h in first.headers]) == (b"k", b'{"i": "x"}', headers)
    assert (second.key, second.value, second.headers, bytes(third.value)) == (None, None, None, b"\x00?")
    assert [(r._topic, r._partition, r._offset, r._run) for r in (first, second, third)] == [
        ("t", 0, 1, "the run"), ("t", 4, 2, "the run"), ("u", 0, 3, "the run"),
    ]  # fmt: skip
    (time,) = refused.where("_offset = 1").selectExpr("unix_millis(_timestamp)").first() or ()
    assert time == int((EPOCH + timedelta(seconds=1)).timestamp() * 1000)
    assert [[e.asDict() for e in r._errors] for r in (first, second, third)] == [
        [{"rule": "type", "severity": "critical", "column": "i", "detail": "x"}],
        [{"rule": "null_value", "severity": "critical", "column": None, "detail": None}],
        [{"rule": "json", "severity": "critical", "column": None, "detail": "2 characters, ending in \x00?"}],
    ]


def test_quarantine_names_the_offending_text_of_a_field(spark: SparkSession) -> None:
    spec = Decode(json={"schema": "i INT, `a.b` INT, `it's` INT, o STRUCT<x: INT>, d DECIMAL(5,2), s STRING"})
    values = {
        b'{"i": 1.50}': ("type", "i", "1.5"),
        b'{"a.b": "q"}': ("type", "a.b", "q"),
        b'{"it\'s": "q"}': ("type", "it's", None),
        b'{"o": {"x": "1"}}': ("type", "o", '{"x":"1"}'),
        b'{"d": 1.005}': ("digits", "d", "1.005"),
        b'{"i": "%s"}' % (b"x" * 500): ("type", "i", "x" * 200),
        b'{"i": 1, "s": "abc': ("json", None, '18 characters, ending in {"i": 1, "s": "abc'),
        b"\xff": ("utf8", None, None),
    }
    decoded = decode(frame(spark, [record(n, value=value) for n, value in enumerate(values)]), spec)
    found = refused_records(decoded, "r", spec).collect()
    assert {bytes(r.value): tuple(r._errors[0][n] for n in ("rule", "column", "detail")) for r in found} == values
