"""Merges staged rows into a table's files by key: of two rows of a key, the newer one stays.

Which of two rows is newer is decided as in PostgreSQL (:mod:`sluice_spark.sinks.postgres.upsert`): that of the higher
value in the sequence column, then that of the later record time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.fields import TAKES_AWAY
from sluice.storage import file_system, make_folder
from sluice_spark.sinks.base import NOTHING, Refusal, RowsRefusedError, Staged
from sluice_spark.sinks.delta.statistics import bounds, may_be
from sluice_spark.sinks.parquet.attempts import new_folder
from sluice_spark.sinks.parquet.rows_by_key import told
from sluice_spark.sinks.parquet.slice import Found, Slice, as_written, opened, readable
from sluice_spark.sinks.parquet.staged_files import read_back

__all__ = ["Merge", "Order", "is_newer"]

_PLACE = ("_timestamp", "_topic", "_partition", "_offset")
_AT_A_TIME = 1 << 16
_SPARKS_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"


class Order(NamedTuple):
    """What tells whether a row is newer than another one of its key."""

    sequence: tuple[Any, ...]
    """``(0,)`` if the row has no value in the sequence column, else ``(1, value)``."""
    time: int | None
    topic: str | None
    partition: int | None
    offset: int | None
    """These are None in rows that another program put there."""


class _Row(NamedTuple):
    """The newest staged row of a key: its file and number there, and whether it only deletes."""

    order: Order
    file: int
    number: int
    deletes: bool


def is_newer(came: Order, held: Order) -> bool:
    """Return whether a row that came replaces one that is held."""
    if came.sequence != held.sequence:
        return came.sequence > held.sequence
    return held.offset is None or came.offset is None or _place(came) > _place(held)


def _place(order: Order) -> tuple[int, str, int, int]:
    return order.time or 0, order.topic or "", order.partition or 0, order.offset or 0


@dataclass
class Merge(Slice):
    """The rows of a table that staged rows replace or delete. Keys are in memory, those of files a batch at a time.

    Parameters
    ----------
    ranges
        None of them is used: rows are chosen by their keys.
    keys, sequence
        The columns that identify a row, and the one that orders rows.
    newest
        The newest staged row of each key, as :meth:`of` finds it.
    """

    keys: Sequence[str] = ()
    sequence: str = "_offset"
    newest: Mapping[tuple[Any, ...], _Row] = field(default_factory=dict, repr=False)
    _stronger: dict[str, set[tuple[Any, ...]]] = field(default_factory=dict, repr=False)
    _losing: frozenset[tuple[Any, ...]] = frozenset()
    _first: dict[pa.DataType, pa.Array] = field(default_factory=dict, repr=False)
    _reduced: dict[frozenset[tuple[Any, ...]], Staged] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, root: str, staged: Staged, keys: Sequence[str], sequence: str) -> Merge:
        """Return the merge of these staged rows.

        Raises
        ------
        RowsRefusedError
            If rows have no value in a column of their key.
        """
        nowhere: list[Order] = []
        newest: dict[tuple[Any, ...], _Row] = {}
        fs, base = file_system(root)
        for number, file in enumerate(staged.files):
            with fs.open(f"{base}/{file.path}", "rb") as handle:
                parquet, at = opened(handle), 0
                flags = [TAKES_AWAY] if TAKES_AWAY in parquet.schema_arrow.names else []
                for batch in parquet.iter_batches(_AT_A_TIME, columns=_columns(keys, sequence) + flags):
                    gone = batch.column(TAKES_AWAY).to_pylist() if flags else [False] * batch.num_rows
                    for key, order, deletes in zip(_keys(batch, keys), _orders(batch, sequence), gone, strict=True):
                        if None in key:
                            nowhere.append(order)
                        if key not in newest or is_newer(order, newest[key].order):
                            newest[key] = _Row(order, number, at, bool(deletes))
                        at += 1
        if nowhere:
            raise _without_key(keys, nowhere)
        return cls((), keys=tuple(keys), sequence=sequence, newest=newest)

    def find(self, root: str, actions: pa.Table) -> dict[str, Found]:
        """Return, by path, the files of a table that hold rows that are replaced or deleted."""
        found = super().find(root, actions)
        there = set(actions.column("path").to_pylist())
        self._losing = frozenset().union(*(keys for path, keys in self._stronger.items() if path in there))
        return found

    def added(self, root: str, name: str, staged: Staged) -> Staged:
        """Return the staged rows that the table gets, after :meth:`find` has looked at it.

        These are the newest of their keys that delete nothing, if the table has no newer ones.
        """
        if self._losing not in self._reduced:
            chosen: dict[int, list[int]] = {}
            for key, row in self.newest.items():
                if not row.deletes and key not in self._losing:
                    chosen.setdefault(row.file, []).append(row.number)
            self._reduced[self._losing] = self._written(root, name, staged, chosen)
        return self._reduced[self._losing]

    @staticmethod
    def _written(root: str, name: str, staged: Staged, chosen: Mapping[int, list[int]]) -> Staged:
        fs, base = file_system(root)
        names = [TAKES_AWAY]
        if sum(map(len, chosen.values())) == staged.rows:
            with fs.open(f"{base}/{staged.files[0].path}", "rb") as handle:
                names = opened(handle).schema_arrow.names
            if TAKES_AWAY not in names:
                return staged
        if not chosen:
            return NOTHING
        folder = new_folder(name)
        make_folder(f"{root}/{folder}")
        for number, rows in sorted(chosen.items()):
            with (
                fs.open(f"{base}/{staged.files[number].path}", "rb") as source,
                fs.open(f"{base}/{folder}/part-{number:05d}.parquet", "wb") as sink,
            ):
                _copy(source, sink, np.sort(np.array(rows, np.int64)))
        return read_back(root, folder, offsets=False)

    def _may_hold(self, files: pa.Table) -> Any:
        found, first = bounds(files, self.keys[0]), [key[0] for key in self.newest]
        if found is None or not first or not (pa.types.is_integer(found[0].type) or pa.types.is_string(found[0].type)):
            return np.full(files.num_rows, bool(first))
        return may_be(files, self.keys[0], min(first), max(first))

    def _look(self, fs: Any, base: str, path: str) -> Found:
        rows = total = 0
        stronger: set[tuple[Any, ...]] = set()
        with fs.open(f"{base}/{unquote(path)}", "rb") as handle:
            parquet = opened(handle)
            names = [name for name in _columns(self.keys, self.sequence) if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(_AT_A_TIME, columns=names):
                total += batch.num_rows
                for _, key, weaker in self._compared(batch):
                    rows += weaker
                    if not weaker:
                        stronger.add(key)
        self._stronger[path] = stronger
        return Found(rows, total, {})

    def _masks(self, batch: Any, values: Mapping[str, str | None]) -> list[tuple[tuple[str, int], Any]]:
        chosen = np.zeros(batch.num_rows, dtype=bool)
        chosen[[at for at, _, weaker in self._compared(batch) if weaker]] = True
        return [(("", 0), chosen)]

    def _compared(self, batch: Any) -> Iterator[tuple[int, tuple[Any, ...], bool]]:
        """Yield the number and the key of each row whose key came, and whether it is older than what came."""
        if self.keys[0] not in batch.schema.names:
            return  # written before the table had the column, so no row has this key
        batch = readable(batch)
        column = told(batch.column(self.keys[0]))
        if column.type not in self._first:
            self._first[column.type] = pa.array({key[0] for key in self.newest}, column.type)
        (places,) = pc.is_in(column, self._first[column.type]).to_numpy(zero_copy_only=False).nonzero()
        some = batch.take(pa.array(places))
        for at, key, order in zip(places, _keys(some, self.keys), _orders(some, self.sequence), strict=True):
            if key in self.newest:
                yield int(at), key, is_newer(self.newest[key].order, order)


def _columns(keys: Sequence[str], sequence: str) -> list[str]:
    return list(dict.fromkeys([*keys, sequence, *_PLACE]))


def _keys(batch: Any, keys: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(_values(batch, name) for name in keys), strict=True)


def _orders(batch: Any, sequence: str) -> Iterator[Order]:
    values = _values(batch, sequence)
    places = [_values(batch, name) for name in _PLACE]
    for value, time, topic, partition, offset in zip(values, *places, strict=True):
        yield Order((0,) if value is None else (1, value), time, topic, partition, offset)


def _values(batch: Any, name: str) -> list[Any]:
    """Return a column's values; null for a file that is older than the column, or by a writer that left it out."""
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    found: list[Any] = told(batch.column(name)).to_pylist()
    return found


