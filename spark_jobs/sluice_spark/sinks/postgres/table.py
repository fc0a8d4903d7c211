"""A table of PostgreSQL as a sink: Parquet files are staged, and committed by one transaction.

The transaction takes the lock of the table's log of commits, copies the staged rows into a temporary table (binary,
from Arrow), inserts them, and adds its line to the log. A batch that the log has is never committed again. A
transaction that a killed driver left under way is waited for, so its outcome is known before anything is decided. The
staged files are removed after the commit; the table holds the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from sluice.connections import find
from sluice.delta.names import owner
from sluice.errors import START_OVER, ConfigError, SinkError, SluiceError, quoted
from sluice.fields import TAKES_AWAY
from sluice.postgres import literal, name_of, text_of
from sluice.sinks.postgres import LONGEST, PostgresSink
from sluice.storage import file_system
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.base import RowsRefusedError, Staged, TakenBackError, of_table
from sluice_spark.sinks.parquet.attempts import remove, written_to
from sluice_spark.sinks.parquet.rows_by_key import RowsByKey
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sinks.postgres import reading, slices
from sluice_spark.sinks.postgres.commits import Commits, fetched, one
from sluice_spark.sinks.postgres.database import AdbcError, connected, describe, may_be_of_a_row
from sluice_spark.sinks.postgres.deleted_keys import DeletedKeys
from sluice_spark.sinks.postgres.refused_rows import Refused, Unfit, refused_rows
from sluice_spark.sinks.postgres.types import (
    arrow_type,
    column_type,
    fits,
    held_type,
    is_text_to,
    limit_of,
    unsupported,
)
from sluice_spark.sinks.postgres.upsert import Upsert
from sluice_spark.sinks.transactional import Change, TransactionalSink

__all__ = ["PostgresTable", "opened"]

_ROWS, _BYTES = 1 << 16, 1 << 25
"""Rows that travel at a time, and about how many bytes of them."""
_METADATA = {"_topic", "_partition", "_offset", "_timestamp", "_run"}
_SYSTEM = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
"""Columns that each table has."""
_REFERRED = {"23503", "23001"}
"""The errors of a DELETE for rows that others refer to: at the end of the statement, and at once (RESTRICT)."""


def opened(config: PostgresSink, path: str, app_id: str) -> PostgresTable:
    """Open the sink of a pipeline."""
    return PostgresTable(config, path, app_id)


class PostgresTable(TransactionalSink[Any]):
    """One table; the first commit creates it.

    Parameters
    ----------
    config
        Connection and table.
    staging
        The folder below which files are staged.
    app_id
        The id of the writer, such as a pipeline's epoch; each writer counts its own batches.
    """

    key = "sink.postgres.table"

    def __init__(self, config: PostgresSink, staging: str, app_id: str) -> None:
        super().__init__(f"table {config.shown}", app_id, staging)
        self._config = config
        self._names = config.table.split(".")
        self._table = name_of(*self._names)
        self._commits = Commits(*self._names)
        self._deleted = DeletedKeys(config)

    # --- queries -----------------------------------------------------------------------------------------------

    def examine(self) -> list[str]:
        """Check who wrote the table, and whether it is the one that was written; return no warnings.

        Raises
        ------
        ConfigError
            If another pipeline wrote to it, or the role may not write it.
        CheckpointError
            If it was dropped, or made again, since this pipeline wrote to it.
        """
        with self._begun() as (cursor, there):
            if there:
                self.let_pass(cursor)
            self._refuse_unwritable(cursor, there=there)
        return []

    def _refuse_unwritable(self, cursor: Any, *, there: bool) -> None:
        """Refuse a schema that is not there, and rights that the role lacks, before anything is read.

        Parameters
        ----------
        there
            Whether the schema has a log of commits.
        """
        schema, named = self._names[0], name_of(self._names[0])
        found = fetched(
            cursor,
            "SELECT has_schema_privilege(oid, 'CREATE'), current_user::text, "
            f"to_regclass({literal(self._table)}) IS NOT NULL, "
            f"has_any_column_privilege(to_regclass({literal(self._table)}), 'INSERT') "
            f"FROM pg_namespace WHERE nspname = {literal(schema)}",
        )
        if not found:
            what, step = f"there is no schema {schema!r}", f"CREATE SCHEMA {named}"
        else:
            creates, role, made, inserts = found[0]
            if made and not inserts:
                what, step = f"the role {role!r} may not insert", f"GRANT INSERT ON {self._table} TO {name_of(role)}"
            elif not (made and there) and not creates:
                what = f"the role {role!r} may not create {'the log of its commits' if made else 'it'} in the schema"
                step = f"GRANT CREATE ON SCHEMA {named} TO {name_of(role)}"
            else:
                return
        raise ConfigError(
            f"{self.path} cannot be written: {what}",
            state="nothing was read or written; the position stays where it was",
            next_step=f"{step}; or correct the connection or the table's name; run again",
        )

    def newest(self) -> int:
        """Return the highest batch that this writer committed; -1 if there is none."""
        with self._begun() as (cursor, there):
            return self._commits.batch(cursor, self.app_id) if there else -1

    def notes(self, newer_than: int) -> Iterator[dict[str, Any]]:
        """Yield the commit metadata of this writer's batches above a number, newest first."""
        with self._begun() as (cursor, there):
            found = self._commits.notes(cursor, self.app_id, newer_than) if there else []
        yield from found

    def table_version(self) -> int:
        """Return the number of the newest commit of any writer; -1 if there is none."""
        with self._begun() as (cursor, there):
            return self._commits.version(cursor) if there else -1

    def ahead_of(self, known: Mapping[str, int]) -> set[str]:
        """Return which of these writers committed a higher batch than the given one."""
        with self._begun() as (cursor, there):
            held = self._commits.batches(cursor) if there else {}
        return {writer for writer, batch in known.items() if held.get(writer, -1) > batch}

    def as_it_is(self) -> tuple[PostgresTable, T.StructType] | None:
        """Return the sink with the table's present columns; None if there is no table."""
        with self._begun() as (cursor, _):
            columns = self._columns(cursor)
        if not columns:
            return None
        return self, T.StructType([T.StructField(c.name, held_type(c.kind)) for c in columns])

    def check(self, schema: T.StructType) -> None:
        """Refuse rows that the table, or any table of PostgreSQL, cannot hold unchanged.

        Raises
        ------
        ConfigError
            With each column in question.
        """
        problems = [
            f"{f.name} is {kind}, which no column holds: write to_json({f.name}) AS {f.name} in transform.sql"
            for f in schema.fields
            if (kind := unsupported(f.dataType)) is not None
        ]
        problems += [
            f"{f.name!r} is no name of a column: PostgreSQL has its own, or cuts it at 63 bytes"
            for f in schema.fields
            if f.name in _SYSTEM or len(f.name.encode()) > LONGEST or "\0" in f.name
        ]
        wanted = [*self._config.key, self._config.ordering] if self._config.keyed else []
        problems += [f"{name} of the key is no column" for name in wanted if name not in schema.names]
        if not problems:
            with self._begun() as (cursor, _):
                problems = self._misfits(cursor, schema)
        self.refuse_misfits(problems)

    def check_replaceable(self) -> None:
        """Refuse a table whose rows others refer to so that a replacement would change them, too."""
        with self._begun() as (cursor, _):
            self._refuse_referring(cursor)

    def _refuse_referring(self, cursor: Any) -> None:
        found = reading.referring(cursor, self._table)
        if found is not None:
            raise ConfigError(
                f"rows of the {self.path} cannot be deleted or replaced: the foreign key {found} would delete or "
                "change rows there, too, although the same rows come back",
                state="nothing was changed",
                next_step="make it ON DELETE NO ACTION DEFERRABLE, and run again: references to rows that come back "
                "then stay",
            )

    def held(self, gone: Slice) -> dict[tuple[str, int], Any]:
        """Return the offsets of a slice that the table holds, per topic and partition, ascending."""
        with self._begun() as (cursor, _):
            return self._held(cursor, gone) if self._columns(cursor) else {}

    def rows_of(self, spark: SparkSession, runs: Sequence[str]) -> tuple[DataFrame, int]:
        """Return the rows that these runs wrote, and their number."""
        where = f" WHERE _run IN ({', '.join(map(literal, runs))})" if runs else " WHERE false"
        return self._read(spark, where)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows of the table."""
        return self._read(spark, "")[0]

    # --- writing -----------------------------------------------------------------------------------------------

    def sweep(self, batch: str) -> None:
        """Remove the staged files of a batch that was committed, and of its other attempts."""
        remove(self.staging, written_to(self.staging, batch))

    # --- the transaction ----------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, change: Change) -> Iterator[Any]:
        """Begin a transaction that holds the lock of the log of commits; commit it if the change was made."""
        try:
            with self._connected() as connection, connection.cursor() as cursor:
                if not self._commits.lock(cursor, write=True):
                    self._commits.make(cursor)
                yield cursor
                if change.made:
                    connection.commit()
        except _DoubtfulError as doubt:
            told = doubt.told
            if rows := self._refused(change):
                raise RowsRefusedError(told.what, state=told.state, next_step=told.next_step, rows=rows) from doubt
            raise told from doubt
        except RowsRefusedError as error:
            error.rows = self._refused(change)
            raise
        except SinkError as error:
            landed = change.made and self._may_have_landed(change.note)
            if landed is None:
                error.state = (
                    "whether this batch was committed is not known; the next run finds out, and writes it once"
                )
            if not landed:
                raise
        if change.made:
            self._forget(change.staged)

    def batch_of(self, cursor: Any, writer: str) -> int:
        """Return the highest batch of a writer; -1 if there is none."""
        return self._commits.batch(cursor, writer)

    def since(self, cursor: Any, version: int) -> list[dict[str, Any]]:
        """Return the commit metadata of all commits after a version."""
        return self._commits.since(cursor, version)

    def put(self, cursor: Any, change: Change) -> bool:
        """Delete and insert rows, and add the batch's line to the log."""
        relation = self._made(cursor, change.schema, empty=not change.staged.files)
        if (gone := change.gone) is not None:
            if isinstance(gone, RowsByKey):
                slices.ingest(cursor, gone, _travelling(change.schema))
            change.removes(self._held(cursor, gone))
            self._refuse_referring(cursor)
            self._delete(cursor, gone)
            if self._count(cursor, gone):
                raise self._meddled("does not delete all rows of the interval")
        if change.staged.files:
            self._insert(cursor, change.staged, change.schema)
        self._commits.add(cursor, change.note, relation)
        return True

    def _delete(self, cursor: Any, gone: Slice) -> None:
        """Delete the rows of a slice; deferrable references to them are checked when the new rows are there."""
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        try:
            cursor.execute(f"DELETE FROM {self._table} WHERE {self._within(cursor, gone)}")
        except AdbcError as error:
            if getattr(error, "sqlstate", None) not in _REFERRED:
                raise
            raise SinkError(
                f"rows of the {self.path} cannot be replaced, because rows of another table refer to them: "
                f"{quoted(text_of(error))}",
                state="nothing of this batch was committed",
                next_step="make that foreign key DEFERRABLE (ON DELETE NO ACTION), and run again: references to rows "
                "that come back then stay",
            ) from error

    def _forget(self, staged: Staged) -> None:
        """Remove files whose rows are in the table; a driver that dies before leaves them to :meth:`sweep`."""
        fs, base = file_system(self.staging)
        for folder in {"/".join(file.path.split("/")[:2]) for file in staged.files}:
            with suppress(OSError):
                fs.rm(f"{base}/{folder}", recursive=True)

    def _may_have_landed(self, full: Mapping[str, Any]) -> bool | None:
        """Return whether this attempt committed, since a commit's answer can be lost; None if the server is silent."""
        try:
            notes = self.notes(int(full["version"]) - 1)
            return any(note.get("attempt") == full["attempt"] for note in notes)
        except (SinkError, ConfigError):
            return None

    def _refused(self, change: Change) -> Refused:
        """Return the rows that the table refuses, if rows have offsets, as far as it can be found out."""
        gone, staged, schema = change.gone, change.staged, change.schema
        if "_offset" not in schema.names:
            return {}

        def prepared(cursor: Any) -> tuple[list[Unfit], list[str], list[str]]:
            if not self._commits.lock(cursor, write=True):
                self._commits.make(cursor)
            self._made(cursor, schema, empty=False)
            if gone is not None:
                self._delete(cursor, gone)
            statements, upsert = self._statements(cursor, schema)
            return self._unfit(cursor, schema), statements, list(upsert.begin(view=True)) if upsert is not None else []

        columns = _travelling(schema)
        # rows of an interval that others refer to are deleted first, and come back part by part
        try:
            return refused_rows(
                self._connected, columns, lambda: self._batches(staged, columns), prepared, immediate=gone is None
            )
        except SluiceError as other:
            logger.warning("which rows the %s refuses is not known: %s", self.path, other.what)
            return {}

    def _insert(self, cursor: Any, staged: Staged, schema: T.StructType) -> None:
        wanted = _travelling(schema)
        cursor.execute("DROP TABLE IF EXISTS pg_temp.sluice_staged")  # of a session that a pooler lends
        reader = pa.RecordBatchReader.from_batches(wanted, self._batches(staged, wanted))
        cursor.adbc_ingest("sluice_staged", reader, mode="create", temporary=True)
        came = int(one(cursor, "SELECT count(*) FROM pg_temp.sluice_staged"))
        if came != staged.rows:
            raise SinkError(
                f"{came:,} rows of {staged.rows:,} came to the {self.path}",
                state="nothing of this batch was committed",
                next_step="run again",
            )
        for unfit in self._unfit(cursor, schema):
            unfit.refuse(cursor)
        statements, upsert = self._statements(cursor, schema)
        try:
            for statement in (*(upsert.begin() if upsert is not None else ()), *statements):
                cursor.execute(statement)
            count = cursor.rowcount
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # here, where it is known that a row may be the cause
        except AdbcError as error:
            told = describe(error, f"the {self.path}")
            if isinstance(told, RowsRefusedError) or not may_be_of_a_row(error):
                raise
            raise _DoubtfulError(told) from error
        if upsert is not None and (left := int(one(cursor, upsert.left()))):
            raise self._meddled(f"did not take the newest rows of {left:,} keys")
        if upsert is None:
            if count == staged.rows and "_offset" in schema.names and int(one(cursor, self._triggers())):
                count -= int(one(cursor, self._lacking()))
            if count != staged.rows:
                raise self._meddled(f"took {count:,} of {staged.rows:,} rows")
        cursor.execute("DROP TABLE pg_temp.sluice_staged")

    def _statements(self, cursor: Any, schema: T.StructType) -> tuple[list[str], Upsert | None]:
        """Return the statements that write the rows of ``pg_temp.sluice_staged`` to the table."""
        columns = {column.name: column for column in self._columns(cursor)}
        given = {
            f.name: f"{name_of(f.name)}::{kind}" if is_text_to(kind := columns[f.name].kind) else name_of(f.name)
            for f in of_table(schema).fields
        }
        if not self._config.keyed:
            names = ", ".join(map(name_of, given))
            chosen = f"SELECT {', '.join(given.values())} FROM pg_temp.sluice_staged"
            return [f"INSERT INTO {self._table} ({names}) {chosen}"], None
        values = {
            name: f"{value} COLLATE {rule}" if (rule := columns[name].collation) else value
            for name, value in given.items()
        }
        deletes = TAKES_AWAY in schema.names
        if deletes:
            self._deleted.make(cursor)
        upsert = Upsert(
            self._table, "pg_temp.sluice_staged", values, self._config.key, self._config.ordering,
            self._deleted.name if deletes else None, ordered=self._has_more_keys(cursor),
        )  # fmt: skip
        return list(upsert.merge()), upsert

    def _triggers(self) -> str:
        """Return the query for how many triggers the table has that a user made."""
        return f"SELECT count(*) FROM pg_catalog.pg_trigger WHERE {self._of_table('tgrelid')} AND NOT tgisinternal"

    def _lacking(self) -> str:
        """Return the query for how many staged rows the table does not have as what they are."""
        places = "_topic, _partition, _offset, _run"
        return (
            f"SELECT count(*) FROM (SELECT {places} FROM pg_temp.sluice_staged EXCEPT ALL "
            f"SELECT {places} FROM {self._table} WHERE _run IN (SELECT _run FROM pg_temp.sluice_staged)) AS lacking"
        )

    def _of_table(self, column: str) -> str:
        return f"{column} = to_regclass({literal(self._table)})"

    def _has_more_keys(self, cursor: Any) -> bool:
        """Return whether rows exclude each other by more than the key."""
        of_table = f"{self._of_table('indrelid')} AND (indisunique OR indisexclusion)"
        return int(one(cursor, f"SELECT count(*) FROM pg_catalog.pg_index WHERE {of_table}")) > 1

    def _unfit(self, cursor: Any, schema: T.StructType) -> list[Unfit]:
        """Return which rows must not be written, although the database would take them."""
        found = []
        for column in self._columns(cursor):
            name, most = column.name, limit_of(column.kind)
            if name in schema.names and most is not None:  # it would cut blanks at the end, and say nothing
                found.append(
                    Unfit(
                        f"char_length({name_of(name)}) > {most}",
                        f"a text of column {name} is longer than {column.kind} holds",
                        f"add the row rule {{name: fits, sql: {{passes: 'length({name}) <= {most}'}}}}, and run again: "
                        "such records go to the quarantine; or make the column longer",
                        name,
                    )
                )
        for field in of_table(schema).fields:
            if isinstance(field.dataType, T.DateType | T.TimestampType | T.TimestampNTZType):
                found.append(  # the binary form of one value is that of -infinity
                    Unfit(
                        f"NOT isfinite({name_of(field.name)})",
                        f"a date or time of column {field.name} is out of PostgreSQL's range",
                        f"add a row rule that refuses such records, or write {field.name} as a text; then run again",
                        field.name,
                    )
                )
        if self._config.keyed:
            key = ", ".join(self._config.key)
            found.append(
                Unfit(
                    " OR ".join(f"{name_of(name)} IS NULL" for name in self._config.key),
                    f"there is no value in a column of its key ({key})",
                    f"add the row rule {{name: has_key, not_null: {{columns: [{key}]}}}}, and run again: such records "
                    "go to the quarantine",
                )
            )
            if TAKES_AWAY in schema.names:
                found += self._deleted.unfit()
        return found

    def _meddled(self, what: str) -> SinkError:
        return SinkError(
            f"the {self.path} {what}: a trigger or a rule of the table keeps the others back or changes them",
            state="nothing of this batch was committed",
            next_step="remove the trigger or the rule, or move it to a copy of the table; then run again",
        )

    def _batches(self, staged: Staged, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        fs, base = file_system(self.staging)
        for file in staged.files:
            with fs.open(f"{base}/{file.path}", "rb") as handle:
                parquet = pq.ParquetFile(handle)
                width = max(_groups(parquet), default=1)
                for batch in parquet.iter_batches(max(1, min(_ROWS, _BYTES // width)), columns=wanted.names):
                    table = pa.Table.from_batches([batch]).select(wanted.names).cast(wanted)
                    yield from table.combine_chunks().to_batches()

    def _made(self, cursor: Any, schema: T.StructType, *, empty: bool) -> int:
        """Create the table, or check that it fits if there are rows; return its object id."""
        columns = self._columns(cursor)
        if columns:
            # from here on its columns stay the same; by the first look it may be another one
            cursor.execute(f"LOCK TABLE {self._table} IN ROW EXCLUSIVE MODE")
            self.let_pass(cursor)
            if not empty:
                self.refuse_misfits(self._misfits(cursor, schema), since=True)
        else:
            parts = [f"{name_of(f.name)} {column_type(f.dataType)}" for f in of_table(schema).fields]
            if self._config.keyed:
                parts.append(f"PRIMARY KEY ({', '.join(map(name_of, self._config.key))})")
            cursor.execute(f"CREATE TABLE {self._table} ({', '.join(parts)})")
            # rows of a run, and offsets, lie together: such an index costs next to nothing
            near = [name for name in ("_run", "_offset", "_timestamp") if name in schema.names]
            cursor.execute(f"CREATE INDEX ON {self._table} USING brin ({', '.join(map(name_of, near))})")
        return int(one(cursor, f"SELECT to_regclass({literal(self._table)})::oid::bigint"))

    def let_pass(self, cursor: Any) -> None:
        """Refuse a table that another pipeline wrote to, or that was dropped since this one did."""
        for writer in self._commits.batches(cursor):
            self.refuse_other(owner({"app_id": writer}))
        then = self._commits.relation(cursor)
        now = one(cursor, f"SELECT to_regclass({literal(self._table)})::oid::bigint")
        if then is not None and now != then:
            raise TakenBackError(
                f"the {self.path} was dropped" + (" and made again" if now is not None else ""),
                state="nothing was read or written now; what it held is gone",
                next_step=f"restore it from a backup together with {self._names[0]}.sluice_commits, and run again; "
                f"or, to start over, {START_OVER}",
            )

    def _held(self, cursor: Any, gone: Slice) -> dict[tuple[str, int], Any]:
        if not gone.ranges:
            gone.found = self._count(cursor, gone)
            return {}
        cursor.execute(
            f"SELECT DISTINCT _topic, _partition, _offset FROM {self._table} "
            f"WHERE {self._within(cursor, gone)} ORDER BY 1, 2, 3"
        )
        found: dict[tuple[str, int], list[Any]] = {}
        for batch in cursor.fetch_record_batch():
            topics = batch.column(0).dictionary_encode()
            codes, partitions = topics.indices.to_numpy(), batch.column(1).to_numpy()
            offsets = batch.column(2).to_numpy()
            for code, topic in enumerate(topics.dictionary.to_pylist()):
                for partition in np.unique(partitions[codes == code]):
                    chosen = offsets[(codes == code) & (partitions == partition)]
                    found.setdefault((topic, int(partition)), []).append(chosen)
        return {key: np.concatenate(parts) for key, parts in found.items()}

    def _count(self, cursor: Any, gone: Slice) -> int:
        """Return how many rows of a slice the table has."""
        return int(one(cursor, f"SELECT count(*) FROM {self._table} WHERE {self._within(cursor, gone)}"))

    def _within(self, cursor: Any, gone: Slice) -> str:
        """Return the condition of a slice's rows, as SQL."""
        kinds = {column.name: column.kind for column in self._columns(cursor)} if isinstance(gone, RowsByKey) else {}
        return slices.within(gone, self._table, kinds)

    # --- columns -----------------------------------------------------------------------------------------------

    def _columns(self, cursor: Any) -> list[reading.Column]:
        return reading.columns(cursor, self._table)

    def _misfits(self, cursor: Any, schema: T.StructType) -> list[str]:
        columns = self._columns(cursor)
        if not columns:
            return []
        there = {column.name: column for column in columns}
        ours = {f.name: f.dataType for f in of_table(schema).fields}
        if not reading.is_table(cursor, self._table):
            return ["it is a view or a foreign table, which may hold back rows"]
        if (part := reading.unlogged(cursor, self._table)) is not None:
            return [f"{part} is UNLOGGED, so a crash of the server empties it: ALTER TABLE {part} SET LOGGED"]
        found = [
            f"{name} is missing in the table: ALTER TABLE … ADD COLUMN {name_of(name)} {column_type(kind)}"
            for name, kind in ours.items()
            if name not in there
        ]
        found += [
            f"{name} is {there[name].kind} in the table, and {column_type(kind)} in the pipeline"
            for name, kind in ours.items()
            if name in there and not fits(kind, there[name].kind)
        ]
        found += [
            f"{column.name} is {column.kind}, and holds offsets or times: make it {column_type(ours[column.name])}"
            for column in columns
            if column.name in _METADATA & ours.keys() and (column.kind == "numeric" or is_text_to(column.kind))
        ]
        found += [
            f"{column.name} is a generated column" for column in columns if column.name in ours and column.generated
        ]
        found += [
            f"{column.name} is only in the table, and must have a value: give it a default"
            for column in columns
            if column.name not in ours and column.needed
        ]
        if self._config.keyed and not reading.is_unique(cursor, self._table, self._config.key):
            by = ", ".join(map(name_of, self._config.key))
            found.append(f"it has no unique index on the key: CREATE UNIQUE INDEX ON {self._table} ({by})")
        return found + (self._deleted.misfits(cursor) if TAKES_AWAY in schema.names else [])

    def _read(self, spark: SparkSession, where: str) -> tuple[DataFrame, int]:
        with self._begun() as (cursor, _):
            return reading.read(spark, cursor, self._table, where, self.staging)

    def _connected(self) -> Any:
        return connected(find(self._config.connection), self.path)

    def _begun(self) -> Any:
        return reading.begun(self._connected(), self._commits)


def _travelling(schema: T.StructType) -> pa.Schema:
    """Return the columns of staged rows with the types in which they travel."""
    return pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in schema.fields])


def _groups(parquet: Any) -> Iterator[int]:
    """Yield how many bytes a row of each row group has."""
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        yield max(1, group.total_byte_size // max(1, group.num_rows))


class _DoubtfulError(Exception):
    """The database refused the statement that writes the rows, and did not say whether a row is at fault."""

    def __init__(self, told: SluiceError) -> None:
        super().__init__(told.what)
        self.told = told
