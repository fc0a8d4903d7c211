"""Reads staged Parquet files back: their content decides what may be committed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet as pq

from sluice.storage import file_system
from sluice_spark.paths import NO_VALUE
from sluice_spark.sinks.base import Staged, StagedFile, Tally
from sluice_spark.sinks.parquet.profile import columns_of

__all__ = ["in_order", "offsets_of", "partition_values", "read_back", "staged_file"]

_STATS_COLUMNS = 32
_LONGEST_STAT = 256
_PIECE = 1 << 26
"""Number of offsets that are compared at a time, one byte each."""
_SPARSE = 64
"""If there are more offsets than this per row, sorting the offsets is faster than comparing all of the range."""


def offsets_of(root: str, staged: Staged) -> dict[tuple[str, int], Any]:
    """Return the distinct offsets of staged rows per topic and partition, ascending."""
    fs, base = file_system(root)
    found: dict[tuple[str, int], list[Any]] = {}
    for file in staged.files:
        with fs.open(f"{base}/{file.path}", "rb") as handle:
            for key, numbers in _offsets(pq.ParquetFile(handle), file.partition_values):
                found.setdefault(key, []).append(numbers)
    return {key: np.unique(np.concatenate(arrays)) for key, arrays in found.items()}


def read_back(root: str, folder: str, *, offsets: bool) -> Staged:
    """Read the files of one write.

    Parameters
    ----------
    root
        Path or URL of the table.
    folder
        The write's folder below it.
    offsets
        Whether rows carry ``_topic``, ``_partition`` and ``_offset``. Rows and distinct offsets are then counted per
        partition, exactly.

    Notes
    -----
    Spark usually writes the records of a partition in the order of their offsets, in files that do not overlap. Then
    the first offset, the last offset and the number of each file are enough. Otherwise the offsets are compared in a
    second pass, a bounded piece at a time. So memory does not grow with the number of rows.
    """
    fs, base = file_system(root)
    fs.invalidate_cache()
    files: list[StagedFile] = []
    found: dict[tuple[str, int], _Count] = {}
    for name, info in sorted(fs.find(f"{base}/{folder}", detail=True).items()):
        if not name.endswith(".parquet"):
            continue
        relative = name[len(base.rstrip("/")) + 1 :]
        with fs.open(name, "rb") as handle:
            parquet = pq.ParquetFile(handle)
            if parquet.metadata.num_rows == 0:
                continue
            values = partition_values(relative[len(folder) :].strip("/").split("/")[:-1])
            files.append(_file(relative, info, parquet.metadata, values))
            if offsets:
                for key, numbers in _offsets(parquet, values):
                    found.setdefault(key, _Count()).add(len(files), numbers)
    return Staged(folder, tuple(files), {key: count.tally(fs, base, files, key) for key, count in found.items()})


def in_order(files: Iterable[StagedFile]) -> list[StagedFile]:
    """Return files in the order in which they begin in the source, as far as their statistics say so."""

    def begins(file: StagedFile) -> tuple[str, int, int, str]:
        low = json.loads(file.stats).get("minValues", {})
        return str(low.get("_topic", "")), int(low.get("_partition", 0)), int(low.get("_offset", 0)), file.path

    return sorted(files, key=begins)


def staged_file(root: str, path: str, values: Mapping[str, str | None] | None = None) -> StagedFile:
    """Read the footer of one staged file.

    Parameters
    ----------
    path
        Relative to the table's root.
    values
        Its partition values; None if the table has no partition columns.
    """
    fs, base = file_system(root)
    name = f"{base}/{path}"
    with fs.open(name, "rb") as handle:
        return _file(path, fs.info(name), pq.ParquetFile(handle).metadata, values or {})


def _file(path: str, info: Mapping[str, Any], metadata: Any, values: Mapping[str, str | None]) -> StagedFile:
    return StagedFile(
        path=path,
        size=int(info["size"]),
        modified=_milliseconds(info),
        rows=metadata.num_rows,
        partition_values=values,
        stats=json.dumps(_stats(metadata)),
        columns=columns_of(metadata, values),
    )


class _Count:
    """Counts the offsets of one partition as they are read, file by file."""

    def __init__(self) -> None:
        self._rows = 0
        self._files: dict[int, tuple[int, int]] = {}
        self._ascending = True

    def add(self, file: int, numbers: Any) -> None:
        """Add the next offsets of a file."""
        low, high = int(numbers.min()), int(numbers.max())
        first, last = self._files.get(file, (low, low - 1))
        self._ascending = self._ascending and low > last and bool(np.all(np.diff(numbers) > 0))
        self._files[file] = min(first, low), max(last, high)
        self._rows += len(numbers)

    def tally(self, fs: Any, base: str, files: Sequence[StagedFile], key: tuple[str, int]) -> Tally:
        """Return the tally. ``files`` are the files that were read; their numbers begin at 1."""
        spans = sorted(self._files.values())
        first, last = spans[0][0], max(high for _, high in spans)
        if self._ascending and all(a[1] < b[0] for a, b in itertools.pairwise(spans)):
            return Tally(self._rows, self._rows, first, last)
        names = [files[number - 1] for number in self._files]
        if last - first > _SPARSE * self._rows:  # too sparse to compare the whole range
            return Tally(self._rows, _distinct(fs, base, names, key), first, last)
        distinct = 0
        for start in range(first, last + 1, _PIECE):
            seen = np.zeros(min(_PIECE, last + 1 - start), dtype=bool)
            for file in names:
                with fs.open(f"{base}/{file.path}", "rb") as handle:
                    for of, numbers in _offsets(pq.ParquetFile(handle), file.partition_values):
                        if of == key:
                            seen[numbers[(numbers >= start) & (numbers < start + len(seen))] - start] = True
            distinct += int(np.count_nonzero(seen))
        return Tally(self._rows, distinct, first, last)


def _milliseconds(info: Mapping[str, Any]) -> int:
    stamp = info.get("mtime") or info.get("LastModified") or info.get("created") or 0
    return int((stamp.timestamp() if isinstance(stamp, datetime) else float(stamp)) * 1000)


def partition_values(parts: Iterable[str]) -> dict[str, str | None]:
    """Return the partition values in the names of a file's folders, in Hive's format ``column=value``."""
    pairs = (part.partition("=") for part in parts)
    return {unquote(k): None if v == NO_VALUE else unquote(v) for k, _, v in pairs}


def _distinct(fs: Any, base: str, files: Iterable[StagedFile], key: tuple[str, int]) -> int:
    arrays = []
    for file in files:
        with fs.open(f"{base}/{file.path}", "rb") as handle:
            arrays += [n for of, n in _offsets(pq.ParquetFile(handle), file.partition_values) if of == key]
    return len(np.unique(np.concatenate(arrays)))


def _offsets(parquet: Any, values: Mapping[str, str | None]) -> Iterator[tuple[tuple[str, int], Any]]:
    """Yield the offsets of a file per topic and partition, in the file's order, a bounded number of rows at a time."""
    wanted = [c for c in ("_topic", "_partition", "_offset") if c not in values]
    # one row group at a time: a reader of several keeps the bytes of those that it has read
    groups = range(parquet.num_row_groups)
    for group in (b for g in groups for b in parquet.iter_batches(1 << 18, row_groups=[g], columns=wanted)):
        numbers = group.column("_offset").to_numpy()
        partitions = (
            np.full(len(numbers), int(values["_partition"] or 0))
            if "_partition" in values
            else group.column("_partition").to_numpy()
        )
        if "_topic" in values:
            topics: list[tuple[str, Any]] = [(str(values["_topic"]), slice(None))]
        else:
            encoded = group.column("_topic").dictionary_encode()
            names = encoded.dictionary.to_pylist()
            codes = encoded.indices.to_numpy()
            topics = [(n, slice(None) if len(names) == 1 else codes == i) for i, n in enumerate(names)]
        for topic, chosen in topics:
            here, offsets = partitions[chosen], numbers[chosen]
            for partition in np.unique(here):
                yield (topic, int(partition)), offsets[here == partition]


