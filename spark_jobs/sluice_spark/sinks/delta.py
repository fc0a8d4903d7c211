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
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from sluice.errors import BEGIN_ANEW, ConfigError, LeaseHeldError, SinkError
from sluice_spark.sinks.slice import Found, Slice
from sluice_spark.sinks.staged import NOTHING, Staged, read_back

__all__ = ["DeltaSink"]

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

    # --- questions ---------------------------------------------------------------------------------------------

    def table(self) -> DeltaTable | None:
        """Return the table as it is now; None before the first commit.

        Raises
        ------
        SinkError
            When it cannot be read.
        """
        try:
            return DeltaTable(self.path)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise self._failed(error) from error

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
        actions = pa.table(table.get_add_actions(flatten=True))
        low, high = (actions.column(c) if c in actions.column_names else None for c in ("min._run", "max._run"))
        if low is None or high is None:
            chosen = actions
        else:
            keep = [
                a is None or b is None or any(a <= run <= b for run in runs)
                for a, b in zip(low.to_pylist(), high.to_pylist(), strict=True)
            ]
            chosen = actions.filter(pa.array(keep))
        frame = self._read(spark, table, chosen).where(F.col("_run").isin(list(runs)))
        if low is None or high is None or chosen.column("min._run") != chosen.column("max._run"):
            return frame, frame.count()  # files were put together by somebody else: the log does not say
        return frame, sum(chosen.column("num_records").to_pylist())

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows of the table."""
        table = self._there()
        return self._read(spark, table, pa.table(table.get_add_actions(flatten=True)))

    def files(self) -> list[str]:
        """Return the paths of the table's files, as the log names them."""
        return list(pa.table(self._there().get_add_actions(flatten=True)).column("path").to_pylist())

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
        plain = not table.metadata().partition_columns and "delta.enableDeletionVectors" not in (
            table.metadata().configuration
        )
        if not plain:
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
        remove: Sequence[str] = (),
    ) -> bool:
        """Enter staged files into the table in one transaction; an empty batch is a transaction too.

        Parameters
        ----------
        remove
            Files of the table that go in the same transaction.

        Returns
        -------
        bool
            False when the table already holds this version: nothing was changed.

        Raises
        ------
        LeaseHeldError
            When another driver committed this version just now.
        SinkError
            When the table cannot be written.
        """
        for _ in range(_ATTEMPTS):
            try:
                table = self.table() or self._made(schema)
                found = table.transaction_version(self.app_id)
                if found is not None and found >= version:
                    return False
                now = int(time.time() * 1000)
                actions: list[AddAction | RemoveAction] = _removed(remove, now)
                actions += _entries(staged)
                table.create_write_transaction(
                    actions,
                    "append",
                    self._schema(schema),
                    self.partition_by,
                    commit_properties=CommitProperties(
                        custom_metadata={_NOTE: {**note, "app_id": self.app_id, "version": version}},
                        app_transactions=[Transaction(self.app_id, version, None)],
                    ),
                )
            except CommitFailedError as error:
                if self.version() >= version:
                    raise self._taken(version) from error
                if remove:
                    raise self._failed(error) from error
                continue  # an interval was replaced just now: delta-rs takes an append for a reader of what went
            except (DeltaError, OSError, ValueError) as error:
                raise self._failed(error) from error
            return True
        raise self._crowded()

    def _made(self, schema: StructType) -> DeltaTable:
        fs, base = fsspec.core.url_to_fs(self.path)
        fs.makedirs(base, exist_ok=True)
        return DeltaTable.create(
            self.path,
            schema=self._schema(schema),
            mode="ignore",
            partition_by=self.partition_by,
            configuration=self._settings,
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
        for _ in range(_ATTEMPTS):
            table = self.table()
            if table is None:
                counts: dict[tuple[str, int], int] = {}
                return counts if self.commit(staged, schema, version, {**note, "replaced": []}) else None
            last = table.transaction_version(self.app_id)
            if last is not None and last >= version:
                return None
            try:
                found = gone.find(self.path, pa.table(table.get_add_actions(flatten=True)))
                counts = _distinct(found.values(), check)
                kept = gone.keep(self.path, name, found)
                now = int(time.time() * 1000)
                replaced = [[*key, count] for key, count in sorted(counts.items())]
                table.create_write_transaction(
                    [*_removed(found, now), *_entries(kept), *_entries(staged)],
                    "append",
                    self._schema(schema),
                    self.partition_by,
                    commit_properties=CommitProperties(
                        custom_metadata={
                            _NOTE: {**note, "app_id": self.app_id, "version": version, "replaced": replaced}
                        },
                        max_commit_retries=0,
                        app_transactions=[Transaction(self.app_id, version, None)],
                    ),
                )
            except CommitFailedError:
                if self.version() >= version:
                    raise self._taken(version) from None
                continue  # somebody committed in between: look again
            except (DeltaError, OSError, ValueError) as error:
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
            found = gone.find(self.path, pa.table(table.get_add_actions(flatten=True)))
        except (DeltaError, OSError, ValueError) as error:
            raise self._failed(error) from error
        return _merged(found.values())

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
        held = {uri.rsplit("/batches/", 1)[-1].split("/", 1)[0] for uri in (table.file_uris() if table else [])}
        stray = [folder for folder in folders if folder.rsplit("/", 1)[-1] not in held]
        if stray:
            notes = self.notes(newer_than=int(batch.rpartition("-")[2]) - 1)
            held |= {s["path"].split("/")[1] for note in notes for s in note.get("segments", ())}
        for folder in stray:
            if folder.rsplit("/", 1)[-1] not in held:
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
