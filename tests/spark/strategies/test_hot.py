"""Holding a batch twice: what is kept, for how long, and what is said where there is nobody to keep it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.ranges import OffsetRange
from sluice_spark.strategies import hot
from sluice_spark.strategies.hot import Hot, executors, held_twice

pytestmark = pytest.mark.spark

NOT_KEPT = StorageLevel(False, False, False, False, 1)


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Path:
    """Three records that can be taken away."""
    folder = tmp_path / "source"
    spark.range(3).withColumn("value", F.lit(b"v")).write.parquet(str(folder))
    return folder


@pytest.fixture
def records(spark: SparkSession, source: Path) -> DataFrame:
    return spark.read.parquet(str(source))


def test_a_local_master_is_one_executor_whatever_its_cores(spark: SparkSession) -> None:
    assert spark.conf.get("spark.master") == "local[2]"
    assert executors(spark) == 1


def test_with_one_executor_the_batch_is_passed_on_as_it_came_and_the_reason_told(records: DataFrame) -> None:
    with held_twice(records) as (frame, degraded):
        assert frame is records
        assert degraded == "there is one executor, and a second copy needs two"
        assert frame.storageLevel == NOT_KEPT
        assert frame.count() == 3


def test_a_held_batch_was_read_before_the_block_begins_and_is_not_read_again(
    records: DataFrame, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot, "executors", lambda spark: 2)
    with held_twice(records) as (frame, degraded):
        assert degraded is None
        assert frame.storageLevel == StorageLevel.MEMORY_AND_DISK_2
        shutil.rmtree(source)
        derived = frame.where("id > 0").withColumn("text", F.col("value").cast("string"))
        assert sorted(row.text for row in derived.collect()) == ["v", "v"]
        assert frame.count() == 3


def test_a_batch_is_released_when_the_work_on_it_fails(records: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "executors", lambda spark: 2)
    with pytest.raises(ValueError, match="the work failed"), held_twice(records) as (frame, _):
        raise ValueError("the work failed")
    assert frame.storageLevel == records.storageLevel == NOT_KEPT


def test_a_batch_that_cannot_be_read_is_released_and_says_so(
    records: DataFrame, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot, "executors", lambda spark: 2)
    shutil.rmtree(source)
    with pytest.raises(Exception, match="parquet"), held_twice(records):
        raise AssertionError("the block began")
    assert records.storageLevel == NOT_KEPT


class Source:
    """Reads records from files; it can say nothing else of them."""

    def __init__(self, records: DataFrame) -> None:
        self.records = records

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        return self.records

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


ALL = [OffsetRange("t", 0, 0, 3)]


@pytest.fixture
def numbered(spark: SparkSession, tmp_path: Path) -> tuple[Source, Path]:
    folder = tmp_path / "numbered"
    frame = spark.range(3).selectExpr("'t' AS topic", "0 AS partition", "id AS offset")
    frame.write.parquet(str(folder))
    return Source(spark.read.parquet(str(folder))), folder


def test_what_an_operator_let_out_is_held_at_once_and_the_records_once_they_are_read(
    records: DataFrame, source: Path, numbered: tuple[Source, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot, "executors", lambda spark: 2)
    monkeypatch.setattr(hot, "_local", lambda spark: False)
    counted, folder = numbered
    told: list[str] = []
    with Hot().hold_let_out(records, counted, told.append) as held:
        assert held.frame is not None
        assert held.frame.storageLevel == StorageLevel.MEMORY_AND_DISK_2
        shutil.rmtree(source)
        assert held.frame.count() == 3
        assert held.source.read(ALL).count() == 3
        shutil.rmtree(folder)
        assert held.source.read(ALL).count() == 3
        assert [row.offset for row in held.source.read([OffsetRange("t", 0, 1, 2)]).collect()] == [1]
    assert held.frame.storageLevel == counted.records.storageLevel == NOT_KEPT
    assert not told


def test_with_one_executor_nothing_of_an_operator_is_held_and_the_reason_told_once(
    records: DataFrame, numbered: tuple[Source, Path]
) -> None:
    told: list[str] = []
    with Hot().hold_let_out(records, numbered[0], told.append) as held:
        assert (held.frame, held.source) == (records, numbered[0])
    assert told == ["there is one executor, and a second copy needs two"]
