"""Reads the rows of an Iceberg table as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, In
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from sluice_spark.columns import holds

__all__ = ["columns_of", "names_of", "rows_of"]


def names_of(table: Table) -> Callable[[pa.Schema], Mapping[str, str]]:
    """Return what says how the columns of a file are called now, by their ids or the table's mapping of names.

    A column that was dropped has no name.
    """
    schema = table.schema()
    mapping = table.metadata.name_mapping() or schema.name_mapping
    ids = {name: field.field_id for field in mapping.root for name in field.names}

    def named(columns: pa.Schema) -> dict[str, str]:
        own = [(f.name, (f.metadata or {}).get(b"PARQUET:field_id", ids.get(f.name))) for f in columns]
        found = {name: schema.find_column_name(int(number)) for name, number in own if number is not None}
        return {name: now for name, now in found.items() if now is not None}

    return named


def columns_of(table: Table) -> T.StructType:
    """Return the columns of a table that Spark has a type for. Columns of other engines may have others."""
    found: list[T.StructField] = []
    for field in table.schema().as_arrow():
        with suppress(PySparkTypeError):
            found += from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True).fields
    unknown = T.TimeType  # Spark has the type, and cannot read it
    return T.StructType([f for f in found if not holds(f.dataType, lambda kind: isinstance(kind, unknown))])


def rows_of(table: Table, columns: pa.Schema, runs: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows that some runs wrote, or all.

    pyiceberg's own reader makes an empty list, or map, of a null one whose elements are structs
    (apache/iceberg-python#3833). So a file is read without it, unless others have deleted rows of it by position, or
    changed columns within its structs.

    Parameters
    ----------
    columns
        The columns of the table.
    runs
        The values of ``_run``; None means all rows.
    """
    where: BooleanExpression = AlwaysTrue() if runs is None else In("_run", list(runs))
    for task in table.scan(row_filter=where).plan_files():
        found = None if task.delete_files else _stored(table, task, columns)
        if found is None:
            read = table.schema().select(*columns.names)
            yield from ArrowScan(table.metadata, table.io, read, where).to_record_batches([task])
            continue
        for rows in found:
            yield from (rows if runs is None else rows.filter(pc.is_in(rows["_run"], pa.array(runs)))).to_batches()


def _stored(table: Table, task: FileScanTask, columns: pa.Schema) -> Iterator[pa.Table] | None:
    """Return the rows of a file, a row group at a time; None if its values have other types than the table's."""
    with table.io.new_input(task.file.file_path).open() as file:
        own = pq.ParquetFile(file).schema_arrow
    now = {name: own.field(name) for name in own.names}
    there = {current: now[name] for name, current in names_of(table)(own).items() if current in columns.names}
    empty = {f.name: pa.array([], there[f.name].type if f.name in there else f.type) for f in columns}
    if any(_parts(values.type) != _parts(columns.field(name).type) for name, values in empty.items()):
        return None  # Arrow would make null of a part that has another name
    try:
        pa.table(empty).cast(columns)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return None

    def read() -> Iterator[pa.Table]:
        with table.io.new_input(task.file.file_path).open() as file:
            parquet = pq.ParquetFile(file)
            for batch in parquet.iter_batches(1 << 16, columns=[field.name for field in there.values()]):
                values = {current: batch.column(field.name) for current, field in there.items()}
                none = {f.name: pa.nulls(batch.num_rows, f.type) for f in columns if f.name not in values}
                yield pa.table({name: {**values, **none}[name] for name in columns.names}).cast(columns)

    return read()


def _parts(kind: pa.DataType) -> list[object]:
    """Return the names of the fields of all structs within a type, in their order."""
    if pa.types.is_struct(kind):
        return [(field.name, *_parts(field.type)) for field in kind]
    if pa.types.is_map(kind):
        return [*_parts(kind.key_type), *_parts(kind.item_type)]
    return _parts(kind.value_type) if pa.types.is_list(kind) or pa.types.is_large_list(kind) else []
