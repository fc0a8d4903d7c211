"""Duplicates can be dropped of rows whose keys can be compared; the others are refused before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice_spark.transforms.sample import shape_of
from sluice_spark.transforms.transform import transformer
from sluice_spark.windows import duplicates

pytestmark = pytest.mark.spark

Make = Callable[..., Pipeline]
SCHEMA = "at TIMESTAMP, `a.b` STRING, `ä ö` INT, v DOUBLE, s STRUCT<x: FLOAT>, m DECIMAL(10,2), d DATE"


@pytest.fixture
def pipeline(tmp_path: Path) -> Make:
    def make(sql: str = "SELECT * FROM source", **dedupe: Any) -> Pipeline:
        spec: dict[str, Any] = {
            "pipeline": "p", "source": {"kafka": {"topics": ["t"]}}, "decode": {"json": {"schema": SCHEMA}},
            "transform": {"sql": sql}, "rows": "filter", "sink": {"delta": {"path": "p"}},
            "dedupe": {"keys": ["ä ö"], "within": "1h", **dedupe},
        }  # fmt: skip
        file = tmp_path / "p.yaml"
        file.write_text(yaml.safe_dump(spec))
        return load(file)

    return make


def test_rows_keep_their_columns(spark: SparkSession, pipeline: Make) -> None:
    made = pipeline(keys=["a.b", "ä ö", "m", "d"], time="at")
    names = ["at", "a.b", "ä ö", "v", "s", "m", "d", "_topic", "_partition", "_offset", "_timestamp", "_run"]
    assert shape_of(spark, made, transformer(made)).schema.names == names


@pytest.mark.parametrize(
    ("sql", "dedupe", "why"),
    [
        ("SELECT * FROM source", {"time": "ät"}, "dedupe.time: the transform's result has no column 'ät'"),
        ("SELECT * FROM source", {"time": "d"}, "dedupe.time: d is DATE, not TIMESTAMP"),
        ("SELECT * FROM source", {"keys": ["w"]}, "dedupe.keys: the transform's result has no column 'w'"),
        ("SELECT * FROM source", {"keys": ["v"]}, "dedupe.keys: v is DOUBLE"),
        ("SELECT * FROM source", {"keys": ["s"]}, "dedupe.keys: s is STRUCT<X:FLOAT>"),
        ("SELECT *, map(1, 2) AS k FROM source", {"keys": ["k"]}, "dedupe.keys: k is MAP"),
        ("SELECT *, `a.b` COLLATE UTF8_LCASE AS k FROM source", {"keys": ["k"]}, "dedupe.keys: k is STRING COLLATE"),
        ("SELECT * FROM source WHERE rand() < 0.5", {}, "rand() would give other rows"),
        ("SELECT DISTINCT * FROM source", {}, "before dedupe it must treat each record by itself"),
        ("SELECT * FROM source LIMIT 5", {}, "'GlobalLimit'"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    spark: SparkSession, pipeline: Make, sql: str, dedupe: dict[str, Any], why: str
) -> None:
    made = pipeline(sql, **dedupe)
    with pytest.raises(ConfigError) as refused:
        shape_of(spark, made, transformer(made))
    assert why in refused.value.what


def test_a_row_breaks_at_most_one_rule(spark: SparkSession, pipeline: Make) -> None:
    dedupe = pipeline(keys=["a.b", "ä ö"], time="at").dedupe
    assert dedupe is not None
    rows = spark.sql(
        """SELECT * FROM VALUES (timestamp '2026-01-01 00:00:00', 'x', 1), (null, 'x', 1), (null, null, 1),
        (timestamp '2026-01-01 00:00:00', 'x', null), (timestamp '2026-01-03 00:00:00', '', 0),
        (timestamp '2026-01-03 00:00:00.000001', '', 0) AS t(at, `a.b`, `ä ö`)"""
    )
    found = rows.select(duplicates.strange(dedupe, F.timestamp_millis(F.lit(1767312000000)))).collect()  # 2026-01-02
    missing, keyless = "event_time_missing", duplicates.KEYLESS
    assert [row[0] for row in found] == [None, missing, keyless, keyless, None, "event_time_ahead"]
    late = rows.select(duplicates.late(dedupe, 1767225600000), duplicates.late(dedupe, 1767225599999)).take(1)
    assert [tuple(row) for row in late] == [(True, False)]
