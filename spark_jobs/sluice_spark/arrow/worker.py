"""The work on one share of a batch: read its ranges, and write Parquet files.

Records are decoded into rows (:class:`Decoding`), written as they are (:class:`Copying`), or both in one reading. It
runs in a Python worker of Spark, or in the driver if the batch is small. It commits nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sluice.decoders.config import RESCUED
from sluice.facts.rescued import NONE, Rescued
from sluice.ranges import OffsetRange, Times
from sluice_spark.arrow.base import METADATA, ChunkDecoder, Transform
from sluice_spark.arrow.expectations import RowRules
from sluice_spark.arrow.files import Files, Written
from sluice_spark.arrow.rescued import names_of
from sluice_spark.arrow.select import Condition
from sluice_spark.arrow.verbatim import with_headers
from sluice_spark.sources.inputs import LATEST, RECORDS, UTC, Chunk, Input, RangeReader, SilentError, UnreadableError

__all__ = ["Copying", "Decoding", "Done", "Task", "work"]

_TOLD = ("topic", "partition", "offset", "timestamp")
"""The columns of copied records whose statistics are read: by :mod:`sluice.wal`, in files and in the table's log."""
_TRIAL = 20_000
_TOO_MANY = 0.2
"""If more than this share of the records is set aside, after the first few, the Spark path is faster."""


