"""Windows from panes: arithmetic on arrays, without Spark.

A pane is what a slide's records of one key come to; a window consists of ``width`` panes that follow on each other.
Where a pane can be taken out again exactly (counts, sums of integers and decimals), a window is the one before, less
the panes that left, plus those that came: the difference of two running sums. Where it cannot (subtracting doubles
drifts, and a greatest value does not come back), panes are merged in blocks of ``width``: each window is the end of one
block and the beginning of the next, so a pane takes part in three merges, however many windows it is in.

A key has only panes with records. It has a window only if one of the window's panes is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = ["Spans", "added", "latest", "merged", "spans_of"]

_SAFE = 2.0**62
"""Sums whose parts add up to less, without their signs, fit into 64 bits on all of their way."""


@dataclass(frozen=True)
class Spans:
    """The windows of some keys, each with the rows of its panes: from ``oldest`` to ``newest``, both inclusive.

    Parameters
    ----------
    ends
        The index of the first pane behind each window.
    block, position
        For each row: the block of panes in which it is, and its place among the rows there.
    """

    keys: Any
    ends: Any
    oldest: Any
    newest: Any
    panes: Any
    block: Any
    position: Any
    width: int

    def where(self, wanted: Any) -> Spans:
        """Return some of the windows, with the same rows."""
        return replace(
            self, keys=self.keys[wanted], ends=self.ends[wanted], oldest=self.oldest[wanted], newest=self.newest[wanted]
        )


def latest(keys: Any, panes: Any) -> Any:
    """Return which rows are the last ones of their key and pane; equal ones must lie together."""
    if not len(panes):
        return np.zeros(0, dtype=bool)
    return np.append((keys[1:] != keys[:-1]) | (panes[1:] != panes[:-1]), True)


def counted(keys: Any, panes: Any, width: int, first: int, last: int) -> Any:
    """Return of each row the number of windows whose newest pane it is, and the end of the first of them."""
    following = np.append(panes[1:], 0)
    follows = np.append(keys[1:] == keys[:-1], False)
    until = np.minimum(np.where(follows, np.minimum(following, panes + width), panes + width), last)
    begin = np.maximum(panes + 1, first)
    return np.maximum(until - begin + 1, 0), begin


def spans_of(keys: Any, panes: Any, width: int, first: int, last: int) -> Spans:
    """Return the windows that end from ``first`` to ``last`` and have a pane.

    Parameters
    ----------
    keys, panes
        A row for each key and pane, in the order of keys, then of panes.
    width
        The number of panes of a window.
    first, last
        Indices of the first pane behind a window.
    """
    counts, begin = counted(keys, panes, width, first, last)
    newest = np.repeat(np.arange(len(panes)), counts)
    place = np.arange(len(newest)) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = begin[newest] + place
    if len(panes):
        base, reach = int(panes.min()) - width, int(panes.max() - panes.min()) + 2 * width + 2
        code = keys * reach + (panes - base)
        oldest = np.searchsorted(code, keys[newest] * reach + (ends - width - base))
    else:
        oldest = newest
    block = np.floor_divide(panes, width)
    changes = latest(keys, block)
    starts = np.append(0, np.flatnonzero(changes)[:-1] + 1) if len(panes) else np.zeros(0, dtype=np.int64)
    group = np.cumsum(np.append(False, changes[:-1])) if len(panes) else np.zeros(0, dtype=np.int64)
    position = np.arange(len(panes)) - starts[group]
    return Spans(keys[newest], ends, oldest, newest, panes, block, position, width)


def added(spans: Spans, values: Any) -> Any:
    """Return the sum of each window, exactly: as 64-bit integers, or as Python's if these might not hold it."""
    if values.dtype != object and np.abs(values.astype(np.float64)).sum() >= _SAFE:
        values = values.astype(object)
    sums = np.append(np.zeros(1, dtype=values.dtype), np.cumsum(values))
    return sums[spans.newest + 1] - sums[spans.oldest]


def merged(spans: Spans, values: Any, merge: Callable[[Any, Any], Any]) -> Any:
    """Return each window's values, merged by an associative function of two arrays, from older to newer."""
    if not len(spans.ends):
        return values[:0]
    last = np.append(spans.position[1:] == 0, True)
    size = np.repeat(spans.position[last] + 1, spans.position[last] + 1)
    heads = _scanned(values, spans.position, merge)
    tails = _scanned(values[::-1], (size - 1 - spans.position)[::-1], lambda older, newer: merge(newer, older))[::-1]
    early = np.floor_divide(spans.ends - spans.width, spans.width)
    has_tail = spans.block[spans.oldest] == early
    has_head = spans.block[spans.newest] == early + 1
    tail, head = tails[spans.oldest], heads[spans.newest]
    return np.where(has_tail & has_head, merge(tail, head), np.where(has_tail, tail, head))


def _scanned(values: Any, position: Any, merge: Callable[[Any, Any], Any]) -> Any:
    """Return each value merged with all before it in its block, whose rows follow on each other."""
    found = values.copy()
    order = np.argsort(position, kind="stable")
    bounds = np.searchsorted(position[order], np.arange(int(position.max()) + 2))
    for place in range(1, len(bounds) - 1):
        rows = order[bounds[place] : bounds[place + 1]]
        found[rows] = merge(found[rows - 1], values[rows])
    return found
