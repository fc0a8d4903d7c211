"""The contract of recovery strategies: what they do with a batch that is sound, fails in part, or is partly gone."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.fixtures.decoding import Record, frame_of
from tests.fixtures.held import Held

from sluice.errors import ExitCode, OffsetsGoneError, SluiceError
from sluice.pipeline import load
from sluice.ranges import OffsetRange
from sluice.recovery import Recovery
from sluice_spark.batch.quarantine import opened
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.strategies import hot
from sluice_spark.strategies.base import Batch
from sluice_spark.strategies.by_name import STRATEGIES
from sluice_spark.strategies.hot import executors, held_twice
from sluice_spark.transforms.sample import shape_of
from sluice_spark.transforms.transform import transformer

pytestmark = pytest.mark.spark

NOT_KEPT = StorageLevel(False, False, False, False, 1)
ONE = "there is one executor, and a second copy needs two"
EACH = pytest.mark.parametrize("name", list(Recovery))
WHOLE = OffsetRange("t", 3, 0, 12)
POISON, BAD = 5, 9


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> DataFrame:
    values = [b"{" if n == BAD else json.dumps({"id": n}).encode() for n in range(12)]
    return frame_of(spark, [Record(value) for value in values]).persist()


def prepared(spark: SparkSession, folder: Path, name: Recovery, source: Held, *, poison: bool) -> Any:
    """Prepare a batch; return its counts, and the offsets of rows and of lost ranges."""
    fails = f"SELECT *, IF(id = {POISON}, raise_error('poison'), id) AS checked FROM source"
    spec = {
        "pipeline": "p", "source": {"kafka": {"topics": ["t"]}}, "decode": {"json": {"schema": "id BIGINT"}},
        "sink": {"delta": {"path": str(folder / "table")}}, **({"transform": {"sql": fails}} if poison else {}),
    }  # fmt: skip
    (folder / "p.yaml").write_text(yaml.safe_dump(spec))
    pipeline = load(folder / "p.yaml")
    transform = transformer(pipeline)
    sink, quarantine = DeltaSink(str(folder / "table"), "a"), opened(pipeline.quarantine_path, "q")
    writer = BatchWriter(pipeline, "r", transform, shape_of(spark, pipeline, transform).schema, sink, quarantine)
    batch = Batch("b", (WHOLE,), source, source.read([WHOLE]), spark)  # type: ignore[arg-type]
    done = STRATEGIES[name].prepare(writer, batch)
    writer.commit(0, done, {}, "b")
    counts: Counter[str] = Counter()
    for account in done.accounts:
        counts.update({part: getattr(account.counts, part) for part in ("written", "quarantined", "lost")})
    rows = sorted(r._offset for r in sink.rows(spark).collect()) if done.staged.rows else []
    return dict(counts), rows, [n for lost in done.lost for n in range(lost.range.start, lost.range.end)]


@EACH
def test_strategy_writes_a_sound_batch_whole(
    spark: SparkSession, tmp_path: Path, records: DataFrame, name: Recovery
) -> None:
    counts, rows, lost = prepared(spark, tmp_path, name, Held(records), poison=False)
    assert counts == {"written": 11, "quarantined": 1, "lost": 0}
    assert (rows, lost) == ([n for n in range(12) if n != BAD], [])


@EACH
def test_strategy_loses_of_a_batch_that_fails_what_its_name_says(
    spark: SparkSession, tmp_path: Path, records: DataFrame, name: Recovery
) -> None:
    if not name.ignores:
        with pytest.raises(SluiceError, match="poison") as failed:
            prepared(spark, tmp_path, name, Held(records), poison=True)
        assert failed.value.exit_code is ExitCode.OTHER
        assert not (tmp_path / "table" / "_delta_log").exists()
        return
    counts, rows, lost = prepared(spark, tmp_path, name, Held(records), poison=True)
    if name is Recovery.IGNORE_BATCH:
        assert (counts, rows, lost) == ({"written": 0, "quarantined": 0, "lost": 12}, [], [*range(12)])
    else:
        assert counts == {"written": 10, "quarantined": 1, "lost": 1}
        assert (rows, lost) == ([n for n in range(12) if n not in (POISON, BAD)], [POISON])


@EACH
def test_strategy_loses_of_a_batch_that_is_partly_gone_what_its_name_says(
    spark: SparkSession, tmp_path: Path, records: DataFrame, name: Recovery
) -> None:
    source = Held(records, (OffsetRange("t", 3, 0, 3),))
    gone = OffsetsGoneError("gone", state="s", next_step="n", ranges=source.gone)
    if not name.ignores:
        with pytest.raises(OffsetsGoneError):
            STRATEGIES[name].admit(gone)
        with pytest.raises(OffsetsGoneError) as failed:
            prepared(spark, tmp_path, name, source, poison=False)
        assert failed.value.ranges == source.gone
        return
    STRATEGIES[name].admit(gone)
    counts, rows, lost = prepared(spark, tmp_path, name, source, poison=False)
    if name is Recovery.IGNORE_BATCH:
        assert (counts, rows, lost) == ({"written": 0, "quarantined": 0, "lost": 12}, [], [*range(12)])
    else:
        assert counts == {"written": 8, "quarantined": 1, "lost": 3}
        assert (rows, lost) == ([n for n in range(3, 12) if n != BAD], [0, 1, 2])


# --- holding a batch -----------------------------------------------------------------------------------------------


@pytest.fixture
def taken_away(spark: SparkSession, tmp_path: Path) -> tuple[DataFrame, Path]:
    """Three records in a folder that can be taken away."""
    frame = spark.range(3).selectExpr("'t' AS topic", "3 AS partition", "id AS offset", "binary('v') AS value")
    frame.write.parquet(str(tmp_path / "records"))
    return spark.read.parquet(str(tmp_path / "records")), tmp_path / "records"


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were two executors."""
    monkeypatch.setattr(hot, "executors", lambda spark: 2)
    monkeypatch.setattr(hot, "_local", lambda spark: False)


