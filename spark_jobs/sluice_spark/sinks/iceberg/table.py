"""An Iceberg table as a sink: Parquet files are staged below the table's location, and one snapshot commits them.

The snapshot's summary holds the commit metadata (``sluice.note``, compressed JSON); the table property
``sluice.mark.WRITER`` the writer's newest batch, in the same commit, since snapshots expire. Whether a batch is there
is looked up in the state on which its commit is based: the catalog refuses the commit if the table has changed since
(pyiceberg's own retries are off), and then both are done again. So a batch is there once.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any

import pyarrow as pa
from pyiceberg import exceptions as ice
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from sluice.errors import START_OVER, ConfigError, SinkError
from sluice.pipeline.window import END, START
from sluice.sinks.iceberg import IcebergSink
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.base import NOTHING, Staged, TakenBackError
from sluice_spark.sinks.delta.evolution import nullable
from sluice_spark.sinks.iceberg.catalog import Unknown, catalog_of, telling
from sluice_spark.sinks.iceberg.expiry import AGE, expire
from sluice_spark.sinks.iceberg.reading import columns_of, names_of, rows_of
from sluice_spark.sinks.parquet.attempts import remove, written_to
from sluice_spark.sinks.parquet.slice import Found, Slice, offsets_in
from sluice_spark.sinks.parquet.value_checks import refuse_beyond, refuse_boundless
from sluice_spark.sinks.spill import spilled
from sluice_spark.sinks.transactional import Change, TransactionalSink

__all__ = ["IcebergTable", "opened"]

_NOTE, _MARK, _AT, _OWNER = "sluice.note", "sluice.mark.", "sluice.at.", "sluice.pipeline"
_MAPPING = "schema.name-mapping.default"
_RETRIES = "commit.retry.num-retries"
_BOUNDED = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
    AGE: str(5 * 86_400_000),
}
"""Each commit writes all snapshots to a file, and the names of all manifests to another one: without these settings of
a new table, commits would get slower and slower."""


_SEARCHED = {
    **dict.fromkeys(("_partition", "_offset"), pa.int64()),
    **dict.fromkeys(("_timestamp", START, END), pa.timestamp("us", "UTC")),
}
"""The columns by whose bounds files are searched."""


def opened(config: IcebergSink, path: str, app_id: str) -> IcebergTable:
    """Open the sink of a pipeline."""
    return IcebergTable(config, path, app_id)


class IcebergTable(TransactionalSink[Table]):
    """One table; it is created, empty, before the first batch is staged.

    Parameters
    ----------
    config
        Catalog and table.
    scratch
        A folder for rows that are read back.
    app_id
        The id of the writer, such as a pipeline's epoch; each writer counts its own batches.
    """

    key = "sink.iceberg.table"
    lost_files = "run again; remove orphan files only if they are older than a run takes"

    def __init__(self, config: IcebergSink, scratch: str, app_id: str) -> None:
        super().__init__(f"table {config.shown}", app_id)
        self._config, self._scratch = config, scratch
        self._location: str | None = None

    @property
    def staging(self) -> str:
        """The table's location; a path if it is on a file system."""
        if self._location is None:
            self._location = self._existing().location().rstrip("/")
        return self._location.removeprefix("file://")

    # --- queries -----------------------------------------------------------------------------------------------

    def examine(self) -> list[str]:
        """Check who owns the table, and whether its commits are still part of it.

        Returns
        -------
        list of str
            A warning if names of columns have moved, so that rows written before show other columns' values.

        Raises
        ------
        ConfigError
            If it belongs to another pipeline, or has partitions.
        CheckpointError
            If commits of this pipeline were rolled back, or the table was dropped.
        """
        table = self._table()
        if table is None:
            return []
        self.let_pass(self._claimed(table))
        moved = _moved(table)
        if not moved:
            return []
        return [
            f"the {self.path}: {', '.join(moved)} was the name of another column before, and staged files have names "
            "and no ids: rows written before show that column's values. Rename the columns back; or write all rows "
            f"again: {START_OVER}"
        ]

    def newest(self) -> int:
        """Return the highest batch that this writer committed; -1 if there is none."""
        table = self._table()
        return -1 if table is None else _mark(table, self.app_id)

    def notes(self, newer_than: int) -> Iterator[dict[str, Any]]:
        """Yield the commit metadata of this writer's batches above a number, newest first."""
        table = self._table()
        if table is None or _mark(table, self.app_id) <= newer_than:
            return
        for _, note in _notes(table):
            if note.get("app_id") == self.app_id:
                if note["version"] <= newer_than:
                    return
                yield note

    def table_version(self) -> int:
        """Return the number of the newest snapshot; -1 if there is none."""
        table = self._table()
        newest = None if table is None else table.current_snapshot()
        return -1 if newest is None else int(newest.sequence_number or 0)

    def ahead_of(self, known: Mapping[str, int]) -> set[str]:
        """Return which of these writers committed a higher batch than the given one."""
        table = self._table()
        return set() if table is None else {w for w, batch in known.items() if _mark(table, w) > batch}

    def as_it_is(self) -> tuple[IcebergTable, T.StructType] | None:
        """Return the sink with the table's present columns; None if there is no table."""
        table = self._table()
        return None if table is None else (self, columns_of(table))

    def check(self, schema: T.StructType) -> None:
        """Create the table if there is none; else refuse rows that do not fit.

        Raises
        ------
        ConfigError
            With each column in question.
        """
        with telling(self.path):
            table = self._table()
            if table is None:
                self._create(schema)
                return
            problems = _misfits(table, schema)
        self.refuse_misfits(problems)

    def check_replaceable(self) -> None:
        """Refuse to replace rows of a table with delete files: rewriting a file would restore deleted rows.

        Raises
        ------
        ConfigError
            If it has some.
        """
        table = self._table()
        if table is not None:
            with telling(self.path):
                self._refuse_delete_files(table)

    def _refuse_delete_files(self, table: Table) -> None:
        if any(task.delete_files for task in table.scan().plan_files()):
            raise ConfigError(
                f"the {self.path} has delete files, so its rows cannot be replaced: deleted rows would reappear",
                state="nothing was changed",
                next_step="rewrite its data files, for example by rewrite_data_files of Spark or Trino's OPTIMIZE",
            )

    def held(self, gone: Slice) -> dict[tuple[str, int], Any]:
        """Return the offsets of a slice that the table holds, per topic and partition, ascending."""
        table = self._table()
        if table is None:
            return {}
        with telling(self.path):
            return offsets_in(self._found(table, gone).values())

    def rows_of(self, spark: SparkSession, runs: Sequence[str]) -> tuple[DataFrame, int]:
        """Return the rows that these runs wrote, and their number."""
        return self._read(spark, list(runs))

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows of the table."""
        return self._read(spark, None)[0]

    # --- writing -----------------------------------------------------------------------------------------------

    def sweep(self, batch: str) -> None:
        """Remove the folders of a batch's attempts that no snapshot names."""
        table = self._table()
        folders = [] if table is None else written_to(self.staging, batch)
        if not folders or table is None:
            return
        number = int(batch.rpartition("-")[2])
        note = next((note for note in self.notes(newer_than=number - 1) if note["version"] == number), {})
        names = set(note.get("folders", ()))
        if not names:  # its snapshot has expired, or an earlier version committed it
            held: list[str] = []
            with telling(self.path), suppress(pa.ArrowInvalid):  # of a table that never had a file
                held = table.inspect.all_files().column("file_path").to_pylist()
            names = {part for path in held for part in path.split("/")[:-1]}  # of what others wrote, folders below
        remove(self.staging, (folder for folder in folders if folder.rsplit("/", 1)[-1] not in names))

    def settled(self) -> None:
        """Expire old snapshots by the table's property: :func:`~sluice_spark.sinks.iceberg.expiry.expire`.

        Only for a live run, which has entered into the ledger what all writers committed. A failure is logged: the rows
        are there.
        """
        if not self.app_id.rpartition(":")[2].isdecimal():
            return
        try:
            table = self._table()
            if table is not None and table.current_snapshot() is not None:
                expire(table)
        except ice.CommitFailedException:
            pass  # the next run expires them
        except Exception as error:
            logger.warning("old snapshots of the %s stay: %s: %s", self.path, type(error).__name__, error)

    # --- the transaction ----------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, change: Change) -> Iterator[Table]:
        """Read the table, made and claimed; :meth:`put` commits a snapshot that follows its newest one."""
        with telling(self.path):
            yield self._claimed(self._table() or self._create(change.schema))

    def let_pass(self, table: Table) -> None:
        """Refuse a table whose commits were taken back."""
        for writer, batch in _rolled_back(table):
            raise TakenBackError(
                f"{self.shown} was rolled back: batch {batch} of {writer} is no longer part of it",
                state="nothing was read or written now; the newer snapshots are there until they expire",
                next_step=f"set the table back to its newest snapshot, and run again; or, to start over, {START_OVER}",
            )

    def batch_of(self, table: Table, writer: str) -> int:
        """Return the highest batch of a writer; -1 if there is none."""
        return _mark(table, writer)

    def has(self, table: Table, change: Change) -> bool:
        """Return whether an attempt at this change was committed."""
        return any(note.get("attempt") == change.note["attempt"] for _, note in _notes(table))

    def since(self, table: Table, version: int) -> Iterator[dict[str, Any]]:
        """Yield the commit metadata of all snapshots after a version."""
        behind = takewhile(lambda commit: int(commit[0].sequence_number or 0) > version, _notes(table))
        return (note for _, note in behind)

    def put(self, table: Table, change: Change) -> bool:
        """Commit a snapshot; return False if the table has a newer one."""
        self.refuse_misfits(_misfits(table, change.schema), since=True)
        removed: dict[str, Found] = {}
        kept, staged = NOTHING, change.staged
        if change.gone is not None:
            self._refuse_delete_files(table)  # others may have added some since
            removed = self._found(table, change.gone)
            change.removes(offsets_in(removed.values()))
            kept = change.gone.keep(self.staging, change.name, removed, names_of(table))
        change.note |= _folders_of(staged, kept)
        try:
            self._snapshot(table, [*staged.files, *kept.files], removed, change.note)
        except UnicodeEncodeError:
            refuse_boundless(self.shown, self.staging, staged, change.schema)
            raise
        except (OverflowError, ValueError):
            refuse_beyond(self.shown, self.staging, staged, change.schema)
            raise
        except ice.CommitFailedException:
            return False
        except Unknown:
            if not self._may_have_landed(change):
                raise
        return True

    def _snapshot(self, table: Table, files: Sequence[Any], removed: Mapping[str, Found], note: dict[str, Any]) -> None:
        root = table.location().rstrip("/")
        paths = [f"{root}/{file.path}" for file in files]
        with _with_newest(table).transaction() as transaction:
            if table.metadata.name_mapping() is None:  # the files have no ids of fields
                transaction.set_properties({_MAPPING: table.schema().name_mapping.model_dump_json()})
            update = transaction.update_snapshot(snapshot_properties={_NOTE: _packed(note)})
            with update.overwrite() if removed else update.merge_append() as producer:
                for task in table.scan().plan_files() if removed else ():
                    if _relative(table, task.file.file_path) in removed:
                        producer.delete_data_file(task.file)
                for file in parquet_files_to_data_files(table.io, transaction.table_metadata, iter(paths)):
                    producer.append_data_file(file)
            made = transaction.table_metadata.current_snapshot()
            at = {f"{_AT}{self.app_id}": f"{made.snapshot_id}@{made.sequence_number}"} if made.sequence_number else {}
            transaction.set_properties({f"{_MARK}{self.app_id}": str(note["version"]), **at})

    def _found(self, table: Table, gone: Slice) -> dict[str, Found]:
        """Return the files with rows of a slice, by path below the location."""
        files = [task.file for task in table.scan().plan_files()]
        columns: dict[str, Any] = {
            "path": pa.array([_relative(table, file.file_path) for file in files], pa.string()),
            "num_records": pa.array([file.record_count for file in files], pa.int64()),
        }
        for name, kind in _SEARCHED.items():
            field = next((field for field in table.schema().fields if field.name == name), None)
            if field is None:
                continue
            for short, bounds in (("min", "lower_bounds"), ("max", "upper_bounds")):
                found = [(getattr(file, bounds) or {}).get(field.field_id) for file in files]
                values = [None if bound is None else from_bytes(field.field_type, bound) for bound in found]
                columns[f"{short}.{name}"] = pa.array(values, pa.int64()).cast(kind)
        return gone.find(self.staging, pa.table(columns))

    def _may_have_landed(self, change: Change) -> bool:
        try:
            return self.has(self._existing(), change)
        except SinkError:
            return False  # the first failure is reported; the next run finds out

    # --- the table ---------------------------------------------------------------------------------------------

    def _table(self) -> Table | None:
        with telling(self.path):
            try:
                return catalog_of(self._config.catalog).load_table(self._config.table)
            except (ice.NoSuchTableError, ice.NoSuchNamespaceError):
                return None

    def _existing(self) -> Table:
        table = self._table()
        if table is None:
            raise SinkError(
                f"the {self.path} is gone",
                state="nothing of this batch was committed",
                next_step="restore it, then run again",
            )
        return table

    def _create(self, schema: T.StructType) -> Table:
        catalog = catalog_of(self._config.catalog)
        catalog.create_namespace_if_not_exists(tuple(self._config.table.split(".")[:-1]))
        try:
            columns = to_arrow_schema(nullable(schema), timezone="UTC")
            return catalog.create_table_if_not_exists(
                self._config.table, columns, properties={_RETRIES: "0", _OWNER: self.owner, **_BOUNDED}
            )
        except Exception as error:
            # names that Iceberg cannot tell apart: a column a.b beside a struct a with b
            unfit = "UnsupportedPyArrowType" in type(error).__name__ or "UNSUPPORTED" in str(error)
            if unfit or str(error).startswith("Invalid schema"):
                raise ConfigError(
                    f"the {self.path} cannot be created: {str(error).splitlines()[0]}",
                    state="nothing was read or written",
                    next_step="change this column in transform.sql: by to_json, a CAST, or another name",
                ) from error
            raise

    def _claimed(self, table: Table) -> Table:
        """Refuse a table of another pipeline or with partitions; make this pipeline its owner."""
        other = table.properties.get(_OWNER)
        self.refuse_other(other)
        if table.spec().fields:
            raise ConfigError(
                f"the {self.path} has partitions, and staged files are not divided by them",
                state="nothing was read or written",
                next_step="name a table without partitions, or let the first run create one",
            )
        if other is None or table.properties.get(_RETRIES) != "0":
            with telling(self.path):  # with retries of its own, a lost race would put a batch there twice
                table.transaction().set_properties({_RETRIES: "0", _OWNER: self.owner}).commit_transaction()
                table = self._existing()
        return table

    def accept(self) -> None:
        """Take the table as it is: commits that were rolled back are given up."""
        table = self._table()
        newest = None if table is None else table.current_snapshot()
        if table is None or newest is None:
            return
        at = f"{newest.snapshot_id}@{newest.sequence_number or 0}"
        with telling(self.path):
            given_up = {f"{_AT}{writer}": at for writer, _ in _rolled_back(table)}
            table.transaction().set_properties(given_up).commit_transaction()

    def _read(self, spark: SparkSession, runs: Sequence[str] | None) -> tuple[DataFrame, int]:
        with telling(self.path):
            table = self._existing()
            schema = columns_of(table)
            columns = to_arrow_schema(schema, timezone="UTC")
            return spilled(spark, rows_of(table, columns, runs), columns, schema, self._scratch)


