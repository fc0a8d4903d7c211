"""Text and bytes as they are."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.decoders.conftest import outcomes, records

from sluice.pipeline.sections import Decode
from sluice_spark.decoders.base import decode, source_columns

pytestmark = pytest.mark.spark


def test_text(spark: SparkSession) -> None:
    cases: list[tuple[bytes | None, dict[str, Any] | str]] = [
        (b"x", {"value": "x"}), (b"", {"value": ""}), ("ä\n\0".encode(), {"value": "ä\n\0"}), (b"\xff", "utf8"),
        (None, "null_value"),
    ]  # fmt: skip
    assert outcomes(decode(records(spark, [v for v, _ in cases]), Decode(text={}))) == [e for _, e in cases]


def test_bytes_take_anything_as_it_is(spark: SparkSession) -> None:
    frame = source_columns(decode(records(spark, [b"\xff\x00", None, b""]), Decode(bytes={})))
    assert frame.columns[:2] == ["key", "value"]
    assert [(bytes(r.key), r.value and bytes(r.value)) for r in frame.orderBy("_offset").collect()] == [
        (b"k", b"\xff\x00"), (b"k", None), (b"k", b""),
    ]  # fmt: skip
    assert outcomes(decode(records(spark, [None]), Decode(bytes={}))) == [{"key": bytearray(b"k")}]
