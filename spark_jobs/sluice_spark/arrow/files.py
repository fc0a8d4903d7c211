"""Writes the rows of a range to Parquet files: one, or one for each value of the partition columns."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.storage import file_system, is_url, make_folder
from sluice_spark.paths import ESCAPED, NO_VALUE
from sluice_spark.sources.inputs import UnreadableError

__all__ = ["Files", "Written", "can_partition"]

_ROWS = 250_000
_BYTES = 32 << 20
"""A row group has about as much as the first of both that is reached."""
_MOST = 64
"""With more files open at once, the Spark path is better: it sorts the rows."""
_SAMPLE = 5_000
"""Number of rows that show whether the values of a column repeat."""
_TELLING = _SAMPLE // 2
"""Number of rows that show it for later files, too."""
_SCHEMAS = 8
"""Maximum number of schemas of whose columns a process remembers that."""
_ESCAPED = str.maketrans({each: f"%{ord(each):02X}" for each in ESCAPED})


@dataclass(frozen=True)
class Written:
    """A file.

    Attributes
    ----------
    name
        Its path below the folder.
    values
        Its partition values, as Delta's log has them.
    """

    name: str
    values: Mapping[str, str | None]


def can_partition(kind: pa.DataType) -> bool:
    """Return whether a column of a type can be a partition column here: its values have one text form."""
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind) or kind in (pa.string(), pa.date32())


class Files:
    """The files of one range. Their first rows create them; unless they are kept, they are removed.

    Parameters
    ----------
    folder
        It exists.
    checked
        Whether each page gets a checksum.
    statistics
        The columns with statistics; None means all.
    """

    def __init__(
        self,
        folder: str,
        schema: pa.Schema,
        codec: str = "snappy",
        *,
        checked: bool = False,
        partition_by: Sequence[str] = (),
        statistics: Sequence[str] | None = None,
    ) -> None:
        self._folder = folder
        self._partition_by = partition_by
        self._options = {
            "compression": codec,
            "store_schema": False,
            "write_page_checksum": checked,
            "write_statistics": True if statistics is None else list(statistics),
        }
        self._schema = pa.schema([field for field in schema if field.name not in partition_by])
        self._files: dict[tuple[str | None, ...], _File] = {}
        self._kept = False

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file in () if self._kept else self._files.values():
            with suppress(OSError):  # what made them superfluous is raised; a sweep removes them
                file.remove()

    def add(self, table: pa.Table) -> None:
        """Add rows.

        Raises
        ------
        UnreadableError
            If their partition columns have too many values.
        """
        if not self._partition_by:
            self._file(()).add(table)
            return
        codes = np.zeros(table.num_rows, dtype=np.int64)
        for name in self._partition_by:
            column = table.column(name).combine_chunks().dictionary_encode("encode")
            codes = codes * (len(column.dictionary) + 1) + column.indices.to_numpy(zero_copy_only=False)
            codes = np.unique(codes, return_inverse=True)[1]  # small again, whatever the number of columns
        order = np.argsort(codes, kind="stable")
        cuts = np.flatnonzero(np.diff(codes[order])) + 1
        if len(cuts) >= _MOST:
            raise UnreadableError(f"the partition columns have more than {_MOST} values at once")
        for rows in np.split(order, cuts):
            values = tuple(_text(table.column(name)[int(rows[0])].as_py()) for name in self._partition_by)
            part = table if not len(cuts) else table.take(pa.array(rows))
            self._file(values).add(part.drop_columns(list(self._partition_by)))
        if sum(file.held for file in self._files.values()) >= 2 * _BYTES:
            for file in self._files.values():
                file.flush()

    def keep(self) -> list[Written]:
        """Finish the files, and return those that have rows."""
        found = []
        for values, file in self._files.items():
            if file.close():
                name = file.path[len(self._folder.rstrip("/")) + 1 :]
                found.append(Written(name, dict(zip(self._partition_by, values, strict=True))))
        self._kept = True
        return found

    def _file(self, values: tuple[str | None, ...]) -> _File:
        if values not in self._files:
            if len(self._files) >= _MOST:
                raise UnreadableError(f"the partition columns have more than {_MOST} values at once")
            parts = [
                f"{name.translate(_ESCAPED)}={NO_VALUE if value is None else value.translate(_ESCAPED)}"
                for name, value in zip(self._partition_by, values, strict=True)
            ]
            self._files[values] = _File(os.path.join(self._folder, *parts), self._schema, self._options)
        return self._files[values]


def _text(value: object) -> str | None:
    """Return a value as Delta's log has it; to Spark an empty text is no value in a partition column."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


class _File:
    """A Parquet file in row groups of a good size.

    Attributes
    ----------
    held
        The size of the rows that are not written yet, in bytes.
    """

    def __init__(self, folder: str, schema: pa.Schema, options: Mapping[str, Any]) -> None:
        self.path = os.path.join(folder, f"part-{uuid.uuid4().hex}.{options['compression']}.parquet")
        self._options = options
        self._schema = schema
        self._writer: Any = None
        self._object: Any = None
        self._tables: list[pa.Table] = []
        self._rows = self.held = 0

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        self.held += table.nbytes
        if self._rows >= _ROWS or self.held >= _BYTES:
            self.flush()

    def close(self) -> bool:
        """Finish the file, and return whether it has rows."""
        self.flush()
        if self._writer is not None:
            self._finish()
        return self._writer is not None

    def _finish(self) -> None:
        try:
            self._writer.close()
        finally:
            if self._object is not None:  # it appears, as a whole
                self._object.close()

    def remove(self) -> None:
        if self._writer is not None:
            self._finish()
            fs, name = file_system(self.path)
            fs.rm_file(name)

    def flush(self) -> None:
        """Write the rows that it holds."""
        if not self._tables:
            return
        table = pa.concat_tables(self._tables)
        if self._writer is None:
            make_folder(os.path.dirname(self.path))
            if is_url(self.path):
                fs, name = file_system(self.path)
                self._object = fs.open(name, "wb")
            where = self.path if self._object is None else self._object
            repeating = _REPEATING.of(table)
            self._writer = pq.ParquetWriter(where, self._schema, use_dictionary=repeating, **self._options)
        self._writer.write_table(table, row_group_size=_ROWS)
        self._tables, self._rows, self.held = [], 0, 0


class _Repeating:
    """Remembers for rows of a schema which columns repeat: small files would spend much of their time on it."""

    def __init__(self) -> None:
        self._known: dict[pa.Schema, tuple[list[str], int]] = {}

    def of(self, table: pa.Table) -> list[str]:
        """Return :func:`_repeating` of these rows, or what it was within the last row group's worth of such rows.

        Few rows tell nothing of those that follow: what they are is not remembered.
        """
        rows = table.num_rows
        found, left = self._known.get(table.schema, ([], 0))
        if rows < _TELLING or left < rows:
            found, left = _repeating(table), _ROWS
            if rows < _TELLING:
                return found
            if len(self._known) >= _SCHEMAS:
                self._known.clear()
        self._known[table.schema] = found, left - rows
        return found


_REPEATING = _Repeating()


def _repeating(table: pa.Table) -> list[str]:
    """Return the columns of Parquet whose values seem to repeat; for others a dictionary would be tried in vain."""
    found: list[str] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_nested(column.type):
            found += _leaves(name, column.type)
            continue
        sample = column.slice(0, _SAMPLE)
        values = len(sample) - sample.null_count
        if pc.count_distinct(sample).as_py() <= values // 2:
            found.append(name)
    return found


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(kind):
        for part in kind:
            yield from _leaves(f"{path}.{part.name}", part.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path