def _moved(table: Table) -> list[str]:
    """Return the names that files of the table's snapshots have for other columns than the table now."""
    mapping = table.metadata.name_mapping()
    if mapping is None:
        return []
    ids = {name: field.field_id for field in mapping.root for name in field.names}
    written = {snapshot.schema_id for snapshot in table.snapshots()}
    fields = [field for number, schema in table.schemas().items() if number in written for field in schema.fields]
    return sorted({field.name for field in fields if ids.get(field.name, field.field_id) != field.field_id})


def _rolled_back(table: Table) -> Iterator[tuple[str, int]]:
    """Yield the writers whose newest commit is no longer part of the table, with its batch."""
    chain = {s.snapshot_id: s.sequence_number or 0 for s in ancestors_of(table.current_snapshot(), table.metadata)}
    oldest = min(chain.values(), default=-1)
    # else older snapshots have expired; the parent does not tell: pyiceberg removes it then
    whole = oldest <= 1
    for key, value in table.properties.items():
        if not key.startswith(_MARK):
            continue
        writer, batch = key.removeprefix(_MARK), int(value)
        if at := table.properties.get(f"{_AT}{writer}"):
            # a chain has no gaps: if it goes back beyond the commit, and has not got it, it was cut off before it
            snapshot, sequence = map(int, at.split("@"))
            is_gone = snapshot not in chain and oldest < sequence
        else:  # of an earlier version, or the first format of tables, whose snapshots are not numbered
            newest = (int(note["version"]) for _, note in _notes(table) if note.get("app_id") == writer)
            is_gone = next(newest, -1 if whole else batch) < batch
        if is_gone:
            yield writer, batch


