"""Reads columns of a Delta table, whichever program wrote or rewrote its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.delta.notes import last_batch, note_of
from sluice.errors import SinkError, SluiceError, described
from sluice.ranges import OffsetRange
from sluice.storage import told_by_store

__all__ = ["Table", "opened"]


def opened(path: str, failed: Callable[[Exception], SluiceError]) -> Any:
    """Return the newest version of a Delta table; None if it does not exist.

    Parameters
    ----------
    failed
        Makes the error that is raised if it exists and cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(path)
    except TableNotFoundError:
        try:  # delta-rs says the same of a folder that this user may not read
            os.listdir(os.path.join(path, "_delta_log"))
        except PermissionError as error:
            raise failed(error) from error
        except OSError:  # there is none, or it is at a URL
            return None
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise failed(error) from error


@dataclass
class Table:
    """One version of a Delta table.

    Attributes
    ----------
    name
        The table's role, for messages.
    delta
        delta-rs' table; None if it does not exist.
    """

    name: str
    path: str
    delta: Any = None

    @classmethod
    def open(cls, name: str, path: str) -> Table:
        """Return the table as it is now.

        Raises
        ------
        SinkError
            If it exists and cannot be read.
        """
        return cls(name, path, opened(path, lambda error: _unread(name, path, error)))

    @property
    def columns(self) -> list[str]:
        """The names of the columns; empty if the table does not exist."""
        return [f.name for f in self.delta.schema().fields] if self.delta is not None else []

    def batch(self, app_id: str) -> int:
        """Return the newest batch that a writer committed; -1 if there is none."""
        return last_batch(self.delta, app_id)

    def go_back(self, upto: Mapping[str, int]) -> None:
        """Load the version before the first batch that is newer than ``upto``, which has a batch for each writer.

        Raises
        ------
        SinkError
            If the table's history cannot be read.
        """
        from deltalake.exceptions import DeltaError

        ahead = []
        try:
            for commit in self.delta.history() if self.delta is not None else []:
                note = note_of(commit)
                if note and note.get("version", -1) > upto.get(str(note.get("app_id")), note.get("version", -1)):
                    ahead.append(int(commit["version"]))
            if ahead and min(ahead) == 0:
                self.delta = None
            elif ahead:
                self.delta.load_as_version(min(ahead) - 1)
        except (DeltaError, OSError, ValueError) as error:
            raise _unread(self.name, self.path, error) from error

    def rows(self, columns: Sequence[str], ranges: Sequence[OffsetRange] | None = None) -> Iterator[Any]:
        """Yield all rows, or those of some ranges, as Arrow batches of a few thousand rows, in no particular order.

        delta-rs' engine reads, so deletion vectors, partitioning and column mapping are supported.

        Raises
        ------
        SinkError
            If a file cannot be read.
        """
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        where = None if ranges is None else " OR ".join(map(_sql, ranges))
        try:
            yield from pa.RecordBatchReader.from_stream(self.delta.scan(columns=list(columns), predicate=where))
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise _unread(self.name, self.path, error) from error


def _sql(span: OffsetRange) -> str:
    # topic names cannot contain quotes
    return (
        f"(_topic = '{span.topic}' AND _partition = {span.partition} "
        f"AND _offset >= {span.start} AND _offset < {span.end})"
    )


def _unread(name: str, path: str, error: Exception) -> SluiceError:
    state = "nothing was changed, and there is no result"
    return told_by_store(error, path, state) or SinkError(
        f"the {name} {path} cannot be read: {described(error)}",
        state=state,
        next_step="fix the storage, or restore the file; then call the command again",
    )
