"""Records come back from the write-ahead log as Kafka had them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.wal import STRANGE, Made, frame, land, plain, record, rows_of, span

from sluice_spark.sources.log import LogReader, LogRecords

pytestmark = pytest.mark.spark


def test_log_gives_back_byte_for_byte_what_spark_lands(spark: SparkSession, made: Made) -> None:
    landed = land(made, 0, frame(spark, STRANGE), [span(0, 10)])
    log = made.log
    assert [plain(r) for r in rows_of(log.read_from({}))] == STRANGE
    source = LogRecords(spark, log, landed.segments)
    assert sorted(map(plain, source.read([span(0, 10)]).collect()), key=lambda r: r["offset"]) == STRANGE
    assert [plain(r) for r in source.read([span(4, 6)]).collect()] == STRANGE[4:6]
    assert source.read([span(8, 9)]).collect() == source.read([span(0, 5, topic="x")]).collect() == []
    assert log.check(landed.segments, pages=True) == []
    assert (landed.segments[0].first, landed.segments[0].last) == (-1, 1774747800123)


def test_log_stream_has_a_micro_batch_for_each_sealed_one(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    ranges = [(span(n * 10, n * 10 + 10), span(n * 10, n * 10 + 10, 1)) for n in range(3)]
    segments = made.seal(0, [[record(n) for n in range(2, 9)]], ranges[0])  # the other partition had no record
    segments += made.seal(1, [[record(n) for n in (11, 12)], [record(n) for n in (14,)], [record(11, 1)]], ranges[1])
    segments += made.seal(2, [[record(29, 1)]], ranges[2])
    found: list[list[tuple[int, int]]] = []

    def on_batch(records: DataFrame, number: int) -> None:
        found.append(sorted((row["partition"], row["offset"]) for row in records.collect()))

    for known in (ranges[:1], ranges):
        reader = LogReader(spark, made.log, segments, tuple(known))
        query = reader.stream(1, start={"t": {0: 0, 1: 0}}).writeStream.foreachBatch(on_batch)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
    assert found == [[(0, n) for n in range(2, 9)], [(0, 11), (0, 12), (0, 14), (1, 11)], [(1, 29)]]
