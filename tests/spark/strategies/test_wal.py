"""Landing seals segments of the right size once, and none that Kafka dropped; sealed batches wait for the sink."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.fixtures.wal import EPOCH, Kafka, Made, frame, land, plain, record, rows_of, span, tables

from sluice.errors import LeaseHeldError, OffsetsGoneError, SinkError
from sluice.ranges import Positions
from sluice_spark.runs.sealed_batches import sealed_batches, sealed_behind
from sluice_spark.sources.log import LogRecords
from sluice_spark.strategies.wal import Landing, landing_size

pytestmark = pytest.mark.spark


def test_landing_rolls_segments_by_size_and_covers_the_plan(spark: SparkSession, made: Made) -> None:
    zero = [record(o) for o in (3, 4, 5, 9, 10, 17, 18)]
    one = [record(o, 1) for o in range(5)]
    ranges = [span(1, 20), span(0, 5, partition=1), span(0, 3, partition=2)]
    kafka = Kafka()
    landed = land(made, 0, frame(spark, zero, one), ranges, segment_records=2, source=kafka)
    assert made.log.segments() == sorted(landed.segments, key=lambda s: s.range)
    assert [s.records for s in made.log.segments()] == [2, 2, 2, 1, 2, 2, 1]
    for item in ranges[:2]:
        here = [s.range for s in made.log.segments([item])]
        assert (here[0].start, here[-1].end) == (item.start, item.end)
        assert all(a.end == b.start for a, b in pairwise(here))
    assert kafka.asked == [ranges[0], ranges[2]], "only what has gaps is asked for"
    assert [plain(r) for r in rows_of(made.log.read_from({}))] == [*zero, *one]
    (sealed,) = sealed_batches(tables(made, applied=-1))
    assert (sealed.batch, sealed.ranges, sealed.segments) == (0, tuple(ranges), landed.segments)


def test_landing_seals_nothing_if_kafka_dropped_records_meanwhile(spark: SparkSession, made: Made) -> None:
    source = Kafka(dropped=[span(0, 3)])
    with pytest.raises(OffsetsGoneError, match=r"t-0 \[0, 3\)") as refused:
        land(made, 0, frame(spark, [record(o) for o in (3, 4)]), [span(0, 5)], source=source)
    assert refused.value.ranges == (span(0, 3),)
    assert made.table.table() is None


def test_landing_seals_an_empty_batch(spark: SparkSession, made: Made) -> None:
    landed = land(made, 0, frame(spark, [record(0)]).limit(0), [span(0, 4)])
    assert (landed.segments, made.log.version(1), made.log.segments()) == ((), 0, [])
    assert LogRecords(spark, made.log, ()).read([span(0, 4)]).collect() == []


def test_landing_of_two_drivers_seals_one_batch(spark: SparkSession, made: Made) -> None:
    records, ranges = frame(spark, [record(o) for o in range(4)]), [span(0, 4)]
    landing = Landing("p", "late", made.table, Kafka(), 1000)
    late = landing.stage(records, "e1-000000", ranges, "p-e1-000000")
    first = land(made, 0, records, ranges)
    version = DeltaTable(str(made.root)).version()
    with pytest.raises(LeaseHeldError, match="batch 0"):
        landing.seal(0, late)
    assert DeltaTable(str(made.root)).version() == version
    assert made.log.segments() == list(first.segments)


@pytest.mark.parametrize(
    ("landings", "roll", "size"),
    [
        ([], 60, 500_000),
        ([(6, 1.5)], 60, 500_000),  # a second and a half are what any batch costs: they tell nothing
        ([(9000, 30.0)], 60, 18_000),
        ([(9000, 30.0), (20, 1.0)], 60, 18_000),  # what was left at the end of a run does not hide a full batch
        ([(9000, 30.0), (9500, 19.0)], 30, 15_000),  # the largest tells
        ([(0, 40.0)], 60, 1000),
        ([(3, 2.0)], 1, 1000),
    ],
)
def test_landing_is_as_large_as_can_be_sealed_in_time(
    landings: list[tuple[int, float]], roll: float, size: int
) -> None:
    notes = [{"segments": [{"records": n // 3}, {"records": n - n // 3}], "seconds": s} for n, s in landings]
    assert landing_size(notes, roll, 500_000) == size
    assert landing_size(notes, roll, 700) == 700, "never more than the pipeline file allows"


def without_history(made: Made) -> None:
    """Let Delta forget batches 0 to 2 and the log's own first commit, as it does after its retention."""
    DeltaTable(str(made.root)).create_checkpoint()
    for entry in sorted((made.root / "_delta_log").glob("*.json"))[:4]:
        entry.unlink()


def test_sealed_batches_are_those_that_the_sink_does_not_hold(made: Made) -> None:
    made.seal_lines(4)
    assert [s.batch for s in sealed_batches(tables(made, 3))] == []
    assert [s.batch for s in sealed_batches(tables(made, 1))] == [2, 3]
    made.log.clean(EPOCH + timedelta(days=1), applied={1: 1})
    assert [s.batch for s in sealed_batches(tables(made, 1))] == [2, 3]
    without_history(made)
    with pytest.raises(SinkError, match="batches 2 to 3"):
        sealed_batches(tables(made, 1))


def test_sealed_batches_are_found_by_offsets_where_the_sink_numbers_its_own(made: Made) -> None:
    made.seal_lines(4)
    positions: list[tuple[Positions | None, list[int]]] = [
        (None, [0, 1, 2, 3]), ({"t": {0: 0, 1: 0}}, [0, 1, 2, 3]), ({"t": {0: 20, 1: 20}}, [2, 3]),
        ({"t": {0: 20, 1: 10}}, [1, 2, 3]), ({"t": {0: 40, 1: 40}}, []),
    ]  # fmt: skip
    for position, behind in positions:
        assert [s.batch for s in sealed_behind(tables(made, 0), position)] == behind, position
    without_history(made)
    assert [s.batch for s in sealed_behind(tables(made, 0), {"t": {0: 30, 1: 30}})] == [3]
    with pytest.raises(SinkError, match="3"):
        sealed_behind(tables(made, 0), {"t": {0: 10, 1: 10}})
