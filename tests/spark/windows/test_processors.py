"""Rows can be given to a class that is a processor; others are refused before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from tests.fixtures.inside import MODULES, on_path

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice_spark.transforms.sample import shape_of
from sluice_spark.transforms.transform import transformer

pytestmark = pytest.mark.spark

Make = Callable[..., Pipeline]
SCHEMA = "at TIMESTAMP, k STRING, `a.b` STRING, v DOUBLE, d DATE"


@pytest.fixture
def pipeline(tmp_path: Path) -> Make:
    def make(sql: str = "SELECT * EXCEPT (`a.b`) FROM source", **processor: Any) -> Pipeline:
        spec: dict[str, Any] = {
            "pipeline": "p", "source": {"kafka": {"topics": ["t"]}}, "decode": {"json": {"schema": SCHEMA}},
            "transform": {"sql": sql}, "rows": "filter", "sink": {"delta": {"path": "p"}},
            "processor": {
                "python": "processors.rotations:Rotations", "by": ["k"], "time": "at", "watermark": "1h",
                "schema": "tailnum STRING, legs INT", **processor,
            },
        }  # fmt: skip
        file = tmp_path / "p.yaml"
        file.write_text(yaml.safe_dump(spec))
        return load(file)

    return make


def test_rows_have_the_columns_of_the_file(spark: SparkSession, pipeline: Make) -> None:
    made = pipeline()
    shape = shape_of(spark, made, transformer(made))
    assert shape.schema.names == ["tailnum", "legs", "_run"]
    assert shape.rows.names == ["at", "k", "v", "d", "_topic", "_partition", "_offset", "_timestamp"]


@pytest.mark.parametrize(
    ("sql", "processor", "why"),
    [
        ("SELECT * FROM source", {"time": "ät"}, "processor.time: the transform's result has no column 'ät'"),
        ("SELECT * FROM source", {"time": "d"}, "processor.time: d is DATE, not TIMESTAMP"),
        ("SELECT * FROM source", {"by": ["w"]}, "processor.by: the transform's result has no column 'w'"),
        ("SELECT * FROM source", {"by": ["v"]}, "processor.by: v is DOUBLE"),
        ("SELECT * FROM source", {}, "processor: "),  # Spark cannot pass a column with a dot
        ("SELECT * FROM source WHERE rand() < 0.5", {}, "rand() would give other rows"),
        ("SELECT DISTINCT * FROM source", {}, "before a processor it must treat each record by itself"),
        ("SELECT * FROM source", {"python": "processing:Plain"}, "processing:Plain makes a Plain, not a pyspark"),
        ("SELECT * FROM source", {"python": "processing:Asking"}, "processing:Asking, called without arguments: Type"),
    ],
)
def test_what_cannot_be_processed_is_refused(
    spark: SparkSession, pipeline: Make, sql: str, processor: dict[str, Any], why: str
) -> None:
    with on_path(MODULES):
        made = pipeline(sql, **processor)
        with pytest.raises(ConfigError) as refused:
            shape_of(spark, made, transformer(made))
    assert why in refused.value.what
