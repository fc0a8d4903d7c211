"""Checks whether rows fit an existing table, and makes its log show the statistics that Sluice needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructField, StructType, TimestampNTZType

from sluice.delta.names import KEY
from sluice.delta.paths import check_removable
from sluice.errors import START_OVER, ConfigError, described
from sluice.fields import METADATA_COLUMNS
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.base import Refusal, RowsRefusedError, Staged, StagedFile
from sluice_spark.sinks.delta.evolution import Added, Changed, Difference, difference, merged, told, ways_out, widened
from sluice_spark.sinks.delta.handle import UNWRITABLE, Handle
from sluice_spark.sinks.delta.statistics import files_of, hidden, settings_for
from sluice_spark.sinks.parquet.profile import longest_of, nulls_of
from sluice_spark.sinks.parquet.value_checks import rows_with

__all__ = [
    "check",
    "check_key",
    "check_replaceable",
    "check_values",
    "check_writable",
    "columns_of",
    "to_add",
    "to_widen",
]

_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")
"""Characters that Spark's Delta refuses in the name of a column, without column mapping."""

_SHOWN = 8
"""Maximum number of differences that a message names."""

_GENERATED, _INVARIANT = "delta.generationExpression", "delta.invariants"

_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
"""Where Spark keeps the declared type of a ``CHAR(n)`` or ``VARCHAR(n)`` column; in the log it is a string."""

_LOOKS = 5
"""Maximum number of attempts at setting a table's properties while others commit."""


def check(
    held: Handle, schema: StructType, partition_by: Sequence[str], evolve: str = "refuse", widen_up_to: int = 0
) -> None:
    """Refuse to write rows of this schema into a table with another schema.

    Parameters
    ----------
    evolve
        With ``add``, columns that only the pipeline has are no reason: the commit of a batch adds them. With ``widen``,
        neither are wider types.
    widen_up_to
        The greatest size of a table, in bytes, whose files are rewritten for wider types.

    Raises
    ------
    ConfigError
        If columns, types or partitioning differ, or the table has features that staged files cannot support.
    """
    for name in partition_by:
        if name in schema.names and isinstance(schema[name].dataType, BinaryType):
            raise ConfigError(
                f"{held.path} is to be partitioned by {name}, which is BINARY: not all of its values have a folder",
                state="nothing was read or written",
                next_step=f"write it as text: hex({name}) or base64({name}) in transform.sql",
            )
    table = held.table()
    _check_names([name for name in schema.names if table is None or name not in columns_of(table).names], held)
    if table is None:
        _check_features(schema, held)
        return
    check_writable(held, table)
    found = difference(columns_of(table), schema)
    by = []
    if list(table.metadata().partition_columns) != list(partition_by):
        by = [f"partitioned by {table.metadata().partition_columns} in the table, by {list(partition_by)} in the file"]
    if by or not found.fits(evolve):
        raise _misfit(held, [*told(found), *by], ways_out(found, held.path, evolve))
    if found.changed:
        _check_widening(held, table, found, partition_by, widen_up_to)
    if hidden(table):
        del table  # released, so that the next call gets it from the cache
        _show_statistics(held)


def _check_names(new: Sequence[str], held: Handle) -> None:
    """Refuse new columns with names that Spark's Delta writes to no table; delta-rs would."""
    if wrong := [name for name in new if not name or set(name) & _NOT_IN_NAMES]:
        raise _misfit(
            held,
            [f"{wrong[0]!r} is no name of a column of a Delta table: it has a blank or one of ,;{{}}()="],
            ["rename it in transform.sql: SELECT `a b` AS a_b, …"],
        )


def _check_features(schema: StructType, held: Handle) -> None:
    """Refuse TIMESTAMP_NTZ that a new table has in maps alone: delta-rs 1.6 leaves out the feature that it needs."""
    found = {within for field in schema.fields for within in _unzoned(field.dataType)}
    if found == {True}:
        raise ConfigError(
            f"the new table {held.path} would have TIMESTAMP_NTZ within MAPs alone, and delta-rs makes no such table",
            state="nothing was read or written",
            next_step="write TIMESTAMP in the schema, or cast it in the transform; or make the table with Spark first",
        )


def _unzoned(kind: Any, within: bool = False) -> Iterator[bool]:
    """Yield of each TIMESTAMP_NTZ of a type whether it is within a map."""
    if isinstance(kind, TimestampNTZType):
        yield within
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield from _unzoned(field.dataType, within)
    elif isinstance(kind, ArrayType):
        yield from _unzoned(kind.elementType, within)
    elif isinstance(kind, MapType):
        yield from _unzoned(kind.keyType, True)
        yield from _unzoned(kind.valueType, True)


