"""Which offsets an interval is: from the first record not older than its start to the first not older than its end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from sluice.errors import SourceUnreachableError, TopicRecreatedError
from sluice.interval import Interval
from sluice.kafka.state import PartitionState, TopicState
from sluice.ranges import OffsetRange
from sluice.resolve import Available, Resolved, missing, resolve

HOUR = 3_600_000
T0 = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
Key = tuple[str, int]


@dataclass
class Part:
    """One partition: the hour of each record, from offset 0; what Kafka holds of it, and what the log."""

    hours: Sequence[float]
    kafka: tuple[int, int] | None = None
    log: tuple[int, int] | None = None


@dataclass
class Played:
    """A broker and a log that hold what they are told."""

    parts: Mapping[Key, Part]
    down: bool = False
    silent: set[Key] = field(default_factory=set)

    def first(self, key: Key, span: tuple[int, int], milliseconds: int) -> int | None:
        hours = self.parts[key].hours
        return next((o for o in range(*span) if T0 + hours[o] * HOUR >= milliseconds), None)

    def available(self) -> Available:
        kafka = {k: OffsetRange(*k, *p.kafka) for k, p in self.parts.items() if p.kafka and not self.down}
        trouble = SourceUnreachableError("no broker answers") if self.down else None
        return Available(kafka, cast(Any, self), cast(Any, self), "read_uncommitted", trouble)

    # the cluster's
    def at_time(self, keys: Collection[Key], moment: datetime, *, isolation_level: str) -> dict[Key, int | None]:
        ms = round(moment.timestamp() * 1000)
        return {k: self.first(k, cast(Any, self.parts[k].kafka), ms) for k in keys if k not in self.silent}

    # the log's
    def spans(self, topic: str, partition: int) -> list[OffsetRange]:
        span = self.parts[topic, partition].log
        return [OffsetRange(topic, partition, *span)] if span else []

    def first_at(self, topic: str, partition: int, milliseconds: int) -> int | None:
        span = self.parts[topic, partition].log
        return self.first((topic, partition), span, milliseconds) if span else None


def hours(first: float, last: float) -> Interval:
    begin = datetime(2013, 1, 1, tzinfo=UTC)
    return Interval.of(begin + timedelta(hours=first), begin + timedelta(hours=last))


def answer(played: Played, interval: Interval, reached: Mapping[int, int], **more: Any) -> Resolved:
    slack = more.pop("slack", timedelta(0))
    return resolve(interval, slack, {"t": dict(reached)}, played.available(), **more)


def spans(resolved: Resolved) -> dict[int, tuple[int, int]]:
    return {r.partition: (r.start, r.end) for r in resolved.ranges}


EVEN = list(range(10))


def test_both_ends_are_looked_up_in_each_partition() -> None:
    played = Played({("t", 0): Part(EVEN, (0, 10)), ("t", 1): Part([h / 2 for h in range(20)], (0, 20))})
    found = answer(played, hours(3, 6), {0: 10, 1: 20})
    assert spans(found) == {0: (3, 6), 1: (6, 12)}
    assert (found.beyond, found.whole) == ((), True)


def test_a_quiet_partition_is_an_empty_range_and_not_all_of_it() -> None:
    played = Played({("t", 0): Part([0, 1, 8, 9], (0, 4)), ("t", 1): Part([], (0, 0)), ("t", 2): Part([1, 2], (0, 2))})
    found = answer(played, hours(3, 6), {0: 4, 1: 0, 2: 2})
    assert spans(found) == {0: (2, 2), 1: (0, 0), 2: (2, 2)}
    assert not found.whole, "in two partitions nothing stands behind the interval yet"


def test_nothing_behind_the_live_position_is_touched() -> None:
    played = Played({("t", 0): Part(EVEN, (0, 10)), ("t", 1): Part(EVEN, (0, 10))})
    found = answer(played, hours(3, 6), {0: 4, 1: 1})
    assert spans(found) == {0: (3, 4), 1: (1, 1)}
    assert found.beyond == (OffsetRange("t", 0, 4, 6), OffsetRange("t", 1, 3, 6))
    assert not found.whole


def test_before_the_first_record_and_behind_the_last() -> None:
    played = Played({("t", 0): Part([h + 100 for h in EVEN], (0, 10))})
    assert spans(answer(played, hours(0, 50), {0: 10})) == {0: (0, 0)}
    late = answer(played, hours(200, 300), {0: 10})
    assert (spans(late), late.whole) == ({0: (10, 10)}, False)


def test_slack_looks_earlier_and_later() -> None:
    played = Played({("t", 0): Part([0, 1, 5, 2, 3, 4, 1, 6, 7, 8], (0, 10))})
    assert spans(answer(played, hours(3, 5), {0: 10})) == {0: (2, 2)}, "the 5 stands before the 3"
    assert spans(answer(played, hours(3, 5), {0: 10}, slack=timedelta(hours=2))) == {0: (1, 8)}
    assert spans(answer(played, hours(3, 5), {0: 10}, slack=timedelta(days=99999))) == {0: (0, 10)}


def test_what_kafka_dropped_is_looked_up_in_the_log() -> None:
    played = Played({("t", 0): Part(EVEN, (5, 10), (0, 8))})
    assert spans(answer(played, hours(2, 4), {0: 10})) == {0: (2, 4)}
    assert spans(answer(played, hours(3, 7), {0: 10})) == {0: (3, 7)}
    assert spans(answer(played, hours(6, 9), {0: 10})) == {0: (6, 9)}


def test_a_start_that_was_resolved_once_stays_when_kafka_drops_records() -> None:
    played = Played({("t", 0): Part(EVEN, (5, 10))})
    assert spans(answer(played, hours(3, 7), {0: 10})) == {0: (5, 7)}
    known = [OffsetRange("t", 0, 3, 7)]
    found = answer(played, hours(3, 7), {0: 10}, known=known)
    assert spans(found) == {0: (3, 7)}
    assert played.available().gaps(found.ranges) == [OffsetRange("t", 0, 3, 5)]


def test_more_slack_moves_a_known_start_back() -> None:
    played = Played({("t", 0): Part(EVEN, (0, 10))})
    known = [OffsetRange("t", 0, 3, 5)]
    assert spans(answer(played, hours(3, 5), {0: 10}, known=known, slack=timedelta(hours=2))) == {0: (1, 7)}
    assert spans(answer(played, hours(3, 5), {0: 10}, known=[OffsetRange("t", 0, 1, 7)])) == {0: (1, 5)}


def test_an_end_that_is_final_stays_when_what_stood_there_is_gone() -> None:
    """A quiet partition stays quiet: records behind the interval are none of its gaps."""
    played = Played({("t", 0): Part([0, 1, 8, 9, 10, 11], (4, 6))})
    known = [OffsetRange("t", 0, 2, 2)]
    found = answer(played, hours(3, 6), {0: 6}, known=known, final=True)
    assert spans(found) == {0: (2, 2)}
    assert spans(answer(played, hours(3, 6), {0: 6}, known=known)) == {0: (2, 4)}, "not final: it may have grown"


def test_without_a_broker_the_log_must_reach_the_live_position() -> None:
    played = Played({("t", 0): Part(EVEN, (0, 10), (0, 10))}, down=True)
    assert spans(answer(played, hours(2, 4), {0: 10})) == {0: (2, 4)}
    short = Played({("t", 0): Part(EVEN, (0, 10), (0, 8))}, down=True)
    with pytest.raises(SourceUnreachableError, match="no broker answers"):
        missing("p", {"t": {0: 10}}, short.available(), list)
    markers = [OffsetRange("t", 0, 8, 10)]
    assert missing("p", {"t": {0: 10}}, short.available(), lambda: markers) == [], "no record was ever there"


def test_of_a_topic_made_anew_only_the_log_has_the_old_records() -> None:
    anew = TopicState("t", "new", {0: PartitionState(0, 50)})
    for held, missed in (((0, 10), []), ((3, 10), [OffsetRange("t", 0, 0, 3)])):
        log = Played({("t", 0): Part(EVEN, None, held)})
        found = Available.of([anew], {"t": "old"}, cast(Any, log), cast(Any, log))
        assert found.recreated == {"t"}
        assert missing("p", {"t": {0: 10}}, found, list) == missed
    for held_to in ((0, 8), None):
        log = Played({("t", 0): Part(EVEN, None, held_to)})
        with pytest.raises(TopicRecreatedError, match=r"made anew.* t-0 \[(8|0), 10\)"):
            missing("p", {"t": {0: 10}}, Available.of([anew], {"t": "old"}, cast(Any, log), cast(Any, log)), list)


def test_a_partition_that_does_not_answer_is_not_an_empty_one() -> None:
    played = Played({("t", 0): Part(EVEN, (0, 10)), ("t", 1): Part(EVEN, (0, 10))}, silent={("t", 1)})
    with pytest.raises(SourceUnreachableError, match=r"did not say where .* is in t-1"):
        answer(played, hours(2, 4), {0: 10, 1: 10})
