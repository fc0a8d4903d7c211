"""A Delta table as a sink: Spark stages Parquet files, delta-rs commits them.

Spark's own Delta writer commits at the end of the write, so nothing can be checked in between. Here the files are first
written to a folder of their own below the table, read back, and then added to the log in one transaction with an
application id and a version (Delta's ``txn`` action). A version that the log has is never committed again: commits are
idempotent. The log accepts one of two writers of one version (delta-rs: "Concurrent transaction"). Files of an attempt
that died are in no transaction: readers do not see them, and the successful attempt or a ``VACUUM`` removes them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.delta.names import KEY
from sluice.delta.notes import NOTE
from sluice.delta.paths import check_gone
from sluice.errors import ConfigError, LeaseHeldError, SinkError
from sluice.faults import point
from sluice.sinks.base import SinkConfig
from sluice.storage import file_system, make_folder
from sluice_spark.sinks.base import Fence, Staged, StagedFile, overtaken
from sluice_spark.sinks.delta import reading, shape
from sluice_spark.sinks.delta.evolution import nullable
from sluice_spark.sinks.delta.guard import RECENT, Guard
from sluice_spark.sinks.delta.handle import ATTEMPTS
from sluice_spark.sinks.delta.statistics import files_of, settings_for
from sluice_spark.sinks.delta.widening import widened_for, with_wider_types
from sluice_spark.sinks.delta.writer import Writer
from sluice_spark.sinks.parquet.attempts import remove, stray, written_to
from sluice_spark.sinks.parquet.slice import Found, Slice, offsets_in, partition_of
from sluice_spark.sinks.parquet.staging import StagesParquet

__all__ = ["DeltaSink", "opened"]

_FAR = 500
"""So many commits of others are looked at for what an attempt that died had done."""

_SETTINGS = {"delta.checkpointInterval": "30"}
"""Properties of a new table. Opening a table reads each commit after the log's last checkpoint; a run does so some
twenty times and adds a commit. With the default interval of 100, later runs would cost more than earlier ones."""


def opened(config: SinkConfig, path: str, app_id: str) -> DeltaSink:
    """Open the sink of a pipeline."""
    if config.keyed:
        from sluice_spark.sinks.delta.upsert import DeltaUpsert

        return DeltaUpsert(config, path, app_id)
    limit = getattr(config, "widened_bytes", 0)
    return DeltaSink(
        path, app_id, config.partition_columns, evolve=getattr(config, "evolve", "refuse"), widen_up_to=limit
    )


class DeltaSink(StagesParquet, Writer):
    """One Delta table by path or URL; the first commit creates it.

    Parameters
    ----------
    app_id
        The application id of the writer, such as a pipeline's epoch; each writer has its own versions.
    settings
        Further properties of a table that is created here.
    evolve
        ``add``: a commit with rows adds the columns that the table lacks. ``refuse``: :meth:`check` refuses them.
        ``widen``: a commit with rows adds columns, and widens those of which the rows have a wider type.
    widen_up_to
        The greatest size of a table, in bytes, whose files are rewritten for wider types.
    """

    def __init__(
        self,
        path: str,
        app_id: str,
        partition_by: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        *,
        evolve: str = "refuse",
        widen_up_to: int = 0,
    ) -> None:
        super().__init__(path, app_id)
        self.staging = path
        self.partition_by = list(partition_by)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._guard = Guard(self, app_id, keyed=KEY in self._settings)
        self._evolve, self._widen_up_to = evolve, widen_up_to

    def examine(self) -> list[str]:
        """Check what others committed since the last check by this pipeline: :meth:`Guard.examine`."""
        return self._guard.examine()

    def accept(self) -> None:
        """Take the table as it is, before all rows leave it: :meth:`Guard.accept`."""
        self._guard.accept()

    def admit(self, staged: Staged) -> None:
        """Raise the errors that a commit of these files would raise, before another table's commit that needs it.

        Raises
        ------
        ConfigError, CheckpointError
            As :meth:`examine`.
        SinkError
            If staged files are gone.
        """
        self._still_there(staged)
        table = self.table()
        if table is not None:
            self._guard.let_pass(table)

    # --- queries -----------------------------------------------------------------------------------------------

    def as_it_is(self) -> tuple[DeltaSink, StructType] | None:
        """Return the sink with the table's present columns and partitioning; None if there is no table."""
        table = self.table()
        if table is None:
            return None
        return DeltaSink(self.path, self.app_id, table.metadata().partition_columns), shape.columns_of(table)

    def check(self, schema: StructType) -> None:
        """Refuse to write rows of this schema into a table with another schema or key: :func:`shape.check`."""
        shape.check(self, schema, self.partition_by, self._evolve, self._widen_up_to)
        shape.check_key(self, self._settings.get(KEY))

    def check_replaceable(self) -> None:
        """Refuse to replace rows of a table with deletion vectors: :func:`shape.check_replaceable`."""
        shape.check_replaceable(self)

    def rows_of(self, spark: SparkSession, runs: Sequence[str]) -> tuple[DataFrame, int]:
        """Return the rows that these runs wrote, and their number."""
        return reading.rows_of(self, spark, runs)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows of the table."""
        return reading.rows(self, spark)

    # --- writing -----------------------------------------------------------------------------------------------

    def commit(
        self,
        staged: Staged,
        schema: StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        fence: Fence | None = None,
    ) -> bool:
        """Add staged files to the table in one transaction; a batch without rows is a transaction, too.

        With ``evolve: add``, the same transaction adds the columns that these rows have and the table lacks. The
        commit metadata then names them: ``evolved``. With ``evolve: widen``, wider types come in a transaction of their
        own before, which changes no row: :meth:`_widen`.

        Parameters
        ----------
        fence
            If given, the commit succeeds only directly after the table version that was compared with the fence.

        Returns
        -------
        bool
            False if the table already has this version; nothing was changed then.

        Raises
        ------
        LeaseHeldError
            If another driver committed this version meanwhile, or a rival committed after the fence's version.
        ConfigError, CheckpointError
            As :meth:`examine`.
        SinkError
            If the table cannot be written, or staged files are gone.
        """
        full, wide = self._metadata(note, version), dict[str, StagedFile | None]()
        for _ in range(ATTEMPTS):
            try:
                table = self.table() or self._made(schema)
                found = table.transaction_version(self.app_id)
                if found is not None and found >= version:
                    return self._landed(table, full)
                self._guard.let_pass(table)
                self._guard.keep_out(table, fence)
                self._still_there(staged)
                if staged.files and self._guard.holds != "log":  # whose segments are taken as they are
                    self._still_writable(table)
                shape.check_values(self, table, staged)
                if staged.files and self._widen(table, schema, staged.batch, version, wide):
                    continue  # the table has a new version: examine it
                added, columns = (
                    shape.to_add(self, table, schema, self._evolve)
                    if staged.files and self._guard.holds != "log"
                    else ([], schema)
                )
                evolved = [*self._widened(table, version), *(column.as_dict() for column in added)]
                table.create_write_transaction(
                    _entries(staged),
                    **(self._adding(table, columns) if added else self._appending(schema)),
                    partition_by=self.partition_by,
                    commit_properties=CommitProperties(
                        custom_metadata={NOTE: full | self._guard.look_back() | _named(evolved) | _folders(staged)},
                        # columns are added directly after the version that they were compared with, or not at all
                        max_commit_retries=None if fence is None and not added else 0,
                        app_transactions=[Transaction(self.app_id, version, None)],
                    ),
                )
            except CommitFailedError as error:
                self.try_again(error)
                if self.version() >= version:
                    if self._landed(self.existing(), full):
                        return True
                    raise self._taken(version) from error
                continue  # an interval was replaced meanwhile: to delta-rs, an append conflicts with removed files
            except (DeltaError, OSError, ValueError) as error:
                if self._may_have_landed(full):
                    return True
                raise self.failed(error) from error
            self._guard.wrote = True
            return True
        raise self.crowded()

    @staticmethod
    def _appending(schema: StructType) -> dict[str, Any]:
        return {"mode": "append", "schema": _schema(nullable(schema))}

    @staticmethod
    def _adding(table: DeltaTable, columns: StructType) -> dict[str, Any]:
        """Return the arguments of a transaction that also changes the table's columns.

        delta-rs does so only for an overwrite. What it overwrites are the files that match the filters, and nothing
        is in an empty list: it removes none. The column of the filter must be one that the table has, of a plain type.
        """
        plain = [field.name for field in table.schema().fields if isinstance(field.type, PrimitiveType)]
        column = "_run" if "_run" in plain else plain[0]
        return {"mode": "overwrite", "schema": _schema(columns), "partition_filters": [(column, "in", [])]}

    def _metadata(self, note: Mapping[str, Any], version: int) -> dict[str, Any]:
        return {**note, "app_id": self.app_id, "version": version, "attempt": uuid.uuid4().hex}

    def _landed(self, table: DeltaTable, full: Mapping[str, Any]) -> bool:
        """Return whether this attempt committed the version: the answer to a successful commit can be lost."""
        recent = (commit.note for commit in self.history(table, RECENT))
        return any(note is not None and note.get("attempt") == full["attempt"] for note in recent)

    def _may_have_landed(self, full: Mapping[str, Any]) -> bool:
        try:
            table = self.table()
            return table is not None and self._landed(table, full)
        except SinkError:
            return False  # the first failure is reported; the next run finds out

    def _still_writable(self, table: DeltaTable) -> None:
        """Refuse a feature that others added since :meth:`check`."""
        try:
            shape.check_writable(self, table)
        except ConfigError as error:
            error.state = "nothing of this batch was committed; what earlier batches wrote stays"
            raise

    def _still_there(self, staged: Staged) -> None:
        """Refuse to commit files that a user removed, such as a VACUUM without retention."""
        fs, base = file_system(self.path)
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
        make_folder(self.path)
        return DeltaTable.create(
            self.path,
            schema=_schema(nullable(schema)),
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
        """Remove the rows of a slice and add staged files, in one transaction.

        With ``evolve: add``, columns that the table lacks are added before, in a transaction of their own: delta-rs
        does not remove single files and change columns at once. A crash in between leaves a table with more columns.

        The transaction succeeds only directly after the table version that was examined. If others committed meanwhile
        (appends, other slices), the table is examined again and the transaction is prepared again.

        Parameters
        ----------
        gone
            The rows to remove.
        name
            The name of the batch, as in :meth:`stage`.
        check
            Called with the offsets to remove, per topic and partition; it raises if they must stay. Nothing is changed
            then.
        fence
            As in :meth:`commit`.

        Returns
        -------
        dict or None
            How many offsets were removed, per topic and partition; None if the table already has this version, and
            nothing was changed.

        Raises
        ------
        LeaseHeldError
            If another driver committed this version meanwhile.
        SinkError
            If the table cannot be read or written, or all attempts failed because others committed.
        """
        full, evolved = self._metadata(note, version), list[dict[str, str]]()
        wide: dict[str, StagedFile | None] = {}
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
            self._still_writable(table)
            shape.check_replaceable(self, table)
            try:
                if staged.files and self._widen(table, schema, name, version, wide):
                    continue
                if staged.files and (columns := self._add_columns(table, schema)):
                    evolved += columns
                    point("columns-added")
                    continue  # the table has a new version: examine it
                files, before = files_of(table), table.version()
                found = gone.find(self.path, files)
                counts = _distinct(found.values(), check)
                kept = gone.keep(self.path, name, found)
                added = gone.added(self.path, name, staged)
                shape.check_values(self, table, added)
                for each in (staged, added, kept):
                    self._still_there(each)
                now = int(time.time() * 1000)
                names = _named([*self._widened(table, version), *evolved])
                names |= {"replaced": [[*key, count] for key, count in sorted(counts.items())]} | _folders(added | kept)
                table.create_write_transaction(
                    [*_removed(files, found, now), *_entries(kept), *_entries(added)],
                    **self._appending(schema),
                    partition_by=self.partition_by,
                    commit_properties=CommitProperties(
                        custom_metadata={NOTE: full | self._guard.look_back() | names},
                        max_commit_retries=0,
                        app_transactions=[Transaction(self.app_id, version, None)],
                    ),
                )
            except CommitFailedError as error:
                self.try_again(error)
                if self.version() >= version:
                    if not self._landed(self.existing(), full):
                        raise self._taken(version) from None
                else:
                    continue  # others committed meanwhile: examine the table again
            except (DeltaError, OSError, ValueError) as error:
                if not self._may_have_landed(full):
                    raise self.failed(error) from error
            self._guard.wrote = True
            del table  # released, so that the next call gets it from the cache
            self._gone(found, before)
            return counts
        raise self.crowded()

    def _gone(self, replaced: Collection[str], before: int) -> None:
        """Compare what a commit behind this version replaced with the files that the table has now."""
        if replaced:
            check_gone(self.path, files_of(self.existing()).column("path").to_pylist(), replaced, before)

    def _add_columns(self, table: DeltaTable, schema: StructType) -> list[dict[str, str]]:
        """Add what the table lacks of these columns, directly after this version; return what that was."""
        added, columns = shape.to_add(self, table, schema, self._evolve)
        names = [column.as_dict() for column in added]
        if added:
            # under an id of its own: the application's commits are its batches, without a gap
            note = {"app_id": f"{self.app_id}:columns"} | self._guard.look_back() | _named(names)
            table.create_write_transaction(
                [],
                **self._adding(table, columns),
                partition_by=self.partition_by,
                commit_properties=CommitProperties(custom_metadata={NOTE: note}, max_commit_retries=0),
            )
        return names

    def _widen(
        self, table: DeltaTable, schema: StructType, name: str, version: int, known: dict[str, StagedFile | None]
    ) -> bool:
        """Widen the columns of which these rows have a wider type, directly after this version; return whether any.

        All files are rewritten with the wider types, and take the place of those that are there in one transaction. It
        has the same rows, so a crash behind it leaves nothing to be done.
        """
        wider, columns = shape.to_widen(self, table, schema, self._evolve)
        if not wider:
            return False
        shape.check_replaceable(self, table)
        kinds = pa.schema(_schema(columns).to_arrow())
        replaced, before = files_of(table).column("path").to_pylist(), table.version()
        files = with_wider_types(self.path, name, replaced, kinds, known)
        self._still_there(files)
        point("columns-rewritten")
        note = {"app_id": f"{self.app_id}:columns", "for": version}
        note |= self._guard.look_back() | _named(column.as_dict() for column in wider)
        table.create_write_transaction(
            _entries(files),
            "overwrite",
            _schema(columns),
            partition_by=self.partition_by,
            commit_properties=CommitProperties(custom_metadata={NOTE: note}, max_commit_retries=0),
        )
        point("columns-widened")
        del table  # released, so that the next call gets it from the cache
        self._gone(replaced, before)
        return True

    def _widened(self, table: DeltaTable, version: int) -> list[dict[str, str]]:
        """Return what was widened for a batch, by this attempt or by one that died behind it."""
        if self._evolve != "widen":
            return []
        count = RECENT
        while True:
            commits = self.history(table, count)
            found = widened_for(commits, self.app_id, version)
            # it was done behind the batch before; a writer's first one has none
            before = any((commit.note or {}).get("app_id") == self.app_id for commit in commits)
            if found or before or len(commits) < count or count > _FAR:
                return found
            count *= 8

    def evolved(self, batch: int) -> list[dict[str, str]]:
        """Return the columns that the commit of a batch added or widened: name, type and, if widened, what it was."""
        if self._evolve == "refuse":
            return []
        return next((n.get("evolved", []) for n in self.notes(newer_than=batch - 1) if n["version"] == batch), [])

    def held(self, gone: Slice) -> dict[tuple[str, int], Any]:
        """Return the offsets of a slice that the table holds, per topic and partition, ascending.

        Raises
        ------
        SinkError
            If it cannot be read.
        """
        table = self.table()
        if table is None:
            return {}
        try:
            found = gone.find(self.path, files_of(table))
        except (DeltaError, OSError, ValueError) as error:
            raise self.failed(error) from error
        return offsets_in(found.values())

    def sweep(self, batch: str) -> None:
        """Remove the folders of a batch's uncommitted attempts.

        A folder that the batch's commit names stays even if OPTIMIZE or a DELETE replaced its files since: readers of
        earlier versions, RESTORE, and the application of sealed segments need them until VACUUM.
        """
        folders = written_to(self.path, batch)
        if not folders:
            return
        table = self.table()
        unused = stray(folders, pa.chunked_array([], pa.string()) if table is None else files_of(table).column("path"))
        if not unused:
            return
        used: set[str] = set()
        for note in self.notes(newer_than=int(batch.rpartition("-")[2]) - 1):
            used |= {*note.get("folders", ()), *(s["path"].split("/")[1] for s in note.get("segments", ()))}
        remove(self.path, (folder for folder in unused if folder.rsplit("/", 1)[-1] not in used))

    def _taken(self, version: int) -> LeaseHeldError:
        return overtaken(
            f"committed batch {version} to {self.path}",
            state="the batch is in the table once; this driver's files are not part of it",
            next_step="nothing; the other driver goes on",
        )


def _schema(columns: StructType) -> Schema:
    return Schema.from_json(columns.json())


def _entries(staged: Staged) -> list[AddAction]:
    return [
        # the path on disk: delta-rs encodes it for the log
        AddAction(f.path, f.size, dict(f.partition_values), f.modified, True, f.stats)
        for f in staged.files
    ]


def _folders(staged: Staged) -> dict[str, Any]:
    """Return the commit metadata about the folders of attempts whose files a commit adds: ``folders``."""
    found = sorted({file.path.split("/")[1] for file in staged.files})
    return {"folders": found} if found else {}


def _named(added: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Return the commit metadata about added columns: ``evolved``."""
    columns = [dict(column) for column in added]
    return {"evolved": columns} if columns else {}


def _removed(files: pa.Table, paths: Collection[str], now: int) -> list[AddAction | RemoveAction]:
    """Return the actions that remove files, with all that readers of a change feed need."""
    sizes = dict(zip(files.column("path").to_pylist(), files.column("size_bytes").to_pylist(), strict=True))
    # the log has encoded names, and delta-rs encodes once more
    return [RemoveAction(unquote(path), True, now, sizes[path], dict(partition_of(path))) for path in paths]


def _distinct(
    found: Iterable[Found], check: Callable[[Mapping[tuple[str, int], Any]], None]
) -> dict[tuple[str, int], int]:
    offsets = offsets_in(found)
    check(offsets)
    return {key: len(numbers) for key, numbers in offsets.items()}