def check_writable(held: Handle, table: DeltaTable) -> None:
    """Refuse a table with features that staged files cannot support: others may add one between two commits.

    Raises
    ------
    ConfigError
        With the feature.
    """
    settings = table.metadata().configuration
    if any(k.startswith("delta.constraints.") for k in settings) or (
        settings.get("delta.columnMapping.mode", "none") != "none"
    ):
        raise _misfit(held, ["the table has CHECK constraints or column mapping, which staged files cannot support"])
    if features := sorted(UNWRITABLE & set(table.protocol().writer_features or ())):
        raise held.unwritable(", ".join(features))
    if wanting := list(_wanting(columns_of(table), table.metadata().partition_columns)):
        limited = [f.name for f in columns_of(table).fields if _LENGTH in f.metadata and f.dataType == StringType()]
        raise _misfit(
            held,
            [f"{what}, which staged files cannot support" for what in wanting],
            [f"with Spark: ALTER TABLE delta.`{held.path}` ALTER COLUMN {name} TYPE STRING" for name in limited],
        )
    if strict := list(_strict(columns_of(table))):
        raise _misfit(
            held,
            [f"{what}, allows no nulls: in nested columns Sluice does not check that" for what in strict],
            [f"with Spark: ALTER TABLE delta.`{held.path}` ALTER COLUMN … DROP NOT NULL, for each of them"],
        )


def _check_widening(
    held: Handle, table: DeltaTable, found: Difference, partition_by: Sequence[str], widen_up_to: int
) -> None:
    """Refuse to rewrite a table's files for wider types if that cannot be done; say what it will cost."""
    wider = ", ".join(f"{c.name} from {c.there.simpleString()} to {c.ours.simpleString()}" for c in found.changed)
    by = [c.name for c in found.changed if c.name in partition_by]
    if by:
        raise _misfit(held, [f"{by[0]} is a partition column, whose type is fixed"], [f"cast {by[0]} in the transform"])
    check_replaceable(held, table)
    size = sum(files_of(table).column("size_bytes").to_pylist())
    if size > widen_up_to:
        raise ConfigError(
            f"to widen {wider}, all files of the table {held.path} would be rewritten: {size / 1e9:,.1f} GB",
            state="nothing was read or written; the position stays where it was",
            next_step="if that may be, set sink.delta.widen_up_to to more; or cast the column in the transform, or "
            "write it under a new name",
        )
    logger.warning(
        "the first batch with rows widens %s: all files of the table %s are rewritten, %.1f MB, and streams that read "
        "from it see each row again", wider, held.path, size / 1e6,
    )  # fmt: skip


def to_widen(held: Handle, table: DeltaTable, schema: StructType, evolve: str) -> tuple[list[Changed], StructType]:
    """Return the columns whose type a commit of such rows must widen, and the table's columns with wider types."""
    there = columns_of(table)
    if evolve != "widen":
        return [], there
    return [c for c in difference(there, schema).changed if c.widens], widened(there, schema)


def to_add(held: Handle, table: DeltaTable, schema: StructType, evolve: str) -> tuple[list[Added], StructType]:
    """Return what a commit of such rows must add to the table's columns, and the columns that the table then has.

    What only the table has is no reason to refuse here: another run of the pipeline may have added it meanwhile.

    Raises
    ------
    ConfigError
        If others changed the table since it was checked, so that adding columns is not enough any more.
    """
    there = columns_of(table)
    found = replace(difference(there, schema), missing=())
    if evolve == "refuse":  # the types are compared all the same: another run may have widened one meanwhile
        found = replace(found, added=(), clashing=(), impossible=())
    if found.changed or not found.fits(evolve):
        raise _misfit(held, told(found), ways_out(found, held.path, evolve))
    return list(found.added), merged(there, schema) if found.added else there


def _wanting(columns: StructType, partition_by: Sequence[str]) -> Iterator[str]:
    """Yield what a table wants of values that whoever writes them has to see to, and :func:`check_values` does not."""
    for field in columns.fields:
        if _GENERATED in field.metadata:
            yield f"{field.name} is generated ({field.metadata[_GENERATED]})"
        if _INVARIANT in field.metadata:
            yield f"{field.name} has an invariant ({field.metadata[_INVARIANT]})"
        if _LENGTH in field.metadata and (_most(field) is None or field.name in partition_by):
            yield f"{field.name} is a {field.metadata[_LENGTH]}, of a limited length"


