"""A cache of open Delta tables, so that a table's log is not read again from the beginning."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sluice.storage import file_system

__all__ = ["OpenTables"]

_MARKS = ("size", "mtime", "ino", "ETag", "etag", "LastModified", "last_modified", "updated")
"""File attributes, by their names in different file systems: if all are unchanged, it is the same file."""


@dataclass(frozen=True)
class _Open:
    table: DeltaTable
    version: int
    mark: dict[str, Any]


class OpenTables:
    """Opens tables, and caches those that are not in use.

    Opening a table reads the list of all its files; updating an open one reads only the commits since. Each table is
    lent to one user at a time, so that no other user can move it to a newer version between a check and the commit that
    is based on it.

    Parameters
    ----------
    most
        Maximum number of cached tables.
    """

    def __init__(self, most: int = 6) -> None:
        self._most = most
        self._idle: OrderedDict[str, _Open] = OrderedDict()
        self._lock = threading.RLock()  # a finalizer may run at any line of the thread that holds it

    def look(self, path: str) -> DeltaTable:
        """Return the newest version of a table, for exclusive use.

        Raises
        ------
        TableNotFoundError
            If it does not exist.
        DeltaError, OSError, ValueError
            If it cannot be read.
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
    """Update a cached table to the newest version; None if it may have been replaced or rolled back."""
    if kept.table.version() != kept.version or _mark(path, kept.version) != kept.mark:
        return None
    try:
        kept.table.update_incremental()
    except (DeltaError, OSError, ValueError):
        return None  # opening it again reports the error
    return kept.table


def _mark(path: str, version: int) -> dict[str, Any] | None:
    """Return attributes that identify a commit's file; None if the file does not exist."""
    fs, base = file_system(path)
    file = f"{base}/_delta_log/{version:020}.json"
    fs.invalidate_cache(f"{base}/_delta_log")
    try:
        info = fs.info(file)
    except OSError:
        return None
    return {key: info[key] for key in _MARKS if key in info}
