"""A Delta table as a sink: Spark stages Parquet files, delta-rs commits them.

Spark's own Delta writer commits at the end of the write, so nothing can be checked between the two. Here the files are
written first, in a folder of their own below the table, read back, and entered into the log in one transaction that
carries an application id and a version (Delta's ``txn`` action). A version that the log holds is never entered again;
of two writers of one version the log lets one in (delta-rs: "Concurrent transaction"). Files of an attempt that died
are in no transaction: readers do not see them, the attempt that gets the batch in removes them, and so does ``VACUUM``.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any
from urllib.parse import unquote

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from sluice.appid import ADOPTING, HOLDS, OWNER, owner
from sluice.errors import BEGIN_ANEW, CheckpointError, ConfigError, LeaseHeldError, SinkError
from sluice.transactions import transaction_versions
from sluice_spark.log import logger
from sluice_spark.sinks.commits import Commit, altered, undone
from sluice_spark.sinks.opened import OpenTables
from sluice_spark.sinks.slice import Found, Slice
from sluice_spark.sinks.staged import NOTHING, Staged, read_back
from sluice_spark.sinks.statistics import bounds, files_of, hidden, mask, may_be, settings_for

__all__ = ["DeltaSink", "Fence", "TakenBackError"]

_NOTE = "sluice"

_SETTINGS = {"delta.checkpointInterval": "30"}
"""Of a table that is made here. Whoever opens a table reads each commit behind its log's last checkpoint, a run does so
some twenty times, and a run is one commit: with the default of 100 a run's cost would depend on its number."""


_ATTEMPTS = 100
"""Of a commit, beside others who commit."""

_HISTORY = 100
"""Commits that are looked at first: the ledger is seldom further behind."""

_TOKEN = 8
"""Letters that tell one attempt's folder from another's."""

_LOOKS = 5
"""At a table whose properties are to change, beside others who commit."""

_RECENT = 8
"""Commits in which a pipeline's newest one is looked for first."""

_OPEN = OpenTables()


@dataclass(frozen=True)
class Fence:
    """What other writers of the same table must not have committed in the meantime, whatever leases say.

    A lease lapses while its driver is frozen; the table's log is what both drivers have in common.

    Parameters
    ----------
    since
        The version of the table that the driver rests its decisions on; -1 where there was none.
    rival
        Tells by the metadata of a commit behind it whether that is in the way.
    """

    since: int
    rival: Callable[[Mapping[str, Any]], bool]


class TakenBackError(CheckpointError):
    """Commits of the pipeline, or records that they name, are no longer part of the table."""


