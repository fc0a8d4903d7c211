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

from sluice.errors import SinkError
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
    """

    def __init__(self, path: str, stream: str | None = None) -> None:
        self.path = path
        self._stream = stream
        self._table: Any = None
        self._rows: Any = None
        self._starts: Any = None
        self._newest: dict[str, tuple[int, int, int, str]] | None = None
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
            found = pa.RecordBatchReader.from_stream(self._table.scan()).read_all()
            if not len(found) and self._stream not in (None, self._table.metadata().name):
                with suppress(CommitFailedError):
                    self._table.alter.set_table_name(self._stream)
                return self.refresh()  # what others added meanwhile may be below the name
            rows = found.cast(pa.schema(_schema())).sort_by([("start", "ascending"), ("rows", "ascending")])
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise self._failed(error) from error
        self._rows = rows.combine_chunks()
        self._starts = rows.column("start").to_numpy()
        self._newest = None

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

    def newest(self, name: str) -> Entry | None:
        """Return the last file that was found under a name; None if there is none."""
        found = self._by_name().get(name)
        return None if found is None else self._entry(found[0])

    def known(self, name: str, stat: Stat) -> bool | None:
        """Return whether a file is in the book as it is now; None if no file of its name is."""
        found = self._by_name().get(name)
        return None if found is None else found[1:] == stat

    def _by_name(self) -> dict[str, tuple[int, int, int, str]]:
        """Return the number, size, time and tag of the last file under each name."""
        if self._newest is None:
            columns = [self._rows.column(c).to_pylist() for c in ("name", *Stat._fields)]
            self._newest = {name: (n, *own) for n, (name, *own) in enumerate(zip(*columns, strict=True))}
        return self._newest

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
            f"the book of the pipeline's files, {self.path}, cannot be used: {type(error).__name__}: {error}",
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
