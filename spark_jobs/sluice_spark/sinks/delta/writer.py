"""One writer of a Delta table: which versions it committed, and what it noted in each commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.delta.notes import last_batch, note_of
from sluice.delta.transactions import transaction_versions
from sluice.storage import file_system
from sluice_spark.sinks.delta.handle import Handle

__all__ = ["Writer"]

_HISTORY = 8
"""Number of commits that are read first: the ledger is seldom further behind."""


class Writer(Handle):
    """A writer of a Delta table, such as a pipeline's epoch.

    Parameters
    ----------
    app_id
        The application id of Delta's ``txn`` actions; each writer has its own versions.
    """

    def __init__(self, path: str, app_id: str) -> None:
        super().__init__(path)
        self.app_id = app_id

    def version(self) -> int:
        """Return the highest version that :attr:`app_id` committed; -1 if there is none."""
        return last_batch(self.table(), self.app_id)

    def notes(self, newer_than: int) -> Iterator[dict[str, Any]]:
        """Yield the commit metadata of this application's commits above a version, newest first."""
        table, known, count = self.table(), 0, _HISTORY
        while table is not None:
            commits = table.history(count)
            for commit in commits[known:]:
                note = self._note(commit)
                if note is not None and note["version"] <= newer_than:
                    return
                if note is not None:
                    yield note
            if len(commits) < count:
                return
            known, count = len(commits), count * 8  # the history always begins at the newest commit

    def ahead_of(self, known: Mapping[str, int]) -> set[str]:
        """Return which of these application ids committed a higher version than the given one."""
        table = self.table()
        if table is None or not known:
            return set()
        held = transaction_versions(self.path, table.version())
        asked = known if held is None else {w: last for w, last in known.items() if held.get(w, -1) > last}
        found = {writer: table.transaction_version(writer) for writer in asked}  # some milliseconds each
        return {writer for writer, batch in found.items() if batch is not None and batch > known[writer]}

    def last_notes(self, commits: int = 1) -> list[dict[str, Any]]:
        """Return the commit metadata of this application among the table's newest commits, newest first."""
        table = self.table()
        found = [self._note(commit) for commit in table.history(commits)] if table is not None else []
        return [note for note in found if note is not None]

    def is_cut_off(self) -> bool:
        """Return whether the newest commit's file is empty; delta-rs takes it for a commit without actions."""
        table = self.table()
        if table is None or table.history(1):  # without an entry, the commit is empty, or has no commit info
            return False
        fs, base = file_system(self.path)
        newest = f"{base}/_delta_log/{table.version():020}.json"
        return bool(fs.exists(newest) and fs.size(newest) == 0)

    def _note(self, commit: Mapping[str, Any]) -> dict[str, Any] | None:
        note = note_of(commit)
        return note if note and note.get("app_id") == self.app_id else None
