"""Queries whose frames are not executed generate no code."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice_spark.engine.compiling import compiled, not_compiled

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
