"""Whether rows fit a table that is there, and what its log shows of its files."""

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
"""At a table whose properties are to change, beside others who commit."""


def check(held: Handle, schema: StructType, partition_by: Sequence[str]) -> None:
    """Refuse to write rows of this schema into a table that is another one.

    Raises
    ------
    ConfigError
        When columns, types or partitioning differ, or the table has features that staged files cannot honour.
    """
    table = held.table()
    if table is None:
        return
    settings = table.metadata().configuration
    if any(k.startswith("delta.constraints.") for k in settings) or (
        settings.get("delta.columnMapping.mode", "none") != "none"
    ):
        raise _misfit(held, "the table has CHECK constraints or column mapping, which staged files cannot honour")
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
        del table  # as it is now, it is looked at once more
        _show_statistics(held)


def _show_statistics(held: Handle) -> None:
    """Let the table's log show which runs, offsets and times its files hold, where it is too wide to do so.

    A commit of its own, which changes no row. Without it everything is right and slow, so that failing here is no
    reason to stop.
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
            continue  # somebody committed in between: look again
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
        "the log of the table %s shows no statistics of %s: judging and intervals are right, and read every file",
        held.path, ", ".join(columns),
    )  # fmt: skip


def check_replaceable(held: Handle) -> None:
    """Refuse to take rows out of a table in which rows are deleted by vectors: a copy would bring those back.

    Raises
    ------
    ConfigError
        When it is such a table, or may become one at any time.
    """
    table = held.table()
    if table is None or "deletionVectors" not in (table.protocol().reader_features or []):
        return
    enabled = table.metadata().configuration.get("delta.enableDeletionVectors", "").lower() == "true"
    if enabled or any(vectors.num_rows for vectors in table.deletion_vectors()):
        raise ConfigError(
            f"the table {held.path} has deletion vectors, and rows of it cannot be replaced: those that were "
            "deleted would come back",
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
    """Return a type that allows nulls at every level: a table holds what was declared, not what one plan can prove."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, nullable(f.dataType), True) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType), True)
    return kind


def _types(schema: StructType) -> dict[str, Any]:
    return {f.name: f.dataType for f in nullable(schema).fields}