class DeltaSink:
    """One Delta table, by path or URL; made at the first commit.

    Parameters
    ----------
    app_id
        Who counts versions: one writer lineage, such as a pipeline's epoch.
    settings
        Table properties of a table that is made here, beside our own.
    """

    def __init__(
        self, path: str, app_id: str, partition_by: Sequence[str] = (), settings: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        self.app_id = app_id
        self.partition_by = list(partition_by)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._owner = owner({"app_id": app_id})
        self._holds = next((kind for kind in ("quarantine", "log") if app_id.endswith(f":{kind}")), "sink")
        self._seen: int | None = None
        self._passed: int | None = None

    # --- what others did ---------------------------------------------------------------------------------------

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
            f"{commit} of the {self._holds} {self.path} is not a commit of this pipeline: rows may be missing, changed "
            "or added. sluice audit --deep compares them with the ledger"
            for commit in altered(commits)
        ]
        oldest = min((commit.version for commit in commits), default=base + 1)
        if oldest > base + 1:
            found.append(
                f"versions {base + 1} to {oldest - 1} of the {self._holds} {self.path} are no longer in its history: "
                "what others did to its rows there is not known. sluice audit --deep compares them with the ledger"
            )
        return found

    def _claimed(self) -> DeltaTable | None:
        """Return the table, once it is on record whose it is."""
        for _ in range(_ATTEMPTS):
            table = self.table()
            if table is None or self._is_mine(table):
                return table
            writers = {owner(commit.note) for commit in self._history(table) if commit.note is not None}
            # the history forgets commits after a while; what was committed under which name it keeps
            known = transaction_versions(self.path, table.version()) or {}
            writers |= {owner({"app_id": name}) for name in known}
            others = sorted(str(name) for name in writers - {None, self._owner})
            if others:
                raise self._of_another(others[0])
            try:
                table.alter.set_table_properties(self._mark(), raise_if_not_exists=False)
            except CommitFailedError:
                continue  # somebody committed in between: look again
            except (DeltaError, OSError, ValueError) as error:
                raise self._failed(error) from error
        raise self._crowded()

    def _mark(self) -> dict[str, str]:
        return {} if self._owner is None else {OWNER: self._owner, HOLDS: self._holds}

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
        if other is not None and settings.get(HOLDS) != self._holds:
            raise ConfigError(
                f"the table {self.path} is the {settings.get(HOLDS)} of pipeline {self._owner!r}, and cannot be its "
                f"{self._holds} as well",
                state="nothing was read or written",
                next_step="give sink.delta.path in the pipeline file another path",
            )
        return other is not None

    def _of_another(self, other: str) -> ConfigError:
        return ConfigError(
            f"the table {self.path} belongs to pipeline {other!r}: two pipelines in one table would replace, redrive "
            "and judge each other's rows",
            state="nothing was read or written",
            next_step=f"give {self._owner!r} another sink path; or, if {self._owner!r} is {other!r} under a new name: "
            f"sluice adopt {other} --as {self._owner}",
        )

    def _history(self, table: DeltaTable, newest: int | None = None) -> list[Commit]:
        try:
            return [Commit.of(entry) for entry in table.history(newest)]
        except (DeltaError, OSError, ValueError) as error:
            raise self._failed(error) from error

    def _since_last(self, table: DeltaTable) -> tuple[list[Commit], int]:
        """Return the commits behind the version that this pipeline's newest commit had seen, and that version."""
        count = _RECENT
        while True:
            commits = self._history(table, count)
            whole = len(commits) < count
            last = next((commit for commit in commits if commit.note is not None), None)
            base = -1 if last is None or last.note is None else int(last.note.get("seen", last.version))
            if whole or (last is not None and commits[-1].version <= base + 1):
                return [commit for commit in commits if commit.version > base], base
            count *= 8

    def _refuse_undone(self, commits: Sequence[Commit], base: int) -> None:
        # segments that went from the log are as if they were cleaned; what is sealed and not applied has its own files
        found = None if self._holds == "log" else undone(commits, base, lambda commit: commit.note is not None)
        if found is None:
            return
        by, lost = found.by, found.lost
        note = (lost.note if lost is not None else None) or {}
        which = f"version {lost.version}, the commit of run {note.get('run')}, is" if lost else "what it held is"
        raise TakenBackError(
            f"the {self._holds} {self.path} was taken back or replaced by {by}: {which} no longer part of it",
            state="nothing was read or written now; what was taken out is in the table's history until a VACUUM",
            next_step=f"undo that: RESTORE TABLE delta.`{self.path}` TO VERSION AS OF {by.version - 1}, and run again; "
            f"or, to begin anew, {BEGIN_ANEW}",
        )

    def _pass(self, table: DeltaTable) -> None:
        """Refuse to commit to a table that is another pipeline's, or was rolled back since the last look."""
        if not self._is_mine(table):
            self._claimed()
        now = table.version()
        if self._passed is None:
            commits, base = self._since_last(table)
            self._seen = self._passed = base
        elif now < self._passed:
            raise CheckpointError(
                f"the {self._holds} {self.path} is at version {now}, and was at {self._passed} before: it was replaced",
                state="nothing of this batch was written",
                next_step="put the table back, then run again",
            )
        else:
            base = self._passed
            commits = self._history(table, now - base) if now > base else []
        self._refuse_undone(commits, base)
        if self._seen == self._passed and not altered(commits):
            self._seen = now
        self._passed = now

    # --- questions ---------------------------------------------------------------------------------------------

    def table(self) -> DeltaTable | None:
        """Return the table as it is now, for the caller alone; None before the first commit.

        Raises
        ------
        SinkError
            When it cannot be read.
        """
        try:
            return _OPEN.look(self.path)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise self._failed(error) from error

    def version(self) -> int:
        """Return the highest version committed under :attr:`app_id`; -1 for none."""
        table = self.table()
        found = None if table is None else table.transaction_version(self.app_id)
        return -1 if found is None else int(found)

    def table_version(self) -> int:
        """Return the version of the table; -1 where there is none."""
        table = self.table()
        return -1 if table is None else int(table.version())

    def notes(self, newer_than: int) -> Iterator[dict[str, Any]]:
        """Yield the notes of this application's commits above a version, newest first."""
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
            known, count = len(commits), count * 8  # each look begins at the newest commit again

    def last_notes(self, commits: int = 1) -> list[dict[str, Any]]:
        """Return the notes of this application among the table's newest commits, newest first."""
        table = self.table()
        found = [self._note(commit) for commit in table.history(commits)] if table is not None else []
        return [note for note in found if note is not None]

    def is_cut_off(self) -> bool:
        """Tell whether the newest commit's file is empty, which to delta-rs is a commit of nothing, and no error."""
        table = self.table()
        if table is None or table.history(1):  # without one, it may be a writer's that says nothing of itself
            return False
        fs, base = fsspec.core.url_to_fs(self.path)
        newest = f"{base}/_delta_log/{table.version():020}.json"
        return bool(fs.exists(newest) and fs.size(newest) == 0)

    def _note(self, commit: Mapping[str, Any]) -> dict[str, Any] | None:
        note = commit.get(_NOTE)
        note = json.loads(note) if isinstance(note, str) else note
        return note if note and note.get("app_id") == self.app_id else None

    def check(self, schema: StructType) -> None:
        """Refuse to write rows of this schema into a table that is another one.

        Raises
        ------
        ConfigError
            When columns, types or partitioning differ, or the table has features that staged files cannot honour.
        """
        table = self.table()
        if table is None:
            return
        settings = table.metadata().configuration
        if any(k.startswith("delta.constraints.") for k in settings) or (
            settings.get("delta.columnMapping.mode", "none") != "none"
        ):
            raise self._misfit("the table has CHECK constraints or column mapping, which staged files cannot honour")
        there = _types(StructType.fromJson(json.loads(table.schema().to_json())))
        ours = _types(schema)
        differences = [f"{n}: only in the table" for n in there if n not in ours]
        differences += [f"{n}: only in the pipeline" for n in ours if n not in there]
        differences += [
            f"{n}: {there[n].simpleString()} in the table, {ours[n].simpleString()} in the pipeline"
            for n in there
            if n in ours and there[n] != ours[n]
        ]
        if list(table.metadata().partition_columns) != self.partition_by:
            differences.append(
                f"partitioned by {table.metadata().partition_columns} in the table, by {self.partition_by} in the file"
            )
        if differences:
            raise self._misfit("; ".join(differences[:8]))
        if hidden(table):
            del table  # as it is now, it is looked at once more
            self._show_statistics()

    def _show_statistics(self) -> None:
        """Let the table's log show which runs, offsets and times its files hold, where it is too wide to do so.

        A commit of its own, which changes no row. Without it everything is right and slow, so that failing here is no
        reason to stop.
        """
        for _ in range(_LOOKS):
            table = self.table()
            if table is None or not (columns := hidden(table)):
                return
            schema = StructType.fromJson(json.loads(table.schema().to_json()))
            settings = table.metadata().configuration
            wanted = settings_for(schema, table.metadata().partition_columns, settings)
            if not wanted.items() - settings.items():
                break
            try:
                table.alter.set_table_properties(wanted)
            except CommitFailedError:
                continue  # somebody committed in between: look again
            except (DeltaError, OSError, ValueError) as error:
                logger.warning("the properties of the table %s cannot be set: %s", self.path, _first_line(error))
                break
            for key, value in wanted.items():
                before = f", was {settings[key]!r}" if key in settings else ""
                logger.info(
                    "the table %s has more columns than readers see statistics of: %s is set to %r%s",
                    self.path, key, value, before,
                )  # fmt: skip
        logger.warning(
            "the log of the table %s shows no statistics of %s: judging and intervals are right, and read every file",
            self.path, ", ".join(columns),
        )  # fmt: skip

    def check_replaceable(self) -> None:
        """Refuse to take rows out of a table in which rows are deleted by vectors: a copy would bring those back.

        Raises
        ------
        ConfigError
            When it is such a table, or may become one at any time.
        """
        table = self.table()
        if table is None or "deletionVectors" not in (table.protocol().reader_features or []):
            return
        enabled = table.metadata().configuration.get("delta.enableDeletionVectors", "").lower() == "true"
        if enabled or any(vectors.num_rows for vectors in table.deletion_vectors()):
            raise ConfigError(
                f"the table {self.path} has deletion vectors, and rows of it cannot be replaced: those that were "
                "deleted would come back",
                state="nothing was changed",
                next_step="with Spark: ALTER TABLE … SET TBLPROPERTIES ('delta.enableDeletionVectors' = false), then "
                "REORG TABLE … APPLY (PURGE); then run again",
            )

    def rows_of(self, spark: SparkSession, runs: Sequence[str]) -> tuple[DataFrame, int]:
        """Return the rows that these runs wrote, and how many the log says there are.

        Only files whose statistics allow for one of the runs are read.
        """
        table = self._there()
        actions = files_of(table)
        keep = np.zeros(actions.num_rows, dtype=bool)
        for run in runs:
            keep |= may_be(actions, "_run", run, run)
        chosen = actions.filter(pa.array(keep))
        frame = self._read(spark, table, chosen).where(_any_of(runs))
        if _has_vectors(table) or not _of_one_run_each(chosen):
            return frame, frame.count()  # files were put together by somebody else: the log does not say
        return frame, sum(chosen.column("num_records").to_pylist())

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows of the table."""
        table = self._there()
        return self._read(spark, table, files_of(table))

    def _there(self) -> DeltaTable:
        table = self.table()
        if table is None:
            raise SinkError(
                f"there is no table at {self.path}",
                state="nothing was changed",
                next_step="put the table back, or mend sink.delta.path in the pipeline file",
            )
        return table

    def _read(self, spark: SparkSession, table: DeltaTable, actions: pa.Table) -> DataFrame:
        if table.metadata().partition_columns or _has_vectors(table):
            return spark.read.format("delta").load(self.path)
        # Spark's Delta reader rebuilds the table's state in a job of its own, seconds for even a small table; the log
        # was read here already.
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        files = [p if "://" in p else f"{self.path}/{unquote(p)}" for p in actions.column("path").to_pylist()]
        return spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)

    # --- writing -----------------------------------------------------------------------------------------------

    def stage(
        self, rows: DataFrame, batch: str, *, offsets: bool = True, options: Mapping[str, str] | None = None
    ) -> Staged:
        """Write rows to a folder of their own below the table, and read back what is there.

        Parameters
        ----------
        batch
            Names the batch; folders of earlier attempts at it are found by this name.
        options
            Of Spark's Parquet writer.

        Raises
        ------
        PySparkException
            Whatever the job died of: reading, transforming and writing are one pass.
        """
        folder = f"batches/{batch}-{uuid.uuid4().hex[:_TOKEN]}"
        writer = rows.write.mode("errorifexists").options(**(options or {}))
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.parquet(f"{self.path}/{folder}")
        staged = read_back(self.path, folder, offsets=offsets)
        if not staged.files:  # no commit will name the folder
            fs, base = fsspec.core.url_to_fs(self.path)
            fs.rm(f"{base}/{folder}", recursive=True)
            return NOTHING
        return staged

    def commit(
        self,
        staged: Staged,
        schema: StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        fence: Fence | None = None,
    ) -> bool:
        """Enter staged files into the table in one transaction; an empty batch is a transaction too.

        Parameters
        ----------
        fence
            With one, the commit goes in behind the very version that was compared with it, or not at all.

        Returns
        -------
        bool
            False when the table already holds this version: nothing was changed.

        Raises
        ------
        LeaseHeldError
            When another driver committed this version just now, or a rival is behind the fence.
        ConfigError, CheckpointError
            As of :meth:`examine`.
        SinkError
            When the table cannot be written, or staged files are gone.
        """
        full = self._metadata(note, version)
        for _ in range(_ATTEMPTS):
            try:
                table = self.table() or self._made(schema)
                found = table.transaction_version(self.app_id)
                if found is not None and found >= version:
                    return self._landed(table, full)
                self._pass(table)
                self._keep_out(table, fence)
                self._still_there(staged)
                table.create_write_transaction(
                    _entries(staged),
                    "append",
                    self._schema(schema),
                    self.partition_by,
                    commit_properties=CommitProperties(
                        custom_metadata={_NOTE: full | self._look_back()},
                        max_commit_retries=None if fence is None else 0,
                        app_transactions=[Transaction(self.app_id, version, None)],
                    ),
                )
            except CommitFailedError as error:
                if self.version() >= version:
                    if self._landed(self._there(), full):
                        return True
                    raise self._taken(version) from error
                continue  # an interval was replaced just now: delta-rs takes an append for a reader of what went
            except (DeltaError, OSError, ValueError) as error:
                if self._may_have_landed(full):
                    return True
                raise self._failed(error) from error
            return True
        raise self._crowded()

    def _metadata(self, note: Mapping[str, Any], version: int) -> dict[str, Any]:
        return {**note, "app_id": self.app_id, "version": version, "attempt": uuid.uuid4().hex}

    def _keep_out(self, table: DeltaTable, fence: Fence | None) -> None:
        if fence is None or table.version() <= fence.since:
            return
        for commit in self._history(table, table.version() - fence.since):
            if commit.version > fence.since and commit.note is not None and fence.rival(commit.note):
                raise LeaseHeldError(
                    f"run {commit.note.get('run')!r} committed to {self.path} while this driver was at work on the "
                    "same records",
                    state="this driver committed nothing of what it was about to; what it had committed before stays",
                    next_step="run the same command again",
                )

    def _look_back(self) -> dict[str, Any]:
        return {} if self._seen is None else {"seen": self._seen}

    def _landed(self, table: DeltaTable, full: Mapping[str, Any]) -> bool:
        """Tell whether a version is there by this very attempt: the answer to a commit can be lost on its way."""
        recent = (commit.note for commit in self._history(table, _RECENT))
        return any(note is not None and note.get("attempt") == full["attempt"] for note in recent)

    def _may_have_landed(self, full: Mapping[str, Any]) -> bool:
        try:
            table = self.table()
            return table is not None and self._landed(table, full)
        except SinkError:
            return False  # the first failure is the one to tell of; the next run finds out

    def _still_there(self, staged: Staged) -> None:
        """Refuse to commit files that somebody removed: to a VACUUM without retention they belong to nobody."""
        fs, base = fsspec.core.url_to_fs(self.path)
        for file in staged.files:
            try:
                size = fs.size(f"{base}/{file.path}")
            except FileNotFoundError:
                size = None
            if size != file.size:
                raise SinkError(
                    f"the staged file {file.path} of the {self._holds} {self.path} "
                    + ("is gone" if size is None else f"has {size} bytes, not {file.size}"),
                    state="nothing of this batch was committed; the next run writes its files again",
                    next_step="run again; VACUUM the table with a retention that is longer than a run takes",
                )

    def _made(self, schema: StructType) -> DeltaTable:
        fs, base = fsspec.core.url_to_fs(self.path)
        fs.makedirs(base, exist_ok=True)
        return DeltaTable.create(
            self.path,
            schema=self._schema(schema),
            mode="ignore",
            partition_by=self.partition_by,
            configuration={
                **self._settings,
                **settings_for(_nullable(schema), self.partition_by, self._settings),
                **self._mark(),
            },
            raise_if_key_not_exists=False,
        )

    def replace(
        self,
        gone: Slice,
        staged: Staged,
        schema: StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        name: str,
        check: Callable[[Mapping[tuple[str, int], Any]], None] = lambda _: None,
        fence: Fence | None = None,
    ) -> dict[tuple[str, int], int] | None:
        """Take the rows of a slice out and enter staged files, in one transaction.

        Whatever others commit meanwhile (appends, other slices) is seen before this is committed: the transaction goes
        in behind the very table that was looked at, or not at all, and is then prepared again.

        Parameters
        ----------
        gone
            Which rows go.
        name
            Names the batch, as in :meth:`stage`.
        check
            Given the offsets that go, per topic and partition; raises when they must not. Nothing is changed then.
        fence
            As of :meth:`commit`.

        Returns
        -------
        dict or None
            How many offsets went, per topic and partition; None when the table already holds this version, and
            nothing was changed.

        Raises
        ------
        LeaseHeldError
            When another driver committed this version just now.
        SinkError
            When the table cannot be read or written, or others never let it be.
        """
        full = self._metadata(note, version)
        for _ in range(_ATTEMPTS):
            table = self.table()
            if table is None:
                counts: dict[tuple[str, int], int] = {}
                done = self.commit(staged, schema, version, {**note, "replaced": []}, fence=fence)
                return counts if done else None
            last = table.transaction_version(self.app_id)
            if last is not None and last >= version:
                return None
            self._pass(table)
            self._keep_out(table, fence)
            try:
                found = gone.find(self.path, files_of(table))
                counts = _distinct(found.values(), check)
                kept = gone.keep(self.path, name, found)
                for files in (staged, kept):
                    self._still_there(files)
                now = int(time.time() * 1000)
                replaced = [[*key, count] for key, count in sorted(counts.items())]
                table.create_write_transaction(
                    [*_removed(found, now), *_entries(kept), *_entries(staged)],
                    "append",
                    self._schema(schema),
                    self.partition_by,
                    commit_properties=CommitProperties(
                        custom_metadata={_NOTE: full | self._look_back() | {"replaced": replaced}},
                        max_commit_retries=0,
                        app_transactions=[Transaction(self.app_id, version, None)],
                    ),
                )
            except CommitFailedError:
                if self.version() >= version:
                    if self._landed(self._there(), full):
                        return counts
                    raise self._taken(version) from None
                continue  # somebody committed in between: look again
            except (DeltaError, OSError, ValueError) as error:
                if self._may_have_landed(full):
                    return counts
                raise self._failed(error) from error
            return counts
        raise self._crowded()

    def held(self, gone: Slice) -> dict[tuple[str, int], Any]:
        """Return the offsets of a slice that the table holds, per topic and partition, ascending.

        Raises
        ------
        SinkError
            When it cannot be read.
        """
        table = self.table()
        if table is None:
            return {}
        try:
            found = gone.find(self.path, files_of(table))
        except (DeltaError, OSError, ValueError) as error:
            raise self._failed(error) from error
        return _merged(found.values())

    def staged_rows(self, spark: SparkSession, staged: Staged, schema: StructType) -> DataFrame:
        """Return the rows of staged files.

        Parameters
        ----------
        schema
            Of the rows that were staged.
        """
        folder = f"{self.path}/{staged.folder}"
        return spark.read.schema(schema).option("basePath", folder).parquet(folder)

    def sweep(self, batch: str) -> None:
        """Remove the folders of a batch's attempts that no transaction entered.

        One whose segments were sealed stays, though OPTIMIZE put other files in their place since: they are applied
        from their own files.
        """
        fs, base = fsspec.core.url_to_fs(self.path)
        folders = [str(f) for f in fs.glob(f"{base}/batches/{batch}-{'[0-9a-f]' * _TOKEN}")]
        if not folders:
            return
        table = self.table()
        paths = files_of(table).column("path") if table is not None else pa.chunked_array([], pa.string())
        stray = []
        for folder in folders:
            name = folder.rsplit("/", 1)[-1]
            # the log names a file encoded; what tells one attempt from another has no character that would be
            near = paths.filter(pc.match_substring(paths, f"{name[-_TOKEN - 1 :]}/")).to_pylist()
            if not any(f"/batches/{name}/" in f"/{unquote(path)}" for path in near):
                stray.append(folder)
        sealed: set[str] = set()
        if stray and self._holds == "log":
            notes = self.notes(newer_than=int(batch.rpartition("-")[2]) - 1)
            sealed = {s["path"].split("/")[1] for note in notes for s in note.get("segments", ())}
        for folder in stray:
            if folder.rsplit("/", 1)[-1] not in sealed:
                fs.rm(folder, recursive=True)

    @staticmethod
    def _schema(schema: StructType) -> Schema:
        return Schema.from_json(_nullable(schema).json())

    def _crowded(self) -> SinkError:
        return self._failed(OSError(f"others committed to it {_ATTEMPTS} times while this commit was being prepared"))

    def _taken(self, version: int) -> LeaseHeldError:
        return LeaseHeldError(
            f"another driver committed batch {version} to {self.path} first",
            state="the batch is in the table once; this driver's files are not part of it",
            next_step="nothing; the other driver goes on",
        )

    def _failed(self, error: Exception) -> SinkError:
        return SinkError(
            f"the table {self.path} failed: {_first_line(error)}",
            state="the batch is in the table as a whole or not at all; the next run finds out which",
            next_step="mend the storage, then run again",
        )

    def _misfit(self, what: str) -> ConfigError:
        return ConfigError(
            f"the table {self.path} does not fit the pipeline: {what}",
            state="nothing was read or written; the position stays where it was",
            next_step=f"change the table or the pipeline file so that they match; or, to begin anew, {BEGIN_ANEW}",
        )


def _nullable(kind: Any) -> Any:
    """Return a type that allows nulls at every level: a table holds what was declared, not what one plan can prove."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType), True) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def _types(schema: StructType) -> dict[str, Any]:
    return {f.name: f.dataType for f in _nullable(schema).fields}


