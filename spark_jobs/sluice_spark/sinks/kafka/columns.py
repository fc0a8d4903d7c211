"""From rows to the keys, values and headers of records: Spark makes them while it stages the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.fields import METADATA_COLUMNS
from sluice.sinks.kafka import KafkaSink, ValueColumn
from sluice.storage import file_system
from sluice_spark.columns import column, holds
from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.kafka.producer import Record
from sluice_spark.sinks.parquet.staged_files import in_order

__all__ = ["misfits", "records", "with_records"]

_KEY, _VALUE, _PARTITION, _TIME, _HEADER = (
    "_sluice_key", "_sluice_value", "_sluice_partition", "_sluice_time", "_sluice_header_",
)  # fmt: skip
_ROWS = 1 << 13
_TO_A_MILLIONTH = 6
_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",  # by default it would be cut to milliseconds
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_PLAIN = (T.StringType, T.BinaryType, T.NumericType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType)


def misfits(config: KafkaSink, schema: T.StructType) -> list[str]:
    """Return what prevents records from being made of such rows."""
    kinds = {field.name: field.dataType for field in schema.fields}
    value = config.value.column if isinstance(config.value, ValueColumn) else None
    named: dict[str, list[str | None]] = {
        "key": [config.key],
        "value": [value],
        "headers": [*config.headers],
        "partition": [config.partition],
    }
    found = [
        f"{key}: there is no column {name!r}"
        for key, names in named.items()
        for name in names
        if name is not None and name not in kinds
    ]
    plain = [("key", config.key), *(("headers", name) for name in config.headers)]
    found += [
        f"{key}: {name} is {kinds[name].simpleString()}, which has no text of its own: write to_json({name}) AS {name} "
        "in transform.sql"
        for key, name in plain
        if name in kinds and not isinstance(kinds[name], _PLAIN)
    ]
    if value in kinds and not isinstance(kinds[value], T.StringType | T.BinaryType):
        found.append(f"value: {value} is {kinds[value].simpleString()}, and must be STRING or BINARY")
    if config.partition in kinds and not isinstance(kinds[config.partition], T.IntegralType):
        found.append(f"partition: {config.partition} is {kinds[config.partition].simpleString()}, and must be INT")
    if config.timestamp == "record" and "_timestamp" not in kinds:
        found.append("timestamp: record needs the column _timestamp")
    found += [f"the name {name!r} is taken" for name in kinds if name.startswith("_sluice_")]
    names = _of_value(config, list(kinds)) if value is None else []
    if value is None and not names:
        found.append("value: json has no column left")
    found += [
        f"value: json: {name} has a map whose keys are {key.simpleString()}, and JSON's are text: write "
        f"transform_keys({name}, (k, v) -> CAST(k AS STRING)) AS {name} in transform.sql, or encode them"
        for name in names
        if (key := _odd_key(kinds[name])) is not None
    ]
    return found


def _odd_key(kind: T.DataType) -> T.DataType | None:
    """Return the first type of a map's keys of which Spark's JSON has the internal form, and no text (SPARK-29946)."""
    if isinstance(kind, T.StructType):
        return next((odd for f in kind.fields if (odd := _odd_key(f.dataType))), None)
    if isinstance(kind, T.ArrayType):
        return _odd_key(kind.elementType)
    if isinstance(kind, T.MapType):
        plain = isinstance(kind.keyType, T.StringType | T.IntegralType | T.BooleanType)
        return _odd_key(kind.valueType) if plain else kind.keyType
    return None


def _without_exponent(value: Column, kind: T.DataType) -> Column:
    """Return a value whose small decimals JSON has without an exponent, as a VARIANT has them: readers refuse one."""
    if not holds(kind, _has_exponent):
        return value
    if isinstance(kind, T.StructType):
        parts = [_without_exponent(value.getField(f.name), f.dataType).alias(f.name) for f in kind.fields]
        return F.when(value.isNotNull(), F.struct(*parts))
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(value, lambda each: _without_exponent(each, element))
    if isinstance(kind, T.MapType):
        held = kind.valueType
        return F.transform_values(value, lambda _, each: _without_exponent(each, held))
    return value.cast("variant")


def _has_exponent(kind: T.DataType) -> bool:
    """Return whether Java writes some values of a type with an exponent: decimals below a millionth."""
    return isinstance(kind, T.DecimalType) and kind.scale > _TO_A_MILLIONTH


def with_records(rows: DataFrame, config: KafkaSink) -> DataFrame:
    """Return the rows, with the parts of the records that they become in columns beside them."""
    added: dict[str, Column] = {}
    if isinstance(config.value, ValueColumn):
        added[_VALUE] = _bytes(rows, config.value.column)
    else:
        names = _of_value(config, rows.columns)
        fields = [_without_exponent(column(name), rows.schema[name].dataType).alias(name) for name in names]
        added[_VALUE] = F.to_json(F.struct(*fields), _JSON).cast("binary")
    if config.key is not None:
        added[_KEY] = _bytes(rows, config.key)
    if config.partition is not None:
        added[_PARTITION] = column(config.partition).cast("bigint")
    if "_timestamp" in rows.columns and (config.origin or config.timestamp == "record"):
        added[_TIME] = F.unix_millis(column("_timestamp"))
    for number, name in enumerate(config.headers):
        added[f"{_HEADER}{number}"] = _bytes(rows, name)
    return rows.withColumns(added)


def records(root: str, staged: Staged, config: KafkaSink) -> Iterator[Record]:
    """Yield the records of staged rows; those of a source's partition in the order of their offsets.

    The transform decides the order of the rows in a file; one that shuffles them has none.
    """
    fs, base = file_system(root)
    for file in in_order(staged.files):
        with fs.open(f"{base}/{file.path}", "rb") as handle:
            parquet = pq.ParquetFile(handle)
            there = [*(n for n in parquet.schema_arrow.names if n.startswith("_sluice_")), *METADATA_COLUMNS]
            wanted = [name for name in there if name in parquet.schema_arrow.names]
            for group in range(parquet.num_row_groups):
                for batch in parquet.iter_batches(_ROWS, row_groups=[group], columns=wanted):
                    yield from _records(batch, config)


def _records(batch: pa.RecordBatch, config: KafkaSink) -> Iterator[Record]:
    count = batch.num_rows
    there = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != "_timestamp"}
    nothing = [None] * count
    keys, values = there.get(_KEY, nothing), there[_VALUE]
    partitions = there.get(_PARTITION)
    times = there.get(_TIME, nothing)
    columns = [(name, there[f"{_HEADER}{number}"]) for number, name in enumerate(config.headers)]
    if config.origin:
        columns += [(n, _text(there[n])) for n in METADATA_COLUMNS if n in there]
        columns += [("_timestamp", _text(times))] if _TIME in there else []
    topics, numbers, offsets = (there.get(name, nothing) for name in ("_topic", "_partition", "_offset"))
    by_record = config.timestamp == "record"
    for number in range(count):
        yield Record(
            keys[number],
            values[number],
            [(name, part) for name, parts in columns if (part := parts[number]) is not None],
            -1 if partitions is None else -2 if (chosen := partitions[number]) is None or chosen < 0 else chosen,
            times[number] if by_record else None,
            (topics[number], numbers[number], offsets[number]),
        )


def _text(values: Sequence[Any]) -> list[bytes | None]:
    return [None if value is None else str(value).encode() for value in values]


def _of_value(config: KafkaSink, columns: Sequence[str]) -> list[str]:
    beside = {*METADATA_COLUMNS, *config.headers, config.partition}
    return [name for name in columns if name not in beside]


def _bytes(rows: DataFrame, name: str) -> Column:
    kind = next(field.dataType for field in rows.schema.fields if field.name == name)
    found = column(name)
    return found if isinstance(kind, T.BinaryType) else found.cast("string").cast("binary")
