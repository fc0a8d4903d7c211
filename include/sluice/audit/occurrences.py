"""Records in one byte per offset whether and how often each accounted offset is in the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sluice.audit.line import Line
from sluice.audit.report import shortened
from sluice.ranges import OffsetRange, describe, runs_of

__all__ = ["QUARANTINE", "SINK", "Occurrences", "Strays"]

SINK, QUARANTINE = 1, 2
"""The tables, and the bits that mark an offset as being in them."""

_TWICE, _FOREIGN = 4, 16
"""Bits for the sink; multiply by :data:`QUARANTINE` for the quarantine."""

_WRONG = {
    SINK | QUARANTINE: "is in the sink and in the quarantine",
    _TWICE: "stands more than once in the sink",
    _TWICE * QUARANTINE: "stands more than once in the quarantine",
    _FOREIGN: "is in the sink, by another run than the ledger names",
    _FOREIGN * QUARANTINE: "is in the quarantine, by another run than the ledger names",
}

_BLOCK = 1 << 22
_MOST = 1000


class Strays:
    """Rows of one table whose offsets no account covers.

    Parameters
    ----------
    name
        The table's name in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._nameless = 0
        self._found: dict[tuple[str, int], tuple[int, int, int, list[int]]] = {}

    def take(self, topics: Any, partitions: Any, offsets: Any) -> None:
        """Record rows: their number, first and last offset and, while they are few, all offsets.

        A topic of None, or a partition or offset of -1, means that the row has none.
        """
        named = np.array([t is not None for t in topics], dtype=bool) & (partitions >= 0) & (offsets >= 0)
        self._nameless += int((~named).sum())
        topics, partitions, offsets = topics[named], partitions[named], offsets[named]
        for topic, partition in set(zip(topics.tolist(), partitions.tolist(), strict=True)):
            here = offsets[(topics == topic) & (partitions == partition)]
            count, first, last, known = self._found.get((topic, partition), (0, int(here[0]), 0, []))
            known += here[: _MOST - len(known)].tolist()
            ends = (min(first, int(here.min())), max(last, int(here.max())))
            self._found[topic, partition] = (count + len(here), *ends, known)

    def problems(self) -> list[str]:
        """Return a message for each group of rows."""
        found = [f"{self._nameless:,} rows of the {self._name} have no offset"] if self._nameless else []
        for (topic, partition), (count, first, last, known) in sorted(self._found.items()):
            if len(known) == count:
                where = describe(runs_of(topic, partition, sorted(set(known))))
                found.append(f"{where} is in the {self._name}, but no account covers it")
            else:
                span = OffsetRange(topic, partition, first, last + 1)
                found.append(f"{count:,} rows of the {self._name} lie within {span}, but no account covers them")
        return shortened(found, f"rows of the {self._name} that no account covers")