@EACH
def test_strategy_holds_nothing_with_one_executor_and_hot_gives_the_reason_once(
    records: DataFrame, name: Recovery
) -> None:
    source = Held(records)
    own = STRATEGIES[name]
    reasons: list[str] = []
    with own.hold(records, source, reasons.append, later=False) as held:  # type: ignore[arg-type]
        assert (held.frame, held.source) == (records, source)
    with own.hold_emitted(records, source, reasons.append) as held:  # type: ignore[arg-type]
        assert (held.frame, held.source) == (records, source)
    assert reasons == ([ONE] * 2 if name is Recovery.HOT else [])


@pytest.mark.usefixtures("two")
def test_hot_holds_a_batch_that_was_read_before_the_block_begins(taken_away: tuple[DataFrame, Path]) -> None:
    frame, folder = taken_away
    with held_twice(frame) as (held, degraded):
        assert (held.storageLevel, degraded) == (StorageLevel.MEMORY_AND_DISK_2, None)
        shutil.rmtree(folder)
        derived = held.where("offset > 0").withColumn("text", F.col("value").cast("string"))
        assert [row.text for row in derived.collect()] == ["v", "v"]
    assert frame.storageLevel == NOT_KEPT


@pytest.mark.usefixtures("two")
def test_hot_releases_a_batch_whatever_fails(taken_away: tuple[DataFrame, Path]) -> None:
    frame, folder = taken_away
    with pytest.raises(ValueError, match="failed"), held_twice(frame):
        raise ValueError("the work failed")
    assert frame.storageLevel == NOT_KEPT
    shutil.rmtree(folder)
    with pytest.raises(Exception, match="parquet"), held_twice(frame):
        raise AssertionError("the block began")
    assert frame.storageLevel == NOT_KEPT


@pytest.mark.usefixtures("two")
def test_hot_holds_what_an_operator_passes_at_once_and_its_records_once_they_are_read(
    spark: SparkSession, taken_away: tuple[DataFrame, Path], tmp_path: Path
) -> None:
    frame, folder = taken_away
    shutil.copytree(folder, tmp_path / "passed")
    passed, source, reasons = spark.read.parquet(str(tmp_path / "passed")), Held(frame), list[str]()
    every = [OffsetRange("t", 3, 0, 3)]
    with STRATEGIES[Recovery.HOT].hold_emitted(passed, source, reasons.append) as held:  # type: ignore[arg-type]
        assert held.frame.storageLevel == StorageLevel.MEMORY_AND_DISK_2
        shutil.rmtree(tmp_path / "passed")
        assert held.frame.count() == held.source.read(every).count() == 3
        shutil.rmtree(folder)
        assert held.source.read(every).count() == 3
        assert [row.offset for row in held.source.read([OffsetRange("t", 3, 1, 2)]).collect()] == [1]
    assert held.frame.storageLevel == NOT_KEPT
    assert reasons == []


def test_hot_counts_a_local_master_as_one_executor(spark: SparkSession) -> None:
    assert spark.conf.get("spark.master") == "local[2]"
    assert executors(spark) == 1
