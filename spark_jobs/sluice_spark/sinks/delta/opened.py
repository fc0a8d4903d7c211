"""Delta tables that stay open: what was read of a table's log is not read again at the next look."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import fsspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

__all__ = ["OpenTables"]

_MARKS = ("size", "mtime", "ino", "ETag", "etag", "LastModified", "last_modified", "updated")
"""Of a file, as file systems name it: when all of these are as they were, it is the same file."""


@dataclass(frozen=True)
class _Open:
    table: DeltaTable
    version: int
    mark: dict[str, Any]


class OpenTables:
    """Opens tables, and keeps those that nobody uses for the next one who asks.

    Opening a table reads the list of all its files; bringing an open one up to date reads only what was committed
    since. Each table is lent to one holder at a time, for as long as that holder keeps it: nobody else can move it
    to a newer version between a look and the commit that rests on it.

    Parameters
    ----------
    most
        So many tables are kept.
    """

    def __init__(self, most: int = 6) -> None:
        self._most = most
        self._idle: OrderedDict[str, _Open] = OrderedDict()
        self._lock = threading.RLock()  # a finalizer may run at any line of the thread that holds it

    def look(self, path: str) -> DeltaTable:
        """Return the table as it is now, for the caller alone.

        Raises
        ------
        TableNotFoundError
            When there is none.
        DeltaError, OSError, ValueError
            When it cannot be read.
        """
        with self._lock:
            idle = self._idle.pop(path, None)
        table = _forward(path, idle) if idle is not None else None
        if table is None:
            table = DeltaTable(path)
        mark = _mark(path, table.version())
        if mark is None:
            return table
        lent = copy.copy(table)
        weakref.finalize(lent, self._back, path, _Open(table, table.version(), mark)).atexit = False
        return lent

    def _back(self, path: str, kept: _Open) -> None:
        with self._lock:
            other = self._idle.pop(path, None)
            self._idle[path] = other if other is not None and other.version > kept.version else kept
            while len(self._idle) > self._most:
                self._idle.popitem(last=False)


def _forward(path: str, kept: _Open) -> DeltaTable | None:
    """Bring an open table up to date; None when it may be another one by now, or was rolled back to an older state."""
    if kept.table.version() != kept.version or _mark(path, kept.version) != kept.mark:
        return None
    try:
        kept.table.update_incremental()
    except (DeltaError, OSError, ValueError):
        return None  # opening it says what is wrong
    return kept.table


def _mark(path: str, version: int) -> dict[str, Any] | None:
    """Tell one commit's file from any other; None when it is not there (any more)."""
    fs, base = fsspec.core.url_to_fs(path)
    file = f"{base}/_delta_log/{version:020}.json"
    fs.invalidate_cache(f"{base}/_delta_log")
    try:
        info = fs.info(file)
    except OSError:
        return None
    return {key: info[key] for key in _MARKS if key in info}