def _with_newest(table: Table) -> Table:
    """Return the table with its newest snapshot alone, for a commit, which the catalog applies to the whole table.

    pyiceberg copies all of a table's metadata about 18 times for a commit.
    """
    metadata, newest = table.metadata, table.current_snapshot()
    few = {"snapshots": [newest] if newest else [], "snapshot_log": [], "metadata_log": metadata.metadata_log[:2]}
    light = metadata.model_copy(update=few)
    return Table(table.name(), light, table.metadata_location, table.io, table.catalog, table.config)


def _folders_of(*added: Staged) -> dict[str, Any]:
    """Return the commit metadata about the folders whose files a commit adds: ``folders``."""
    found = sorted({file.path.split("/")[1] for each in added for file in each.files})
    return {"folders": found} if found else {}


def _mark(table: Table, writer: str) -> int:
    return int(table.properties.get(f"{_MARK}{writer}", -1))


def _notes(table: Table) -> Iterator[tuple[Snapshot, dict[str, Any]]]:
    """Yield Sluice's snapshots with their commit metadata, newest first, as far as they did not expire."""
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        text = snapshot.summary.additional_properties.get(_NOTE) if snapshot.summary is not None else None
        if text is not None:
            yield snapshot, _unpacked(text)


def _packed(note: Mapping[str, Any]) -> str:
    """Return commit metadata as a text: each file of the table's metadata repeats that of all snapshots."""
    return base64.b64encode(zlib.compress(json.dumps(note).encode(), 9)).decode()


