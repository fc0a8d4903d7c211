"""Columns that no record of a Kafka sink can have."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sluice.sinks.kafka import KafkaSink
from sluice_spark.sinks.kafka.columns import misfits

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("ddl", "key"),
    [
        ("m MAP<STRING, INT>, n MAP<BIGINT, MAP<BOOLEAN, INT>>", None),
        ("m MAP<BINARY, INT>", "binary"),
        ("m ARRAY<STRUCT<x: MAP<STRING, MAP<DATE, INT>>>>", "date"),
        ("m MAP<DECIMAL(9,7), INT>", "decimal(9,7)"),
        ("m MAP<STRUCT<a: INT>, INT>", "struct<a:int>"),
    ],
)
def test_kafka_json_has_no_map_whose_keys_have_no_text(spark: SparkSession, ddl: str, key: str | None) -> None:
    config = KafkaSink.model_validate({"topic": "t", "value": "json"})
    found = misfits(config, StructType.fromDDL(ddl))
    assert found == [] if key is None else [f"value: json: m has a map whose keys are {key}," in text for text in found]
