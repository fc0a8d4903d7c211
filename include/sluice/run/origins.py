"""Which records of a pipeline with several clusters are settled, by where they came from; pure.

A record is settled if a committed batch wrote, filtered or quarantined it, directly or by way of a mirror. What is open
as lost is not settled. What lies before the first offset that the pipeline read of a stream counts as settled, too: the
pipeline began behind it, and a mirror must not bring it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from sluice import facts
from sluice.ledger import Ledger
from sluice.ranges import OffsetRange, Positions, joined, overlaps, runs_of, subtract
from sluice.sources.state import Key

__all__ = ["Origins", "Screened", "Settled", "screened", "settled_of"]


@dataclass(frozen=True)
class Settled:
    """Settled origins."""

    ranges: Sequence[OffsetRange]

    def covers(self, key: Key, offsets: Any) -> Any:
        """Return, for each offset (int64) of a stream's partition, whether it is settled, as a NumPy array."""
        here = [r for r in self.ranges if (r.topic, r.partition) == key]
        starts = np.array([r.start for r in here], dtype=np.int64)
        ends = np.array([r.end for r in here], dtype=np.int64)
        if not here:
            return np.zeros(len(offsets), dtype=bool)
        at = np.searchsorted(starts, offsets, side="right") - 1
        return (at >= 0) & (offsets < ends[at])


def settled_of(ledger: Ledger, pipeline: str) -> Settled:
    """Return what the ledger knows to be settled."""
    reached: Positions = ledger.offsets.reached(pipeline)
    # a stream may be left before a record of it was read
    for stream, parts in ledger.offsets.resets(pipeline).left.items():
        for partition, offset in parts.items():
            there = reached.setdefault(stream, {})
            there[partition] = max(offset, there.get(partition, 0))
    whole = [OffsetRange(s, n, 0, end) for s, parts in reached.items() for n, end in parts.items()]
    standing = subtract(whole, [row.range for row in ledger.offsets.lost(pipeline)])
    origins = ledger.facts.told(pipeline, facts.Origins, standing=True)
    mirrored = {OffsetRange(*span) for told in origins for span in told["ranges"]}
    return Settled(_merged([*standing, *sorted(mirrored)]))


def _merged(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the union of ranges, in order."""
    found: list[OffsetRange] = []
    for (topic, partition), parts in groupby(sorted(ranges), key=lambda r: (r.topic, r.partition)):
        start = end = None
        for part in parts:
            if end is None or start is None or part.start > end:
                if start is not None and end is not None:
                    found.append(OffsetRange(topic, partition, start, end))
                start, end = part.start, part.end
            end = max(end, part.end)
        if start is not None and end is not None:
            found.append(OffsetRange(topic, partition, start, end))
    return joined(r for r in found if len(r))


@dataclass(frozen=True)
class Origins:
    """The records of some ranges that say where they came from: columns of the same length.

    Attributes
    ----------
    streams, partitions, offsets
        Where each record is.
    of_streams, of_partitions, of_offsets
        Where it came from.
    """

    streams: Sequence[str]
    partitions: Sequence[int]
    offsets: Sequence[int]
    of_streams: Sequence[str]
    of_partitions: Sequence[int]
    of_offsets: Sequence[int]


@dataclass(frozen=True)
class Screened:
    """Which records of some ranges are copies, and what the others settle.

    Attributes
    ----------
    copies
        Ascending offsets of copies, by stream and partition, as NumPy arrays (int64). Their origins are settled, or
        another record of these ranges has the same origin.
    settled
        The origins of the records that are no copies, as ranges.
    """

    copies: Mapping[Key, Any] = field(default_factory=dict)
    settled: tuple[OffsetRange, ...] = ()

    @property
    def count(self) -> int:
        """The number of copies."""
        return sum(map(len, self.copies.values()))

    def as_ranges(self) -> list[OffsetRange]:
        """Return the copies as ranges."""
        return [r for (stream, n), at in sorted(self.copies.items()) for r in runs_of(stream, n, at.tolist())]

    @property
    def fact(self) -> facts.Origins:
        """The fact of a batch of these records."""
        return facts.Origins(self.count, [r.as_list() for r in self.settled])


def screened(origins: Origins, settled: Settled, reading: Collection[OffsetRange]) -> Screened:
    """Return which records are copies.

    Parameters
    ----------
    reading
        The ranges that these records are of, none of them accounted for. A record that came from one of them, by way of
        a mirror and back, is a copy of the record there. What a mirror brought before is a copy where it came from.
    """
    order = sorted(
        range(len(origins.offsets)), key=lambda n: (origins.streams[n], origins.partitions[n], origins.offsets[n])
    )
    known = Settled(_merged([*settled.ranges, *reading]))
    by_origin: dict[Key, list[int]] = {}
    for n in order:
        by_origin.setdefault((origins.of_streams[n], origins.of_partitions[n]), []).append(n)
    copies: dict[Key, set[int]] = {}
    for span in overlaps(reading, settled.ranges):
        copies.setdefault((span.topic, span.partition), set()).update(range(span.start, span.end))
    fresh: list[OffsetRange] = []
    for key, rows in by_origin.items():
        covered = known.covers(key, np.array([origins.of_offsets[n] for n in rows], dtype=np.int64))
        new: set[int] = set()
        for n, is_settled in zip(rows, covered.tolist(), strict=True):
            offset = origins.of_offsets[n]
            if is_settled or offset in new:
                copies.setdefault((origins.streams[n], origins.partitions[n]), set()).add(origins.offsets[n])
            else:
                new.add(offset)
        fresh += runs_of(*key, sorted(new))
    return Screened({key: np.array(sorted(at), dtype=np.int64) for key, at in copies.items()}, tuple(sorted(fresh)))
