"""The rows of a source that were landed: files with their records, and a book that gives them offsets.

The book is a Delta table. Each of its commits adds one file of records, or none, and the :class:`Position` that the
pipeline has reached in its source. So the position travels in the commit that makes rows part of the log: a kill before
it leaves an unused file, a kill after it leaves nothing to be done.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sluice.errors import OffsetsGoneError, SinkError, described
from sluice.faults import point
from sluice.ranges import OffsetRange
from sluice.sources.landed.position import Position

__all__ = ["Intake", "OvertakenError", "Part", "digests"]

logger = logging.getLogger("sluice")

_APP = "sluice.jdbc"
_COMPACTED = 50
"""The number of the book's files from which on they are put together."""
_ABANDONED = 86_400
"""Seconds after which a file that is not in the book is removed: a process that was killed left it."""


class OvertakenError(Exception):
    """Another process landed rows of the same source at the same time."""


@dataclass(frozen=True)
class Part:
    """A file of landed rows.

    Attributes
    ----------
    name
        The file's name in the folder :attr:`Intake.rows`.
    start
        The offset of its first row.
    first, last
        Earliest and latest record time, in milliseconds since 1970 (UTC).
    high
        The largest key.
    landed
        When it was landed, in milliseconds since 1970.
    """

    name: str
    start: int
    rows: int
    first: int
    last: int
    high: int
    landed: int

    @property
    def end(self) -> int:
        """The offset after its last row."""
        return self.start + self.rows


