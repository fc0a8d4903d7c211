"""Delta tables at one version, which transforms join: decides which version, and says why one cannot be read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from sluice.delta.table import opened
from sluice.errors import ConfigError, SourceUnreachableError, described
from sluice.storage import file_system, is_url, told_by_store

__all__ = ["PinnedTable", "pin"]

_STATE = "nothing was read or written; the position stays where it was"
_OPEN = "nothing of this batch is visible in the sink; batches that were committed stay"


@dataclass(frozen=True)
class PinnedTable:
    """A Delta table at one version.

    Parameters
    ----------
    name
        What the transform calls it.
    given
        Its path as the pipeline file has it.
    path
        Where that is.
    table
        delta-rs' table at this version.
    """

    name: str
    given: str
    path: str
    version: int
    table: Any = field(compare=False, repr=False)

    @cached_property
    def files_hash(self) -> str:
        """A digest of the table's id and its files' names, which differ in a table that was made again."""
        names = sorted(self.table.get_add_actions(flatten=True).column("path").to_pylist())
        return hashlib.sha256("\n".join([str(self.table.metadata().id), *names]).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Return what ledger and commit metadata have of it."""
        return {"path": self.given, "version": self.version, "files_hash": self.files_hash}

    @property
    def files(self) -> list[str] | None:
        """Paths or URLs of the Parquet files that are its rows; None if only Delta's own reader makes rows of them."""
        if self.table.protocol().min_reader_version > 1 or self.table.metadata().partition_columns:
            return None
        paths = self.table.get_add_actions(flatten=True).column("path").to_pylist()
        return [p if is_url(p) or p.startswith("/") else f"{self.path}/{unquote(p)}" for p in paths]

    def refuse_gone(self) -> None:
        """Refuse a version whose files were removed.

        Raises
        ------
        ConfigError
            If the table, the version or any of its files is gone.
        SourceUnreachableError
            If the storage does not answer.
        """
        newest = _newest(self.name, self.path)
        _at(self.version, newest, self.name, self.path)  # its log may be gone, too
        # what the newest version has no vacuum removes
        older = sorted(set(self.table.file_uris()) - set(newest.file_uris()))
        try:
            gone = [uri for uri in older if not _exists(uri)]
        except OSError as error:
            raise _unread(self.name, self.path, error) from error
        if gone:
            raise _gone(
                self.name, self.path, self.version, newest.version(),
                f"{len(gone)} of its files were removed, as by a vacuum",
            )  # fmt: skip


def pin(
    name: str,
    given: str,
    path: str,
    *,
    version: int | None = None,
    timestamp: datetime | None = None,
    recorded: Mapping[str, Any] | None = None,
) -> PinnedTable:
    """Decide which version of a table is read, and make sure that it is there.

    Parameters
    ----------
    name, given, path
        As for :class:`PinnedTable`.
    version, timestamp
        What the pipeline file says. A ``version`` counts before what is recorded.
    recorded
        :meth:`PinnedTable.as_dict` of the batch that is processed again; one of another path does not count.

    Raises
    ------
    ConfigError
        If the table or the version is gone, the recorded version has other files now, or no version is as old as
        ``timestamp``.
    SourceUnreachableError
        If the storage does not answer.
    """
    newest = _newest(name, path)
    again = recorded if version is None and recorded is not None and recorded["path"] == given else None
    chosen = version if again is None else int(again["version"])
    if chosen is not None:
        found = PinnedTable(name, given, path, chosen, _at(chosen, newest, name, path))
        found.refuse_gone()
        if again is not None and again.get("files_hash", found.files_hash) != found.files_hash:
            raise _gone(
                found.name, path, chosen, newest.version(),
                "it has other files than when the batch was begun: the table was made again, or restored from a copy",
            )  # fmt: skip
        return found
    if timestamp is None:
        return PinnedTable(name, given, path, newest.version(), newest)
    return _by(timestamp, name, given, path, newest)


def _by(timestamp: datetime, name: str, given: str, path: str, table: Any) -> PinnedTable:
    from deltalake.exceptions import DeltaError

    try:
        table.load_as_version(timestamp)
        committed = table.history(1)[0].get("timestamp")
    except (DeltaError, OSError, ValueError) as error:
        raise _unread(name, path, error) from error
    if committed is not None and committed > timestamp.timestamp() * 1000:  # delta-rs falls back to the oldest
        raise ConfigError(
            f"tables.{name}: the Delta table {path} has no version that was committed by "
            f"{timestamp.isoformat()}; the oldest in its log is {table.version()}",
            state=_STATE,
            next_step=f"name a later timestamp, or a version, below tables.{name}.delta in the pipeline file",
        )
    found = PinnedTable(name, given, path, table.version(), table)
    found.refuse_gone()
    return found


def _newest(name: str, path: str) -> Any:
    table = opened(path, lambda error: _unread(name, path, error))
    if table is None:
        raise _missing(name, path)
    return table


def _at(version: int, newest: Any, name: str, path: str) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if newest.version() == version:
        return newest
    try:
        return DeltaTable(path, version=version)
    except DeltaError as error:
        raise _gone(name, path, version, newest.version(), "its log does not have it (any more)") from error
    except (OSError, ValueError) as error:
        raise _unread(name, path, error) from error


def _gone(name: str, path: str, version: int, newest: int, why: str) -> ConfigError:
    return ConfigError(
        f"tables.{name}: version {version} of the Delta table {path} cannot be read: {why}",
        state=_OPEN,
        next_step=f"restore it from a copy; or choose the version to go on with: version: {newest} (the newest) "
        f"below tables.{name}.delta in the pipeline file, which counts before what was recorded, then run "
        "again; when that run is through, the line can be removed",
    )


def _exists(uri: str) -> bool:
    fs, path = file_system(unquote(uri) if not is_url(uri) else uri)
    return bool(fs.exists(path))


def _missing(name: str, path: str) -> ConfigError:
    return ConfigError(
        f"tables.{name}: there is no Delta table at {path}",
        state=_STATE,
        next_step=f"create it, or correct tables.{name}.delta.path in the pipeline file, then run again",
    )


def _unread(name: str, path: str, error: Exception) -> Any:
    return told_by_store(error, path, _STATE) or SourceUnreachableError(
        f"tables.{name}: the Delta table {path} cannot be read: {described(error)}",
        state=_STATE,
        next_step="fix the storage or the rights to read it, then run again",
    )
