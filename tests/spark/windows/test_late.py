"""The rule of late records agrees with Spark's own windows, whatever size and slide, before and after 1970."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.pipeline.window import Window
from sluice_spark.windows.late import inside, late, partly_late
from sluice_spark.windows.watermark import seconds

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("size", "slide"), [("60s", None), ("60s", "60s"), ("60s", "20s"), ("60s", "25s"), ("50s", "49s"), ("1s", None)]
)
@pytest.mark.parametrize("watermark", [0, 120_000, 119_999, 90_500, -60_000])
def test_a_record_is_late_for_windows_that_end_at_the_watermark(
    spark: SparkSession, size: str, slide: str | None, watermark: int
) -> None:
    window = Window(time="at", size=size, slide=slide, aggregates={"n": "count(*)"}, watermark=timedelta(0))  # type: ignore[arg-type]
    micros = [n * 500_000 for n in range(-300, 400)] + [-1, 1, 59_999_999, 60_000_001]
    rows = spark.createDataFrame([(m,) for m in micros], "us LONG").select("us", F.timestamp_micros("us").alias("at"))
    told = rows.select("us", late(window, watermark).alias("all"), partly_late(window, watermark).alias("some"))
    found = {row["us"]: (row["all"], row["some"]) for row in told.collect()}
    span = F.window("at", seconds(window.length), seconds(window.step))
    ends = rows.select("us", F.unix_micros(span["end"]).alias("end"))
    closed: dict[int, set[bool]] = {}
    for row in ends.collect():
        closed.setdefault(row["us"], set()).add(row["end"] <= watermark * 1000)
    assert found == {us: (all(of), len(of) == 2) for us, of in closed.items()}
    assert found.keys() == set(micros)


@pytest.mark.parametrize(("size", "slide"), [("60s", None), ("60s", "20s"), ("60s", "25s"), ("50s", "49s")])
@pytest.mark.parametrize(("start", "until"), [(0, 60_000), (-61_000, 20_000), (30_500, 30_501), (25_000, 25_001)])
def test_a_record_is_in_an_interval_if_one_of_its_windows_begins_there(
    spark: SparkSession, size: str, slide: str | None, start: int, until: int
) -> None:
    window = Window(time="at", size=size, slide=slide, aggregates={"n": "count(*)"}, watermark=timedelta(0))  # type: ignore[arg-type]
    micros = [n * 500_000 for n in range(-300, 400)] + [-1, 1, 59_999_999, 60_000_001]
    rows = spark.createDataFrame([(m,) for m in micros], "us LONG").select("us", F.timestamp_micros("us").alias("at"))
    told = rows.where(inside(window, start, until)).select("us").collect()
    begin = F.unix_micros(F.window("at", seconds(window.length), seconds(window.step))["start"]).alias("begin")
    wanted = {r["us"] for r in rows.select("us", begin).collect() if start * 1000 <= r["begin"] < until * 1000}
    assert {row["us"] for row in told} == wanted
