"""Which offsets an interval of record time is, and where they can still be read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sluice.errors import BEGIN_ANEW, SourceUnreachableError, TopicRecreatedError
from sluice.interval import Interval
from sluice.kafka import Cluster
from sluice.kafka.cluster import TopicState
from sluice.kafka.state import Key
from sluice.ranges import OffsetRange, Positions, describe, overlaps, subtract
from sluice.wal import Segment, WriteAheadLog

__all__ = ["Available", "Resolved", "missing", "resolve"]


@dataclass(frozen=True)
class Available:
    """What can be read now: Kafka's part of each partition, and the write-ahead log's.

    Attributes
    ----------
    kafka
        What brokers hold; without topics that were made anew since, and empty when no broker answers.
    log
        The log, open.
    trouble
        Why no broker answered.
    recreated
        Topics that were made anew since: what is left of the old ones is in the log, if anywhere.
    """

    kafka: Mapping[Key, OffsetRange]
    log: WriteAheadLog
    cluster: Cluster
    isolation_level: str
    trouble: SourceUnreachableError | None = None
    recreated: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        states: Sequence[TopicState],
        known_ids: Mapping[str, str],
        log: WriteAheadLog,
        cluster: Cluster,
        *,
        isolation_level: str = "read_uncommitted",
        trouble: SourceUnreachableError | None = None,
    ) -> Available:
        """Return what brokers and log have.

        Parameters
        ----------
        states
            The topics as the broker sees them; empty when it does not answer.
        known_ids
            Topic ids as earlier runs saw them. A topic with another id is another topic: its offsets are other records.
        """
        others = (s.topic for s in states if s.topic_id and known_ids.get(s.topic, s.topic_id) != s.topic_id)
        recreated = frozenset(others)
        kafka = {
            (state.topic, number): OffsetRange(state.topic, number, now.start, max(now.start, now.end))
            for state in states
            if state.topic not in recreated
            for number, now in state.partitions.items()
        }
        return cls(kafka, log, cluster, isolation_level, trouble, recreated)

    def end(self, key: Key) -> int:
        """Return the offset behind the last one that can be read."""
        ends = [span.end for span in self.log.spans(*key)]
        return max([*ends, self.kafka[key].end if key in self.kafka else 0])

    def holds(self, key: Key, offset: int) -> bool:
        """Whether Kafka or the log has a place for this offset."""
        spans = [*self.log.spans(*key), *([self.kafka[key]] if key in self.kafka else [])]
        return any(span.start <= offset < span.end for span in spans)

    def first_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        """Return the first offset whose record is not older than a moment; None where all are older.

        Raises
        ------
        SluiceError
            When a broker or the log does not answer.
        """
        milliseconds = round(moment.timestamp() * 1000)
        found: dict[Key, int | None] = {}
        for key in keys:
            below = self.kafka[key].start if key in self.kafka else None
            spans = self.log.spans(*key)
            first = None
            if spans and (below is None or spans[0].start < below):
                first = self.log.first_at(*key, milliseconds)
            found[key] = first if first is not None and (below is None or first < below) else None
        asked = [key for key in keys if found[key] is None and key in self.kafka]
        told = self.cluster.at_time(asked, moment, isolation_level=self.isolation_level)
        silent = [key for key in asked if key not in told]
        if silent:
            topic, partition = silent[0]
            raise SourceUnreachableError(
                f"Kafka did not say where {moment.isoformat()} is in {topic}-{partition}",
                state="nothing was read or written",
                next_step="try again",
            )
        return found | told

    def gaps(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of ranges that neither Kafka nor the log has."""
        wanted = list(ranges)
        rest = subtract(wanted, self.kafka.values())
        return subtract(rest, [span for r in rest for span in self.log.spans(r.topic, r.partition)])

    def split(self, ranges: Sequence[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange], list[Segment]]:
        """Return what to read from Kafka, what from the log since Kafka no longer has it, and the log's segments."""
        kafka = overlaps(ranges, self.kafka.values())
        rest = subtract(ranges, kafka)
        segments = self.log.segments(rest) if rest else []
        return kafka, overlaps(rest, [s.range for s in segments]), segments


