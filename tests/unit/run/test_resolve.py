"""Intervals of record time, offsets that may hold their records, and places where lost ranges are read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from tests.fixtures.books import span

from sluice.errors import ConfigError, SourceUnreachableError, TopicRecreatedError
from sluice.ranges import OffsetRange, Times, overlaps
from sluice.run.interval import Interval
from sluice.run.locate import Located, locate
from sluice.run.resolve import Available, Resolved, missing, resolve
from sluice.sources.state import PartitionState, TopicState
from sluice.wal import Segment, Unread

HOUR = 3_600_000
T0 = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
Key = tuple[str, int]


@dataclass
class Part:
    """One partition: the hour of each record, from offset 0, and the offsets that Kafka and the log hold."""

    hours: Sequence[float]
    kafka: tuple[int, int] | None = None
    log: tuple[int, int] | None = None
    segments: int = 1


@dataclass
class Played:
    """A broker and a log that hold given records."""

    parts: Mapping[Key, Part]
    down: bool = False
    silent: set[Key] = field(default_factory=set)

    def first(self, key: Key, span: tuple[int, int], milliseconds: int) -> int | None:
        hours = self.parts[key].hours
        return next((o for o in range(*span) if T0 + hours[o] * HOUR >= milliseconds), None)

    def times(self, partition: int, *spans: tuple[int, int]) -> list[Times]:
        """Return the times of these offsets, as far as they may be known."""
        ranges = [OffsetRange("t", partition, *span) for span in spans]
        seen = [[round(T0 + h * HOUR) for h in self.parts["t", partition].hours[r.start : r.end]] for r in ranges]
        return [Times(r, min(ms), max(ms)) if ms else Times.none(r) for r, ms in zip(ranges, seen, strict=True)]

    def available(self) -> Available:
        kafka = {k: OffsetRange(*k, *p.kafka) for k, p in self.parts.items() if p.kafka and not self.down}
        trouble = SourceUnreachableError("no broker answers") if self.down else None
        return Available(kafka, cast(Any, self), cast(Any, self), trouble)

    # the cluster's
    def offsets_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        ms = round(moment.timestamp() * 1000)
        return {k: self.first(k, cast(Any, self.parts[k].kafka), ms) for k in keys if k not in self.silent}

    # the log's
    def spans(self, topic: str, partition: int) -> list[OffsetRange]:
        held = self.parts[topic, partition].log
        return [OffsetRange(topic, partition, *held)] if held else []

    def segments(self, ranges: Sequence[OffsetRange] | None = None) -> list[Segment]:
        found = []
        for (_, n), part in self.parts.items():
            first, last = part.log or (0, 0)
            edges = sorted({first, last, *(first + (last - first) * k // part.segments for k in range(part.segments))})
            for known in self.times(n, *itertools.pairwise(edges)):
                place = ("batches/e1-000000-x/a", known.range, 1, len(known.range))
                found.append(Segment(*place, known.first, known.last, 0))
        return [s for s in found if ranges is None or overlaps([s.range], ranges)]

    def first_at(self, topic: str, partition: int, milliseconds: int) -> int | None:
        held = self.parts[topic, partition].log
        return self.first((topic, partition), held, milliseconds) if held else None


def moment(hour: float) -> datetime:
    return datetime(2013, 1, 1, tzinfo=UTC) + timedelta(hours=hour)


def each(ranges: Iterable[OffsetRange]) -> list[tuple[int, int]]:
    return sorted((r.partition, o) for r in ranges for o in range(r.start, r.end))


def hours(first: float, last: float) -> Interval:
    return Interval.of(moment(first), moment(last))


def answer(played: Played, interval: Interval, reached: Mapping[int, int], **more: Any) -> Resolved:
    return resolve(interval, {"t": dict(reached)}, played.available(), **more)


def spans(resolved: Resolved) -> dict[int, tuple[int, int]]:
    return {r.partition: (r.start, r.end) for r in resolved.ranges}


EVEN = list(range(10))


def test_interval_ends_are_looked_up_in_each_partition() -> None:
    played = Played({("t", 0): Part(EVEN, (0, 10)), ("t", 1): Part([h / 2 for h in range(20)], (0, 20))})
    known = [*played.times(0, (0, 3), (3, 6), (6, 10)), *played.times(1, (0, 8), (8, 12), (12, 20))]
    found = answer(played, hours(3, 6), {0: 10, 1: 20}, times=known)
    assert spans(found) == {0: (3, 6), 1: (6, 12)}
    assert (found.beyond, found.whole, found.unknown) == ((), True, ())


PLAIN, FUTURE = Part(EVEN, (0, 10)), Part([0, 99, *range(1, 9)], (0, 10))
"""Kafka answers by the largest time so far: behind a record of the future each moment is at this record, or nowhere."""
DROPPED, LOGGED = Part(EVEN, (5, 10), (0, 8)), Part([0, 99, 1, 2, 3], None, (0, 5))
SINGLE, PARTS = [(n, n + 1) for n in range(10)], [(0, 1), (1, 2), (2, 4), (4, 7), (7, 10)]


@pytest.mark.parametrize(
    ("part", "asked", "known", "expected"),
    [
        pytest.param(PLAIN, (3, 6), [], {"read": [(3, 10)], "unknown": [(6, 10)]}, id="no-time-is-known"),
        pytest.param(PLAIN, (3, 6), [(0, 8)], {"read": [(3, 10)], "unknown": [(8, 10)]}, id="some-times-are-known"),
        pytest.param(Part([100, 101], (0, 2)), (0, 50), [(0, 2)], {"ranges": [(0, 0)]}, id="before-the-first"),
        pytest.param(FUTURE, (3, 6), PARTS, {"ranges": [(4, 7)], "read": [(4, 7)]}, id="behind-a-record-of-the-future"),
        pytest.param(FUTURE, (3, 6), [(0, 4), (4, 7), (7, 10)], {"read": [(1, 7)]}, id="by-coarse-times"),
        pytest.param(
            Part([*EVEN, *EVEN, *EVEN], (0, 30)), (4, 6), [(n, n + 2) for n in range(0, 30, 2)],
            {"ranges": [(4, 26)], "read": [(4, 6), (14, 16), (24, 26)], "passed": [(6, 14), (16, 24)]},
            id="fed-source-by-source",
        ),
        pytest.param(DROPPED, (2, 4), SINGLE, {"ranges": [(2, 4)]}, id="in-the-log"),
        pytest.param(DROPPED, (3, 7), SINGLE, {"ranges": [(3, 7)]}, id="in-the-log-and-kafka"),
        pytest.param(DROPPED, (6, 9), SINGLE, {"ranges": [(6, 9)]}, id="in-kafka"),
        pytest.param(LOGGED, (2, 4), [], {"read": [(1, 5)]}, id="by-times-of-segments"),
        pytest.param(LOGGED, (100, 200), [], {"read": []}, id="in-no-segment"),
    ],
)  # fmt: skip
def test_interval_is_read_where_its_records_may_be(part: Part, asked: Any, known: Any, expected: Any) -> None:
    played = Played({("t", 0): part}, down=part.kafka is None)
    found = answer(played, hours(*asked), {0: len(part.hours)}, times=played.times(0, *known))
    assert {name: [(r.start, r.end) for r in getattr(found, name)] for name in expected} == expected


def test_interval_of_a_quiet_partition_is_empty() -> None:
    played = Played({("t", 0): Part([0, 1, 8, 9], (0, 4)), ("t", 1): Part([], (0, 0)), ("t", 2): Part([1, 2], (0, 2))})
    found = answer(played, hours(3, 6), {0: 4, 1: 0, 2: 2}, times=played.times(0, (0, 2), (2, 4)))
    assert (spans(found), found.whole) == ({0: (2, 2), 1: (0, 0), 2: (2, 2)}, False), "nothing is behind it in two yet"


def test_interval_ends_at_the_live_position() -> None:
    found = answer(Played({("t", n): PLAIN for n in (0, 1)}), hours(3, 6), {0: 4, 1: 1})
    assert spans(found) == {0: (3, 4), 1: (1, 1)}
    assert (found.beyond, found.whole) == ((span(4, 6), span(3, 6, 1)), False)


def test_interval_of_very_many_parts_is_read_as_fewer() -> None:
    hours_of = [5 if n % 3 == 0 else 0 for n in range(300)]
    played = Played({("t", 0): Part(hours_of, (0, 300))})
    found = answer(played, hours(5, 6), {0: 300}, times=played.times(0, *((n, n + 1) for n in range(300))))
    assert len(found.read) <= 16
    assert {(0, n) for n, hour in enumerate(hours_of) if hour == 5} <= {*each(found.read)}


def test_interval_leaves_out_offsets_in_neither_kafka_nor_the_log() -> None:
    played = Played({("t", 0): Part(EVEN, (6, 10), (0, 3))})
    gaps = played.available().gaps([span(0, 10)])
    assert gaps == [span(3, 6)]
    found = answer(played, hours(2, 8), {0: 10}, gaps=gaps)
    assert (found.read, found.firsts) == ([span(2, 3), span(6, 10)], {("t", 0): 2})


def test_interval_before_1970_has_records_without_a_time() -> None:
    played = Played({("t", 0): Part([0, -1e9, 5], (0, 3))})
    found = resolve(Interval.parse("1960-01-01", "1970-01-01"), {"t": {0: 3}}, played.available())
    assert (0, 1) in each(found.read)


def test_interval_leaves_out_lost_offsets_behind_it() -> None:
    found = answer(Played({("t", 0): PLAIN}), hours(3, 6), {0: 10}, lost=[span(4, 8)])
    assert found.read == [span(3, 6), span(8, 10)]


@pytest.mark.parametrize("seed", range(200))
def test_interval_reads_each_of_its_records_in_any_order_of_times(seed: int) -> None:
    """And nothing else needs to be, as far as it is known."""
    draw = random.Random(seed)
    parts: dict[Key, Part] = {}
    for number in range(draw.randint(1, 3)):
        length = draw.randint(0, 60)
        order = draw.choice(["ascending", "any", "backwards", "sources", "one of the future", "the same"])
        times = sorted(draw.randint(0, 40) for _ in range(length))
        if order == "any":
            draw.shuffle(times)
        elif order == "backwards":
            times.reverse()
        elif order == "sources":
            times = [t for n in range(3) for t in sorted(times[n::3])]
        elif order == "one of the future" and times:
            times[draw.randrange(length)] = 1000
        elif order == "the same":
            times = [draw.randint(0, 40)] * length
        kafka = draw.randint(0, length)
        log = (draw.randint(0, kafka), draw.randint(kafka, length)) if draw.random() < 0.4 else None
        parts["t", number] = Part(times, (kafka, length), log, segments=draw.randint(1, 5))
    played = Played(parts)
    reached = {n: draw.randint(0, len(p.hours)) for (_, n), p in parts.items()}
    first = draw.randint(0, 40)
    interval = hours(first, first + draw.randint(1, 20))
    known: list[Times] = []
    for (_, n), part in parts.items():
        for _ in range(draw.randint(0, 6)):
            start = draw.randint(0, len(part.hours))
            known += played.times(n, (start, draw.randint(start, len(part.hours))))
    gaps = played.available().gaps(span(0, end, n) for n, end in reached.items())
    wanted = {
        (n, o)
        for (_, n), part in parts.items()
        for o, hour in enumerate(part.hours[: reached[n]])
        if interval.start <= moment(hour) < interval.end
    }
    gone = set(each(gaps))
    for look in (False, True):
        found = answer(played, interval, reached, times=known, gaps=gaps)
        read = set(each(found.read))
        assert wanted - gone <= read
        assert not read & gone
        assert all(o < reached[n] for n, o in read)
        assert not (look and found.unknown)
        given = found.giving_up(gaps)
        assert given.read == found.read
        assert each(given.ranges) == each([*given.read, *given.passed, *given.given_up])
        for log_first in (False, True):
            kafka, log, _ = played.available().split(found.read, log_first=log_first)
            assert each([*kafka, *log]) == sorted(read)
            held = [s.range for s in played.segments()] if log_first else played.available().kafka.values()
            assert overlaps(kafka if log_first else log, held) == []
        known += [
            t for r in found.unknown for o in range(r.start, r.end) for t in played.times(r.partition, (o, o + 1))
        ]


def test_interval_without_a_broker_needs_a_log_up_to_the_live_position() -> None:
    played = Played({("t", 0): Part(EVEN, (0, 10), (0, 10), segments=5)}, down=True)
    assert spans(answer(played, hours(2, 4), {0: 10})) == {0: (2, 4)}
    short = Played({("t", 0): Part(EVEN, (0, 10), (0, 8))}, down=True)
    with pytest.raises(SourceUnreachableError, match="broker"):
        missing("p", {"t": {0: 10}}, short.available(), list)
    markers = [span(8, 10)]
    assert missing("p", {"t": {0: 10}}, short.available(), lambda: markers) == [], "no record was ever there"


def test_interval_of_a_recreated_topic_is_read_from_the_log() -> None:
    def lacks(held: tuple[int, int] | None) -> list[OffsetRange]:
        log: Any = Played({("t", 0): Part(EVEN, None, held)})
        found = Available.of([TopicState("t", "new", {0: PartitionState(0, 50)})], {"t": "old"}, log, log)
        assert found.recreated == {"t"}
        return missing("p", {"t": {0: 10}}, found, list)

    assert (lacks((0, 10)), lacks((3, 10))) == ([], [span(0, 3)])
    for held, first in (((0, 8), 8), (None, 0)):
        with pytest.raises(TopicRecreatedError, match=rf"recreated.* t-0 \[{first}, 10\)"):
            lacks(held)


def test_interval_that_reads_no_log_opens_none_and_names_the_strategy_that_does(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("damaged")
    log, source = Unread(str(tmp_path), "p"), cast(Any, None)
    log.refresh()
    assert [log.segments(), log.segments([span(0, 9)]), log.spans("t", 0), log.first_at("t", 0, 0)] == [
        [],
        [],
        [],
        None,
    ]
    found = Available.of([TopicState("t", "new", {0: PartitionState(0, 50)})], {"t": "old"}, log, source)
    with pytest.raises(TopicRecreatedError, match="the source does not have") as caught:
        missing("p", {"t": {0: 10}}, found, list)
    assert "recovery wal" in caught.value.next_step


def test_interval_refuses_a_partition_that_does_not_answer() -> None:
    with pytest.raises(SourceUnreachableError, match=r"t-1"):
        answer(Played({("t", n): PLAIN for n in (0, 1)}, silent={("t", 1)}), hours(2, 4), {0: 10, 1: 10})


class Log:
    """Segments, of which some are damaged."""

    def __init__(self, *spans: tuple[int, int], damaged: Sequence[int] = ()) -> None:
        self.all = [SimpleNamespace(path=f"s{n}", range=span(*ends)) for n, ends in enumerate(spans)]
        self.damaged = damaged

    def refresh(self) -> None:
        pass

    def segments(self, wanted: Sequence[OffsetRange]) -> list[Any]:
        return [s for s in self.all if any(s.range.cut(r) for r in wanted)]

    def check(self, segments: Sequence[Any], *, pages: bool) -> list[Any]:
        assert pages, "every page is read before anything is promised"
        return [SimpleNamespace(segment=self.all[n]) for n in self.damaged if self.all[n] in segments]


def located(log: Log, topic_id: str = "x", known: str | None = "x", start: int = 50) -> Located:
    states = [TopicState("t", topic_id, {0: PartitionState(start, 100)})]
    return locate([span(10, 60)], cast(Any, log), states, {"t": known} if known else {})


def test_lost_ranges_are_read_from_the_log_before_the_source() -> None:
    where = located(Log((0, 20), (30, 55)))
    assert (where.log, where.kafka, where.nowhere) == (
        (span(10, 20), span(30, 55)), (span(55, 60),), (span(20, 30),)
    )  # fmt: skip
    assert where.found == [span(10, 20), span(30, 55), span(55, 60)]


def test_damaged_segment_holds_no_lost_range() -> None:
    where = located(Log((0, 20), (20, 60), damaged=[1]))
    assert (where.log, where.kafka, where.nowhere) == ((span(10, 20),), (span(50, 60),), (span(20, 50),))
    assert [s.path for s in where.segments] == ["s0"]


def test_recreated_topic_holds_no_lost_range() -> None:
    assert located(Log(), topic_id="y").kafka == ()
    for topic_id, known in (("", "x"), ("x", None), ("", None), ("x", "x")):
        assert located(Log(), topic_id=topic_id, known=known).kafka == (span(50, 60),), (topic_id, known)


NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "end", "key"),
    [
        ("2013-03-01", "2013-04-01", "2013-03-01T00:00:00Z/2013-04-01T00:00:00Z"),
        ("2013-03-01T06:00", "2013-03-01T06:00:00.5Z", "2013-03-01T06:00:00Z/2013-03-01T06:00:00.500Z"),
        ("2013-03-01T00:00:00+01:00", "2013-03-01T00:00:00Z", "2013-02-28T23:00:00Z/2013-03-01T00:00:00Z"),
        # parts of a millisecond: no record lies between
        ("2013-03-01T00:00:00.0001", "2013-03-01T00:00:00.0011", "2013-03-01T00:00:00.001Z/2013-03-01T00:00:00.002Z"),
    ],
)
def test_interval_has_one_key_in_any_spelling(start: str, end: str, key: str) -> None:
    found = Interval.parse(start, end, now=NOW)
    assert found.key == key
    assert str(found) == f"[{key.replace('/', ', ')})"
    there = timezone(timedelta(hours=-5))
    assert found == Interval.from_key(key) == Interval.of(found.start.astimezone(there), found.end.astimezone(there))


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ("2013-03-01", "2013-03-01T00:00Z", "has no width"),
        ("2013-03-01T00:00:00+01:00", "2013-02-28T23:00Z", "has no width"),
        ("2013-03-02", "2013-03-01", "is reversed"),
        ("2026-10-31", "2026-11-02", "in the future"),
        ("last week", "2013-03-01", "'last week' is not a time"),
        ("2013-03-01", "2013-02-30", "'2013-02-30' is not a time"),
    ],
)
def test_interval_refuses(start: str, end: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        Interval.parse(start, end, now=NOW)
    assert caught.value.state == "nothing was read or written"
    assert caught.value.next_step


@pytest.mark.parametrize(("month", "day", "hours"), [(3, 10, 23), (11, 3, 25), (7, 1, 24)])
def test_interval_of_a_day_in_new_york_has_23_24_or_25_hours(month: int, day: int, hours: int) -> None:
    days = (datetime(2013, month, day + n, tzinfo=ZoneInfo("America/New_York")) for n in (0, 1))
    start, end = Interval.of(*days, now=NOW).milliseconds
    assert end - start == hours * HOUR


def test_intervals_overlap_if_they_share_a_millisecond() -> None:
    march, april = Interval.parse("2013-03-01", "2013-04-01"), Interval.parse("2013-04-01", "2013-05-01")
    over = Interval.parse("2013-03-31T23:59:59.999", "2013-04-01T00:00:00.001")
    for one, other, shared in ((march, april, False), (over, march, True), (over, april, True), (march, march, True)):
        assert one.overlaps(other) is other.overlaps(one) is shared
