"""Renames a pipeline: its ledger, checkpoints, write-ahead log and tables go on under the new name."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.audit.snapshot import last_commits
from sluice.delta.names import ADOPTING, HOLDS, OWNER, app_id, owner, quarantine_app_id
from sluice.delta.notes import last_batch, note_of
from sluice.delta.table import opened
from sluice.delta.transactions import transaction_versions
from sluice.errors import ConfigError, SinkError, described
from sluice.faults import point
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.recovery import Route
from sluice.run.checkpoint import Checkpoint
from sluice.wal import WriteAheadLog
from sluice.wal.cleaning import applied_batch

__all__ = ["Adoption"]

_UNTOUCHED = "nothing was changed"
_MADE_FIRST = {"id", "rate.json"}


@dataclass(frozen=True)
class Adoption:
    """The transfer of one pipeline to another name.

    Parameters
    ----------
    old
        The pipeline's present name in the ledger.
    new
        The pipeline file with the new name and the sink that the old name wrote to.

    Notes
    -----
    From the first step to the last, a property of the sink keeps runs of either name out. Each step first checks
    whether it was already done: after a crash the same command goes on where it stopped, and repeating it is
    idempotent.
    """

    ledger: Ledger
    home: Home
    old: str
    new: Pipeline

    def carry_out(self) -> bool:
        """Transfer everything; return False if that was already done.

        Raises
        ------
        ConfigError
            If there is nothing to transfer, or the old name's last run is not settled. Nothing is changed then.
        LeaseHeldError
            If a run of either name is at work.
        SinkError
            If a table cannot be read or written. The same command goes on from there.
        """
        old, new = self.old, self.new.name
        if old == new:
            raise ConfigError(
                f"pipeline {new!r} already has this name", state=_UNTOUCHED, next_step="give the file with the new name"
            )
        sink = self._sink
        with self.ledger.acquire(old, f"adopt-as-{new}"), self.ledger.acquire(new, f"adopt-{old}") as lease:
            settings = _settings(sink)
            if old in self.ledger.runs.former_names(new):
                return self._put_right()
            begun = settings.get(ADOPTING) == old and settings.get(OWNER) == new
            if not begun:
                self._refuse_unsettled(settings)
            quarantine, log = self.home.resolve(self.new.quarantine_path), WriteAheadLog(self.home.log(old), old)
            names = list(last_commits(self.ledger, old))
            _hand(sink, self._versions(sink, names), {OWNER: new, HOLDS: "sink", ADOPTING: old})
            point("adoption-begun")
            refused = self._versions(quarantine, [quarantine_app_id(name) for name in names])
            _hand(quarantine, refused, {OWNER: new, HOLDS: "quarantine"})
            sealed = [log.app_id(number) for number in range(1, self.ledger.offsets.epoch(old).number + 1)]
            _hand(log.path, self._versions(log.path, sealed), {OWNER: new, HOLDS: "log"})
            point("tables-adopted")
            for folder in (self.home.join("checkpoints", "{}"), self.home.log("{}"), self.home.source("{}")):
                source, target = folder.format(old), folder.format(new)
                if os.path.isdir(source):
                    _refuse_both(source, target)
                    os.rename(source, target)
            point("folders-adopted")
            self.ledger.adopted(lease, old)
            point("ledger-adopted")
            _hand(sink, {}, {ADOPTING: ""})
        return True

    def _put_right(self) -> bool:
        """Set the ownership properties of the tables again, after a crash at the end or a RESTORE to before it."""
        sink = self._sink
        places = {
            sink: "sink",
            self.home.resolve(self.new.quarantine_path): "quarantine",
            self.home.log(self.new.name): "log",
        }
        return any([_hand(path, {}, {OWNER: self.new.name, HOLDS: h, ADOPTING: ""}) for path, h in places.items()])

    @property
    def _sink(self) -> str:
        return self.home.resolve(self.new.delta_path)

    def _refuse_unsettled(self, settings: Mapping[str, str]) -> None:
        old, new, sink = self.old, self.new.name, self._sink
        if self.new.also:
            raise ConfigError(
                f"pipeline {new!r} has further sinks (also), which belong to {old!r}, and cannot be handed over yet",
                state=_UNTOUCHED,
                next_step="leave also out while the name changes; then add it again, with other places",
            )
        if not self.ledger.runs.newest(old, limit=1):
            raise ConfigError(
                f"the ledger has no run of pipeline {old!r}",
                state=_UNTOUCHED,
                next_step="give the name under which it ran before: sluice status lists the names",
            )
        busy = {run for scope, run in self.ledger.runs.at_work(old).items() if scope}
        if busy:
            raise ConfigError(
                f"pipeline {old!r} is at work: {', '.join(sorted(busy))}",
                state=_UNTOUCHED,
                next_step="try again when these runs have ended",
            )
        if self.ledger.runs.newest(new, limit=1):
            known = [
                run for run in self.ledger.runs.newest(new, limit=1000) if self.ledger.offsets.accounts(new, run.run)
            ]
            if known:
                raise ConfigError(
                    f"pipeline {new!r} has runs of its own, such as {known[0].run!r}: two accounts cannot be merged",
                    state=_UNTOUCHED,
                    next_step="choose a name that no pipeline has used",
                )
        for folder in (self.home.join("checkpoints", new), self.home.log(new), self.home.source(new)):
            if _is_of_a_refused_run(folder):
                shutil.rmtree(folder)
            elif os.path.isdir(folder):
                raise ConfigError(
                    f"{folder} already exists: it holds the state of another pipeline {new!r}",
                    state=_UNTOUCHED,
                    next_step="choose a name that no pipeline has used, or remove the folder if nothing needs it",
                )
        others = {settings.get(OWNER), *_writers(sink)} - {None, old, *self.ledger.runs.former_names(old)}
        if others:
            raise ConfigError(
                f"the table {sink} belongs to pipeline {', '.join(sorted(map(str, others)))}, not to {old} alone",
                state=_UNTOUCHED,
                next_step=f"in the file of {new!r}, name the sink to which {old!r} wrote",
            )
        unsettled = [name for name, known, held in self._ends() if known != held]
        if unsettled:
            raise ConfigError(
                f"the ledger and the table {sink} do not end with the same batch ({', '.join(unsettled)}): a run of "
                f"{old!r} died halfway, or this is not the table that it wrote to",
                state=_UNTOUCHED,
                next_step=f"run {old!r} once more under its old name, which recovers that run; then try again",
            )

    def _ends(self) -> Iterator[tuple[str, int, int]]:
        """Yield, for each writer of the old name, its application id and its last batch in the ledger and the table."""
        table, newest = _open(self._sink), self.ledger.offsets.epoch(self.old)
        for name, (_, batch) in last_commits(self.ledger, self.old).items():
            yield name, batch, last_batch(table, name)
        if newest.route is Route.LOG:
            log, number = WriteAheadLog(self.home.log(self.old), self.old), newest.number
            if Checkpoint(self.home.checkpoint(self.old, number)).defined():
                applied = applied_batch(log, number, self.ledger.offsets.furthest(self.old, number, batches=1 << 31))
            else:
                applied = last_batch(table, app_id(self.old, number))
            yield log.app_id(number), log.version(number), applied

    def _versions(self, path: str, names: Iterable[str]) -> dict[str, int]:
        """Return the last batch numbers of a table, by the new application ids instead of the old ones."""
        table = _open(path)
        held = {name: last_batch(table, name) for name in names}
        prefix = f"sluice:{self.old}:"
        return {
            f"sluice:{self.new.name}:{name.removeprefix(prefix)}": batch for name, batch in held.items() if batch >= 0
        }


def _refuse_both(*folders: str) -> None:
    """Refuse to choose between two folders of state: a run that was refused in the middle of the transfer made one.

    Raises
    ------
    ConfigError
        With both.
    """
    if not all(map(os.path.isdir, folders)):
        return
    made = {folder: min(os.path.getmtime(path) for path in _below(folder)) for folder in folders}
    older, newer = sorted(folders, key=made.__getitem__)
    raise ConfigError(
        f"{older} and {newer} both exist: a run that was refused while the transfer was under way made one of them",
        state="the completed steps are recorded; until the transfer is complete, no run of either name starts",
        next_step=f"the state is in the older one: rm -r {shlex.quote(newer)}, then repeat the same command",
    )


def _is_of_a_refused_run(folder: str) -> bool:
    """Return whether a folder has no more than what a source makes before its first run is refused or goes on."""
    return os.path.isdir(folder) and set(os.listdir(folder)) <= _MADE_FIRST


def _below(folder: str) -> list[str]:
    return [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names] or [folder]


def _open(path: str) -> Any:
    return opened(path, lambda error: _failed(path, error))


def _writers(path: str) -> set[str | None]:
    """Return the pipelines that committed to a table."""
    table = _open(path)
    told = {owner(note) for entry in table.history() if (note := note_of(entry))}
    return told | {owner({"app_id": name}) for name in transaction_versions(path, table.version()) or {}}


def _settings(path: str) -> dict[str, str]:
    table = _open(path)
    if table is None:
        raise ConfigError(
            f"there is no table at {path}",
            state=_UNTOUCHED,
            next_step="in the pipeline file, name the sink to which the old name wrote",
        )
    return dict(table.metadata().configuration)


def _hand(path: str, versions: Mapping[str, int], settings: Mapping[str, str]) -> bool:
    """Set batch numbers and properties of a table in one commit; return False if they were already set."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import DeltaError

    table = _open(path)
    if table is None:
        return False
    due = {name: version for name, version in versions.items() if last_batch(table, name) < version}
    here = table.metadata().configuration
    if not due and all(here.get(key, "") == value for key, value in settings.items()):
        return False
    try:
        table.alter.set_table_properties(
            dict(settings),
            raise_if_not_exists=False,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(name, version, None) for name, version in due.items()]
            ),
        )
    except (DeltaError, OSError, ValueError) as error:
        raise _failed(path, error) from error
    return True


def _failed(path: str, error: Exception) -> SinkError:
    return SinkError(
        f"the table {path} failed: {described(error)}",
        state="the completed steps are recorded; until the transfer is complete, no run of either name starts",
        next_step="fix the storage, then repeat the same command",
    )