def _strict(kind: Any, name: str = "") -> Iterator[str]:
    """Yield where nulls are forbidden and the footers of staged files do not count them: in nested columns."""
    nested = ArrayType | MapType | StructType
    if isinstance(kind, StructType):
        for field in kind.fields:
            path = f"{name}.{field.name}" if name else field.name
            if not field.nullable and (name or isinstance(field.dataType, nested)):
                yield path
            yield from _strict(field.dataType, path)
    elif isinstance(kind, ArrayType):
        yield from [] if kind.containsNull else [f"{name}, in its elements"]
        yield from _strict(kind.elementType, f"{name}.element")
    elif isinstance(kind, MapType):
        yield from [] if kind.valueContainsNull else [f"{name}, in its values"]
        yield from _strict(kind.keyType, f"{name}.key")
        yield from _strict(kind.valueType, f"{name}.value")


def check_values(held: Handle, table: DeltaTable, staged: Staged) -> None:
    """Refuse to commit nulls to columns that allow none, and longer texts than a ``VARCHAR(n)`` allows.

    Readers rely on both: they leave out conditions that look for nulls.

    Raises
    ------
    RowsRefusedError
        If staged files have any.
    """
    for field in columns_of(table).fields:
        if (most := _most(field)) is not None:
            _check_length(held, table, field.name, most, staged)
        if field.nullable or field.name in METADATA_COLUMNS:
            continue
        nulls = sum(_nulls(held, field.name, file) for file in staged.files)
        if nulls:
            raise RowsRefusedError(
                f"{nulls:,} rows have no value in {field.name}, which allows no nulls in the table {held.path}",
                state="nothing of this batch was committed; the position stays where it was",
                next_step="if the records have that column, send such ones to the quarantine, with a row rule: "
                f"{{name: has_{field.name}, not_null: {{columns: [{field.name}]}}}}; or have the transform give it a "
                f"value; or with Spark: ALTER TABLE delta.`{held.path}` ALTER COLUMN {field.name} DROP NOT NULL",
                rows=_refused(
                    held, table, staged, field.name, "there is no value, and the table allows no nulls", _is_null
                ),
            )


def _most(field: StructField) -> int | None:
    """Return how many characters a ``VARCHAR(n)`` column allows; None for any other, which includes ``CHAR(n)``."""
    found = re.fullmatch(r"varchar\((\d+)\)", field.metadata.get(_LENGTH, ""), re.IGNORECASE)
    return int(found[1]) if found else None


def _check_length(held: Handle, table: DeltaTable, name: str, most: int, staged: Staged) -> None:
    longest = max((longest_of(held.path, file.path, name) for file in staged.files), default=0)

    def too_long(texts: Any) -> Any:
        return pc.fill_null(pc.greater(pc.utf8_length(texts), most), False).to_numpy(zero_copy_only=False)

    if longest > most:
        raise RowsRefusedError(
            f"{name} has texts of up to {longest:,} characters, and is a VARCHAR({most}) in the table {held.path}",
            state="nothing of this batch was committed; the position stays where it was",
            next_step="send such records to the quarantine, with a row rule: "
            f"{{name: {name}_fits, sql: {{passes: char_length({name}) <= {most}}}}}; or cut them in the transform; or "
            f"with Spark: ALTER TABLE delta.`{held.path}` ALTER COLUMN {name} TYPE STRING",
            rows=_refused(held, table, staged, name, f"the text has more than {most} characters", too_long),
        )


def _refused(
    held: Handle, table: DeltaTable, staged: Staged, name: str, why: str, unfit: Callable[[Any], Any]
) -> dict[tuple[str, int, int], Refusal]:
    """Return the rows whose value in a column is unfit, if rows are of single records."""
    if "_offset" not in columns_of(table).names:
        return {}
    return dict.fromkeys(rows_with(held.path, staged, name, unfit), Refusal(why, name))


def _is_null(values: Any) -> Any:
    return pc.is_null(values).to_numpy(zero_copy_only=False)


def _nulls(held: Handle, name: str, file: StagedFile) -> int:
    """Return how many rows of a file have no value in a column."""
    known = file.columns.get(name)
    if known is not None and known.nulls is not None:
        return known.nulls
    return nulls_of(held.path, file.path, name)  # of a wide table, only the first columns are profiled


def columns_of(table: DeltaTable) -> StructType:
    """Return the columns of an open table."""
    return StructType.fromJson(json.loads(table.schema().to_json()))