def _copy(source: Any, sink: Any, rows: Any) -> None:
    """Copy some rows of a file, by their ascending numbers, without the column that says that they delete."""
    parquet, first = opened(source), 0
    schema = as_written(pq.ParquetFile(source, metadata=parquet.metadata).schema_arrow)
    names = [name for name in schema.names if name != TAKES_AWAY]
    # Spark's own copy of the schema would still have the column that is left out
    kept = {k: v for k, v in (schema.metadata or {}).items() if names == schema.names or k != _SPARKS_SCHEMA}
    with pq.ParquetWriter(sink, pa.schema([schema.field(n) for n in names], kept), compression="snappy") as writer:
        for group in range(parquet.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            here = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + count)] - first
            first += count
            if len(here):
                table = parquet.read_row_group(group, columns=names).take(pa.array(here))
                writer.write_table(table.cast(writer.schema))


def _without_key(keys: Sequence[str], rows: Sequence[Order]) -> RowsRefusedError:
    first = rows[0]
    why = Refusal(f"there is no value in a column of its key ({', '.join(keys)})")
    return RowsRefusedError(
        f"the row of {first.topic}/{first.partition} offset {first.offset} has no value in a column of its key "
        f"({', '.join(keys)})",
        state="nothing of this batch was committed",
        next_step="add the row rule {name: has_key, not_null: {columns: ["
        + ", ".join(keys)
        + "]}}, and run again: such records go to the quarantine",
        rows={
            (row.topic, row.partition, row.offset): why
            for row in rows
            if row.topic is not None and row.partition is not None and row.offset is not None
        },
    )
