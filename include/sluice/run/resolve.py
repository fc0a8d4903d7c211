"""Resolves an interval of record time to offsets, and finds where they can still be read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sluice.errors import START_OVER, SourceUnreachableError, TopicRecreatedError
from sluice.ranges import OffsetRange, Positions, Times, describe, overlaps, subtract
from sluice.run.interval import Interval
from sluice.sources.base import Source
from sluice.sources.state import Key, TopicState
from sluice.wal import Segment, Unread, WriteAheadLog

__all__ = ["Available", "Resolved", "few", "missing", "resolve"]

_PARTS = 16
"""Maximum number of separate parts of a partition that are read."""


@dataclass(frozen=True)
class Available:
    """What can be read now from Kafka and from the write-ahead log, per partition.

    Attributes
    ----------
    kafka
        The ranges that brokers have, except those of recreated topics; empty if no broker answers.
    log
        The open log.
    trouble
        Why no broker answered.
    recreated
        Topics that were recreated since. Records of the former topics can only be in the log.
    """

    kafka: Mapping[Key, OffsetRange]
    log: WriteAheadLog
    source: Source
    trouble: SourceUnreachableError | None = None
    recreated: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        states: Sequence[TopicState],
        known_ids: Mapping[str, str],
        log: WriteAheadLog,
        source: Source,
        *,
        trouble: SourceUnreachableError | None = None,
    ) -> Available:
        """Return what brokers and log have.

        Parameters
        ----------
        states
            The topics as the broker sees them; empty if it does not answer.
        known_ids
            Topic ids that earlier runs saw. A topic with another id was recreated: its offsets are other records.
        """
        recreated = frozenset(s.topic for s in states if s.is_another(known_ids.get(s.topic)))
        kafka = {
            (state.topic, number): OffsetRange(state.topic, number, now.start, max(now.start, now.end))
            for state in states
            if state.topic not in recreated
            for number, now in state.partitions.items()
        }
        return cls(kafka, log, source, trouble, recreated)

    def end(self, key: Key) -> int:
        """Return the end (exclusive) of the offsets that can be read."""
        ends = [span.end for span in self.log.spans(*key)]
        return max([*ends, self.kafka[key].end if key in self.kafka else 0])

    def first_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        """Return, per partition, the first offset whose timestamp is at or after ``moment``; None if there is none.

        Exact in any order of timestamps: each record at a lower offset is older.

        Raises
        ------
        SluiceError
            If a broker or the log does not answer.
        """
        milliseconds = round(moment.timestamp() * 1000)
        if milliseconds <= 0:  # -1 means a record without a timestamp, and in a request to Kafka the log end
            return {key: self._first(key) for key in keys}
        found: dict[Key, int | None] = {}
        for key in keys:
            below = self.kafka[key].start if key in self.kafka else None
            spans = self.log.spans(*key)
            first = None
            if spans and (below is None or spans[0].start < below):
                first = self.log.first_at(*key, milliseconds)
            found[key] = first if first is not None and (below is None or first < below) else None
        asked = [key for key in keys if found[key] is None and key in self.kafka]
        told = self.source.offsets_at(asked, moment)
        silent = [key for key in asked if key not in told]
        if silent:
            topic, partition = silent[0]
            raise SourceUnreachableError(
                f"Kafka did not return the offset of {moment.isoformat()} in {topic}-{partition}",
                state="nothing was read or written",
                next_step="try again",
            )
        return found | told

    def _first(self, key: Key) -> int | None:
        spans = [*self.log.spans(*key), *([self.kafka[key]] if key in self.kafka else [])]
        return min((span.start for span in spans if len(span)), default=None)

    def gaps(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of the ranges that neither Kafka nor the log has."""
        wanted = list(ranges)
        rest = subtract(wanted, self.kafka.values())
        return subtract(rest, [span for r in rest for span in self.log.spans(r.topic, r.partition)])

    def split(
        self, ranges: Sequence[OffsetRange], *, log_first: bool = False
    ) -> tuple[list[OffsetRange], list[OffsetRange], list[Segment]]:
        """Return the ranges to read from Kafka, those to read from the log, and the log's segments.

        Parameters
        ----------
        log_first
            Whether Kafka is asked for what the log lacks, and not the other way round.
        """
        kafka = [] if log_first else overlaps(ranges, self.kafka.values())
        rest = subtract(ranges, kafka)
        segments = self.log.segments(rest) if rest else []
        # after a reset, segments of two epochs may have the same offsets
        without = subtract(rest, [s.range for s in segments])
        return kafka or overlaps(without, self.kafka.values()), subtract(rest, without), segments


