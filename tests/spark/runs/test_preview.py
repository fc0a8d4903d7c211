"""Previews: the newest records and the quarantine are decoded, and nothing is written."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.runs import Sandbox

from sluice.errors import SluiceError
from sluice.pipeline import load
from sluice.ranges import OffsetRange
from sluice.run.actions import Preview, TryQuarantined
from sluice.sources.state import PartitionState, TopicState
from sluice_spark.runs.preview import newest, preview, still_refused

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

FOUR = Preview(Path("not used"), 4)


def test_preview_takes_the_newest_of_each_partition() -> None:
    states = [TopicState("t", "id", {0: PartitionState(0, 100), 1: PartitionState(5, 7), 2: PartitionState(4, 4)})]
    assert newest(states, 10) == [OffsetRange("t", 0, 92, 100), OffsetRange("t", 1, 5, 7)]
    assert newest(states, 1) == [OffsetRange("t", 1, 6, 7)]
    assert newest([], 5) == []


def test_preview_decodes_and_transforms_and_writes_nothing(sandbox: Sandbox, spark: SparkSession) -> None:
    sandbox.configure(
        transform={"sql": "SELECT *, id * 2 AS twice FROM source WHERE id > 1"},
        rows="filter",
        rules=[{"name": "small", "sql": {"passes": "id < 9", "column": "id"}}],
    )
    values = [{"id": 1, "door": 1}, {"id": 2, "name": "b", "door": 2, "x": 1}, {"id": 9}, {"id": "x"}]
    sandbox.produce([(0, b"old", b"{}"), *((0, b"k", json.dumps(value).encode()) for value in values)])
    before = sorted(sandbox.home.rglob("*"))
    with mock.patch.dict(os.environ, sandbox.env(), clear=True):
        found = preview(load(sandbox.file), FOUR, lambda: spark)
    assert (found["records"], found["rows"]) == (4, 1)
    assert [(r["offset"], r["rule"], r["column"], r["detail"]) for r in found["refused"]] == [
        (3, "small", "id", "9"), (4, "type", "id", '"x"'),
    ]  # fmt: skip
    (row,) = map(json.loads, found["shown"])
    assert (row["id"], row["name"], row["twice"], row["_offset"]) == (2, "b", 4, 2)
    assert sorted(sandbox.home.rglob("*")) == before
    assert found["table"] == {"differences": [], "ways_out": []}
    assert "in 2 of 4 records that were looked at: «door (2), x (1)»" in found["unknown_fields"]

    small = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "twice", "max_value": 3}}
    (sandbox.home / "suite.json").write_text(json.dumps({"expectations": [small, {**small, "severity": "info"}]}))
    sandbox.configure(
        transform={"sql": "SELECT *, id * 2 AS twice FROM source"}, quality={"suite": "suite.json", "split": "critical"}
    )
    with mock.patch.dict(os.environ, sandbox.env(), clear=True):
        found = preview(load(sandbox.file), FOUR, lambda: spark)
    assert (found["records"], found["rows"]) == (4, 1)
    rules = Counter((r["rule"], r["column"]) for r in found["refused"])
    assert rules == {("expect_column_values_to_be_between", "twice"): 2, ("type", "id"): 1}
    assert [item["row_rule"] for item in found["suite"]] == [True, False]

    sandbox.configure(transform={"sql": "SELECT *, raise_error('no') AS e FROM source"})
    with mock.patch.dict(os.environ, sandbox.env(), clear=True), pytest.raises(SluiceError) as failed:
        preview(load(sandbox.file), FOUR, lambda: spark)
    assert "nothing" in failed.value.state

    sandbox.configure()
    sandbox.run("live")
    (note,) = sandbox.ledger.runs.known(sandbox.name, "live").notes
    assert "in 2 of 5 records that were looked at: «door (2), x (1)»" in note
    sandbox.configure(decode={"json": {"schema": "id STRING, name STRING, tax DOUBLE"}})
    with mock.patch.dict(os.environ, sandbox.env(), clear=True):
        spec = load(sandbox.file)
        table = preview(spec, replace(FOUR, records=2), lambda: spark)["table"]
        assert table["differences"] == [
            "tax: only in the pipeline", "id: bigint in the table, string in the pipeline",
        ]  # fmt: skip
        assert "ADD COLUMNS (tax double)" in table["ways_out"][0]
        tried = still_refused(spec, TryQuarantined(Path("not used")), lambda: spark)
        assert tried == {"pipeline": sandbox.name, "records": 1, "decodable": 1, "still": [], "table": table}
        tried = still_refused(spec, TryQuarantined(Path("not used"), of_run="another"), lambda: spark)
        assert tried["records"] == 0
    assert len(sandbox.quarantine()) == 1, "it is still there"
