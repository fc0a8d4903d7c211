"""Workers read ranges of the write-ahead log as they are, or not at all."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.wal import STRANGE, Made, frame, land, record, span

from sluice.ranges import OffsetRange
from sluice.wal import Segment
from sluice_spark.sources.inputs import RECORDS, UnreadableError
from sluice_spark.sources.log_input import LogInput

pytestmark = pytest.mark.spark


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