@dataclass
class Done:
    """One range of a share, with its counts.

    Attributes
    ----------
    declined
        Why the range was not processed; then all counts are 0, and it has no files.
    outside
        The number of records whose time is outside of the interval; :attr:`read` has them, too.
    offsets
        The number of offsets that its rows come from.
    first, last
        The least and the greatest of them.
    files, aside_files
        The files with its rows, and with its doubtful records.
    rescued
        The unknown fields of the records that were decoded.
    decoded
        What was done when its records were also decoded, if they were.
    """

    range: OffsetRange
    declined: str | None = None
    read: int = 0
    outside: int = 0
    rows: int = 0
    offsets: int = 0
    aside: int = 0
    first: int = -1
    last: int = -1
    files: list[Written] = field(default_factory=list)
    aside_files: list[Written] = field(default_factory=list)
    times: list[Times] = field(default_factory=list)
    rescued: Rescued = NONE
    decoded: Done | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form; :meth:`from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Done:
        """Read what :meth:`as_dict` wrote."""
        times = [Times(OffsetRange.of(t["range"]), t["first"], t["last"]) for t in data["times"]]
        files = {name: [Written(**file) for file in data[name]] for name in ("files", "aside_files")}
        decoded = None if data["decoded"] is None else cls.from_dict(data["decoded"])
        span, rescued = OffsetRange.of(data["range"]), Rescued(**data["rescued"])
        return cls(**{**data, **files, "range": span, "times": times, "rescued": rescued, "decoded": decoded})


class Task(Protocol):
    """What is done with each range of a batch. It can be pickled."""

    def process(self, reader: RangeReader, span: OffsetRange) -> Done:
        """Write the files of one range.

        Raises
        ------
        UnreadableError
            If the range cannot be read to its end, or its records are not for Arrow. It leaves no file then.
        OSError
            If the files cannot be written.
        """


def work(tasks: Sequence[Task], source: Input, share: Sequence[tuple[int, OffsetRange]]) -> list[tuple[int, Done]]:
    """Process the ranges of one share, in order.

    Each range has files of its own. If it cannot be read to its end, it is declined, and its files are removed. If no
    record came at all, the ranges after it are declined, too.

    Parameters
    ----------
    share
        Ranges, each with the number of its task.

    Returns
    -------
    The ranges, each with the number of its task.

    Raises
    ------
    OSError
        If the files cannot be written.
    """
    done: list[tuple[int, Done]] = []
    with _uncollected(), source.opened() as reader:
        for at, (number, span) in enumerate(share):
            try:
                done.append((number, tasks[number].process(reader, span)))
            except SilentError as error:
                return [*done, *((n, Done(other, declined=str(error))) for n, other in share[at:])]
            except UnreadableError as error:
                done.append((number, Done(span, declined=str(error))))
    return done


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let the collector of reference cycles rest: there are none, and it would look at each record again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class Decoding:
    """Decodes records into rows of the sink, each range to files of its own.

    Parameters
    ----------
    rules
        Where a decoded record breaks a row rule. It is set aside, and the Spark path names the rule.
    codec
        The compression of the Parquet files.
    partition_by
        Partition columns of the sink.
    folder
        The folder of the batch's files. It exists.
    aside
        The folder of the files with doubtful records. It exists.
    width
        The number of offsets for which record times are noted together.
    within
        Record times in milliseconds since 1970, from the first until before the second; records with another one are
        counted and left out. None means all records.
    rescues
        Whether the decoded columns have one with unknown fields.
    headers
        Columns behind the decoded ones, each with the name of the header that it has.
    split
        Marks the rows that might break a row rule of the suite. Their records are set aside, and Spark decides.
    """

    decoder: ChunkDecoder
    rules: tuple[Condition, ...]
    transform: Transform | None
    schema: pa.Schema
    run_id: str
    codec: str
    partition_by: tuple[str, ...]
    folder: str
    aside: str
    width: int
    within: tuple[int, int] | None = None
    rescues: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    split: RowRules | None = None

    def process(self, reader: RangeReader, span: OffsetRange) -> Done:
        """Write the files of one range; see :class:`Task`."""
        kept = Files(self.folder, self.schema, self.codec, partition_by=self.partition_by)
        with kept as rows, Files(self.aside, RECORDS) as aside:
            done = self._process(reader, span, rows, aside)
            done.files, done.aside_files = rows.keep(), aside.keep()
        return done

    def _process(self, reader: RangeReader, span: OffsetRange, rows: Files, aside: Files) -> Done:
        done = Done(span)
        clock = _Clock(span, self.width)
        for chunk in reader.read(span):
            _refuse_times(chunk)
            clock.note(chunk)
            done.read += len(chunk.offsets)
            inside = self._inside(chunk)
            done.outside += len(chunk.offsets) - len(inside.offsets)
            if not len(inside.offsets):
                continue
            try:
                table, left = self._decoded(done, inside)
            except pa.ArrowInvalid as error:  # of a rule or the transform: it means what it means to Spark
                raise UnreadableError(f"an expression fails: {error}") from error
            if len(left):
                aside.add(inside.chosen(left).records())
                done.aside += len(left)
                if done.read >= _TRIAL and done.aside > _TOO_MANY * done.read:
                    why = f"{done.aside:,} of {done.read:,} records are not of the form that Arrow decodes"
                    raise UnreadableError(why)
            if table.num_rows:
                first, last, count = _distinct(table.column("_offset").to_numpy())
                done.first = first if done.first < 0 else done.first
                done.last = last
                done.offsets += count  # a chunk's records are in no other chunk
                done.rows += table.num_rows
                rows.add(table)
        done.times = clock.times()
        return done

    def _inside(self, chunk: Chunk) -> Chunk:
        if self.within is None:
            return chunk
        start, end = self.within
        inside = (chunk.times >= start) & (chunk.times < end)
        return chunk if inside.all() else chunk.chosen(np.flatnonzero(inside))

    def _decoded(self, done: Done, chunk: Chunk) -> tuple[pa.Table, Any]:
        """Return the rows of a chunk, and the numbers of the records that are set aside."""
        span = done.range
        values = chunk.values()
        found = self.decoder.decode(values, chunk.keys() if self.decoder.keyed else ())
        if self.headers:
            found = with_headers(found, chunk.headers(), self.headers)
        chosen = found.kept if found.kept is not None else slice(None)
        offsets, times = chunk.offsets[chosen], chunk.times[chosen]
        count = len(offsets)
        meta = [
            pa.repeat(pa.scalar(span.topic, pa.string()), count),
            pa.repeat(pa.scalar(span.partition, pa.int32()), count),
            pa.array(offsets, pa.int64()),
            pa.array(times * 1000, pa.int64()).cast(UTC),
        ]
        source = pa.Table.from_arrays(
            [*found.columns.columns, *meta], schema=pa.schema([*found.columns.schema, *METADATA])
        )  # fmt: skip
        kept = found.kept
        for rule in self.rules:
            breaks = np.asarray(rule(source), dtype=bool)
            if breaks.any():
                sound = np.flatnonzero(~breaks)
                source = source.take(pa.array(sound))
                kept = sound if kept is None else kept[sound]
        made = source if self.transform is None else self.transform.apply(source)
        run = pa.repeat(pa.scalar(self.run_id, pa.string()), made.num_rows)
        table = pa.Table.from_arrays([*made.columns, run], schema=self.schema)
        marked = None if self.split is None else self.split.marked(table)
        if marked is not None:
            refused = table.column("_offset").to_numpy()[marked]  # of this chunk's records, each is one record's
            table = table.filter(pa.array(~np.isin(table.column("_offset").to_numpy(), refused)))
            sound = np.flatnonzero(~np.isin(source.column("_offset").to_numpy(), refused))
            source = source.take(pa.array(sound))
            kept = sound if kept is None else kept[sound]
        if self.rescues:
            done.rescued |= Rescued.of(names_of(source.column(RESCUED).to_pylist()))
        if kept is None:
            return table, ()
        left = np.ones(len(values), dtype=bool)
        left[kept] = False
        return table, np.flatnonzero(left)


@dataclass(frozen=True)
class Copying:
    """Writes records as they are, each range to a file of its own.

    Parameters
    ----------
    folder
        The folder of the files. It exists.
    decoding
        Decodes the same records, so that they are read once for both. Whatever fails in it, the records are copied.
    """

    folder: str
    decoding: Decoding | None = None

    def process(self, reader: RangeReader, span: OffsetRange) -> Done:
        """Write the file of one range; see :class:`Task`."""
        done = Done(span)
        with Files(self.folder, RECORDS, checked=True, statistics=_TOLD) as files:
            copied = _Copied(reader.read(span), files)
            if self.decoding is not None:
                try:
                    done.decoded = self.decoding.process(copied, span)
                except Exception as error:
                    done.decoded = Done(span, declined=str(error) or type(error).__name__)
            for _ in copied:
                pass
            done.read = copied.records
            done.files = files.keep()
        return done


class _Copied:
    """The chunks of a range, each written to a file before it is given on. An error is raised again and again."""

    def __init__(self, chunks: Iterator[Chunk], files: Files) -> None:
        self._chunks, self._files = chunks, files
        self._error: Exception | None = None
        self.records = 0

    def read(self, span: OffsetRange) -> Iterator[Chunk]:
        """Return the chunks that are left, whatever the range: it is the one that they are of."""
        return self

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        if self._error is not None:
            raise self._error
        try:
            chunk = next(self._chunks)
            _refuse_times(chunk)
            self._files.add(chunk.records())
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            raise
        self.records += len(chunk.offsets)
        return chunk


def _distinct(offsets: Any) -> tuple[int, int, int]:
    """Return the least offset, the greatest one, and how many different ones there are; at least one."""
    steps = np.diff(offsets)
    if (steps < 0).any():  # a transform may change the order of rows
        offsets = np.sort(offsets)
        steps = np.diff(offsets)
    return int(offsets[0]), int(offsets[-1]), 1 + int(np.count_nonzero(steps))


def _refuse_times(chunk: Chunk) -> None:
    if (chunk.times < 0).any():
        raise UnreadableError("there is a record without a time, or from before 1970")
    if (chunk.times > LATEST).any():  # its microseconds would wrap around
        raise UnreadableError("there is a record whose time is too late for a TIMESTAMP")


class _Clock:
    """Notes the record times of a range, by parts of one width."""

    def __init__(self, span: OffsetRange, width: int) -> None:
        self._span, self._width = span, width
        self._found: dict[int, tuple[int, int]] = {}

    def note(self, chunk: Chunk) -> None:
        parts = (chunk.offsets - self._span.start) // self._width
        cuts = np.flatnonzero(np.diff(parts)) + 1
        for times, part in zip(np.split(chunk.times, cuts), parts[np.concatenate([[0], cuts])], strict=True):
            low, high = self._found.get(int(part), (1 << 62, -(1 << 62)))
            self._found[int(part)] = min(low, int(times.min())), max(high, int(times.max()))

    def times(self) -> list[Times]:
        """Return the times of all parts of the range."""
        s, noted = self._span, []
        for part, start in enumerate(range(s.start, s.end, self._width)):
            piece = OffsetRange(s.topic, s.partition, start, min(start + self._width, s.end))
            noted.append(Times(piece, *self._found[part]) if part in self._found else Times.none(piece))
        return noted
