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


def test_quarantine_keeps_refused_records_verbatim_and_no_others(spark: SparkSession) -> None:
    headers = [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}]
    records = [
        record(0, value=b'{"i": 1}'),
        record(1, value=b'{"i": "x"}', headers=headers),
        record(2, value=None, key=None, partition=4),
        record(3, value=b"\x00?", topic="u"),
    ]
    spec = Decode(json={"schema": "i INT NOT NULL"})
    decoded = decode(frame(spark, records), spec)
    refused = refused_records(decoded, "the run", spec)
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
        [{"rule": "type", "severity": "critical", "column": "i", "detail": "x"}],
        [{"rule": "null_value", "severity": "critical", "column": None, "detail": None}],
        [{"rule": "json", "severity": "critical", "column": None, "detail": "2 characters, ending in \x00?"}],
    ]


def test_quarantine_names_the_offending_text_of_a_field(spark: SparkSession) -> None:
    spec = Decode(json={"schema": "i INT, `a.b` INT, `it's` INT, o STRUCT<x: INT>, d DECIMAL(5,2), s STRING"})
    values = {
        b'{"i": 1.50}': ("type", "i", "1.5"),
        b'{"a.b": "q"}': ("type", "a.b", "q"),
        b'{"it\'s": "q"}': ("type", "it's", None),
        b'{"o": {"x": "1"}}': ("type", "o", '{"x":"1"}'),
        b'{"d": 1.005}': ("digits", "d", "1.005"),
        b'{"i": "%s"}' % (b"x" * 500): ("type", "i", "x" * 200),
        b'{"i": 1, "s": "abc': ("json", None, '18 characters, ending in {"i": 1, "s": "abc'),
        b"\xff": ("utf8", None, None),
    }
    decoded = decode(frame(spark, [record(n, value=value) for n, value in enumerate(values)]), spec)
    found = refused_records(decoded, "r", spec).collect()
    assert {bytes(r.value): tuple(r._errors[0][n] for n in ("rule", "column", "detail")) for r in found} == values
