"""Checks whether rows fit an existing table, and makes its log show the statistics that Sluice needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from sluice.errors import BEGIN_ANEW, ConfigError
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.delta.handle import Handle, first_line
from sluice_spark.sinks.delta.statistics import hidden, settings_for

__all__ = ["check", "check_replaceable", "nullable"]

_LOOKS = 5
"""Maximum number of attempts at setting a table's properties while others commit."""


def check(held: Handle, schema: StructType, partition_by: Sequence[str]) -> None:
    """Refuse to write rows of this schema into a table with another schema.

    Raises
    ------
    ConfigError
        If columns, types or partitioning differ, or the table has features that staged files cannot support.
    """
    table = held.table()
    if table is None:
        return
    settings = table.metadata().configuration
    if any(k.startswith("delta.constraints.") for k in settings) or (
        settings.get("delta.columnMapping.mode", "none") != "none"
    ):
        raise _misfit(held, "the table has CHECK constraints or column mapping, which staged files cannot support")
    there = _types(StructType.fromJson(json.loads(table.schema().to_json())))
    ours = _types(schema)
    differences = [f"{n}: only in the table" for n in there if n not in ours]
    differences += [f"{n}: only in the pipeline" for n in ours if n not in there]
    differences += [
        f"{n}: {there[n].simpleString()} in the table, {ours[n].simpleString()} in the pipeline"
        for n in there
        if n in ours and there[n] != ours[n]
    ]
    if list(table.metadata().partition_columns) != list(partition_by):
        differences.append(
            f"partitioned by {table.metadata().partition_columns} in the table, by {list(partition_by)} in the file"
        )
    if differences:
        raise _misfit(held, "; ".join(differences[:8]))
    if hidden(table):
        del table  # released, so that the next call gets it from the cache
        _show_statistics(held)


def _show_statistics(held: Handle) -> None:
    """Set the table property that makes a wide table's log show which runs, offsets and times its files hold.

    This is a separate commit, which changes no row. Without it everything is correct but slow, so a failure is only
    logged.
    """
    for _ in range(_LOOKS):
        table = held.table()
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
            continue  # somebody committed meanwhile: check again
        except (DeltaError, OSError, ValueError) as error:
            logger.warning("the properties of the table %s cannot be set: %s", held.path, first_line(error))
            break
        for key, value in wanted.items():
            before = f", was {settings[key]!r}" if key in settings else ""
            logger.info(
                "the table %s has more columns than readers see statistics of: %s is set to %r%s",
                held.path, key, value, before,
            )  # fmt: skip
    logger.warning(
        "the log of the table %s shows no statistics of %s: validation and intervals are correct, but read every file",
        held.path, ", ".join(columns),
    )  # fmt: skip


def check_replaceable(held: Handle) -> None:
    """Refuse to replace rows of a table with deletion vectors: rewriting a file would restore deleted rows.

    Raises
    ------
    ConfigError
        If the table has deletion vectors, or may get some at any time.
    """
    table = held.table()
    if table is None or "deletionVectors" not in (table.protocol().reader_features or []):
        return
    enabled = table.metadata().configuration.get("delta.enableDeletionVectors", "").lower() == "true"
    if enabled or any(vectors.num_rows for vectors in table.deletion_vectors()):
        raise ConfigError(
            f"the table {held.path} has deletion vectors, so its rows cannot be replaced: deleted rows would reappear",
            state="nothing was changed",
            next_step="with Spark: ALTER TABLE … SET TBLPROPERTIES ('delta.enableDeletionVectors' = false), then "
            "REORG TABLE … APPLY (PURGE); then run again",
        )


def _misfit(held: Handle, what: str) -> ConfigError:
    return ConfigError(
        f"the table {held.path} does not fit the pipeline: {what}",
        state="nothing was read or written; the position stays where it was",
        next_step=f"change the table or the pipeline file so that they match; or, to start over, {BEGIN_ANEW}",
    )


def nullable(kind: Any) -> Any:
    """Return a type that allows nulls at every level, because one plan's nullability must not restrict the table."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, nullable(f.dataType), True) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType), True)
    return kind


def _types(schema: StructType) -> dict[str, Any]:
    return {f.name: f.dataType for f in nullable(schema).fields}
