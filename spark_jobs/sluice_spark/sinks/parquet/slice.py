"""Finds the rows of some offsets and an interval of record time in a table's files, and rewrites files without them.

Files are immutable, so what was found in one stays valid. A file with both rows to remove and rows to keep is rewritten
without the former, one row group at a time. Everything else stays the same: schema, order, Spark's metadata.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.ranges import OffsetRange
from sluice.storage import file_system, make_folder
from sluice_spark.sinks.base import Staged, StagedFile
from sluice_spark.sinks.delta.statistics import may_be, may_be_at
from sluice_spark.sinks.parquet.attempts import new_folder
from sluice_spark.sinks.parquet.staged_files import partition_values, read_back

__all__ = [
    "Found",
    "Key",
    "Slice",
    "as_written",
    "discard",
    "lacks",
    "moments",
    "offsets_in",
    "opened",
    "partition_of",
    "readable",
    "rewritten",
]

_COLUMNS = ["_topic", "_partition", "_offset", "_timestamp"]

_EVER = 1 << 53
"""Milliseconds beyond every possible timestamp; as microseconds they still fit into 64 bits."""

Key = tuple[str, int]


@dataclass(frozen=True)
class Found:
    """What one file holds of a slice: ``rows`` of its ``of`` rows, and their offsets per topic and partition."""

    rows: int
    of: int
    offsets: Mapping[Key, Any]


def offsets_in(found: Iterable[Found]) -> dict[Key, Any]:
    """Return the offsets that files hold of a slice, per topic and partition, ascending."""
    parts: dict[Key, list[Any]] = {}
    for what in found:
        for key, offsets in what.offsets.items():
            parts.setdefault(key, []).append(offsets)
    return {key: np.unique(np.concatenate(arrays)) for key, arrays in parts.items()}


@dataclass
class Slice:
    """The rows whose offset is in one of the ranges and whose record time is in ``[start, end)``.

    Parameters
    ----------
    start, end
        Milliseconds since 1970, UTC; by default any time.

    Attributes
    ----------
    found
        How many rows :meth:`find` found the last time.
    """

    ranges: Sequence[OffsetRange]
    start: int = -_EVER
    end: int = _EVER
    found: int = field(default=0, init=False)
    _known: dict[str, Found] = field(default_factory=dict, repr=False)
    _kept: dict[str, StagedFile | None] = field(default_factory=dict, repr=False)
    _ends: dict[Key, tuple[Any, Any]] = field(default_factory=dict, repr=False)

    def find(self, root: str, actions: pa.Table) -> dict[str, Found]:
        """Return, by path, the files of a table that hold rows of the slice.

        Parameters
        ----------
        root
            Path or URL of the table.
        actions
            The table's files with their flattened statistics. Only files that may hold such rows are read, and only
            four columns of them.

        Raises
        ------
        OSError
            If a file cannot be read.
        """
        fs, base = file_system(root)
        found = {}
        for path in actions.filter(pa.array(self._may_hold(actions))).column("path").to_pylist():
            if path not in self._known:
                self._known[path] = self._look(fs, base, path)
            if self._known[path].rows:
                found[path] = self._known[path]
        self.found = sum(what.rows for what in found.values())
        return found

    def keep(
        self,
        root: str,
        name: str,
        found: Mapping[str, Found],
        names: Callable[[pa.Schema], Mapping[str, str]] | None = None,
    ) -> Staged:
        """Write the rows of these files that are not in the slice to new files in a folder of their own.

        Parameters
        ----------
        name
            The name of the batch, as in :meth:`~sluice_spark.sinks.delta.table.DeltaSink.stage`.
        names
            Returns what the columns of a file are called now; those that it leaves out are left out. By default they
            stay as they are.
        """
        fs, base = file_system(root)
        for path, what in found.items():
            known = self._kept.get(path)
            if path not in self._kept or (known is not None and not fs.exists(f"{base}/{known.path}")):
                self._kept[path] = None if what.rows == what.of else self._rewrite(root, path, name, names)
        files = tuple(file for path in found if (file := self._kept[path]) is not None)
        return Staged("", files, {})

    def added(self, root: str, name: str, staged: Staged) -> Staged:
        """Return what takes the place of the rows that :meth:`find` found: of these staged rows, all."""
        return staged

    def _may_hold(self, files: pa.Table) -> Any:
        """Return a mask of the files whose statistics allow rows of the slice."""
        inside = np.zeros(files.num_rows, dtype=bool)
        for r in self.ranges:
            inside |= (
                may_be(files, "_topic", r.topic, r.topic)
                & may_be(files, "_partition", r.partition, r.partition)
                & may_be(files, "_offset", r.start, r.end - 1)
            )
        return inside & may_be_at(files, "_timestamp", self.start * 1000, self.end * 1000)

    def _look(self, fs: Any, base: str, path: str) -> Found:
        rows = total = 0
        offsets: dict[Key, list[Any]] = {}
        with fs.open(f"{base}/{unquote(path)}", "rb") as handle:
            values = partition_of(path)
            columns = [name for name in _COLUMNS if name not in values]
            footer = pq.read_metadata(handle)
            if lacks(footer, columns):
                return Found(0, footer.num_rows, {})
            dictionary = [name for name in columns if name == "_topic"]
            parquet = opened(handle, metadata=footer, read_dictionary=dictionary)
            for batch in parquet.iter_batches(batch_size=1 << 18, columns=columns):
                total += batch.num_rows
                for key, chosen in self._masks(batch, values):
                    rows += int(chosen.sum())
                    offsets.setdefault(key, []).append(_numbers(batch.column("_offset"))[chosen])
        return Found(rows, total, {key: np.unique(np.concatenate(parts)) for key, parts in offsets.items()})

    def _counted(self, fs: Any, base: str, path: str, columns: list[str]) -> Found:
        """Return what a file holds of a slice that is not found by offsets."""
        rows = total = 0
        with fs.open(f"{base}/{unquote(path)}", "rb") as handle:
            footer = pq.read_metadata(handle)
            if lacks(footer, columns[:1]):
                return Found(0, footer.num_rows, {})
            for batch in opened(handle, metadata=footer).iter_batches(batch_size=1 << 18, columns=columns):
                total += batch.num_rows
                rows += sum(int(chosen.sum()) for _, chosen in self._masks(batch, {}))
        return Found(rows, total, {})

    def _masks(self, batch: Any, values: Mapping[str, str | None]) -> list[tuple[Key, Any]]:
        times = moments(batch, "_timestamp")
        offsets = _numbers(batch.column("_offset"))
        inside = (times >= self.start * 1000) & (times < self.end * 1000)
        found = []
        keys = sorted({(r.topic, r.partition) for r in self.ranges}) if inside.any() else []
        of_topic = {topic: inside & _equal(batch, values, "_topic", topic) for topic, _ in keys}
        for key in keys:
            mine = of_topic[key[0]] & _equal(batch, values, "_partition", key[1])
            if mine.any():
                of_key = self._inside(key, offsets)
                if (mine & of_key).any():
                    found.append((key, mine & of_key))
        return found

    def _inside(self, key: Key, offsets: Any) -> Any:
        """Return a mask of the offsets that are in a range of this partition; there may be thousands of ranges."""
        if key not in self._ends:
            spans = sorted((r.start, r.end) for r in self.ranges if (r.topic, r.partition) == key)
            starts, ends = (np.array(numbers, dtype=np.int64) for numbers in zip(*spans, strict=True))
            self._ends[key] = (starts, np.maximum.accumulate(ends))  # ranges may overlap
        starts, ends = self._ends[key]
        before = np.searchsorted(starts, offsets, side="right") - 1
        return (before >= 0) & (offsets < ends[before])

    def _rewrite(
        self, root: str, path: str, name: str, names: Callable[[pa.Schema], Mapping[str, str]] | None
    ) -> StagedFile | None:
        values = partition_of(path)

        def kept(batch: Any) -> Any:
            gone = np.zeros(batch.num_rows, dtype=bool)
            for _, chosen in self._masks(batch, values):
                gone |= chosen
            rows = batch.filter(pa.array(~gone))
            if names is None:
                return rows
            now = names(batch.schema)
            return rows.select(list(now)).rename_columns(list(now.values()))

        def renamed(schema: pa.Schema) -> pa.Schema:
            if names is None:
                return schema
            return pa.schema([schema.field(old).with_name(new) for old, new in names(schema).items()])

        return rewritten(root, path, name, kept, renamed)


def rewritten(
    root: str,
    path: str,
    name: str,
    kept: Callable[[Any], Any] = lambda batch: batch,
    kinds: Callable[[pa.Schema], pa.Schema] = lambda schema: schema,
) -> StagedFile | None:
    """Write a file of a table again, one row group at a time, in a folder of its own; return it, None without rows.

    Parameters
    ----------
    name
        The name of the batch, as in :meth:`~sluice_spark.sinks.delta.table.DeltaSink.stage`.
    kept
        Returns the rows of a record batch that stay.
    kinds
        Returns the file's columns with the types that they get.

    Raises
    ------
    OSError
        If a file cannot be read or written; nothing is left of it then.
    """
    fs, base = file_system(root)
    below = path.split("/", 2)[2] if path.startswith("batches/") else path
    folder = new_folder(name)
    target = f"{folder}/{unquote(posixpath.dirname(below))}".rstrip("/")
    make_folder(f"{root}/{target}")
    try:
        _copy(fs, f"{base}/{unquote(path)}", f"{base}/{target}/kept.parquet", kept, kinds)
    except OSError:
        discard(root, [f"{folder}/kept.parquet"])
        raise
    return next(iter(read_back(root, folder, offsets=False).files), None)


def discard(root: str, paths: Iterable[str]) -> None:
    """Remove the folders that files were written to, as far as that is possible; they are in no version of a table."""
    fs, base = file_system(root)
    for folder in {"/".join(path.split("/")[:2]) for path in paths}:
        with suppress(OSError):
            fs.rm(f"{base}/{folder}", recursive=True)


def _copy(
    fs: Any, origin: str, target: str, kept: Callable[[Any], Any], kinds: Callable[[pa.Schema], pa.Schema]
) -> None:
    with fs.open(origin, "rb") as source, fs.open(target, "wb") as sink:
        parquet = opened(source)
        schema = as_written(pq.ParquetFile(source, metadata=parquet.metadata).schema_arrow)
        wanted = kinds(schema)
        with pq.ParquetWriter(sink, wanted, compression="snappy") as writer:
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group).cast(schema).combine_chunks()
                for batch in table.to_batches():
                    rows = kept(batch)
                    if rows.num_rows:  # readers complain of row groups without rows
                        writer.write_batch(rows.cast(wanted))


def partition_of(path: str) -> Mapping[str, str | None]:
    return partition_values(unquote(part) for part in path.split("/")[:-1] if "=" in unquote(part))


def lacks(footer: Any, columns: Sequence[str]) -> bool:
    """Return whether a file was written before one of these columns was added; it has no row of a slice then."""
    return not set(columns) <= set(footer.schema.to_arrow_schema().names)


def opened(handle: Any, **options: Any) -> pq.ParquetFile:
    """Open a file of a table, whoever wrote it.

    By default Spark writes times as INT96. Arrow reads these as nanoseconds, of which 64 bits do not reach the year
    2263, and wraps around silently; as microseconds they reach far enough.
    """
    return pq.ParquetFile(handle, coerce_int96_timestamp_unit="us", **options)


def readable(batch: Any) -> Any:
    """Return a batch of a file, whoever wrote it, with types that Arrow can take rows of: no view types."""
    return batch.cast(as_written(batch.schema))


def as_written(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose files every reader of Delta tables reads.

    It has plain types instead of view types, which delta-rs uses when it rewrites files for DELETE, and microseconds in
    UTC in place of INT96, which are nanoseconds to Arrow: Spark reads no nanoseconds.
    """
    fields = [field.with_type(_plain(field.type)) for field in schema]
    return pa.schema(fields, schema.metadata)


def _plain(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", "UTC")
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), kind.item_field.with_type(_plain(kind.item_type)))
    return kind


def moments(batch: Any, name: str) -> Any:
    """Return the times of a column, in microseconds since 1970; a null becomes one before all others."""
    return _numbers(batch.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64()))


def _numbers(column: Any) -> Any:
    """Return integers; a null (in a row that another program inserted) becomes the minimum, which is in no range."""
    return column.fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)


def _equal(batch: Any, values: Mapping[str, str | None], column: str, wanted: str | int) -> Any:
    if column in values:
        return np.full(batch.num_rows, str(values[column]) == str(wanted))
    if pa.types.is_dictionary(batch.column(column).type):
        names = batch.column(column).dictionary.to_pylist()
        codes = batch.column(column).indices.fill_null(-1).to_numpy()
        return codes == (names.index(wanted) if wanted in names else len(names))
    values_here = batch.column(column)
    if pa.types.is_string_view(values_here.type):
        values_here = values_here.cast(pa.string())
    return pc.equal(values_here, wanted).fill_null(False).to_numpy(zero_copy_only=False)
