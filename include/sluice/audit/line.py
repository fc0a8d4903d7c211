"""Maps the accounted offsets of all partitions to consecutive places, so that NumPy arrays can represent them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluice.audit.books import Page
from sluice.ranges import OffsetRange, RangeAccount

__all__ = ["Cell", "Line"]

_PARTITIONS = 1 << 32


@dataclass
class Cell:
    """What the tables must hold of the offsets for which one entry of the ledger is the latest.

    Attributes
    ----------
    range
        The entry's range.
    written, quarantined
        How many offsets the sink and the quarantine must hold.
    run_id
        The id of the run that wrote the rows; None if the ledger does not say.
    whole
        Whether each offset must be in one of the two tables.
    open
        Whether the entry is a lost range that is not redriven yet.
    """

    range: OffsetRange
    written: int = 0
    quarantined: int = 0
    run_id: str | None = None
    whole: bool = False
    open: bool = False


class Line:
    """The accounted offsets of all partitions in one sequence of places, one partition after the other.

    Later entries override earlier ones: a redrive overrides the loss. This divides the line into pieces, each of one
    cell. All entries that overlap an interval are merged into one cell.

    Parameters
    ----------
    runs
        The run id of each account.

    Attributes
    ----------
    length
        The number of places.
    cells
        What the tables must hold.
    points, owners
        Piece ``i`` is ``points[i]`` to ``points[i + 1]`` and belongs to cell ``owners[i]``; -1 means a gap.
    """

    def __init__(self, pages: Sequence[Page], runs: Mapping[RangeAccount, str]) -> None:
        self._pages = [page for page in pages if page.live]
        self.topics = sorted({page.topic for page in self._pages})
        numbers = {topic: n for n, topic in enumerate(self.topics)}
        self._first: Any = np.array([page.first for page in self._pages], dtype=np.int64)
        self._last: Any = np.array([page.last for page in self._pages], dtype=np.int64)
        self._keys: Any = np.array(
            [numbers[page.topic] * _PARTITIONS + page.partition for page in self._pages], dtype=np.int64
        )
        self._base: Any = np.append(0, np.cumsum(self._last - self._first))
        self.length = int(self._base[-1])
        self.cells: list[Cell] = []
        points, owners = [], []
        for number, page in enumerate(self._pages):
            offsets, here = self._pieces(page, runs)
            points.append(offsets[:-1] - self._first[number] + self._base[number])
            owners.append(here)
        self.points: Any = np.append(np.concatenate(points) if points else np.empty(0, np.int64), self.length)
        self.owners: Any = np.concatenate(owners) if owners else np.empty(0, np.int64)

    def _pieces(self, page: Page, runs: Mapping[RangeAccount, str]) -> tuple[Any, Any]:
        def cells(accounts: Sequence[RangeAccount]) -> list[Cell]:
            return [
                Cell(
                    a.range,
                    a.counts.written,
                    a.counts.quarantined,
                    runs.get(a),
                    whole=not (a.counts.absent or a.counts.filtered),
                )
                for a in accounts
                if len(a.range)
            ]

        live, layers = cells(page.live), [(of, cells(part)) for of, part in _layers(page)]
        lost = [Cell(row.range, open=True) for row in page.never_read]
        first, last = page.first, page.last
        mixed = page.mixed()
        spans = [*mixed, *(c.range for layer in (live, lost, *(part for _, part in layers)) for c in layer)]
        edges = [p for span in spans for p in (span.start, span.end)]
        points = np.unique(np.clip(np.array([first, last, *edges], dtype=np.int64), first, last))
        owners = np.full(len(points) - 1, -1, dtype=np.int64)
        of_page = len(self.cells)
        self._lay(live, points, owners)
        for of, layer in layers:
            before = owners.copy()
            self._lay(layer, points, owners)
            for piece in np.flatnonzero((owners != before) & (before >= 0)) if of == "quarantined" else ():
                # redriven records are no longer in the quarantine
                self.cells[before[piece]].quarantined -= int(points[piece + 1] - points[piece])
        self._lay(lost, points, owners)
        for span in mixed:
            self._mix(span, page, points, owners, of_page)
        return points, owners

    def _mix(self, span: OffsetRange, page: Page, points: Any, owners: Any, first: int) -> None:
        """Merge the cells of a range, with what intervals added to it and removed from it."""
        inside = (points[:-1] >= span.start) & (points[:-1] < span.end)
        merged = Cell(span)
        # cells that own no piece any more count, too: the redriven parts of lost ranges
        for cell in self.cells[first:]:
            if cell.range.cut(span):
                merged.written += cell.written
                merged.quarantined += cell.quarantined
                cell.written = cell.quarantined = 0
        for account, (written, quarantined) in page.replaced:
            if account.range.cut(span):
                merged.written += account.counts.written - written
                merged.quarantined += account.counts.quarantined - quarantined
        owners[inside] = len(self.cells)
        self.cells.append(merged)

    def _lay(self, layer: Sequence[Cell], points: Any, owners: Any) -> None:
        if not layer:
            return
        starts = np.array([cell.range.start for cell in layer], dtype=np.int64)
        ends = np.array([cell.range.end for cell in layer], dtype=np.int64)
        number = np.searchsorted(starts, points[:-1], side="right") - 1
        inside = (number >= 0) & (points[:-1] < ends[number])
        owners[inside] = number[inside] + len(self.cells)
        self.cells += layer

    def places(self, topics: Any, partitions: Any, offsets: Any) -> Any:
        """Return the place of each offset; -1 if it is not on the line.

        Parameters
        ----------
        topics
            Indexes into :attr:`topics`; -1 for any other topic.
        """
        if not self._pages:
            return np.full(len(offsets), -1, dtype=np.int64)
        keys = np.where(topics < 0, -1, topics * _PARTITIONS + partitions)
        slots = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        inside = (self._keys[slots] == keys) & (offsets >= self._first[slots]) & (offsets < self._last[slots])
        return np.where(inside, offsets - self._first[slots] + self._base[slots], -1)

    def owner(self, places: Any) -> Any:
        """Return the index of the cell of each place; -1 in a gap."""
        return self.owners[np.searchsorted(self.points, places, side="right") - 1]

    def named(self, start: int, end: int) -> list[OffsetRange]:
        """Return the offsets of places ``[start, end)``."""
        found = []
        while start < end:
            slot = int(np.searchsorted(self._base, start, side="right")) - 1
            stop = min(end, int(self._base[slot + 1]))
            page, shift = self._pages[slot], int(self._first[slot]) - int(self._base[slot])
            found.append(OffsetRange(page.topic, page.partition, start + shift, stop + shift))
            start = stop
        return found


def _layers(page: Page) -> list[tuple[str | None, list[RangeAccount]]]:
    """Return the splits of redriven ranges in layers, oldest first, none of which overlaps itself."""
    if not any(entry.account.counts.lost for entry, _ in page.redriven):
        return [("lost", page.of_lost), ("quarantined", page.of_quarantined)]
    # what was redriven, retracted and redriven again is in several batches
    batches: dict[int, tuple[str | None, list[RangeAccount]]] = {}
    for entry, _ in page.redriven:
        batches.setdefault(entry.batch, (entry.of, []))[1].append(entry.account)
    return [batches[number] for number in sorted(batches)]