class Intake:
    """What was landed of one pipeline's source.

    Parameters
    ----------
    path
        The folder of the pipeline's source.
    stream
        The name of the stream, for the records.
    """

    def __init__(self, path: str, stream: str) -> None:
        self.stream = stream
        self.rows = Path(path) / "rows"
        self._book_path = str(Path(path) / "book")
        self._table: Any = None
        self.parts: tuple[Part, ...] = ()
        self.position = Position()
        self.refresh()

    def refresh(self) -> None:
        """Read what is in the book now; it is created if it does not exist.

        Raises
        ------
        SinkError
            If it cannot be read or created.
        """
        import pyarrow as pa
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            self.rows.mkdir(parents=True, exist_ok=True)
            try:
                self._table = DeltaTable(self._book_path)
            except TableNotFoundError:
                self._table = DeltaTable.create(self._book_path, _book_schema(), mode="ignore")
            rows = pa.RecordBatchReader.from_stream(self._table.scan()).read_all().to_pylist()
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise self._failed(error) from error
        found = sorted(rows, key=lambda row: int(row["number"]))
        self._number = found[-1]["number"] if found else 0
        self.position = Position.from_json(found[-1]["position"]) if found else Position()
        own = [{k: row[k] for k in Part.__dataclass_fields__} for row in found if row["name"] is not None]
        self.parts = tuple(Part(**values) for values in own)

    @property
    def id(self) -> str:
        """What tells this intake from another one in its place, in which the same offsets are other rows."""
        return str(self._table.metadata().id)

    @property
    def start(self) -> int:
        """The first offset that is still kept."""
        return self.parts[0].start if self.parts else self.position.end

    def within(self, span: OffsetRange) -> list[Part]:
        """Return the files that have rows with offsets of a range, in their order."""
        return [part for part in self.parts if part.start < span.end and part.end > span.start]

    def missing(self, span: OffsetRange) -> list[OffsetRange]:
        """Return the parts of a range whose rows are not kept any more."""
        at, gone = span.start, []
        for part in [p for p in self.within(span) if (self.rows / p.name).exists()]:
            if part.start > at:
                gone.append(OffsetRange(span.topic, span.partition, at, part.start))
            at = min(part.end, span.end)
        return [*gone, OffsetRange(span.topic, span.partition, at, span.end)] if at < span.end else gone

    def first_at(self, milliseconds: int) -> int | None:
        """Return the first offset whose record time is at or after a time; None if there is none."""
        import pyarrow.parquet as pq

        for part in self.parts:
            if part.last < milliseconds:
                continue
            try:
                table = pq.read_table(self.rows / part.name, columns=["offset", "timestamp"])
            except (OSError, ValueError) as error:
                raise self._failed(error) from error
            times = table.column("timestamp").cast("int64").to_numpy() // 1000
            offsets = table.column("offset").to_numpy()[times >= milliseconds]
            if len(offsets):
                return int(offsets[0])
        return None

    def known(self, floor: int | None) -> set[bytes]:
        """Return a digest of the key of each landed record that a look from a floor on may find again."""
        import pyarrow.parquet as pq

        found: set[bytes] = set()
        for part in self.parts:
            if floor is not None and part.high < floor:
                continue
            try:
                with pq.ParquetFile(self.rows / part.name) as file:
                    for batch in file.iter_batches(columns=["key"]):
                        found.update(digests(batch.column(0)))
            except FileNotFoundError as error:
                raise OffsetsGoneError(
                    f"the file {self.rows / part.name} is gone: which rows were landed is not known without it",
                    state="nothing was read or written now; what earlier runs wrote is in the sink",
                    next_step="restore it from a copy",
                    ranges=[OffsetRange(self.stream, 0, part.start, part.end)],
                ) from error
            except (OSError, ValueError) as error:
                raise self._failed(error) from error
        return found

    # --- landing -------------------------------------------------------------------------------------------------

    def land(self, records: Any, high: int, position: Position) -> None:
        """Make rows part of the log, and a position with them, in one commit after the one that was read.

        Parameters
        ----------
        records
            An Arrow table of ``key``, ``value``, ``headers`` and ``timestamp``, in the order of their offsets; None if
            only the position moves.
        high
            The largest key among them.
        position
            Its ``end`` is set here.

        Raises
        ------
        OvertakenError
            If another process landed rows since then. Nothing was landed; refresh, and look again.
        SinkError
            If they cannot be written.
        """
        part = None if records is None else self._written(records, high)
        position = replace(position, end=self.position.end + (0 if part is None else part.rows))
        point("rows-landed")
        try:
            self._add(part, position)
        except OvertakenError:
            if part is not None:
                (self.rows / part.name).unlink(missing_ok=True)
            raise
        point("position-committed")
        self._compact()

    def _written(self, records: Any, high: int) -> Part:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        count, start = records.num_rows, self.position.end
        numbers = pa.array(range(start, start + count), pa.int64())
        table = pa.table(
            {
                "key": records.column("key"),
                "value": records.column("value"),
                "headers": records.column("headers"),
                "topic": pa.repeat(pa.scalar(self.stream), count),
                "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
                "offset": numbers,
                "timestamp": records.column("timestamp"),
                "timestampType": pa.repeat(pa.scalar(0, pa.int32()), count),
            }
        )
        name = f"{start:020}-{uuid.uuid4().hex}.parquet"
        times = pc.min_max(records.column("timestamp").cast(pa.int64())).as_py()
        try:
            with open(self.rows / name, "wb") as file:
                pq.write_table(table, file, compression="snappy", write_page_checksum=True, row_group_size=50_000)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._failed(error) from error
        now = int(time.time() * 1000)
        return Part(name, start, count, times["min"] // 1000, times["max"] // 1000, high, now)

    def _add(self, part: Part | None, position: Position) -> None:
        import pyarrow as pa
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError, DeltaError

        number = self._number + 1
        own = dict.fromkeys(Part.__dataclass_fields__) if part is None else dict(part.__dict__)
        row = {"number": number, "position": position.to_json(), **own}
        properties = CommitProperties(app_transactions=[Transaction(_APP, number, None)])
        try:
            data = pa.Table.from_pylist([row], schema=pa.schema(_book_schema()))
            write_deltalake(self._table, data, mode="append", commit_properties=properties)
        except CommitFailedError as error:
            raise OvertakenError from error
        except (DeltaError, OSError, ValueError) as error:
            raise self._failed(error) from error
        self._number, self.position = number, position
        if part is not None:
            self.parts = (*self.parts, part)

    def _compact(self) -> None:
        """Put the book's files together when they are many, without former positions; the next addition tries again."""
        from deltalake.exceptions import DeltaError

        with suppress(DeltaError, OSError):
            if len(self._table.file_uris()) >= _COMPACTED:
                self._table.delete(f"name IS NULL AND number < {self._number}")
                self._table.optimize.compact()
                self._table.vacuum(dry_run=False)

    # --- letting go ----------------------------------------------------------------------------------------------

    def forget(self, position: int, keep: float) -> None:
        """Remove the rows before a position that were landed long ago, and cannot be found again; best effort.

        Parameters
        ----------
        keep
            Seconds for which they stay.
        """
        from deltalake.exceptions import DeltaError

        self.refresh()
        floor, now = self.position.floor, time.time()
        old: list[Part] = []
        for part in self.parts[:-1]:  # those at the beginning, so that no gap is left
            if part.end > position or part.landed / 1000 > now - keep or floor is None or part.high >= floor:
                break
            old.append(part)
        if old:
            names = ", ".join(f"'{part.name}'" for part in old)
            try:
                self._table.delete(f"name IN ({names})")
            except DeltaError as error:
                logger.warning("landed rows stay until the next run: %s", error)
                return
            for part in old:
                (self.rows / part.name).unlink(missing_ok=True)
            self.refresh()
        self._sweep(now)

    def _sweep(self, now: float) -> None:
        """Remove files of processes that were killed before they committed."""
        own = {part.name for part in self.parts}
        for file in self.rows.glob("*.parquet"):
            if file.name not in own and file.stat().st_mtime < now - _ABANDONED:
                file.unlink(missing_ok=True)

    def _failed(self, error: Exception) -> SinkError:
        return SinkError(
            f"the pipeline's landed rows, {self.rows.parent}, cannot be used: {described(error)}",
            state="nothing was read or written",
            next_step="fix the storage, or restore the folder from a copy, then run again",
        )


def digests(keys: Any) -> Iterator[bytes]:
    """Yield a digest of each of these record keys."""
    for key in keys.to_pylist():
        yield hashlib.blake2b(key, digest_size=16).digest()


def _book_schema() -> Any:
    from deltalake import Schema
    from deltalake.schema import Field, PrimitiveType

    kinds = {
        "number": "long", "position": "string", "name": "string", "start": "long", "rows": "long", "first": "long",
        "last": "long", "high": "long", "landed": "long",
    }  # fmt: skip
    return Schema([Field(name, PrimitiveType(kind), nullable=True) for name, kind in kinds.items()])
