"""Records come back from the write-ahead log as Kafka had them, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.wal import STRANGE, Made, frame, land, plain, record, rows_of, span

from sluice.ranges import OffsetRange
from sluice.wal import Segment
from sluice_spark.sources.inputs import RECORDS, UnreadableError
from sluice_spark.sources.log import LogReader, LogRecords
from sluice_spark.sources.log_input import LogInput

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


def offsets(made: Made, segments: tuple[Segment, ...], wanted: OffsetRange) -> list[int]:
    """Return the offsets that are read of a range."""
    with LogInput(str(made.root), segments).opened() as reader:
        return [n for chunk in reader.read(wanted) for n in chunk.offsets.tolist()]


def test_log_input_reads_ranges_across_segments_and_gaps(spark: SparkSession, made: Made) -> None:
    here = (3, 4, 5, 9, 10, 17, 18)
    records = [record(o) for o in here], [record(o, 1) for o in range(5)]
    ranges = [span(1, 20), span(0, 5, partition=1)]
    segments = land(made, 0, frame(spark, *records), ranges, segment_records=2).segments
    for start in range(1, 20):
        for end in range(start + 1, 21):
            assert offsets(made, segments, span(start, end)) == [n for n in here if start <= n < end]
    assert offsets(made, segments, span(0, 5, partition=1)) == list(range(5))


def test_log_input_takes_no_missing_segment_for_a_gap(spark: SparkSession, made: Made) -> None:
    segments = land(made, 0, frame(spark, [record(o) for o in range(6)]), [span(0, 6)], segment_records=2).segments
    for left in (segments[1:], segments[:-1], (segments[0], segments[2]), ()):
        with pytest.raises(UnreadableError, match="offsets"):
            offsets(made, left, span(0, 6))


def test_log_input_does_not_read_a_damaged_segment(spark: SparkSession, made: Made) -> None:
    (segment,) = land(made, 0, frame(spark, [record(o) for o in range(200)]), [span(0, 200)]).segments
    path = made.root / segment.path
    whole = path.read_bytes()
    for damaged in (whole[:-20], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], None):
        path.write_bytes(damaged) if damaged else path.unlink()
        with pytest.raises(UnreadableError, match="cannot be read"):
            offsets(made, (segment,), span(0, 200))


def test_log_input_gives_records_unchanged(spark: SparkSession, made: Made) -> None:
    segments = land(made, 0, frame(spark, STRANGE), [span(0, 10)]).segments
    with LogInput(str(made.root), segments).opened() as reader:
        (chunk,) = reader.read(span(0, 10))
    whole = chunk.records()
    assert whole.schema == RECORDS
    for name in ("key", "value", "headers", "timestampType"):
        assert whole.column(name).to_pylist() == [row[name] for row in STRANGE], name
    assert chunk.values() == [row["value"] for row in STRANGE]
    assert chunk.keys() == [row["key"] for row in STRANGE]
    assert chunk.times.min() == -1
    some = chunk.chosen([1, 3])
    assert some.records().column("offset").to_pylist() == [whole.column("offset")[n].as_py() for n in (1, 3)]
    assert some.values() == [STRANGE[1]["value"], STRANGE[3]["value"]]
