"""Delta tables at one version, which transforms join: decides which version, and says why one cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from sluice.delta.table import opened
from sluice.errors import ConfigError, SourceUnreachableError

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
    """

    name: str
    given: str
    path: str
    version: int

    def as_dict(self) -> dict[str, Any]:
        """Return what ledger and commit metadata have of it."""
        return {"path": self.given, "version": self.version}

    @cached_property
    def table(self) -> Any:
        """delta-rs' table at this version.

        Raises
        ------
        ConfigError
            If the table or the version is gone.
        SourceUnreachableError
            If the storage does not answer.
        """
        return self._at(self._newest())

    @property
    def files(self) -> list[str] | None:
        """Paths or URLs of the Parquet files that are its rows; None if only Delta's own reader makes rows of them."""
        if self.table.protocol().min_reader_version > 1 or self.table.metadata().partition_columns:
            return None
        paths = self.table.get_add_actions(flatten=True).column("path").to_pylist()
        return [p if "://" in p or p.startswith("/") else f"{self.path}/{unquote(p)}" for p in paths]

    def refuse_gone(self) -> None:
        """Refuse a version whose files were removed.

        Raises
        ------
        ConfigError
            If the table, the version or any of its files is gone.
        SourceUnreachableError
            If the storage does not answer.
        """
        import fsspec

        newest = self._newest()
        # what the newest version has no vacuum removes
        older = sorted(set(self._at(newest).file_uris()) - set(newest.file_uris()))
        try:
            gone = [uri for uri in older if not _exists(fsspec, uri)]
        except OSError as error:
            raise self._unread(error) from error
        if gone:
            raise self._gone(newest.version(), f"{len(gone)} of its files were removed, as by a vacuum")

    def _newest(self) -> Any:
        found = opened(self.path, self._unread)
        if found is None:
            raise _missing(self.name, self.path)
        return found

    def _at(self, newest: Any) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if newest.version() == self.version:
            return newest
        try:
            return DeltaTable(self.path, version=self.version)
        except DeltaError as error:
            raise self._gone(newest.version(), "its log does not have it (any more)") from error
        except (OSError, ValueError) as error:
            raise self._unread(error) from error

    def _unread(self, error: Exception) -> Any:
        return _unread(self.name, self.path, error)

    def _gone(self, newest: int, why: str) -> ConfigError:
        return ConfigError(
            f"tables.{self.name}: version {self.version} of the Delta table {self.path} cannot be read: {why}",
            state=_OPEN,
            next_step=f"restore it from a copy; or choose the version to go on with: version: {newest} (the newest) "
            f"below tables.{self.name}.delta in the pipeline file, which counts before what was recorded, then run "
            "again; when that run is through, the line can be removed",
        )


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
        If the table or the version is gone, or no version is as old as ``timestamp``.
    SourceUnreachableError
        If the storage does not answer.
    """
    chosen = version
    if chosen is None and recorded is not None and recorded["path"] == given:
        chosen = int(recorded["version"])
    if chosen is not None:
        found = PinnedTable(name, given, path, chosen)
        found.refuse_gone()
        return found
    table = opened(path, lambda error: _unread(name, path, error))
    if table is None:
        raise _missing(name, path)
    if timestamp is None:
        return PinnedTable(name, given, path, table.version())
    return _by(timestamp, PinnedTable(name, given, path, table.version()), table)


def _by(timestamp: datetime, newest: PinnedTable, table: Any) -> PinnedTable:
    from deltalake.exceptions import DeltaError

    try:
        table.load_as_version(timestamp)
        committed = table.history(1)[0].get("timestamp")
    except (DeltaError, OSError, ValueError) as error:
        raise _unread(newest.name, newest.path, error) from error
    if committed is not None and committed > timestamp.timestamp() * 1000:  # delta-rs falls back to the oldest
        raise ConfigError(
            f"tables.{newest.name}: the Delta table {newest.path} has no version that was committed by "
            f"{timestamp.isoformat()}; the oldest in its log is {table.version()}",
            state=_STATE,
            next_step=f"name a later timestamp, or a version, below tables.{newest.name}.delta in the pipeline file",
        )
    found = PinnedTable(newest.name, newest.given, newest.path, table.version())
    found.refuse_gone()
    return found


def _exists(fsspec: Any, uri: str) -> bool:
    fs, path = fsspec.core.url_to_fs(unquote(uri) if "://" not in uri else uri)
    return bool(fs.exists(path))


def _missing(name: str, path: str) -> ConfigError:
    return ConfigError(
        f"tables.{name}: there is no Delta table at {path}",
        state=_STATE,
        next_step=f"create it, or correct tables.{name}.delta.path in the pipeline file, then run again",
    )


def _unread(name: str, path: str, error: Exception) -> Any:
    return SourceUnreachableError(
        f"tables.{name}: the Delta table {path} cannot be read: {type(error).__name__}: {error}",
        state=_STATE,
        next_step="fix the storage or the rights to read it, then run again",
    )
