"""Checks a table's owner and the commits of others, before a run begins and before each commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from sluice.delta.commits import Commit, altered, undone
from sluice.delta.names import ADOPTING, HOLDS, OWNER, owner
from sluice.delta.transactions import transaction_versions
from sluice.errors import START_OVER, CheckpointError, ConfigError, LeaseHeldError, begin_again
from sluice_spark.sinks.base import Fence, TakenBackError
from sluice_spark.sinks.delta.handle import ATTEMPTS, Handle

__all__ = ["RECENT", "Guard"]

RECENT = 8
"""Number of newest commits in which a pipeline's last one is searched first."""


class Guard:
    """Refuses to write a table that belongs to another pipeline, was rolled back, or has a rival's commit.

    Parameters
    ----------
    table
        The table to write.
    app_id
        The writer's application id, which contains the pipeline's name.
    keyed
        Whether the table has a row for each key, not for each offset.
    """

    def __init__(self, table: Handle, app_id: str, *, keyed: bool = False) -> None:
        self._table, self.path = table, table.path
        self._owner = owner({"app_id": app_id})
        self.holds = next((kind for kind in ("quarantine", "log") if app_id.endswith(f":{kind}")), "sink")
        self._compare = (
            "The next record of a key writes its row again"
            if keyed
            else "sluice audit --deep compares them with the ledger"
        )
        self._restart = START_OVER if keyed else begin_again(str(self._owner), truncate=True)
        self._seen: int | None = None
        self._passed: int | None = None
        self.wrote = False
        """Whether this driver has committed: the table then has a version behind that of its creation."""

    def examine(self) -> list[str]:
        """Check the commits since the last check by this pipeline; call it before anything is read.

        If the table has no owner yet, this pipeline becomes its owner: the table property ``sluice.pipeline``.

        Returns
        -------
        list of str
            Warnings about commits of others that may have added, changed or removed rows. They stop nothing;
            ``sluice audit --deep`` finds rows that are missing or unknown.

        Raises
        ------
        ConfigError
            If another pipeline owns this table.
        CheckpointError
            If commits of this pipeline were rolled back (``RESTORE``), or the table was replaced.
        SinkError
            If the table cannot be read, or the property cannot be set.
        """
        table = self._claimed()
        if table is None:
            return []
        commits, base = self._since_last(table)
        self._refuse_undone(commits, base)
        self._seen = self._passed = table.version()
        found = [
            f"{commit} of the {self.holds} {self.path} is not a commit of this pipeline: rows may be missing, changed "
            f"or added. {self._compare}"
            for commit in altered(commits)
        ]
        oldest = min((commit.version for commit in commits), default=base + 1)
        if oldest > base + 1:
            found.append(
                f"versions {base + 1} to {oldest - 1} of the {self.holds} {self.path} are no longer in its history: "
                f"what others did to its rows there is unknown. {self._compare}"
            )
        return found

    def accept(self) -> None:
        """Take the table as it is: commits that were rolled back or replaced are given up."""
        table = self._table.table()
        self._seen = self._passed = None if table is None else table.version()

    def _claimed(self) -> DeltaTable | None:
        """Return the table, after setting its owner if it has none; None if there is no table."""
        for _ in range(ATTEMPTS):
            table = self._table.table()
            if table is None or self._is_mine(table):
                return table
            writers = {owner(commit.note) for commit in self._table.history(table) if commit.note is not None}
            # the history drops commits after a while, but retains transaction versions by application id
            known = transaction_versions(self.path, table.version()) or {}
            writers |= {owner({"app_id": name}) for name in known}
            others = sorted(str(name) for name in writers - {None, self._owner})
            if others:
                raise self._of_another(others[0])
            try:
                table.alter.set_table_properties(self.mark(), raise_if_not_exists=False)
            except CommitFailedError as error:
                self._table.try_again(error)
                continue  # another program committed meanwhile: check again
            except (DeltaError, OSError, ValueError) as error:
                raise self._table.failed(error) from error
        raise self._table.crowded()

    def mark(self) -> dict[str, str]:
        """Return the table properties that name the table's owner and role."""
        return {} if self._owner is None else {OWNER: self._owner, HOLDS: self.holds}

    def _is_mine(self, table: DeltaTable) -> bool:
        """Return whether the table's properties name this pipeline as owner; refuse if they name another one."""
        if self._owner is None:
            return True
        settings = table.metadata().configuration
        if settings.get(ADOPTING):
            old, new = settings[ADOPTING], settings.get(OWNER)
            raise ConfigError(
                f"the transfer of the table {self.path} from pipeline {old!r} to {new!r} was interrupted",
                state="nothing was read or written",
                next_step=f"finish it: sluice adopt {old} --as {new}",
            )
        other = settings.get(OWNER)
        if other not in (None, self._owner):
            raise self._of_another(str(other))
        if other is not None and settings.get(HOLDS) != self.holds:
            raise ConfigError(
                f"the table {self.path} is the {settings.get(HOLDS)} of pipeline {self._owner!r}, and cannot be its "
                f"{self.holds} as well",
                state="nothing was read or written",
                next_step=f"give {self._key} in the pipeline file another path",
            )
        return other is not None

    @property
    def _key(self) -> str:
        """The key of this table's path in the pipeline file."""
        return "quarantine.delta.path" if self.holds == "quarantine" else "sink.delta.path"

    def _of_another(self, other: str) -> ConfigError:
        return ConfigError(
            f"the table {self.path} belongs to pipeline {other!r}: two pipelines in one table would replace, redrive "
            "and validate each other's rows",
            state="nothing was read or written",
            next_step=f"give {self._owner!r} another {self._key}; or, if {self._owner!r} is {other!r} under a new "
            f"name: sluice adopt {other} --as {self._owner}",
        )

    def _since_last(self, table: DeltaTable) -> tuple[list[Commit], int]:
        """Return the version that this pipeline checked last, and the commits after it."""
        count = RECENT
        while True:
            commits = self._table.history(table, count)
            whole = len(commits) < count
            last = next((commit for commit in commits if commit.note is not None), None)
            base = -1 if last is None or last.note is None else int(last.note.get("seen", last.version))
            if whole or (last is not None and commits[-1].version <= base + 1):
                return [commit for commit in commits if commit.version > base], base
            count *= 8

    def _refuse_undone(self, commits: Sequence[Commit], base: int) -> None:
        # removed segments count as cleaned; batches that are sealed but not applied have their own files
        found = None if self.holds == "log" else undone(commits, base, lambda commit: commit.note is not None)
        if found is None:
            return
        by, lost = found.by, found.lost
        note = (lost.note if lost is not None else None) or {}
        whose = f"the commit of run {note['run']}" if "run" in note else "which changed its columns"
        which = f"version {lost.version}, {whose}, is" if lost else "its former content is"
        raise TakenBackError(
            f"the {self.holds} {self.path} was rolled back or replaced by {by}: {which} no longer part of it",
            state="nothing was read or written now; the table's history has what was removed until a VACUUM",
            next_step=f"undo that: RESTORE TABLE delta.`{self.path}` TO VERSION AS OF {by.version - 1}, and run again; "
            f"or, to write all rows again, {self._restart}",
        )

    def let_pass(self, table: DeltaTable) -> None:
        """Refuse to commit to a table that belongs to another pipeline, or was rolled back since the last check."""
        if not self._is_mine(table):
            self._claimed()
        now = table.version()
        if self.wrote and now == 0:
            raise CheckpointError(
                f"the {self.holds} {self.path} was dropped since this run began",
                state="nothing of this batch was written; what was committed before is not in the table any more",
                next_step=f"restore the table, then run again; or, to write all rows again, {self._restart}",
            )
        if self._passed is None:
            commits, base = self._since_last(table)
            self._seen = self._passed = base
        elif now < self._passed:
            raise CheckpointError(
                f"the {self.holds} {self.path} is at version {now}, and was at {self._passed} before: it was replaced",
                state="nothing of this batch was written",
                next_step="restore the table, then run again",
            )
        else:
            base = self._passed
            commits = self._table.history(table, now - base) if now > base else []
        self._refuse_undone(commits, base)
        if self._seen == self._passed and not altered(commits):
            self._seen = now
        self._passed = now

    def keep_out(self, table: DeltaTable, fence: Fence | None) -> None:
        """Refuse to commit if a rival committed after the fence's version.

        Raises
        ------
        LeaseHeldError
            If one did.
        """
        if fence is None or table.version() <= fence.since:
            return
        for commit in self._table.history(table, table.version() - fence.since):
            if commit.version > fence.since and commit.note is not None and fence.rival(commit.note):
                raise LeaseHeldError(
                    f"run {commit.note.get('run')!r} committed to {self.path} while this driver was at work on the "
                    "same records",
                    state="this driver did not commit this batch; its earlier commits stay",
                    next_step="run the same command again",
                )

    def look_back(self) -> dict[str, Any]:
        """Return the commit metadata about the checked versions: ``seen``."""
        return {} if self._seen is None else {"seen": self._seen}
