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
from typing import Any
from urllib.parse import unquote

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.delta.transactions import transaction_versions
from sluice.errors import LeaseHeldError, SinkError
from sluice_spark.sinks.base import NOTHING, Fence, Staged, overtaken
from sluice_spark.sinks.delta import reading, shape
from sluice_spark.sinks.delta.guard import RECENT, Guard
from sluice_spark.sinks.delta.handle import ATTEMPTS, Handle
from sluice_spark.sinks.delta.shape import nullable
from sluice_spark.sinks.delta.slice import Found, Slice
from sluice_spark.sinks.delta.staged import offsets_of, read_back
from sluice_spark.sinks.delta.statistics import files_of, settings_for

__all__ = ["DeltaSink"]

_NOTE = "sluice"

_SETTINGS = {"delta.checkpointInterval": "30"}
"""Of a table that is made here. Whoever opens a table reads each commit behind its log's last checkpoint, a run does so
some twenty times, and a run is one commit: with the default of 100 a run's cost would depend on its number."""


_HISTORY = 100
"""Commits that are looked at first: the ledger is seldom further behind."""

_TOKEN = 8
"""Letters that tell one attempt's folder from another's."""


class DeltaSink(Handle):
    """One Delta table, by path or URL; made at the first commit.

    Parameters
    ----------
    app_id
        Who counts versions: one writer, such as a pipeline's epoch.
    settings
        Table properties of a table that is made here, beside our own.
    """

    def __init__(
        self, path: str, app_id: str, partition_by: Sequence[str] = (), settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(path)
        self.app_id = app_id
        self.partition_by = list(partition_by)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._guard = Guard(self, app_id)

    def examine(self) -> list[str]:
        """Look at what others did to the table since a run of this pipeline last did: :meth:`Guard.examine`."""
        return self._guard.examine()

    def admit(self) -> None:
        """Raise what a commit to this table would, before another one that must not go in alone.

        Raises
        ------
        ConfigError, CheckpointError
            As of :meth:`examine`.
        """
        table = self.table()
        if table is not None:
            self._guard.let_pass(table)

    # --- questions ---------------------------------------------------------------------------------------------

    def version(self) -> int:
        """Return the highest version committed under :attr:`app_id`; -1 for none."""
        table = self.table()
        found = None if table is None else table.transaction_version(self.app_id)
        return -1 if found is None else int(found)

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

    def ahead_of(self, known: Mapping[str, int]) -> set[str]:
        """Return which of these application ids committed more than the version given, in one reading of the log."""
        table = self.table()
        if table is None or not known:
            return set()
        held = transaction_versions(self.path, table.version())
        asked = known if held is None else {w: last for w, last in known.items() if held.get(w, -1) > last}
        found = {writer: table.transaction_version(writer) for writer in asked}  # which costs some milliseconds each
        return {writer for writer, batch in found.items() if batch is not None and batch > known[writer]}

    def as_it_is(self) -> tuple[DeltaSink, StructType] | None:
        """Return the sink with the columns and partitioning that the table has; None where there is none."""
        table = self.table()
        if table is None:
            return None
        columns = StructType.fromJson(json.loads(table.schema().to_json()))
        return DeltaSink(self.path, self.app_id, table.metadata().partition_columns), columns

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
        """Refuse to write rows of this schema into a table that is another one: :func:`shape.check`."""
        shape.check(self, schema, self.partition_by)

    def check_replaceable(self) -> None:
        """Refuse to take rows out of a table that has deletion vectors: :func:`shape.check_replaceable`."""
        shape.check_replaceable(self)

    def rows_of(self, spark: SparkSession, runs: Sequence[str]) -> tuple[DataFrame, int]:
        """Return the rows that these runs wrote, and how many there are."""
        return reading.rows_of(self, spark, runs)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows of the table."""
        return reading.rows(self, spark)

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
        for _ in range(ATTEMPTS):
            try:
                table = self.table() or self._made(schema)
                found = table.transaction_version(self.app_id)
                if found is not None and found >= version:
                    return self._landed(table, full)
                self._guard.let_pass(table)
                self._guard.keep_out(table, fence)
                self._still_there(staged)
                table.create_write_transaction(
                    _entries(staged),
                    "append",
                    self._schema(schema),
                    self.partition_by,
                    commit_properties=CommitProperties(
                        custom_metadata={_NOTE: full | self._guard.look_back()},
                        max_commit_retries=None if fence is None else 0,
                        app_transactions=[Transaction(self.app_id, version, None)],
                    ),
                )
            except CommitFailedError as error:
                if self.version() >= version:
                    if self._landed(self.existing(), full):
                        return True
                    raise self._taken(version) from error
                continue  # an interval was replaced just now: delta-rs takes an append for a reader of what went
            except (DeltaError, OSError, ValueError) as error:
                if self._may_have_landed(full):
                    return True
                raise self.failed(error) from error
            return True
        raise self.crowded()

    def _metadata(self, note: Mapping[str, Any], version: int) -> dict[str, Any]:
        return {**note, "app_id": self.app_id, "version": version, "attempt": uuid.uuid4().hex}

    def _landed(self, table: DeltaTable, full: Mapping[str, Any]) -> bool:
        """Tell whether a version is there by this very attempt: the answer to a commit can be lost on its way."""
        recent = (commit.note for commit in self.history(table, RECENT))
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
                    f"the staged file {file.path} of the {self._guard.holds} {self.path} "
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
                **settings_for(nullable(schema), self.partition_by, self._settings),
                **self._guard.mark(),
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
        for _ in range(ATTEMPTS):
            table = self.table()
            if table is None:
                counts: dict[tuple[str, int], int] = {}
                done = self.commit(staged, schema, version, {**note, "replaced": []}, fence=fence)
                return counts if done else None
            last = table.transaction_version(self.app_id)
            if last is not None and last >= version:
                return None
            self._guard.let_pass(table)
            self._guard.keep_out(table, fence)
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
                        custom_metadata={_NOTE: full | self._guard.look_back() | {"replaced": replaced}},
                        max_commit_retries=0,
                        app_transactions=[Transaction(self.app_id, version, None)],
                    ),
                )
            except CommitFailedError:
                if self.version() >= version:
                    if self._landed(self.existing(), full):
                        return counts
                    raise self._taken(version) from None
                continue  # somebody committed in between: look again
            except (DeltaError, OSError, ValueError) as error:
                if self._may_have_landed(full):
                    return counts
                raise self.failed(error) from error
            return counts
        raise self.crowded()

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
            raise self.failed(error) from error
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

    def staged_offsets(self, staged: Staged) -> dict[tuple[str, int], Any]:
        """Return the offsets of staged rows per topic and partition, ascending, each once."""
        return offsets_of(self.path, staged)

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
        if stray and self._guard.holds == "log":
            notes = self.notes(newer_than=int(batch.rpartition("-")[2]) - 1)
            sealed = {s["path"].split("/")[1] for note in notes for s in note.get("segments", ())}
        for folder in stray:
            if folder.rsplit("/", 1)[-1] not in sealed:
                fs.rm(folder, recursive=True)

    @staticmethod
    def _schema(schema: StructType) -> Schema:
        return Schema.from_json(nullable(schema).json())

    def _taken(self, version: int) -> LeaseHeldError:
        return overtaken(
            f"committed batch {version} to {self.path}",
            state="the batch is in the table once; this driver's files are not part of it",
            next_step="nothing; the other driver goes on",
        )


def _entries(staged: Staged) -> list[AddAction]:
    return [
        # the path as it is on disk: delta-rs encodes it for the log
        AddAction(f.path, f.size, dict(f.partition_values), f.modified, True, f.stats)
        for f in staged.files
    ]


def _removed(paths: Iterable[str], now: int) -> list[AddAction | RemoveAction]:
    # the log names a file encoded, and delta-rs encodes once more: what it does not find again would stay, quietly
    return [RemoveAction(unquote(path), True, now) for path in paths]


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