@dataclass(frozen=True)
class Resolved:
    """The offsets of an interval: one range for each partition, which may be empty.

    Attributes
    ----------
    passed
        Parts of the ranges that are not read, because their known record times exclude the interval, or because neither
        Kafka nor the log has them.
    unknown
        Parts of the ranges whose record times are unknown and may all be outside of the interval. Reading the times
        first may save reading the records.
    beyond
        Offsets of the interval that live runs have not reached yet; live runs will read them.
    whole
        Whether there is a record after the interval, and live runs have passed it.
    firsts
        The first readable offset at or after the interval's start; the live position if there is none.
    """

    ranges: tuple[OffsetRange, ...]
    passed: tuple[OffsetRange, ...]
    unknown: tuple[OffsetRange, ...]
    beyond: tuple[OffsetRange, ...]
    whole: bool
    firsts: Mapping[Key, int]
    given_up: tuple[OffsetRange, ...] = ()
    """Parts of the ranges that nothing can be read of, which the run's strategy accepts."""

    def giving_up(self, gone: Sequence[OffsetRange]) -> Resolved:
        """Return the same, with these offsets given up; the ranges are extended to them."""
        ranges, passed = [], subtract(self.passed, gone)
        for span in self.ranges:
            parts = [span] if len(span) else []
            parts += [r for r in gone if (r.topic, r.partition) == (span.topic, span.partition)]
            if parts:
                first, last = min(r.start for r in parts), max(r.end for r in parts)
                span = OffsetRange(span.topic, span.partition, first, last)
                passed += subtract([span], parts)
            ranges.append(span)
        return replace(self, ranges=tuple(ranges), passed=tuple(passed), given_up=tuple(gone))

    @property
    def read(self) -> list[OffsetRange]:
        """The parts of the ranges that may hold records of the interval."""
        return subtract([r for r in self.ranges if len(r)], [*self.passed, *self.given_up])


def missing(
    pipeline: str, reached: Positions, available: Available, absent: Callable[[], Iterable[OffsetRange]]
) -> list[OffsetRange]:
    """Return the offsets below the live position that neither Kafka nor the log has.

    Parameters
    ----------
    absent
        Returns the known offset gaps (transaction markers, compaction): they have no records, so the log cannot have
        them and nothing is missing.

    Raises
    ------
    SourceUnreachableError
        If no broker answers, and the write-ahead log does not reach the live position.
    TopicRecreatedError
        If a topic was recreated, and the log does not reach the live position in the former topic.
    """
    gaps = available.gaps(OffsetRange(t, n, 0, end) for t, parts in reached.items() for n, end in parts.items())
    if gaps:
        gaps = subtract(gaps, absent())
    short = [gap for gap in gaps if gap.end == reached[gap.topic][gap.partition]]
    if short and available.trouble is not None:
        raise available.trouble
    recreated = [gap for gap in short if gap.topic in available.recreated]
    if recreated:
        step = f"an interval of the new topic needs a pipeline of its own: {START_OVER}"
        without = isinstance(available.log, Unread)
        place = "the source" if without else "the write-ahead log"
        raise TopicRecreatedError(
            f"pipeline {pipeline!r}: topic {recreated[0].topic!r} was recreated, and {place} does not have all that "
            f"was read of the topic before it: {describe(recreated)}",
            state="nothing was read or written",
            next_step=f"recovery wal reads what the write-ahead log has of the topic before it; {step}"
            if without
            else step,
        )
    return gaps


