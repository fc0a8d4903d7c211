"""Reads a table of PostgreSQL: its columns, and its rows as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from sluice.postgres import literal, name_of
from sluice_spark.sinks.postgres.commits import Commits, fetched, one
from sluice_spark.sinks.postgres.types import LARGEST, arrow_type, beyond_decimal, held_type
from sluice_spark.sinks.spill import spilled

__all__ = ["Column", "begun", "columns", "is_table", "is_unique", "read", "referring", "unlogged"]

_AS_TEXT = (T.StringType, T.DecimalType)
_OF_DOUBLE = 308
"""Most digits before the point of a DOUBLE."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    kind
        Its type, as PostgreSQL's ``format_type`` writes it.
    needed
        Whether a row must give it a value.
    generated
        Whether no row may.
    collation
        The rule by which its texts are compared, as SQL; empty if it is the database's.
    """

    name: str
    kind: str
    needed: bool
    generated: bool
    collation: str = ""


@contextmanager
def begun(connected: AbstractContextManager[Any], commits: Commits) -> Iterator[tuple[Any, bool]]:
    """Begin a transaction that reads, after commits that are under way have ended.

    Yields
    ------
    cursor, bool
        And whether there is a log of commits.
    """
    with connected as connection, connection.cursor() as cursor:
        yield cursor, commits.lock(cursor, write=False)


def columns(cursor: Any, table: str) -> list[Column]:
    """Return a table's columns; none if there is no table.

    Parameters
    ----------
    table
        Its name as SQL.
    """
    found = fetched(
        cursor,
        "SELECT attname::text, format_type(atttypid, atttypmod), "
        "attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = '', "
        "attgenerated <> '' OR attidentity = 'a', "
        "coalesce((SELECT format('%I.%I', n.nspname, c.collname) FROM pg_collation c "
        "JOIN pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = attcollation AND c.collname <> 'default'), '') "
        f"FROM pg_attribute WHERE attrelid = to_regclass({literal(table)}) AND attnum > 0 AND NOT attisdropped "
        "ORDER BY attnum",
    )
    return [
        Column(str(name), str(kind), bool(needed), bool(made), str(rule)) for name, kind, needed, made, rule in found
    ]


def is_table(cursor: Any, table: str) -> bool:
    """Return whether it is a table, which may have partitions, and no view or foreign table."""
    return bool(one(cursor, f"SELECT relkind IN ('r', 'p') FROM pg_class WHERE oid = to_regclass({literal(table)})"))


def unlogged(cursor: Any, table: str) -> str | None:
    """Return the table, or one of its partitions, that a crash of the server empties; None if there is none."""
    itself = f"to_regclass({literal(table)})"
    every = f"oid = {itself} OR oid IN (SELECT relid FROM pg_partition_tree({itself}))"
    # a table that is divided has no rows of its own, whatever it says
    stored = "relpersistence <> 'p' AND relkind <> 'p'"
    found = one(cursor, f"SELECT min(oid::regclass::text) FROM pg_class WHERE {stored} AND ({every})")
    return None if found is None else str(found)


def referring(cursor: Any, table: str) -> str | None:
    """Return the constraint of a table whose rows are changed when rows of this one are deleted; None if there is none.

    Such is a foreign key with ``ON DELETE CASCADE``, ``SET NULL`` or ``SET DEFAULT``.
    """
    itself = f"to_regclass({literal(table)})"
    named = "format('%s of %s', quote_ident(conname), conrelid::regclass)"
    found = one(
        cursor,
        f"SELECT min({named}) FROM pg_constraint WHERE contype = 'f' AND confdeltype IN ('c', 'n', 'd') "
        f"AND (confrelid = {itself} OR confrelid IN (SELECT relid FROM pg_partition_tree({itself})))",
    )
    return None if found is None else str(found)


def is_unique(cursor: Any, table: str, key: Sequence[str]) -> bool:
    """Return whether an index of the table, at once and for all of its rows, allows one row for each key."""
    found = fetched(
        cursor,
        "SELECT array_agg(a.attname::text) FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(n, nr) "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n "
        f"WHERE i.indrelid = to_regclass({literal(table)}) AND i.indisunique AND i.indimmediate AND i.indisvalid "
        "AND i.indpred IS NULL AND i.indexprs IS NULL AND k.nr <= i.indnkeyatts GROUP BY i.indexrelid",
    )
    return any(set(names) == set(key) for (names,) in found)


def read(spark: SparkSession, cursor: Any, table: str, where: str, staging: str) -> tuple[DataFrame, int]:
    """Return rows of a table as a DataFrame, and their number: :func:`~sluice_spark.sinks.spill.spilled`."""
    there = columns(cursor, table)
    schema = T.StructType(
        [
            T.StructField(
                c.name, _numbers(cursor, c.name, table, where) if beyond_decimal(c.kind) else held_type(c.kind)
            )
            for c in there
        ]
    )
    wanted = pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in schema.fields])
    given = [
        # numbers of any length, and types that Spark lacks, travel as text
        f"{name_of(f.name)}::text"
        if isinstance(f.dataType, _AS_TEXT)
        else f"{name_of(f.name)}::double precision"
        if isinstance(f.dataType, T.DoubleType)
        else name_of(f.name)
        for f in schema.fields
    ]
    cursor.execute(f"SELECT {', '.join(given)} FROM {table}{where}")
    return spilled(spark, (_typed(batch, wanted) for batch in cursor.fetch_record_batch()), wanted, schema, staging)


def _numbers(cursor: Any, column: str, table: str, where: str) -> T.DataType:
    """Return the type that holds all numbers of a column: DOUBLE if a DECIMAL has too few digits for them."""
    name = name_of(column)
    known = f"CASE WHEN {name}::text ~ '^[-0-9.]+$' THEN {name} END"
    asked = f"coalesce(max(scale({known})), 0), coalesce(max(length(trunc(abs({known}))::text)), 1)"
    scale, digits = fetched(cursor, f"SELECT {asked} FROM {table}{where}")[0]
    if scale + digits <= LARGEST:
        return T.DecimalType(LARGEST, int(scale))
    return T.DoubleType() if digits <= _OF_DOUBLE else T.StringType()


def _typed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    arrays = [_cast(array, field.type) for array, field in zip(batch.columns, wanted, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        # what a DECIMAL cannot hold is null, as in Spark: NaN, and numbers of too many digits
        plain = pc.match_substring_regex(
            array, rf"^-?[0-9]{{1,{max(1, kind.precision - kind.scale)}}}(\.[0-9]{{0,{kind.scale}}})?$"
        )
        array = pc.if_else(plain, array, pa.scalar(None, array.type))
    return array.cast(kind)
