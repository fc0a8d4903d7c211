"""Cuts a text file into rows, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

__all__ = ["BLOCK", "Counted", "count", "rows"]

BLOCK = 4 << 20
"""Bytes that are read at a time."""
_MARKED = 64 << 20
"""Bytes between two marks."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Counted:
    """How many rows a file has.

    Attributes
    ----------
    rows
        Their number, without the header.
    header
        The first row, if it is the header; of Parquet and Avro the columns with their types, as a JSON object. None
        without one.
    marks
        Places in the (decompressed) file at which a row begins: the row's number and the byte's, ascending.
    """

    rows: int
    header: bytes | None
    marks: tuple[tuple[int, int], ...] = ()


def count(file: IO[bytes], *, quoted: bool, header: bool) -> Counted:
    """Count the rows of a file.

    Parameters
    ----------
    quoted
        Whether a line break between double quotes belongs to the row (RFC 4180).
    header
        Whether the first row is the header.

    Raises
    ------
    OSError, EOFError
        If it cannot be read to its end, such as a compressed file that is not complete.
    """
    total, first, marks, marked = (-1 if header else 0), None, [], 0
    for found, after in _cut(file, quoted):
        if header and first is None:
            first = found[0].removesuffix(b"\r")
        total += len(found)
        if after - marked >= _MARKED:
            marks.append((total, after))
            marked = after
    return Counted(max(total, 0), first, tuple(marks))


def rows(
    file: IO[bytes], *, quoted: bool, header: bool, start: int, end: int, marks: Sequence[tuple[int, int]] = ()
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield rows of a file as lists, each with the number of its first row. A carriage return at the end is left out.

    Parameters
    ----------
    quoted, header
        As for :func:`count`.
    start, end
        The numbers of the first row, and of the row after the last one, counted from 0 after the header.
    marks
        Those of :class:`Counted`, if the file can be sought in.
    """
    at, place = max((mark for mark in marks if mark[0] <= start), default=(-1 if header else 0, 0))
    if place:
        file.seek(place)
    for found, _ in _cut(file, quoted, place):
        begin, stop = max(start - at, 0), min(end - at, len(found))
        if begin < stop:
            yield at + begin, [row[:-1] if row.endswith(b"\r") else row for row in found[begin:stop]]
        at += len(found)
        if at >= end:
            return


def _cut(file: IO[bytes], quoted: bool, at: int = 0) -> Iterator[tuple[list[bytes], int]]:
    """Yield the rows that end in each block, and the byte after them; the last row may end with the file."""
    rest: list[bytes] = []  # the row that has not ended yet
    odd = False  # whether it has an odd number of quotes so far
    size = 0
    while block := file.read(BLOCK):
        if not at and block.startswith(_BOM):
            block, at = block[len(_BOM) :], len(_BOM)
        at += len(block)
        if quoted and (odd or b'"' in block):
            found, odd = _outside(block, odd)
        else:
            found = block.split(b"\n")
        if len(found) == 1:
            rest.append(found[0])
            size += len(found[0])
            continue
        found[0] = b"".join([*rest, found[0]])
        last = found.pop()
        rest, size = [last], len(last)
        yield found, at - size
    if size:
        yield [b"".join(rest)], at


def _outside(block: bytes, odd: bool) -> tuple[list[bytes], bool]:
    """Split a block at the line breaks that have an even number of quotes before them in their row."""
    import numpy as np

    array: Any = np.frombuffer(block, np.uint8)
    breaks, quotes = np.flatnonzero(array == 10), np.flatnonzero(array == 34)
    # a row ends where the number of all quotes before it is even, since each earlier row has an even number
    ends = breaks[(np.searchsorted(quotes, breaks) + odd) % 2 == 0]
    found, start = [], 0
    for end in ends.tolist():
        found.append(block[start:end])
        start = end + 1
    return [*found, block[start:]], bool((len(quotes) + odd) % 2)