def resolve(
    interval: Interval,
    reached: Positions,
    available: Available,
    times: Iterable[Times] = (),
    gaps: Iterable[OffsetRange] = (),
    lost: Iterable[OffsetRange] = (),
) -> Resolved:
    """Return the offsets below the live position that may hold records of the interval.

    Records need not be in the order of their times. Before the first record at or after the interval's start, all are
    older. From there to the first record at or after the interval's end, everything is read. After that, only known
    record times can exclude a part.

    Parameters
    ----------
    reached
        The live pipeline's committed positions.
    times
        Known record times: of batches, observed by live runs, and of segments, from their handles. Ranges may overlap.
    gaps
        Ranges that neither Kafka nor the log has.
    lost
        Ranges that live runs skipped. No table has them, so after the interval's end nothing of them needs replacing.
    """
    keys = [(topic, n) for topic, partitions in sorted(reached.items()) for n in sorted(partitions)]
    start, end = interval.milliseconds
    begins = available.first_at(keys, interval.start)
    ends = available.first_at(keys, interval.end)
    known = [*times, *(Times(s.range, s.first, s.last) for s in available.log.segments())]
    excluded = [t.range for t in known if not t.meets(start, end)]
    seen, gaps, lost = [t.range for t in known], list(gaps), list(lost)
    ranges, passed, unknown, beyond = [], list[OffsetRange](), list[OffsetRange](), []
    whole, firsts = True, dict[Key, int]()
    for key in keys:
        top, limit, begin, end_at = available.end(key), reached[key[0]][key[1]], begins[key], ends[key]
        first = limit if begin is None else min(begin, limit)
        firsts[key] = first
        behind = limit if end_at is None else min(max(first, end_at), limit)
        inner, outer = OffsetRange(*key, first, behind), OffsetRange(*key, behind, limit)
        here = subtract([r for r in (inner, outer) if len(r)], [*excluded, *gaps])
        parts = few(subtract(here, overlaps(lost, [outer])), gaps)
        span = OffsetRange(*key, parts[0].start, parts[-1].end) if parts else OffsetRange(*key, first, first)
        ranges.append(span)
        passed += subtract([span], parts) if parts else []
        unknown += subtract(overlaps(parts, [outer]), seen)
        stop = top if end_at is None else end_at
        if begin is not None and stop > max(begin, limit):
            beyond.append(OffsetRange(*key, max(begin, limit), stop))
        whole = whole and end_at is not None and end_at <= limit
    return Resolved(tuple(ranges), tuple(passed), tuple(unknown), tuple(beyond), whole, firsts)


def few(parts: Sequence[OffsetRange], gaps: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Merge ranges of one partition until there are at most :data:`_PARTS`.

    Merging reads the offsets in between, too, so ranges around a gap that cannot be read are not merged.
    """
    found = [[r.start, r.end] for r in sorted(parts)]
    steps = sorted((b[0] - a[1], n) for n, (a, b) in enumerate(itertools.pairwise(found)))
    blocked = {
        n
        for n, (a, b) in enumerate(itertools.pairwise(found))
        if b[0] > a[1] and overlaps([OffsetRange(parts[0].topic, parts[0].partition, a[1], b[0])], gaps)
    }
    joined = {n for _, n in steps[: max(0, len(found) - _PARTS)]} | {n for width, n in steps if width == 0}
    merged: list[list[int]] = []
    for n, (begin, end) in enumerate(found):
        if n and n - 1 in joined - blocked:
            merged[-1][1] = end
        else:
            merged.append([begin, end])
    return [OffsetRange(parts[0].topic, parts[0].partition, begin, end) for begin, end in merged]
