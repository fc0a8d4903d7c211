"""Finds which offsets the windows of an interval were made from, and where their records can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.errors import OffsetsGoneError
from sluice.ledger import IntervalRow, Lease
from sluice.ranges import OffsetRange, describe, overlaps, subtract
from sluice.run.resolve import Available, Resolved, few, missing
from sluice.text import instant
from sluice_spark.runs.interval_offsets import IntervalOffsets

__all__ = ["WindowOffsets"]


@dataclass
class WindowOffsets(IntervalOffsets):
    """Finds the offsets of the windows that begin in an interval of event time.

    Live runs note the first and the last event time of each batch, so batches of other times are not read. Where the
    file decides otherwise now which event time a record has (``decode``, ``rules``, ``transform``, ``window.time``),
    and of batches before that was noted, everything is read.

    Attributes
    ----------
    span
        The windows that are replaced begin in it, in milliseconds since 1970: the interval, as far as windows are
        closed.
    closed
        All windows up to there are closed, in milliseconds since 1970; 0 if none is.
    """

    span: tuple[int, int] = field(default=(0, 0), init=False)
    closed: int = field(default=0, init=False)

    def resolve(self, lease: Lease, known: IntervalRow | None, available: Available) -> Resolved:
        """Return the interval's offsets, after checking that its records can still be read.

        Raises
        ------
        OffsetsGoneError
            If some are in neither Kafka nor the log.
        """
        pipeline, ledger = self.context.pipeline, self.context.ledger
        name, window = pipeline.name, pipeline.window
        assert window is not None
        length = round(window.length.total_seconds() * 1000)
        start, end = self.interval.milliseconds
        # before the position is asked for: what live runs read behind it comes too late for windows that are closed now
        number = ledger.offsets.epoch(name).number
        closed = self.closed = ledger.facts.reach(name, range(number, number + 1)).closed_to
        until = min(end, closed - length + 1)
        self.span = (start, max(start, until))
        if until < end:
            self.notes.append(
                f"windows that end after {instant(closed * 1000)} are open, and are left to live runs" if closed
                else "no live run of this epoch has closed a window yet: nothing was replaced"
            )  # fmt: skip
        reached, accounts = ledger.offsets.reached(name), ledger.offsets.accounts(name)
        gaps = missing(name, reached, available, lambda: [a.range for a in accounts if a.counts.absent == len(a.range)])
        times = ledger.facts.event_times(name, pipeline.timing) if pipeline.timing is not None else []
        # a session may begin before the interval, and last until anything is closed
        near = (start, until + length) if window.gap is None else (start - length, closed + 1)
        elsewhere = [t.range for t in times if until <= start or not t.meets(*near)]
        lost = [row.range for row in ledger.offsets.never_read(name)]
        ranges, passed, gone = [], list[OffsetRange](), list[OffsetRange]()
        for topic, partitions in sorted(reached.items()):
            for number, limit in sorted(partitions.items()):
                mine = [a.range for a in accounts if (a.range.topic, a.range.partition) == (topic, number)]
                here = subtract(mine, elsewhere) if until > start else []
                gone += subtract(overlaps(here, gaps), lost)
                parts = few(subtract(here, gaps), gaps) if here else []
                span = OffsetRange(topic, number, *((parts[0].start, parts[-1].end) if parts else (limit, limit)))
                ranges.append(span)
                passed += subtract([span], parts) if parts else []
        if gone:
            raise OffsetsGoneError(
                f"pipeline {name!r}: records of windows that begin in {self.interval}, or may, are no longer in the "
                f"source or the write-ahead log: {describe(gone)}",
                next_step="choose an interval that starts later. Strategy wal keeps records for the time wal.keep, "
                "also beyond Kafka's retention",
                ranges=gone,
            )
        return Resolved(tuple(ranges), tuple(passed), (), (), until == end, {})

    def absent(self, ranges: Sequence[OffsetRange]) -> dict[tuple[str, int], int]:
        """Return how many offsets of these ranges had no record when live runs read them, per topic and partition."""
        found: dict[tuple[str, int], int] = {}
        for account in self.context.ledger.offsets.accounts(self.context.pipeline.name):
            if overlaps([account.range], ranges):
                key = account.range.topic, account.range.partition
                found[key] = found.get(key, 0) + account.counts.absent
        return found
