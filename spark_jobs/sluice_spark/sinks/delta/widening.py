"""Wider types of a table's columns: writes its files again, and finds out for whom that was done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from sluice.delta.commits import Commit
from sluice_spark.sinks.base import Staged, StagedFile
from sluice_spark.sinks.parquet.slice import discard, rewritten

__all__ = ["widened_for", "with_wider_types"]

_SPARKS = b"org.apache.spark.sql.parquet.row.metadata"
"""Under which Spark says again, in a file, what types its columns have."""


def widened_for(commits: Iterable[Commit], app_id: str, version: int) -> list[dict[str, str]]:
    """Return what was widened for a batch, by this attempt at it or by one that died before its own commit."""
    notes: list[Mapping[str, Any]] = [commit.note or {} for commit in commits]
    mine = [note for note in notes if note.get("app_id") == f"{app_id}:columns" and note.get("for") == version]
    return [dict(column) for note in mine for column in note.get("evolved", ())]


def with_wider_types(
    root: str, name: str, paths: Iterable[str], columns: pa.Schema, known: dict[str, StagedFile | None]
) -> Staged:
    """Write files of a table again; numbers get the types that the table's columns have, all else stays as it is.

    Parameters
    ----------
    root
        Path or URL of the table.
    known
        What earlier attempts at the same commit wrote, by path; files never change, so none is written twice.
    name
        The name of the batch, as in :meth:`~sluice_spark.sinks.delta.table.DeltaSink.stage`.
    paths
        The files, as the table's log has them.
    columns
        The table's columns.

    Raises
    ------
    OSError
        If a file cannot be read or written; what was written is removed then.
    """

    def kinds(schema: pa.Schema) -> pa.Schema:
        known = {field.name: field.type for field in columns}
        metadata = {key: value for key, value in (schema.metadata or {}).items() if key != _SPARKS}
        return pa.schema([f.with_type(_wider(f.type, known.get(f.name))) for f in schema], metadata)

    paths = list(paths)
    try:
        for path in paths:
            if path not in known:
                known[path] = rewritten(root, path, name, kinds=kinds)
    except OSError:  # the disk may be full, and the next attempt writes all of them again
        discard(root, (file.path for file in known.values() if file is not None))
        known.clear()
        raise
    return Staged("", tuple(file for path in paths if (file := known[path]) is not None), {})


def _wider(kind: Any, wanted: Any) -> Any:
    if wanted is None:
        return kind
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        known = {field.name: field.type for field in wanted}
        return pa.struct([field.with_type(_wider(field.type, known.get(field.name))) for field in kind])
    if _is_list(kind) and _is_list(wanted):  # Polars, for one, writes large ones
        return pa.list_(kind.value_field.with_type(_wider(kind.value_type, wanted.value_type)))
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        return pa.map_(kind.key_type, kind.item_field.with_type(_wider(kind.item_type, wanted.item_type)))
    numbers = (pa.types.is_signed_integer, pa.types.is_floating, pa.types.is_decimal)
    return wanted if any(of(kind) and of(wanted) for of in numbers) else kind


def _is_list(kind: pa.DataType) -> bool:
    return any(of(kind) for of in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
