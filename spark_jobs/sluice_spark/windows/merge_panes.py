"""Windows from panes on Arrow batches: panes come in, all of a key together; windows go out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice_spark.windows.spans import Spans, added, counted, latest, merged, spans_of

__all__ = ["Aggregate", "Merging"]

_ROWS = 1 << 20
"""About so many windows are made at a time: memory does not grow with their number."""
_LOW = (1 << 64) - 1


@dataclass(frozen=True)
class Aggregate:
    """How a column of windows comes from columns of panes.

    Parameters
    ----------
    kind
        ``count``, ``sum``, ``avg``, ``min`` or ``max``.
    parts
        The places of its columns among those of a pane: one, for ``avg`` the sum and the count.
    """

    kind: str
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Merging:
    """Makes windows of panes.

    Parameters
    ----------
    by
        The number of columns of the key. A row has a hash of the key, its place, the key, and the columns of a pane.
        Its place is twice the index of the pane, plus 1 if it is newer than another row of this pane. Rows are in the
        order of hashes.
    width, first, last
        As for :func:`~sluice_spark.windows.spans.spans_of`.
    step
        The length of a pane, in microseconds.
    changed
        Whether only windows are made that have a newer pane.
    """

    by: int
    aggregates: tuple[Aggregate, ...]
    width: int
    step: int
    first: int
    last: int
    changed: bool = False

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield windows: their bounds, in microseconds since 1970, the key's columns, and the aggregates.

        Raises
        ------
        ArithmeticError
            If a sum does not fit into its type.
        """
        waiting: list[pa.RecordBatch] = []  # what has come of the last hash: more of it may follow
        for batch in batches:
            if not batch.num_rows:
                continue
            hashes = _numbers(batch.column(0))
            begin = int(np.searchsorted(hashes, hashes[-1]))
            if begin or (waiting and waiting[0].column(0)[0].as_py() != hashes[-1]):
                yield from self._of([*waiting, batch.slice(0, begin)])
                waiting = []
            waiting.append(batch.slice(begin))
        if waiting:
            yield from self._of(waiting)

    def _of(self, pieces: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the windows of whole keys."""
        rows = pa.concat_batches(pieces)
        keys, order = self._keyed(rows)
        place = _numbers(rows.column(1))[order]
        there = latest(keys, place >> 1)
        keys, index, newer = keys[there], place[there] >> 1, place[there] & 1
        order = order[there]
        if self.changed:  # most keys of a large state have none
            some = _with_any(keys, newer)
            keys, index, newer, order = keys[some], index[some], newer[some], order[some]
        rows = rows.take(pa.array(order))
        counts, _ = counted(keys, index, self.width, self.first, self.last)
        for share in _shares(keys, counts):
            spans = spans_of(keys[share], index[share], self.width, self.first, self.last)
            if self.changed:
                spans = spans.where(added(spans, newer[share]) > 0)
            if len(spans.ends):
                yield self._made(rows.slice(share.start, share.stop - share.start), spans)

    def _keyed(self, rows: pa.RecordBatch) -> tuple[Any, Any]:
        """Return the order of keys, panes and age, and the number of the key of each row in this order."""
        hashes, place = _numbers(rows.column(0)), _numbers(rows.column(1))
        order = np.lexsort((place, hashes))
        # a code for each value: null is one, and so is what is no number, as for Spark
        codes = [_codes(rows.column(2 + n)) for n in range(self.by)]
        borders = _changes(hashes[order])
        if any((_changes(code[order]) & ~borders).any() for code in codes):
            # two keys have one hash, such as (a, null) and (null, a)
            order = np.lexsort((place, *codes, hashes))
            borders = np.logical_or.reduce([_changes(column[order]) for column in (hashes, *codes)])
        return np.cumsum(borders), order

    def _made(self, rows: pa.RecordBatch, spans: Spans) -> pa.RecordBatch:
        newest = pa.array(spans.newest)
        names = ["start", "end", *(f"c{n}" for n in range(self.by + len(self.aggregates)))]
        made = [pa.array((spans.ends - self.width) * self.step), pa.array(spans.ends * self.step)]
        made += [rows.column(2 + n).take(newest) for n in range(self.by)]
        parts = [_Part(column, spans) for column in rows.columns[2 + self.by :]]
        made += [_KINDS[a.kind](*(parts[n] for n in a.parts)) for a in self.aggregates]
        return pa.RecordBatch.from_arrays(made, names)


def _numbers(column: Any) -> Any:
    return column.to_numpy(zero_copy_only=False)


def _codes(column: Any) -> Any:
    return _numbers(column.dictionary_encode(null_encoding="encode").indices)


def _changes(values: Any) -> Any:
    """Return which values differ from the one before; the first does not."""
    return np.append(False, values[1:] != values[:-1])


def _with_any(keys: Any, marked: Any) -> Any:
    """Return which rows are those of keys of which any is marked; rows of a key lie together."""
    if not len(keys):
        return np.zeros(0, dtype=bool)
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return np.repeat(np.maximum.reduceat(marked, starts) > 0, np.diff(np.append(starts, len(keys))))


def _shares(keys: Any, counts: Any) -> Iterator[slice]:
    """Divide rows into shares of whole keys, by the number of their windows."""
    if not len(keys):
        return
    ends = np.flatnonzero(np.append(keys[1:] != keys[:-1], True)) + 1
    until = np.cumsum(counts)[ends - 1]
    share = until // _ROWS
    stops = ends[np.flatnonzero(np.append(share[1:] != share[:-1], True))]
    start = 0
    for stop in stops.tolist():
        yield slice(start, stop)
        start = stop


class _Part:
    """A column of panes, and what becomes of it in windows."""

    def __init__(self, column: Any, spans: Spans) -> None:
        self.column, self.spans = column, spans

    @property
    def type(self) -> Any:
        return self.column.type

    def some(self) -> Any:
        """Return whether any of the window's panes has a value."""
        valid = pc.is_valid(self.column).to_numpy(zero_copy_only=False)
        return added(self.spans, valid.astype(np.int64)) > 0

    def total(self) -> Any:
        """Return the sum of the values: of doubles as doubles, of others exactly, decimals without their point."""
        if pa.types.is_floating(self.type):
            values = pc.fill_null(self.column, 0.0).to_numpy(zero_copy_only=False)
            return merged(self.spans, values.astype(np.float64), np.add)
        if pa.types.is_decimal(self.type):
            return added(self.spans, _unscaled(self.column))
        return added(self.spans, pc.fill_null(self.column, 0).to_numpy(zero_copy_only=False))

    def extreme(self, *, least: bool) -> Any:
        """Return the least or greatest values; no number counts as the greatest one, as it does for Spark."""
        if pa.types.is_floating(self.type):
            values = pc.fill_null(self.column, float("nan" if least else "-inf")).to_numpy(zero_copy_only=False)
            found = merged(self.spans, values, np.fmin if least else np.maximum)
            return pa.array(found, self.type, mask=~self.some())
        # the places of values among all distinct ones compare as the values do, whatever their type
        distinct = pc.unique(self.column).drop_null()
        distinct = distinct.take(pc.sort_indices(distinct))
        places = pc.index_in(self.column, distinct)
        worst = len(distinct) if least else -1
        values = pc.fill_null(places, worst).to_numpy(zero_copy_only=False)
        found = merged(self.spans, values, np.minimum if least else np.maximum)
        return distinct.take(pa.array(found, mask=found == worst))


def _count(part: _Part) -> Any:
    return pa.array(part.total(), pa.int64())


def _sum(part: _Part) -> Any:
    found, none = part.total(), ~part.some()
    if pa.types.is_decimal(part.type):
        return _decimals(found, part.type, none)
    if found.dtype == object:
        _refuse_beyond(found, 2**63, "BIGINT")
        found = found.astype(np.int64)
    return pa.array(found, part.type, mask=none)


def _avg(total: _Part, count: _Part) -> Any:
    number = count.total()
    with np.errstate(invalid="ignore", divide="ignore"):
        return pa.array(total.total().astype(np.float64) / number, pa.float64(), mask=number == 0)


_KINDS: dict[str, Callable[..., Any]] = {
    "count": _count,
    "sum": _sum,
    "avg": _avg,
    "min": lambda part: part.extreme(least=True),
    "max": lambda part: part.extreme(least=False),
}


def _refuse_beyond(found: Any, limit: int, kind: str) -> None:
    if len(found) and not (-limit <= found.min() and found.max() < limit):
        raise ArithmeticError(f"a window's sum does not fit into {kind}")


def _unscaled(column: Any) -> Any:
    """Return decimals as integers, nulls as 0."""
    column = pc.fill_null(column, pa.scalar(0, column.type))
    words = np.frombuffer(column.buffers()[1], dtype=np.int64).reshape(-1, 2)
    words = words[column.offset : column.offset + len(column)]
    low, high = words[:, 0], words[:, 1]
    if np.array_equal(high, low >> 63):
        return low.copy()
    both = zip(high.tolist(), low.tolist(), strict=True)
    return np.array([(above << 64) + (below & _LOW) for above, below in both], dtype=object)


def _decimals(found: Any, kind: Any, none: Any) -> Any:
    limit = 10**kind.precision
    if found.dtype == object or kind.precision < 19:
        outside = [value for value in found.tolist() if not -limit < value < limit]
        if outside:
            raise ArithmeticError(f"a window's sum does not fit into DECIMAL({kind.precision}, {kind.scale})")
    if found.dtype == object:
        values = found.tolist()
        words = np.array([[_signed(v & _LOW), v >> 64] for v in values], dtype=np.int64).reshape(-1, 2)
    else:
        words = np.stack([found, found >> 63], axis=1)
    bits = pa.array(~none).buffers()[1] if none.any() else None
    data = pa.py_buffer(np.ascontiguousarray(words))
    return pa.Array.from_buffers(kind, len(found), [bits, data])


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
