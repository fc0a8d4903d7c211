"""Windows from panes on Arrow batches: a row for each key comes in, with a list of its panes; windows go out."""

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
        The number of columns of the key, which come first; then comes the list of panes. A pane is a struct of its
        index, whether it is a newer version of the one before it, and its columns; in the order of the first two.
    width, first, last
        As for :func:`~sluice_spark.windows.spans.spans_of`.
    step
        The length of a pane, in microseconds.
    """

    by: int
    aggregates: tuple[Aggregate, ...]
    width: int
    step: int
    first: int
    last: int

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield windows: their bounds, in microseconds since 1970, the key's columns, and the aggregates.

        Raises
        ------
        ArithmeticError
            If a sum does not fit into its type.
        """
        for batch in batches:
            yield from self._of(batch)

    def _of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        lists = batch.column(self.by)
        panes = lists.flatten()
        sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        keys = np.repeat(np.arange(batch.num_rows), sizes)
        index = panes.field(0).to_numpy(zero_copy_only=False)
        there = latest(keys, index)
        keys, index, panes = keys[there], index[there], panes.filter(pa.array(there))
        counts, _ = counted(keys, index, self.width, self.first, self.last)
        for rows in _shares(keys, counts):
            spans = spans_of(keys[rows], index[rows], self.width, self.first, self.last)
            if len(spans.ends):
                yield self._made(batch, panes.slice(rows.start, rows.stop - rows.start), spans)

    def _made(self, batch: pa.RecordBatch, panes: Any, spans: Spans) -> pa.RecordBatch:
        taken = pa.array(spans.keys)
        names = ["start", "end", *(f"c{n}" for n in range(self.by + len(self.aggregates)))]
        made = [pa.array((spans.ends - self.width) * self.step), pa.array(spans.ends * self.step)]
        made += [batch.column(n).take(taken) for n in range(self.by)]
        parts = [_Part(panes.field(2 + n), spans) for n in range(panes.type.num_fields - 2)]
        made += [_KINDS[a.kind](*(parts[n] for n in a.parts)) for a in self.aggregates]
        return pa.RecordBatch.from_arrays(made, names)


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
