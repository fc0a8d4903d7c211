"""Windows are made of any sound transform, and the others are refused before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice_spark.transforms.sample import shape_of
from sluice_spark.transforms.transform import transformer

pytestmark = pytest.mark.spark

Make = Callable[..., Pipeline]
SCHEMA = "at TIMESTAMP, text STRING, `a.b` STRING, `ä ö` INT, v DOUBLE"


@pytest.fixture
def pipeline(tmp_path: Path) -> Make:
    def make(sql: str = "SELECT * FROM source", **window: Any) -> Pipeline:
        given = {"time": "at", "size": "1h", "aggregates": {"n": "count(*)"}, "watermark": "2h", **window}
        spec: dict[str, Any] = {
            "pipeline": "p", "source": {"kafka": {"topics": ["t"]}}, "decode": {"json": {"schema": SCHEMA}},
            "transform": {"sql": sql}, "rows": "filter", "window": given, "sink": {"delta": {"path": "p"}},
        }  # fmt: skip
        file = tmp_path / "p.yaml"
        file.write_text(yaml.safe_dump(spec))
        return load(file)

    return make


def test_the_sink_has_bounds_keys_and_aggregates(spark: SparkSession, pipeline: Make) -> None:
    made = pipeline(by=["a.b", "ä ö"], slide="30m", aggregates={"n": "count(*)", "the mean": "avg(v)"})
    shape = shape_of(spark, made, transformer(made))
    assert shape.schema.simpleString() == (
        "struct<window_start:timestamp,window_end:timestamp,a.b:string,ä ö:int,n:bigint,the mean:double,_run:string>"
    )


def test_sessions_have_the_same_columns(spark: SparkSession, pipeline: Make) -> None:
    made = pipeline(size=None, gap="30m", by=["a.b"])
    names = ["window_start", "window_end", "a.b", "n", "_run"]
    assert shape_of(spark, made, transformer(made)).schema.names == names


@pytest.mark.parametrize(
    ("sql", "window", "why"),
    [
        ("SELECT * FROM source", {"time": "ät"}, "window.time: the transform's result has no column 'ät'"),
        ("SELECT * FROM source", {"time": "text"}, "window.time: text is STRING, not TIMESTAMP"),
        ("SELECT * FROM source", {"by": ["w"]}, "window.by: the transform's result has no column 'w'"),
        ("SELECT * FROM source", {"aggregates": {"n": "v + 1"}}, "window.aggregates:"),
        ("SELECT * FROM source", {"aggregates": {"n": "sum(x)"}}, "window.aggregates:"),
        ("SELECT * FROM source", {"aggregates": {"n": "count(DISTINCT text)"}}, "approx_count_distinct"),
        ("SELECT * FROM source WHERE rand() < 0.5", {}, "rand() would give other rows"),
        ("SELECT * FROM source WHERE at > now() - INTERVAL 1 DAY", {}, "now() would give other rows"),
        ("SELECT *, uuid() AS id FROM source", {}, "uuid() would give other rows"),
        ("SELECT *, current_date AS today FROM source", {}, "current_date() would give other rows"),
        ("SELECT * FROM source ORDER BY at", {}, "'Sort'"),
        ("SELECT * FROM source LIMIT 5", {}, "'GlobalLimit'"),
        ("SELECT DISTINCT * FROM source", {}, "'Distinct'"),
        ("SELECT * FROM source UNION ALL SELECT * FROM source", {}, "'Union'"),
        ("SELECT s.* FROM source s JOIN (SELECT 1 AS v) t USING (v)", {}, "'Join'"),
        ("SELECT * FROM source WHERE v > (SELECT avg(v) FROM source)", {}, "'Aggregate'"),
        ("SELECT *, row_number() OVER (PARTITION BY text ORDER BY at) AS n FROM source", {}, "'Window'"),
    ],
)
def test_what_is_no_window_is_refused(
    spark: SparkSession, pipeline: Make, sql: str, window: dict[str, Any], why: str
) -> None:
    made = pipeline(sql, **window)
    with pytest.raises(ConfigError) as refused:
        shape_of(spark, made, transformer(made))
    assert why in refused.value.what


@pytest.mark.parametrize("text", ["approx_count_distinct(text)", "size(collect_set(text))", "max_by(text, at)"])
def test_other_aggregates_are_taken(spark: SparkSession, pipeline: Make, text: str) -> None:
    made = pipeline("SELECT *, at AS known_now, text AS brand FROM source", aggregates={"n": text})
    assert shape_of(spark, made, transformer(made)).schema.names[2] == "n"


def test_a_transform_may_make_the_event_time(spark: SparkSession, pipeline: Make) -> None:
    made = pipeline("SELECT *, timestamp_millis(`ä ö`) AS made FROM source WHERE v > 1", time="made")
    assert shape_of(spark, made, transformer(made)).schema.names[0] == "window_start"
