"""Whose a table is, and what others did to it: looked at before a run begins, and before each commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from sluice.delta.names import ADOPTING, HOLDS, OWNER, owner
from sluice.delta.transactions import transaction_versions
from sluice.errors import BEGIN_ANEW, CheckpointError, ConfigError, LeaseHeldError
from sluice_spark.sinks.base import Fence, TakenBackError
from sluice_spark.sinks.delta.commits import Commit, altered, undone
from sluice_spark.sinks.delta.handle import ATTEMPTS, Handle

__all__ = ["RECENT", "Guard"]

RECENT = 8
"""Commits in which a pipeline's newest one is looked for first."""


class Guard:
    """Keeps a writer out of tables that are another pipeline's, were rolled back, or have a rival's commit.

    Parameters
    ----------
    table
        The table that is written to.
    app_id
        Under which the writer's commits are counted; it names the pipeline.
    """

    def __init__(self, table: Handle, app_id: str) -> None:
        self._table, self.path = table, table.path
        self._owner = owner({"app_id": app_id})
        self.holds = next((kind for kind in ("quarantine", "log") if app_id.endswith(f":{kind}")), "sink")
        self._seen: int | None = None
        self._passed: int | None = None

    def examine(self) -> list[str]:
        """Look at the commits since a run of this pipeline last did; call it before anything is read.

        Makes the table this pipeline's, if it is no pipeline's yet: the table property ``sluice.pipeline`` names it.

        Returns
        -------
        list of str
            What others did that may have added, changed or removed rows, in words. It stands in the way of nothing:
            ``sluice audit --deep`` says which rows are missing or strange.

        Raises
        ------
        ConfigError
            When another pipeline writes to this table.
        CheckpointError
            When commits of this pipeline were rolled back (``RESTORE``), or the table was replaced.
        SinkError
            When the table cannot be read, or the property cannot be set.
        """
        table = self._claimed()
        if table is None:
            return []
        commits, base = self._since_last(table)
        self._refuse_undone(commits, base)
        self._seen = self._passed = table.version()
        found = [
            f"{commit} of the {self.holds} {self.path} is not a commit of this pipeline: rows may be missing, changed "
            "or added. sluice audit --deep compares them with the ledger"
            for commit in altered(commits)
        ]
        oldest = min((commit.version for commit in commits), default=base + 1)
        if oldest > base + 1:
            found.append(
                f"versions {base + 1} to {oldest - 1} of the {self.holds} {self.path} are no longer in its history: "
                "what others did to its rows there is not known. sluice audit --deep compares them with the ledger"
            )
        return found

    def _claimed(self) -> DeltaTable | None:
        """Return the table, once it is on record whose it is."""
        for _ in range(ATTEMPTS):
            table = self._table.table()
            if table is None or self._is_mine(table):
                return table
            writers = {owner(commit.note) for commit in self._table.history(table) if commit.note is not None}
            # the history forgets commits after a while; what was committed under which name it keeps
            known = transaction_versions(self.path, table.version()) or {}
            writers |= {owner({"app_id": name}) for name in known}
            others = sorted(str(name) for name in writers - {None, self._owner})
            if others:
                raise self._of_another(others[0])
            try:
                table.alter.set_table_properties(self.mark(), raise_if_not_exists=False)
            except CommitFailedError:
                continue  # somebody committed in between: look again
            except (DeltaError, OSError, ValueError) as error:
                raise self._table.failed(error) from error
        raise self._table.crowded()

    def mark(self) -> dict[str, str]:
        """Return the table properties that say whose the table is."""
        return {} if self._owner is None else {OWNER: self._owner, HOLDS: self.holds}

    def _is_mine(self, table: DeltaTable) -> bool:
        """Tell whether the table says that it is this pipeline's; refuse when it says that it is another's."""
        if self._owner is None:
            return True
        settings = table.metadata().configuration
        if settings.get(ADOPTING):
            old, new = settings[ADOPTING], settings.get(OWNER)
            raise ConfigError(
                f"the table {self.path} was being handed over from pipeline {old!r} to {new!r}; that was interrupted",
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
        """What names this table in the pipeline file."""
        return "quarantine.delta.path" if self.holds == "quarantine" else "sink.delta.path"

    def _of_another(self, other: str) -> ConfigError:
        return ConfigError(
            f"the table {self.path} belongs to pipeline {other!r}: two pipelines in one table would replace, redrive "
            "and judge each other's rows",
            state="nothing was read or written",
            next_step=f"give {self._owner!r} another {self._key}; or, if {self._owner!r} is {other!r} under a new "
            f"name: sluice adopt {other} --as {self._owner}",
        )

    def _since_last(self, table: DeltaTable) -> tuple[list[Commit], int]:
        """Return the commits behind the version that this pipeline's newest commit had seen, and that version."""
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
        # segments that went from the log are as if they were cleaned; what is sealed and not applied has its own files
        found = None if self.holds == "log" else undone(commits, base, lambda commit: commit.note is not None)
        if found is None:
            return
        by, lost = found.by, found.lost
        note = (lost.note if lost is not None else None) or {}
        which = f"version {lost.version}, the commit of run {note.get('run')}, is" if lost else "what it held is"
        raise TakenBackError(
            f"the {self.holds} {self.path} was rolled back or replaced by {by}: {which} no longer part of it",
            state="nothing was read or written now; what was taken out is in the table's history until a VACUUM",
            next_step=f"undo that: RESTORE TABLE delta.`{self.path}` TO VERSION AS OF {by.version - 1}, and run again; "
            f"or, to start over, {BEGIN_ANEW}",
        )

    def let_pass(self, table: DeltaTable) -> None:
        """Refuse to commit to a table that is another pipeline's, or was rolled back since the last look."""
        if not self._is_mine(table):
            self._claimed()
        now = table.version()
        if self._passed is None:
            commits, base = self._since_last(table)
            self._seen = self._passed = base
        elif now < self._passed:
            raise CheckpointError(
                f"the {self.holds} {self.path} is at version {now}, and was at {self._passed} before: it was replaced",
                state="nothing of this batch was written",
                next_step="put the table back, then run again",
            )
        else:
            base = self._passed
            commits = self._table.history(table, now - base) if now > base else []
        self._refuse_undone(commits, base)
        if self._seen == self._passed and not altered(commits):
            self._seen = now
        self._passed = now

    def keep_out(self, table: DeltaTable, fence: Fence | None) -> None:
        """Refuse to commit when a rival did behind the fence.

        Raises
        ------
        LeaseHeldError
            When one did.
        """
        if fence is None or table.version() <= fence.since:
            return
        for commit in self._table.history(table, table.version() - fence.since):
            if commit.version > fence.since and commit.note is not None and fence.rival(commit.note):
                raise LeaseHeldError(
                    f"run {commit.note.get('run')!r} committed to {self.path} while this driver was at work on the "
                    "same records",
                    state="this driver committed nothing of what it was about to; what it had committed before stays",
                    next_step="run the same command again",
                )

    def look_back(self) -> dict[str, Any]:
        """Return what a commit notes of the versions that were looked at before it."""
        return {} if self._seen is None else {"seen": self._seen}
