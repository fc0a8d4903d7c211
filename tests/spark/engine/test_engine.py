"""Spark as the driver uses it: compiled queries, failures of tasks, settings, and lines about stages."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.errors import SluiceError
from sluice_spark.engine import tasks
from sluice_spark.engine.code_generation import compiled, not_compiled
from sluice_spark.engine.failures import classify
from sluice_spark.engine.logs import logger
from sluice_spark.engine.settings import wrong_settings
from sluice_spark.strategies.ignore import can_be_ignored

pytestmark = pytest.mark.spark

CODE = "spark.sql.codegen.wholeStage"


def plan(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    frame.explain()
    return capsys.readouterr().out


def test_not_compiled_query_generates_no_code_until_its_frames_are_executed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
    found: list[tuple[str, str]] = []
    read: list[str] = []

    def on_batch(records: DataFrame, number: int) -> None:
        rows = records.where("value = '0'")
        before = plan(rows, capsys)
        if number:
            compiled(records, spark)
        found.append((before, plan(records.where("value = '0'"), capsys)))
        read.extend(row["value"] for row in records.collect())

    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    with not_compiled(spark):
        query = (
            stream.writeStream.foreachBatch(on_batch)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
    assert spark.conf.get(CODE) == "true"
    query.awaitTermination()
    assert sorted(read) == ["0", "1"]
    assert [["*(1)" in text for text in texts] for texts in found] == [[False, False], [False, True]]


def test_not_compiled_keeps_a_setting_of_the_user(spark: SparkSession) -> None:
    spark.conf.set(CODE, "false")
    try:
        with not_compiled(spark):
            assert spark.conf.get(CODE) == "false"
        assert spark.conf.get(CODE) == "false"
        with pytest.raises(ValueError, match="broke"), not_compiled(spark):
            raise ValueError("broke")
        frame = spark.newSession().range(1)
        compiled(frame, spark)
        assert frame.sparkSession.conf.get(CODE) == "false"
    finally:
        spark.conf.unset(CODE)


def test_transform_that_overflows_the_stack_is_reported_and_can_be_skipped(spark: SparkSession) -> None:
    # of a column: the driver itself would compute a constant
    long = spark.range(1).select(F.repeat(F.lit("a"), F.col("id").cast("int") + 200_000).alias("text"))
    with pytest.raises(Exception, match="StackOverflowError") as raised:
        long.where(F.col("text").rlike("^(a|b)*$")).write.format("noop").mode("overwrite").save()
    found = classify(raised.value, lambda: None)
    assert type(found) is SluiceError
    assert can_be_ignored(found)
    assert "-Xss" in found.next_step
    assert spark.range(3).count() == 3, "the session lives"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("spark.sql.shuffle.partitions", "16", None),
        ("spark.sql.shuffle.partitions", "many", "spark.sql.shuffle.partitions"),
        ("spark.sql.ansi.enabled", "yes, please", "spark.sql.ansi.enabled"),
        ("spark.sql.shufle.partitions", "16", "spark.sql.shuffle.partitions"),
        ("spark.sql.warehouse.dir", "/x", None),  # known, and for an application's start
        ("spark.sql.catalog.elsewhere.uri", "http://x", None),  # another package's
        ("spark.executor.memoryOverhead", "much", None),  # Spark has no list of these
    ],
)
def test_spark_settings_that_are_wrong_are_found(spark: SparkSession, key: str, value: str, named: str | None) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    found = list(wrong_settings(spark, {key: value}))
    assert len(found) == (named is not None), found
    assert all(f"spark.conf: {key}" in text or f"no setting {key}" in text for text in found)
    assert named is None or named in found[0]
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


def test_spark_stage_that_takes_long_is_logged(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(tasks, "_LOOK", 0.001)
    monkeypatch.setattr(tasks, "_EVERY", 0.0)
    caplog.set_level(logging.INFO, logger.name)
    for _ in range(50):  # how long a stage takes is the machine's
        with tasks.watched(spark, "batch 3"):
            spark.range(0, 2_000_000, 1, 30).selectExpr("max(sha2(cast(id AS STRING), 512))").collect()
        if lines := [line for line in caplog.messages if " of 30 tasks are done (" in line]:
            break
    assert lines[0].startswith("batch 3: ")