def _stats(metadata: Any) -> dict[str, Any]:
    """Return Delta's file statistics from the Parquet footer, for top-level columns of types that have them."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    columns = [metadata.schema.column(i) for i in range(len(metadata.schema))]
    # metadata columns come last, and readers that search a run or an offset need their statistics
    simple = [i for i, c in enumerate(columns) if c.max_repetition_level == 0 and "." not in c.path]
    chosen = [i for i in simple if columns[i].name.startswith("_")] + simple[:_STATS_COLUMNS]
    for i in dict.fromkeys(chosen):
        name = columns[i].name
        groups = [metadata.row_group(g).column(i).statistics for g in range(metadata.num_row_groups)]
        if any(s is None or not s.has_null_count for s in groups):
            continue
        nulls[name] = sum(s.null_count for s in groups)
        with_values = [s for s in groups if s.num_values > 0]
        if not with_values or any(not s.has_min_max for s in with_values):
            continue
        try:
            low, high = _stat(min(s.min for s in with_values)), _stat(max(s.max for s in with_values))
        except (OverflowError, ValueError):  # a date that Python does not support: before year 1 or after 9999
            continue
        if low is not None and high is not None:
            lows[name], highs[name] = low, high
    return {"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}


def _stat(value: Any) -> Any:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, datetime):
        # Delta stores milliseconds: truncate, so that no minimum is rounded up; readers widen a truncated maximum
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str) and len(value) <= _LONGEST_STAT:
        return value
    return None
