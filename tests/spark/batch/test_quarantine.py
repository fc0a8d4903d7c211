"""Refused records go to the quarantine as they came, with the rule that they broke."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.wal import EPOCH, frame, record

from sluice.pipeline.sections import Decode
from sluice_spark.batch.quarantine import SCHEMA, refused_records
from sluice_spark.decoders.base import decode

pytestmark = pytest.mark.spark


def test_what_broke_a_rule_is_kept_verbatim_and_nothing_else(spark: SparkSession) -> None:
    headers = [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}]
    records = [
        record(0, value=b'{"i": 1}'),
        record(1, value=b'{"i": "x"}', headers=headers),
        record(2, value=None, key=None, partition=4),
        record(3, value=b"\x00?", topic="u"),
    ]
    decoded = decode(frame(spark, records), Decode(json={"schema": "i INT NOT NULL"}))
    refused = refused_records(decoded, "the run")
    assert refused.dtypes == [(field.name, field.dataType.simpleString()) for field in SCHEMA]
    first, second, third = sorted(refused.collect(), key=lambda row: row._offset)
    assert (bytes(first.key), bytes(first.value), [h.asDict() for h in first.headers]) == (b"k", b'{"i": "x"}', headers)
    assert (second.key, second.value, second.headers, bytes(third.value)) == (None, None, None, b"\x00?")
    assert [(r._topic, r._partition, r._offset, r._run) for r in (first, second, third)] == [
        ("t", 0, 1, "the run"), ("t", 4, 2, "the run"), ("u", 0, 3, "the run"),
    ]  # fmt: skip
    (time,) = refused.where("_offset = 1").selectExpr("unix_millis(_timestamp)").first() or ()
    assert time == int((EPOCH + timedelta(seconds=1)).timestamp() * 1000)
    assert [[e.asDict() for e in r._errors] for r in (first, second, third)] == [
        [{"rule": "type", "severity": "critical", "column": "i"}],
        [{"rule": "null_value", "severity": "critical", "column": None}],
        [{"rule": "json", "severity": "critical", "column": None}],
    ]