def _entries(staged: Staged) -> list[AddAction]:
    return [
        # the path as it is on disk: delta-rs encodes it for the log
        AddAction(f.path, f.size, dict(f.partition_values), f.modified, True, f.stats)
        for f in staged.files
    ]


def _removed(paths: Iterable[str], now: int) -> list[AddAction | RemoveAction]:
    # the log names a file encoded, and delta-rs encodes once more: what it does not find again would stay, quietly
    return [RemoveAction(unquote(path), True, now) for path in paths]


def _has_vectors(table: DeltaTable) -> bool:
    """Tell whether rows of the table's files may be deleted by vectors: also after these were switched off."""
    return "deletionVectors" in (table.protocol().reader_features or [])


def _any_of(runs: Sequence[str]) -> Column:
    # of a list (IN), Spark's Delta reader takes least and greatest, and opens what lies between
    return reduce(or_, (F.col("_run") == run for run in runs), F.lit(False))


def _of_one_run_each(files: pa.Table) -> bool:
    """Tell whether the log says of each file that all of its rows are of one run, and how many there are."""
    runs, numbers = bounds(files, "_run"), files.column("num_records")
    if runs is None or numbers.null_count:
        return False
    one = mask(pc.equal(*runs), unknown=False)
    if "null_count._run" in files.column_names:
        one &= mask(pc.equal(files.column("null_count._run"), 0), unknown=False)
    return bool(one.all())


def _merged(found: Iterable[Found]) -> dict[tuple[str, int], Any]:
    parts: dict[tuple[str, int], list[Any]] = {}
    for what in found:
        for key, offsets in what.offsets.items():
            parts.setdefault(key, []).append(offsets)
    return {key: np.unique(np.concatenate(arrays)) for key, arrays in parts.items()}


def _distinct(
    found: Iterable[Found], check: Callable[[Mapping[tuple[str, int], Any]], None]
) -> dict[tuple[str, int], int]:
    offsets = _merged(found)
    check(offsets)
    return {key: len(numbers) for key, numbers in offsets.items()}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]
