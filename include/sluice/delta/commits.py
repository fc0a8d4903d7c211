"""Finds out from a table's history what others than its pipeline committed; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.delta.notes import note_of

__all__ = ["Commit", "Undone", "altered", "undone"]

_KEEPS_ROWS = frozenset(
    (
        "ADD COLUMNS", "ADD CONSTRAINT", "ADD FEATURE", "CHANGE COLUMN", "CHANGE COLUMNS", "CLUSTER BY",
        "COMPUTE STATS", "CONVERT", "CREATE TABLE", "DOMAIN METADATA", "DROP COLUMNS", "DROP CONSTRAINT",
        "DROP FEATURE", "ENABLE ROW TRACKING", "OPTIMIZE", "RENAME COLUMN", "REORG", "REPLACE COLUMNS",
        "ROW TRACKING BACKFILL", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE COLUMN METADATA", "UPDATE SCHEMA",
        "UPGRADE PROTOCOL", "VACUUM END", "VACUUM START",
    )
)  # fmt: skip
"""Operations, by their names in delta-rs and Delta Lake, that change no row. Columns are compared elsewhere."""


@dataclass(frozen=True)
class Commit:
    """One commit of a table.

    Attributes
    ----------
    note
        The commit metadata of Sluice; None for any other program's commit.
    """

    version: int
    operation: str
    parameters: Mapping[str, Any]
    note: Mapping[str, Any] | None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Commit:
        """Read an entry of delta-rs' history."""
        note = note_of(entry)
        known = note if note is not None and "app_id" in note else None
        return cls(
            int(entry["version"]), str(entry.get("operation") or ""), entry.get("operationParameters") or {}, known
        )

    @property
    def replaces_table(self) -> bool:
        """Whether another program replaced all former content: by an overwrite, or by another table."""
        if self.note is not None:
            return False
        if self.operation.startswith(("CREATE OR REPLACE TABLE", "REPLACE TABLE", "CLONE")):
            return True
        if str(self.parameters.get("mode", "")).lower() != "overwrite":
            return False
        partial = ("predicate", "replaceWhere", "partitionOverwriteMode")
        return not any(str(self.parameters.get(key) or "[]") not in ("[]", "STATIC", "static") for key in partial)

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation or 'an operation without a name'})"


@dataclass(frozen=True)
class Undone:
    """A commit of the pipeline that is no longer part of the table, and the commit that undid it.

    Attributes
    ----------
    by
        The commit that rolled back or replaced the table.
    lost
        The undone commit; None if all former content was replaced.
    """

    by: Commit
    lost: Commit | None


def undone(commits: Iterable[Commit], base: int, mine: Callable[[Commit], bool]) -> Undone | None:
    """Return what undid commits of a pipeline; None if nothing did.

    Each version of a table is based on the version before it or, after ``RESTORE``, on the restored version. All
    commits of the pipeline, and the version that it checked last, must be in that line.

    Parameters
    ----------
    commits
        The commits after ``base``, in any order.
    base
        The newest version that was checked before.
    mine
        Returns whether a commit is the pipeline's.
    """
    known = {commit.version: commit for commit in commits if commit.version > base}
    if base < 0 and not any(map(mine, known.values())):
        return None  # the pipeline never committed anything
    at = max(known, default=base)
    line: set[int] = set()
    restores: list[Commit] = []
    while at > base:
        commit = known.get(at)
        line.add(at)
        if commit is not None and commit.replaces_table:
            return Undone(commit, None)
        if commit is not None and commit.note is None and commit.operation == "RESTORE":
            restores.append(commit)
            target = _restored(commit)
            if target is None or target < base:
                gone = (c for c in _newest(known) if mine(c) and c.version not in line)
                return Undone(commit, None if target is None else next(gone, None))
            at = target
        else:
            at -= 1
    for commit in _newest(known):
        if mine(commit) and commit.version not in line:
            by = next(r for r in restores if (_restored(r) or 0) < commit.version < r.version)
            return Undone(by, commit)
    return None


def altered(commits: Sequence[Commit]) -> list[Commit]:
    """Return the commits of others that may have added, changed or removed rows, oldest first."""
    return [
        commit
        for commit in sorted(commits, key=lambda c: c.version)
        if commit.note is None and commit.operation not in _KEEPS_ROWS and commit.operation != "RESTORE"
    ]


def _restored(commit: Commit) -> int | None:
    """Return the restored version; None if the commit names a time instead, whose clock is unknown."""
    try:
        return int(commit.parameters["version"])
    except (KeyError, TypeError, ValueError):
        return None


def _newest(known: Mapping[int, Commit]) -> list[Commit]:
    return [known[version] for version in sorted(known, reverse=True)]