def _show_statistics(held: Handle) -> None:
    """Set the table property that makes a wide table's log show which runs, offsets and times its files hold.

    This is a separate commit, which changes no row. Without it everything is correct but slow, so a failure is only
    logged.
    """
    for _ in range(_LOOKS):
        table = held.table()
        if table is None or not (columns := hidden(table)):
            return
        schema = columns_of(table)
        settings = table.metadata().configuration
        wanted = settings_for(schema, table.metadata().partition_columns, settings)
        if not wanted.items() - settings.items():
            break
        try:
            table.alter.set_table_properties(wanted)
        except CommitFailedError:
            continue  # another program committed meanwhile: check again
        except (DeltaError, OSError, ValueError) as error:
            logger.warning("the properties of the table %s cannot be set: %s", held.path, described(error))
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


def check_replaceable(held: Handle, table: DeltaTable | None = None) -> None:
    """Refuse to replace rows of a table that only takes more, or has deletion vectors: deleted rows would reappear.

    Parameters
    ----------
    table
        The version that is looked at; by default the newest.

    Raises
    ------
    ConfigError
        If the table is append-only, has deletion vectors, or may get some at any time; or if it has files whose path
        does not say to which partition they belong, which files that replace them would not belong to, or whose path
        delta-rs cannot remove.
    """
    table = table or held.table()
    if table is not None and _says(table, "delta.appendOnly"):
        raise ConfigError(
            f"the table {held.path} is append-only, so its rows cannot be replaced: delta.appendOnly is true",
            state="nothing was changed",
            next_step=f"with Spark: ALTER TABLE delta.`{held.path}` SET TBLPROPERTIES ('delta.appendOnly' = false); "
            "then run again",
        )
    if table is not None and (astray := _astray(table)) is not None:
        raise ConfigError(
            f"the table {held.path} has files whose path does not name their partition, such as {astray}, so its rows "
            "cannot be replaced",
            state="nothing was changed",
            next_step=f"with Spark: ALTER TABLE delta.`{held.path}` SET TBLPROPERTIES ('delta.randomizeFilePrefixes' = "
            "false, 'delta.enableDeletionVectors' = false), then have it write the files again: "
            f"UPDATE delta.`{held.path}` SET _run = _run; then run again",
        )
    if table is not None:
        check_removable(held.path, files_of(table).column("path").to_pylist())
    if table is None or "deletionVectors" not in (table.protocol().reader_features or []):
        return
    if _says(table, "delta.enableDeletionVectors") or any(vectors.num_rows for vectors in table.deletion_vectors()):
        raise ConfigError(
            f"the table {held.path} has deletion vectors, so its rows cannot be replaced: deleted rows would reappear",
            state="nothing was changed",
            next_step="with Spark: ALTER TABLE … SET TBLPROPERTIES ('delta.enableDeletionVectors' = false), then "
            "REORG TABLE … APPLY (PURGE); then run again",
        )


def _astray(table: DeltaTable) -> str | None:
    """Return a file whose folders are not one for each partition column; None if there is none."""
    count = len(table.metadata().partition_columns)
    for path in files_of(table).column("path").to_pylist():
        if sum("=" in unquote(folder) for folder in str(path).split("/")[:-1]) != count:
            return str(path)
    return None


def _says(table: DeltaTable, name: str) -> bool:
    return str(table.metadata().configuration.get(name, "")).lower() == "true"


def check_key(held: Handle, key: str | None) -> None:
    """Refuse a table whose rows have another key than the pipeline's, or none; an empty one gets the pipeline's.

    Parameters
    ----------
    key
        As the table property has it; None for a pipeline that appends.

    Raises
    ------
    ConfigError
        If they differ.
    """
    for _ in range(_LOOKS):
        table = held.table()
        if table is None or (found := table.metadata().configuration.get(KEY)) == key:
            return
        if found is not None or key is None or table.file_uris():
            there = (
                "appends rows, and may have several of a key" if found is None else f"has one row for each of {found}"
            )
            ours = "mode: append" if key is None else f"mode: upsert by {key}"
            raise _misfit(held, [f"it {there}; the pipeline says {ours}"])
        try:
            table.alter.set_table_properties({KEY: key}, raise_if_not_exists=False)
        except CommitFailedError as error:
            held.try_again(error)
            continue  # another program committed meanwhile: check again
        except (DeltaError, OSError, ValueError) as error:
            raise held.failed(error) from error
    raise held.crowded()


def _misfit(held: Handle, what: Sequence[str], ways_out: Sequence[str] = ()) -> ConfigError:
    more = f"; and {len(what) - _SHOWN} more" if len(what) > _SHOWN else ""
    steps = [*(ways_out or ["change the table or the pipeline file so that they match"])]
    return ConfigError(
        f"the table {held.path} does not fit the pipeline: {'; '.join(what[:_SHOWN])}{more}",
        state="nothing was read or written; the position stays where it was",
        next_step=f"{'; '.join(steps)}; or, to start over, {START_OVER}",
    )
