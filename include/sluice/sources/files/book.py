"""The book of a pipeline's files: which were found, and which offsets their rows have.

It is a Delta table. Each file takes as many offsets as it has rows, after those of the files before it. A file is
entered before any batch is planned with its offsets, and its entry never changes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sluice.errors import SinkError, described
from sluice.ranges import OffsetRange
from sluice.sources.files.folder import Folder, Stat

__all__ = ["Book", "Entry", "OvertakenError"]

_APP = "sluice.files"
_COMPACTED = 50
"""The number of the table's files from which on they are put together."""


class OvertakenError(Exception):
    """Another process added files to the book at the same time."""


@dataclass(frozen=True)
class Entry:
    """A file in the book.

    Attributes
    ----------
    name
        Its path below the folder.
    start
        The offset of its first row.
    stat
        What was known of it when its rows were counted.
    header
        Its header; None without one. Of Parquet and Avro, its columns, if the file before has others.
    marks
        As :attr:`sluice.sources.files.rows.Counted.marks`.
    """

    name: str
    start: int
    rows: int
    stat: Stat
    header: str | None = None
    marks: tuple[tuple[int, int], ...] = ()

    @property
    def end(self) -> int:
        """The offset after its last row."""
        return self.start + self.rows

    def is_in(self, folder: Folder, *, archive: bool = False) -> bool:
        """Return whether a folder has this file, unchanged.

        Parameters
        ----------
        archive
            Whether files were moved into it. A move within an object store changes a file's time, and may change its
            tag; only the size is compared then.
        """
        now = folder.stat(self.name)
        if now is None or now == self.stat:
            return now is not None
        return bool(self.stat.tag) and now.size == self.stat.size and (archive or now.tag == self.stat.tag)


