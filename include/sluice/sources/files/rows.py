"""Cuts a text file into rows, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

__all__ = ["BLOCK", "RFC_4180", "Counted", "Quoting", "count", "rows"]

BLOCK = 4 << 20
"""Bytes that are read at a time."""
_MARKED = 64 << 20
"""Bytes between two marks."""
_BOM = b"\xef\xbb\xbf"


_BREAK = ord("\n")


@dataclass(frozen=True)
class Quoting:
    """The characters of CSV. A line break in a field that begins with a quote belongs to the row."""

    separator: str = ","
    quote: str = '"'
    escape: str | None = None


RFC_4180 = Quoting()
"""A comma, and double quotes that are written twice within a field."""


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


def count(file: IO[bytes], *, quoting: Quoting | None, header: bool) -> Counted:
    """Count the rows of a file.

    Parameters
    ----------
    quoting
        How a field may have a line break (RFC 4180); None if none may.
    header
        Whether the first row is the header.

    Raises
    ------
    OSError, EOFError
        If it cannot be read to its end, such as a compressed file that is not complete.
    """
    total, first, marks, marked = (-1 if header else 0), None, [], 0
    for found, after in _cut(file, quoting):
        if header and first is None:
            first = found[0].removesuffix(b"\r")
        total += len(found)
        if after - marked >= _MARKED:
            marks.append((total, after))
            marked = after
    return Counted(max(total, 0), first, tuple(marks))


def rows(
    file: IO[bytes],
    *,
    quoting: Quoting | None,
    header: bool,
    start: int,
    end: int,
    marks: Sequence[tuple[int, int]] = (),
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield rows of a file as lists, each with the number of its first row. A carriage return at the end is left out.

    Parameters
    ----------
    quoting, header
        As for :func:`count`.
    start, end
        The numbers of the first row, and of the row after the last one, counted from 0 after the header.
    marks
        Those of :class:`Counted`, if the file can be sought in.
    """
    at, place = max((mark for mark in marks if mark[0] <= start), default=(-1 if header else 0, 0))
    if place:
        file.seek(place)
    for found, _ in _cut(file, quoting, place):
        begin, stop = max(start - at, 0), min(end - at, len(found))
        if begin < stop:
            yield at + begin, [row[:-1] if row.endswith(b"\r") else row for row in found[begin:stop]]
        at += len(found)
        if at >= end:
            return


def _cut(file: IO[bytes], quoting: Quoting | None, at: int = 0) -> Iterator[tuple[list[bytes], int]]:
    """Yield the rows that end in each block, and the byte after them; the last row may end with the file."""
    rest: list[bytes] = []  # the row that has not ended yet
    fields = None if quoting is None else _Fields(quoting)
    size = 0
    while block := file.read(BLOCK):
        if not at and block.startswith(_BOM):
            block, at = block[len(_BOM) :], len(_BOM)
        at += len(block)
        found = block.split(b"\n") if fields is None else fields.split(block)
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


class _Fields:
    """Knows from block to block whether a field in quotes is open; a quote within a field without them opens none."""

    def __init__(self, quoting: Quoting) -> None:
        # a character beyond ASCII is known by its last byte, which few others have
        self._quote, self._separator = quoting.quote.encode()[-1], quoting.separator.encode()[-1]
        own = quoting.escape if quoting.escape != quoting.quote else None
        self._escape = None if own is None else own.encode()[-1]
        self._open = False
        self._before = _BREAK  # the last byte
        self._closed = False  # whether that byte closed a field
        self._escaped = False  # whether it escapes the next one

    def split(self, block: bytes) -> list[bytes]:
        """Split a block at the line breaks outside of fields in quotes."""
        if not self._open and self._quote not in block:
            self._before, self._closed = (block[-1] if block else self._before), False
            return block.split(b"\n")
        import numpy as np

        array: Any = np.frombuffer(block, np.uint8)
        breaks, quotes = np.flatnonzero(array == _BREAK), np.flatnonzero(array == self._quote)
        turns = self._turns(block, array, quotes)
        ends = breaks[(np.searchsorted(turns, breaks) + self._open) % 2 == 0]
        found, start = list[bytes](), 0
        for end in ends.tolist():
            found.append(block[start:end])
            start = end + 1
        self._open = bool((len(turns) + self._open) % 2)
        self._closed = not self._open and len(turns) > 0 and int(turns[-1]) == len(block) - 1
        self._escaped = self._open and self._is_escaped(block, len(block))
        if block:
            self._before = block[-1]
        return [*found, block[start:]]

    def _turns(self, block: bytes, array: Any, quotes: Any) -> Any:
        """Return which quotes open or close a field."""
        import numpy as np

        if self._escape is None:
            opening = np.arange(int(self._open), len(quotes), 2)
            places = quotes[opening]
            before = np.where(places > 0, array[places - 1], self._before)
            doubled = np.where(opening > 0, quotes[opening - 1] == places - 1, self._closed & (places == 0))
            if bool(np.all((before == self._separator) | (before == _BREAK) | doubled)):
                return quotes
        turns, is_open, closed = list[int](), self._open, -1 if self._closed else -2
        for place in quotes.tolist():
            if is_open:
                if not self._is_escaped(block, place):
                    is_open, closed = False, place
                    turns.append(place)
            elif (block[place - 1] if place else self._before) in (self._separator, _BREAK) or (
                self._escape is None and closed == place - 1
            ):
                is_open = True
                turns.append(place)
        return np.array(turns, np.int64)

    def _is_escaped(self, block: bytes, place: int) -> bool:
        """Return whether the byte at a place of an open field has an odd number of escapes before it."""
        if self._escape is None:
            return False
        at = place
        while at and block[at - 1] == self._escape:
            at -= 1
        return bool((place - at + (not at and self._escaped)) % 2)
