"""Reads ranges of the rows of files, in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import described
from sluice.ranges import OffsetRange
from sluice.sources.files.book import Book, Entry
from sluice.sources.files.folder import Folder
from sluice.sources.files.formats import Reader
from sluice_spark.sources.inputs import RECORDS, UTC, Headers, UnreadableError

__all__ = ["FileRows", "FilesChunk", "FilesInput", "FilesRanges"]

_RECORDS = 10_000


@dataclass(frozen=True)
class FilesChunk:
    """Some rows of one file, in the order of their offsets."""

    span: OffsetRange
    entry: Entry
    lines: list[bytes]
    offsets: Any
    """Ascending, as a NumPy array."""

    @property
    def times(self) -> Any:
        """The time at which the file was modified, for each row, in milliseconds since 1970."""
        return np.full(len(self.lines), max(self.entry.stat.modified, 0) // 1000, np.int64)

    def values(self) -> list[bytes | None]:
        """Return the rows."""
        return list(self.lines)

    def keys(self) -> list[bytes | None]:
        """Return the name of the file, for each row."""
        return [self.entry.name.encode()] * len(self.lines)

    def headers(self) -> list[Headers]:
        """Return the number of each row in its file, from 1 on, as the header ``row``."""
        return [[("row", str(n).encode())] for n in (self.offsets - self.entry.start + 1).tolist()]

    def chosen(self, numbers: Any) -> FilesChunk:
        """Return the rows with these numbers in the chunk, which ascend."""
        return FilesChunk(self.span, self.entry, [self.lines[n] for n in numbers], self.offsets[numbers])

    def records(self) -> pa.Table:
        """Return the rows as records: the key is the file's name, the header ``row`` the row's number from 1 on."""
        count = len(self.lines)
        numbers = pa.array(self.offsets - self.entry.start + 1, pa.int64()).cast(pa.string()).cast(pa.binary())
        kind = RECORDS.field("headers").type
        pairs = pa.StructArray.from_arrays(
            [pa.repeat(pa.scalar("row", pa.string()), count), numbers], fields=list(kind.value_type)
        )
        return pa.Table.from_arrays(
            [
                pa.repeat(pa.scalar(self.entry.name.encode(), pa.binary()), count),
                pa.array(self.lines, pa.binary()),
                pa.ListArray.from_arrays(pa.array(np.arange(count + 1), pa.int32()), pairs, type=kind),
                pa.repeat(pa.scalar(self.span.topic, pa.string()), count),
                pa.repeat(pa.scalar(self.span.partition, pa.int32()), count),
                pa.array(self.offsets, pa.int64()),
                pa.array(self.times * 1000, pa.int64()).cast(UTC),
                pa.repeat(pa.scalar(0, pa.int32()), count),
            ],
            schema=RECORDS,
        )


@dataclass(frozen=True)
class FilesInput:
    """Files of a folder.

    Parameters
    ----------
    folder
        The folder in which the files were found, as a path or URL.
    archive
        The folder into which they may have been moved; None without one.
    entries
        The files that have the wanted rows, in the order of their offsets.
    reader
        Reads files of this format.
    """

    folder: str
    archive: str | None
    entries: tuple[Entry, ...]
    reader: Reader

    def opened(self) -> AbstractContextManager[FilesRanges]:
        """Open nothing: each file is opened when it is needed."""
        return nullcontext(FilesRanges(self))


@dataclass
class FileRows:
    """Where the rows of a pipeline's files can be read; the parameters are those of :class:`FilesInput`.

    Parameters
    ----------
    book
        The path of the pipeline's :class:`~sluice.sources.files.book.Book`.
    """

    book: str
    folder: str
    archive: str | None
    reader: Reader
    _open: Book | None = field(default=None, init=False, repr=False)
    _first: int = field(default=0, init=False, repr=False)

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_open": None}

    def input(self, ranges: Sequence[OffsetRange]) -> FilesInput:
        """Return the files that have rows of these ranges."""
        first, last = min((s.start for s in ranges), default=0), max((s.end for s in ranges), default=0)
        # what is in the book does not change, so it is read again only for what was entered since
        if self._open is None or first < self._first or self._open.end < last:
            self._open, self._first = Book(self.book, since=first), first
        entries = {entry.start: entry for span in ranges for entry in self._open.within(span)}
        found = tuple(entry for _, entry in sorted(entries.items()))
        return FilesInput(self.folder, self.archive, found, self.reader)


@dataclass(frozen=True)
class FilesRanges:
    """Reads one range after another."""

    source: FilesInput

    def read(self, span: OffsetRange) -> Iterator[FilesChunk]:
        """Yield the rows of a range.

        Raises
        ------
        UnreadableError
            If a file is gone, or is not what it was when its rows were counted. Chunks that were yielded before may
            be of such a file, too.
        """
        at = span.start
        for entry in self.source.entries:
            own = OffsetRange(span.topic, span.partition, entry.start, entry.end).cut(span)
            if own is None:
                continue
            if own.start != at:
                break
            yield from self._of_file(entry, own)
            at = own.end
        if at != span.end:
            raise UnreadableError(f"the files do not have the offsets from {at} on")

    def _of_file(self, entry: Entry, span: OffsetRange) -> Iterator[FilesChunk]:
        source = self.source
        folder, moved = Folder(source.folder), False
        if not entry.is_in(folder) and source.archive is not None:
            folder, moved = Folder(source.archive), True
        if not entry.is_in(folder, archive=moved):
            raise UnreadableError(f"{entry.name} is gone, or changed since its rows were counted")
        count = 0
        try:
            with folder.opened(entry.name) as file:
                first, last = span.start - entry.start, span.end - entry.start
                for number, found in source.reader.rows(file, first, last, entry.marks):
                    count += len(found)
                    for begin in range(0, len(found), _RECORDS):
                        lines = found[begin : begin + _RECORDS]
                        yield from self._chunk(entry, span, number + begin, lines)
        except UnreadableError:
            raise
        except Exception as error:  # each decompressor has errors of its own
            raise UnreadableError(f"{entry.name} cannot be read: {described(error)}") from error
        if count != len(span) or not entry.is_in(folder, archive=moved):
            raise UnreadableError(f"{entry.name} changed while it was read")

    def _chunk(self, entry: Entry, span: OffsetRange, number: int, lines: list[bytes]) -> Iterator[FilesChunk]:
        offsets = np.arange(entry.start + number, entry.start + number + len(lines), dtype=np.int64)
        chunk = FilesChunk(span, entry, lines, offsets)
        if not self.source.reader.blank and any(not line or line.isspace() for line in lines):
            kept = np.flatnonzero([bool(line) and not line.isspace() for line in lines])
            chunk = chunk.chosen(kept)
        if chunk.lines:
            yield chunk
