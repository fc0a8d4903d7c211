"""Records come back from the write-ahead log as Kafka had them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.wal import STRANGE, Made, frame, land, plain, rows_of, span

from sluice_spark.sources.log import LogRecords

pytestmark = pytest.mark.spark


def test_what_spark_lands_comes_back_byte_for_byte(spark: SparkSession, made: Made) -> None:
    landed = land(made, 0, frame(spark, STRANGE), [span(0, 10)])
    log = made.log
    assert [plain(r) for r in rows_of(log.read_from({}))] == STRANGE
    source = LogRecords(spark, log, landed.segments)
    assert sorted(map(plain, source.read([span(0, 10)]).collect()), key=lambda r: r["offset"]) == STRANGE
    assert [plain(r) for r in source.read([span(4, 6)]).collect()] == STRANGE[4:6]
    assert source.read([span(8, 9)]).collect() == source.read([span(0, 5, topic="x")]).collect() == []
    assert log.check(landed.segments, pages=True) == []
    assert (landed.segments[0].first, landed.segments[0].last) == (-1, 1774747800123)