class Occurrences:
    """Marks the places of a part of the line whose offsets are in the tables.

    Memory is one byte per place, and one batch of rows.

    Parameters
    ----------
    start, end
        The part, as places of the line; the end is exclusive.
    """

    def __init__(self, line: Line, start: int, end: int) -> None:
        self._line, self._start, self._end = line, start, end
        self._marks: Any = np.zeros(end - start, dtype=np.uint8)
        self._topics = {topic: number for number, topic in enumerate(line.topics)}
        self._runs: dict[str, int] = {}
        expected = [-1 if c.run_id is None else self._runs.setdefault(c.run_id, len(self._runs)) for c in line.cells]
        # the last entry is that of gaps
        self._expected: Any = np.array([*expected, -1], dtype=np.int64)
        self._whole: Any = np.array([*(c.whole for c in line.cells), False])
        self._empty: Any = np.array([*(c.open for c in line.cells), True])

    def take(self, rows: Any, table: int, *, once: bool, strays: Strays | None = None) -> None:
        """Mark a batch of rows.

        Parameters
        ----------
        rows
            An Arrow batch of ``_topic``, ``_partition``, ``_offset``, ``_run``.
        table
            :data:`SINK` or :data:`QUARANTINE`.
        once
            Whether an offset may be in the table only once.
        strays
            Receives the rows that are not on the line.
        """
        partitions, offsets = (
            rows.column(name).fill_null(-1).to_numpy(zero_copy_only=False) for name in ("_partition", "_offset")
        )
        places = self._line.places(_numbers(rows.column("_topic"), self._topics), partitions, offsets)
        outside = places < 0
        if strays is not None and outside.any():
            topics = np.array(rows.column("_topic").to_pylist(), dtype=object)
            strays.take(topics[outside], partitions[outside], offsets[outside])
        here = (places >= self._start) & (places < self._end)
        places = places[here]
        expected = self._expected[self._line.owner(places)]
        runs = _numbers(rows.column("_run"), self._runs)[here]
        places -= self._start
        self._marks[places[(expected >= 0) & (expected != runs)]] |= _FOREIGN * table
        if once:
            again = (self._marks[places] & table) != 0
            self._marks[places[again]] |= _TWICE * table
            if not (np.diff(places) > 0).all():
                places = np.sort(places)
                self._marks[places[1:][np.diff(places) == 0]] |= _TWICE * table
        self._marks[places] |= table

    def counts(self, table: int) -> Any:
        """Return how many offsets of each cell are in a table, within this part of the line."""
        found = np.zeros(len(self._line.cells) + 1, dtype=np.int64)
        for marks, points, owners in self._blocks():
            np.add.at(found, owners, np.add.reduceat((marks & table) != 0, points, dtype=np.int64))
        return found[:-1]

    def problems(self, *, both: bool) -> list[str]:
        """Return messages about offsets that are in a wrong table, too often, by a wrong run, or missing.

        Parameters
        ----------
        both
            Whether both tables were read; an offset can be found missing only then.
        """
        found: dict[str, _Stretches] = {}
        position = 0
        for marks, points, owners in self._blocks():
            for wrong, what in _WRONG.items():
                _add(found, what, position, (marks & wrong) == wrong)
            lengths = np.diff(points, append=len(marks))
            held = np.add.reduceat((marks & (SINK | QUARANTINE)) != 0, points, dtype=np.int64)
            suspects = (self._empty[owners] & (held > 0)) | (self._whole[owners] & (held < lengths) & both)
            for start, length, owner in zip(*(a[suspects].tolist() for a in (points, lengths, owners)), strict=True):
                self._judge(found, position + start, marks[start : start + length], owner)
            position += len(marks)
        named: list[str] = []
        for what, stretches in found.items():
            spans = [s for pair in stretches.pairs for s in self._line.named(*(self._start + p for p in pair))]
            named += shortened([f"{s} {what}" for s in spans], f"what {what}", stretches.more)
        return named

    def _judge(self, found: dict[str, _Stretches], position: int, marks: Any, owner: int) -> None:
        if self._whole[owner]:
            what = "is missing: it was written or quarantined, and is in neither table"
            _add(found, what, position, (marks & (SINK | QUARANTINE)) == 0)
            return
        but = "no account covers it" if owner < 0 else "is open as lost"
        for table, name in ((SINK, "sink"), (QUARANTINE, "quarantine")):
            _add(found, f"is in the {name}, but {but}", position, (marks & table) != 0)

    def _blocks(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the marks, block by block, with the first places of the pieces in a block and their owners."""
        for first in range(0, len(self._marks), _BLOCK):
            marks = self._marks[first : first + _BLOCK]
            start = self._start + first
            low = int(np.searchsorted(self._line.points, start, side="right")) - 1
            high = int(np.searchsorted(self._line.points, start + len(marks)))
            yield marks, np.maximum(self._line.points[low:high] - start, 0), self._line.owners[low:high]


class _Stretches:
    """Places as ranges without a gap; beyond a limit, only how many more there are."""

    def __init__(self) -> None:
        self.pairs: list[list[int]] = []
        self.more = 0

    def add(self, first: int, hit: Any) -> None:
        """Add the places, counted from ``first``, at which ``hit`` is true."""
        edges = np.flatnonzero(np.diff(np.concatenate(([0], hit.view(np.int8), [0])))).reshape(-1, 2) + first
        if self.pairs and not self.more and self.pairs[-1][1] == edges[0][0]:
            self.pairs[-1][1] = int(edges[0][1])
            edges = edges[1:]
        room = _MOST - len(self.pairs)
        self.pairs += edges[:room].tolist()
        self.more += max(0, len(edges) - room)


def _add(found: dict[str, _Stretches], what: str, first: int, hit: Any) -> None:
    if hit.any():
        found.setdefault(what, _Stretches()).add(first, hit)


def _numbers(column: Any, known: Mapping[str, int]) -> Any:
    """Return a column of names as their numbers; -2 for unknown names and nulls."""
    import pyarrow as pa

    coded = column.cast(pa.string()).dictionary_encode()
    lookup = np.array([*(known.get(name, -2) for name in coded.dictionary.to_pylist()), -2], dtype=np.int64)
    return lookup[coded.indices.fill_null(len(lookup) - 1).to_numpy(zero_copy_only=False)]
