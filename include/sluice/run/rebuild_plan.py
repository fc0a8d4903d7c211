"""From which records a new epoch's state is made again, and which windows it leaves as they are; by the ledger.

A reset opens an epoch with no state. With ``rebuild``, its first run makes the state that the epochs before it had: of
the records that they read and that open windows, or keys that are remembered, still need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.facts import Duplicates, Windows
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange, joined, subtract
from sluice.sources.state import Key

__all__ = ["Kept", "began", "former_to", "kept"]

_EVER = 1 << 52


@dataclass(frozen=True)
class Kept:
    """What the epochs before one had in their state when they ended.

    Attributes
    ----------
    ranges
        The ranges of their batches that may have such records, without what was lost.
    records, written
        How many records these batches read, and how many of them count as written.
    watermark
        Where the watermark stood at least, in milliseconds since 1970.
    begun
        No window that begins at this time or before is of these epochs: earlier ones began it, whose state was dropped;
        in milliseconds since 1970. Windows that begin later are of their records alone.
    latest
        The latest event time that their batches read, by topic and partition, in milliseconds since 1970.
    """

    ranges: tuple[OffsetRange, ...]
    records: int
    written: int
    watermark: int
    begun: int
    latest: Mapping[Key, int]


def former_to(ledger: Ledger, pipeline: Pipeline, epoch: int, *, rebuilt: bool) -> int | None:
    """Return up to which end windows are not written by an epoch, in milliseconds since 1970; None if it writes all.

    Epochs before the one that last began without state may have absorbed records of every window that begins at or
    before the latest event time that they read; of a window that begins later, none. Since then, state went on from
    epoch to epoch, and what was closed stays. A session may have begun at any time, so of these only what was closed
    counts: their last watermark goes on. So it does with a processor.

    Parameters
    ----------
    rebuilt
        Whether its state is made again; else it begins without.
    """
    window, name, since = pipeline.window, pipeline.name, ledger.offsets.resets(pipeline.name).base
    if window is not None and window.output != "complete" and window.gap is None:
        begun = began(ledger, name, epoch) if rebuilt else epoch
        latest = ledger.facts.reach(name, range(since, begun)).latest
        closed = ledger.facts.reach(name, range(begun, epoch)).closed_to
        ends = [*([] if latest is None else [window.last_end(latest)]), *([closed] if closed else [])]
        return max(ends, default=None)
    if pipeline.processor is not None or (window is not None and window.gap is not None):
        return ledger.facts.reach(name, range(since, epoch)).closed_to or None
    return None


def kept(ledger: Ledger, pipeline: Pipeline, epoch: int) -> Kept:
    """Return of what the state of an epoch is made again.

    Parameters
    ----------
    pipeline
        One with windows or ``dedupe``.
    """
    name, window, dedupe = pipeline.name, pipeline.window, pipeline.dedupe
    first = began(ledger, name, epoch)
    standing = [e for e in ledger.offsets.entries(name) if first <= e.epoch < epoch and e.batch >= 0]
    every = ledger.facts.told(name, Windows if window is not None else Duplicates)
    # of batches that took other event times nothing is known
    moves = [m for m in every if first <= m["epoch"] < epoch and m.get("timing", "") == pipeline.timing]
    if window is not None:
        watermark = ledger.facts.reach(name, range(first, epoch)).closed_to
        former = former_to(ledger, pipeline, epoch, rebuilt=True) or 0
        begin = former - round(window.length.total_seconds() * 1000)
        times = ledger.facts.event_times(name, pipeline.timing) if pipeline.timing is not None else []
        over = {t.range for t in times if not t.meets(begin, _EVER)}
    else:
        assert dedupe is not None
        latest = {
            (told["epoch"], told["batch"], topic, partition): time
            for told in moves
            for topic, partition, time in told.get("partitions", {}).get("latest", ())
        }
        within = round(dedupe.within.total_seconds() * 1000)
        ends = [time - within for time in latest.values()] if dedupe.hold is None else []
        watermark = max([0, *(told["late_by"] for told in moves), *ends])
        begin = watermark - within if pipeline.timing is not None else -_EVER
        spans = ((e.account.range, e.epoch, e.batch) for e in standing)
        over = {s for s, number, batch in spans if latest.get((number, batch, s.topic, s.partition), _EVER) < begin}
    needed = [e.account for e in standing if e.account.counts.written and e.account.range not in over]
    before = ledger.facts.reach(name, range(ledger.offsets.resets(name).base, first)).latest
    lost = [row.range for row in ledger.offsets.never_read(name)]
    return Kept(
        tuple(joined(subtract((a.range for a in needed), lost))),
        sum(len(a.range) - a.counts.absent - a.counts.lost for a in needed),
        sum(a.counts.written for a in needed),
        watermark,
        -_EVER if before is None else before,
        _latest(moves),
    )


def _latest(moves: Iterable[Mapping[str, Any]]) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for told in moves:
        for topic, partition, time in told.get("partitions", {}).get("latest", ()):
            found[topic, partition] = max(time, found.get((topic, partition), time))
    return found


def began(ledger: Ledger, pipeline: str, epoch: int) -> int:
    """Return the epoch before this one, whose state is made again, that last began without state.

    Epochs that read nothing left none, and had none to leave.
    """
    resets = ledger.offsets.resets(pipeline)
    read = {entry.epoch for entry in ledger.offsets.entries(pipeline) if entry.batch >= 0}
    found = epoch - 1
    while found > resets.base and (found in resets.rebuilt or found not in read):
        found -= 1
    return found