class Book:
    """One version of the book.

    Parameters
    ----------
    path
        The Delta table's folder.
    stream
        Whose rows are added; None for who only reads.
    since
        Only files with rows from this offset on are read; None means all.
    """

    def __init__(self, path: str, stream: str | None = None, *, since: int | None = None) -> None:
        self.path = path
        self._stream, self._since = stream, since
        self._table: Any = None
        self._rows: Any = None
        self._starts: Any = None
        self._read: tuple[Any, int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read what is in the book now; it is created if it does not exist.

        Raises
        ------
        SinkError
            If it cannot be read or created.
        """
        import pyarrow as pa
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

        try:
            try:
                self._table = DeltaTable(self.path)
            except TableNotFoundError:
                self._table = DeltaTable.create(self.path, _schema(), mode="ignore")
            version = self._table.metadata().id, self._table.version()
            if version == self._read:
                return None
            wanted = None if self._since is None else f"start + rows > {self._since}"
            found = pa.RecordBatchReader.from_stream(self._table.scan(predicate=wanted)).read_all()
            if not len(found) and self._stream not in (None, self._table.metadata().name):
                with suppress(CommitFailedError):
                    self._table.alter.set_table_name(self._stream)
                return self.refresh()  # what others added meanwhile may be below the name
            rows = found.cast(pa.schema(_schema())).sort_by([("start", "ascending"), ("rows", "ascending")])
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise self._failed(error) from error
        self._rows = rows.combine_chunks()
        self._starts, self._read = rows.column("start").to_numpy(), version

    @property
    def id(self) -> str:
        """What tells this book from another one in its place, in which the same offsets are other rows."""
        return str(self._table.metadata().id)

    @property
    def stream(self) -> str | None:
        """The stream whose rows are in it; None if there are none, or if an earlier version of Sluice began it."""
        name: str | None = self._table.metadata().name
        return name if len(self._starts) else None

    @property
    def end(self) -> int:
        """The offset after the last row of the last file."""
        last = self.last()
        return last.end if last else 0

    def newest(self, names: Sequence[str]) -> list[Entry | None]:
        """Return the last file that was found under each of these names; None where there is none."""
        import pyarrow as pa

        return [None if n < 0 else self._entry(n) for n in self._numbers(pa.array(names, pa.string())).tolist()]

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Return those names under which no file was found."""
        import pyarrow as pa

        given = pa.array(names, pa.string())
        return list(given.filter(self._numbers(given) < 0).to_pylist())

    def compared(self, listed: Any) -> tuple[Any, Any]:
        """Compare files with the last ones under their names.

        Parameters
        ----------
        listed
            An Arrow table, as in :class:`~sluice.sources.files.folder.Listing`.

        Returns
        -------
        known, same
            NumPy arrays: which of the files have a name that is in the book, and which of these are unchanged.
        """
        import pyarrow.compute as pc

        numbers = self._numbers(listed.column("name"))
        known = numbers >= 0
        same = known.copy()
        now, then = listed.filter(known), self._rows.take(numbers[known])
        for name in Stat._fields:
            same[known] &= pc.equal(now.column(name), then.column(name)).fill_null(False).to_numpy()
        return known, same

    def _numbers(self, names: Any) -> Any:
        """Return the number of the last file under each name, as a NumPy array; -1 where there is none."""
        import numpy as np
        import pyarrow.compute as pc

        count = len(self._starts)
        found = pc.index_in(names, self._rows.column("name").take(np.arange(count)[::-1]))  # the first of equal ones
        return np.where(found.is_null(), -1, count - 1 - found.fill_null(0).to_numpy())

    def last(self) -> Entry | None:
        """Return the file with the last offsets."""
        return self._entry(len(self._starts) - 1) if len(self._starts) else None

    def last_with_header(self) -> Entry | None:
        """Return the last file that has a header; an empty one has none."""
        found = self._rows.column("header").is_valid().to_numpy().nonzero()[0]
        return self._entry(int(found[-1])) if len(found) else None

    def within(self, span: OffsetRange) -> list[Entry]:
        """Return the files that have rows with offsets of a range, in their order."""
        import numpy as np

        first = max(int(np.searchsorted(self._starts, span.start, "right")) - 1, 0)
        last = int(np.searchsorted(self._starts, span.end, "left"))
        own = [self._entry(number) for number in range(first, last)]
        return [entry for entry in own if entry.rows and entry.end > span.start]

    def first_after(self, milliseconds: int) -> int | None:
        """Return the first offset of a file that was modified at or after a time; None if there is none."""
        rows, modified = (self._rows.column(name).to_numpy() for name in ("rows", "modified"))
        found = ((rows > 0) & (modified // 1000 >= milliseconds)).nonzero()[0]
        return int(self._starts[found[0]]) if len(found) else None

    def _entry(self, number: int) -> Entry:
        (row,) = self._rows.slice(number, 1).to_pylist()
        marks = tuple((first, byte) for first, byte in json.loads(row["marks"])) if row["marks"] else ()
        stat = Stat(row["size"], row["modified"], row["tag"])
        return Entry(row["name"], row["start"], row["rows"], stat, row["header"], marks)

    def add(self, entries: Sequence[Entry]) -> None:
        """Add files, in one commit after the version that was read.

        Raises
        ------
        OvertakenError
            If another process added files since then. Nothing was added; read the book again.
        SinkError
            If the book cannot be written.
        """
        import pyarrow as pa
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError, DeltaError

        number = (self._table.transaction_version(_APP) or 0) + 1
        rows = [
            {
                "name": e.name, "start": e.start, "rows": e.rows, "size": e.stat.size, "modified": e.stat.modified,
                "tag": e.stat.tag, "header": e.header, "marks": json.dumps(e.marks) if e.marks else None,
            }
            for e in entries
        ]  # fmt: skip
        properties = CommitProperties(app_transactions=[Transaction(_APP, number, None)])
        try:
            data = pa.Table.from_pylist(rows, schema=pa.schema(_schema()))
            write_deltalake(self._table, data, mode="append", commit_properties=properties)
        except CommitFailedError as error:
            raise OvertakenError from error
        except (DeltaError, OSError, ValueError) as error:
            raise self._failed(error) from error
        self.refresh()
        self._compact()

    def _compact(self) -> None:
        """Put the table's files together when they are many; if it fails, the next addition does it."""
        from deltalake.exceptions import DeltaError

        with suppress(DeltaError, OSError):
            if len(self._table.file_uris()) >= _COMPACTED:
                self._table.optimize.compact()
                self._table.vacuum(dry_run=False)

    def _failed(self, error: Exception) -> SinkError:
        return SinkError(
            f"the book of the pipeline's files, {self.path}, cannot be used: {described(error)}",
            state="nothing was read or written",
            next_step="fix the storage, or restore the folder from a copy, then run again",
        )


def _schema() -> Any:
    from deltalake import Schema
    from deltalake.schema import Field, PrimitiveType

    kinds = {
        "name": "string", "start": "long", "rows": "long", "size": "long", "modified": "long", "tag": "string",
        "header": "string", "marks": "string",
    }  # fmt: skip
    return Schema([Field(name, PrimitiveType(kind), nullable=True) for name, kind in kinds.items()])