@dataclass(frozen=True)
class Resolved:
    """The offsets of an interval, one range for each partition, also where it is empty.

    Attributes
    ----------
    beyond
        Offsets of the interval that live runs have not reached: theirs to read.
    whole
        Both ends are final: there is a record behind the interval, and live runs have passed it.
    """

    ranges: tuple[OffsetRange, ...]
    beyond: tuple[OffsetRange, ...]
    whole: bool


def missing(
    pipeline: str, reached: Positions, available: Available, absent: Callable[[], Iterable[OffsetRange]]
) -> list[OffsetRange]:
    """Return the offsets below the live position that neither Kafka nor the log has.

    Parameters
    ----------
    absent
        Gives, when asked, stretches that held no record at all (transaction markers, what was compacted away): they
        leave nothing in the log, and nothing is missing of them.

    Raises
    ------
    SourceUnreachableError
        When no broker answers, and the write-ahead log does not reach as far as the live pipeline.
    TopicRecreatedError
        When a topic was made anew, and the log does not reach as far as live runs had read the old one.
    """
    gaps = available.gaps(OffsetRange(t, n, 0, end) for t, parts in reached.items() for n, end in parts.items())
    if gaps:
        gaps = subtract(gaps, absent())
    short = [gap for gap in gaps if gap.end == reached[gap.topic][gap.partition]]
    if short and available.trouble is not None:
        raise available.trouble
    anew = [gap for gap in short if gap.topic in available.recreated]
    if anew:
        raise TopicRecreatedError(
            f"pipeline {pipeline!r}: topic {anew[0].topic!r} was made anew, and the write-ahead log does not hold all "
            f"that was read of the old one: {describe(anew)}",
            state="nothing was read or written",
            next_step=f"an interval of the new topic needs a pipeline of its own: {BEGIN_ANEW}",
        )
    return gaps


def resolve(
    interval: Interval,
    slack: timedelta,
    reached: Positions,
    available: Available,
    known: Iterable[OffsetRange] = (),
    *,
    final: bool = False,
) -> Resolved:
    """Return the offsets from the first record that is not older than the start to the first that is not older than
    the end, no further than the live pipeline's position.

    Records do not stand in the order of their times. One that lies in the interval and outside of these offsets is
    not part of the answer; ``slack`` moves both ends apart by this much time.

    Parameters
    ----------
    reached
        The live pipeline's committed position.
    known
        What the interval was resolved to before: a start moves no further on, whatever Kafka has dropped since. It
        moves back when there is more slack.
    final
        The ends that are known are, too: one stays when what stood there can no longer be read.
    """
    keys = [(topic, n) for topic, partitions in sorted(reached.items()) for n in sorted(partitions)]
    fixed = {(r.topic, r.partition): r for r in known}
    begins = available.first_at(keys, _moved(interval.start, -slack))
    ends = available.first_at(keys, _moved(interval.end, slack))
    ranges, beyond, whole = [], [], True
    for key in keys:
        top, limit = available.end(key), reached[key[0]][key[1]]
        end = ends[key]
        stop = top if end is None else end
        begin = begins[key]
        if key in fixed:
            begin = fixed[key].start if begin is None else min(begin, fixed[key].start)
            if final and fixed[key].end < stop and not available.holds(key, fixed[key].end):
                stop = fixed[key].end
        start = min(stop if begin is None else begin, stop)
        ranges.append(OffsetRange(*key, min(start, limit), min(stop, limit)))
        if stop > max(start, limit):
            beyond.append(OffsetRange(*key, max(start, limit), stop))
        whole = whole and end is not None and end <= limit
    return Resolved(tuple(ranges), tuple(beyond), whole)


def _moved(moment: datetime, by: timedelta) -> datetime:
    try:
        return max(moment + by, datetime.fromtimestamp(0, UTC))
    except OverflowError:
        return datetime.fromtimestamp(0, UTC) if by < timedelta(0) else moment
