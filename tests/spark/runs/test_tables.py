"""The tables of an epoch, beside those of other pipelines."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.sinks.delta.conftest import NOTE, folders, ids, rows

from sluice.home import Home
from sluice.ledger import Epoch
from sluice.pipeline import Pipeline
from sluice.recovery import Route
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING
from sluice_spark.sources.base import RECORD_SCHEMA

pytestmark = pytest.mark.spark

SHARED = {"source": {"kafka": {"topics": ["t"]}}, "decode": {"text": {}}, "sink": {"delta": {"path": "t"}}}


def test_state_tables_of_two_pipelines_do_not_sweep_each_other(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(str(tmp_path))
    ours, theirs = (
        Tables.of(Pipeline.model_validate({**SHARED, "pipeline": name}), home, Epoch(1, Route.DIRECT, None))
        for name in ("orders", "orders-e1-000000")
    )
    staged = theirs.sink.stage(rows(spark, 0, 3), theirs.batch_name(0))
    ours.sink.stage(rows(spark, 3, 6), ours.batch_name(0))
    ours.sweep(0)
    assert theirs.sink.commit(staged, rows(spark, 0, 0).schema, 0, NOTE)
    assert ids(tmp_path / "t") == Counter(range(3))
    assert folders(tmp_path / "t") == {staged.folder.split("/")[1]}


def test_tables_have_a_second_checkpoint_if_the_epoch_began_with_state_and_a_log(tmp_path: Path) -> None:
    home = Home(str(tmp_path))
    dedupe = {"keys": ["value"], "within": "1h"}
    plain, deduped = (
        Pipeline.model_validate({**SHARED, "pipeline": "orders", "recovery": "wal", **more})
        for more in ({}, {"dedupe": dedupe})
    )
    log, direct = (Epoch(1, route, None) for route in (Route.LOG, Route.DIRECT))
    second = home.applied("orders", 1)
    assert [Tables.of(deduped, home, epoch).applied for epoch in (log, direct)] == [second, None]
    assert Tables.of(plain, home, log).applied is None
    assert Tables.of(deduped, home, log).applying.checkpoint.path == second
    checkpoint = Tables.of(plain, home, log).checkpoint
    (Path(checkpoint.path) / "offsets").mkdir(parents=True)
    (Path(checkpoint.path) / "offsets" / "0").touch()
    assert Tables.of(deduped, home, log).applied is None, "it was begun without"
    checkpoint.define("dedupe", dedupe)
    assert Tables.of(plain, home, log).applied == second, "it was begun with dedupe"


def test_log_keeps_notes_of_waiting_batches_longer_than_delta_keeps_commits(tmp_path: Path) -> None:
    """While applying fails, landing goes on; commits of more than thirty days go with a checkpoint of the log."""
    pipeline = Pipeline.model_validate({**SHARED, "pipeline": "orders"})
    log = Tables.of(pipeline, Home(str(tmp_path)), Epoch(1, Route.LOG, None)).log_table
    for version in range(65):
        assert log.commit(NOTHING, RECORD_SCHEMA, version, {"batch": version})
        for file in Path(log.path, "_delta_log").glob("*.json"):
            os.utime(file, (0, time.time() - 40 * 86_400))
    assert [note["version"] for note in log.notes(-1)] == list(range(64, -1, -1))