def _unpacked(text: str) -> dict[str, Any]:
    # earlier versions wrote plain JSON
    found = json.loads(text if text.startswith("{") else zlib.decompress(base64.b64decode(text)))
    return dict(found)


def _relative(table: Table, path: str) -> str:
    return path.removeprefix(table.location().rstrip("/") + "/")


def _plain(kind: Any) -> Any:
    """Return a type as Iceberg holds it: nullable at every level, with no small integers."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, _plain(f.dataType)) for f in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_plain(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(_plain(kind.keyType), _plain(kind.valueType))
    if isinstance(kind, T.ByteType | T.ShortType):
        return T.IntegerType()
    return T.StringType() if isinstance(kind, T.VarcharType | T.CharType) else kind


def _misfits(table: Table, schema: T.StructType) -> list[str]:
    there: dict[str, Any] = {f.name: _plain(f.dataType) for f in columns_of(table).fields}
    named = {f.name: str(f.field_type) for f in table.schema().fields}
    ours = {f.name: _plain(f.dataType) for f in schema.fields}
    needed = {f.name for f in table.schema().fields if f.required}
    found = [
        f"{name} is missing in the table: add it as {kind.simpleString()}"
        for name, kind in ours.items()
        if name not in named
    ]
    found += [
        f"{name}: {there[name].simpleString() if name in there else named[name]} in the table, "
        f"{kind.simpleString()} in the pipeline"
        for name, kind in ours.items()
        if name in named and there.get(name) != kind
    ]
    return found + [f"{name} is required, and Sluice writes columns that may be null" for name in sorted(needed)]
