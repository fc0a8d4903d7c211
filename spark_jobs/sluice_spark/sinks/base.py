"""The interface between a run and its sink.

A batch's rows are staged, read back, accounted for, and committed together with the writer's id, the batch number and
the commit metadata in a transaction of the sink. Readers do not see staged rows. A crash is harmless because
:meth:`Sink.commit` is atomic and idempotent: it commits a writer's batch at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.errors import CheckpointError, LeaseHeldError, SinkError
from sluice.facts.profile import ColumnProfile
from sluice.fields import TAKES_AWAY

__all__ = [
    "MOST",
    "NOTHING",
    "AcceptingSink",
    "ComparableSink",
    "EvolvingSink",
    "Fence",
    "OrderedSink",
    "ReadableSink",
    "Refusal",
    "ReplaceableSink",
    "Replacing",
    "RowsRefusedError",
    "SettlingSink",
    "Sink",
    "Staged",
    "StagedFile",
    "TakenBackError",
    "Tally",
    "of_table",
    "overtaken",
]


def of_table(schema: StructType) -> StructType:
    """Return the columns of staged rows that the table gets: all but the one that says of a row that it deletes."""
    return StructType([field for field in schema.fields if field.name != TAKES_AWAY])


@dataclass(frozen=True)
class Tally:
    """The number of rows and of distinct offsets of one partition in staged files, with first and last offset."""

    rows: int
    offsets: int
    first: int
    last: int

    def __or__(self, other: Tally) -> Tally:
        """Return the tally of both; no offset may be in both."""
        return Tally(
            self.rows + other.rows,
            self.offsets + other.offsets,
            min(self.first, other.first),
            max(self.last, other.last),
        )


@dataclass(frozen=True)
class StagedFile:
    """One Parquet file below the table's root, with its entry for the Delta log."""

    path: str
    size: int
    modified: int
    rows: int
    partition_values: Mapping[str, str | None]
    stats: str
    columns: Mapping[str, ColumnProfile] = field(default_factory=dict)
    """What the file says of its columns."""


@dataclass(frozen=True)
class Staged:
    """The files of one write. Readers do not see them until they are committed."""

    folder: str
    files: tuple[StagedFile, ...]
    tallies: Mapping[tuple[str, int], Tally]

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def batch(self) -> str:
        """The name of the batch whose files these are; there is at least one."""
        return self.files[0].path.split("/")[1].rpartition("-")[0]

    def __or__(self, other: Staged) -> Staged:
        """Return the files of both writes, as one; no offset may be in both."""
        tallies = dict(self.tallies)
        for key, tally in other.tallies.items():
            tallies[key] = tallies[key] | tally if key in tallies else tally
        return Staged(self.folder or other.folder, (*self.files, *other.files), tallies)


NOTHING = Staged("", (), {})
"""The staged files of a batch without rows."""


@dataclass(frozen=True)
class Fence:
    """A condition on the table's log under which a commit is refused, independent of leases.

    A lease expires while its driver is frozen, but both drivers see the same table log.

    Parameters
    ----------
    since
        The version of the table on which the driver's decisions are based; -1 if there was no table.
    rival
        Returns, from the metadata of a later commit, whether it conflicts.
    """

    since: int
    rival: Callable[[Mapping[str, Any]], bool]


class TakenBackError(CheckpointError):
    """Commits of the pipeline were rolled back, or files that they name are gone."""


MOST = 10_000
"""If a sink refuses more rows of a batch than this, the table is wrong, and no value."""


@dataclass(frozen=True)
class Refusal:
    """Why a sink refuses the row of a record.

    Parameters
    ----------
    detail
        The sink's own words.
    column
        The column of the value, if the sink names one.
    """

    detail: str
    column: str | None = None


class RowsRefusedError(SinkError):
    """A sink refuses rows because of their values. Nothing of the batch was committed.

    Parameters
    ----------
    rows
        The refused rows, by topic, partition and offset; without them, all others of the batch fit. Empty if they are
        not known, or if rows do not say of which records they are.
    """

    def __init__(
        self,
        what: str,
        *,
        state: str = "",
        next_step: str = "",
        rows: Mapping[tuple[str, int, int], Refusal] | None = None,
    ) -> None:
        super().__init__(what, state=state, next_step=next_step)
        self.rows = rows or {}


def overtaken(what: str, *, state: str, next_step: str) -> LeaseHeldError:
    """Return the error of a driver whose commit came second: ``what`` was done by another one first."""
    return LeaseHeldError(f"another driver {what} first", state=state, next_step=next_step)


class Sink(Protocol):
    """The sink of one writer's batches. The first commit creates it.

    Attributes
    ----------
    path
        Where the sink is, for messages.
    app_id
        The id of the writer, which contains the pipeline's name; each writer counts its own batches.
    partition_by
        Partition columns of the sink.
    """

    path: str
    app_id: str
    partition_by: list[str]

    @property
    def staging(self) -> str | None:
        """The path or URL below which it stages Parquet files; None if it stages in another way."""

    def examine(self) -> list[str]:
        """Check what others committed since this pipeline's newest commit; return warnings about changed rows.

        Raises
        ------
        ConfigError
            If the sink belongs to another pipeline.
        CheckpointError
            If commits of this pipeline were rolled back.
        """

    def is_cut_off(self) -> bool:
        """Return whether the newest commit was damaged, for example by a power cut, so that readers do not see it."""

    def version(self) -> int:
        """Return the highest batch number that this writer committed; -1 if there is none."""

    def notes(self, newer_than: int) -> Iterator[dict[str, Any]]:
        """Yield the commit metadata of this writer's batches above a number, newest first, with ``version``."""

    def check(self, schema: StructType) -> None:
        """Raise a :class:`~sluice.errors.ConfigError` if rows of this schema do not fit the existing sink."""

    def as_it_is(self) -> tuple[Sink, StructType] | None:
        """Return the sink with its present columns, for a commit without rows; None if it does not exist yet."""

    def stage(self, rows: DataFrame, batch: str, *, offsets: bool = True) -> Staged:
        """Write rows where readers do not see them, in one pass, and read the files back.

        Parameters
        ----------
        batch
            The name of the batch, by which leftovers of earlier attempts are found.
        offsets
            Whether the rows have ``_topic``, ``_partition`` and ``_offset``, which are then counted per partition.
        """

    def staged_rows(self, spark: SparkSession, staged: Staged, schema: StructType) -> DataFrame:
        """Return the staged rows."""

    def staged_offsets(self, staged: Staged) -> dict[tuple[str, int], Any]:
        """Return the distinct offsets of staged rows per topic and partition, ascending."""

    def commit(
        self,
        staged: Staged,
        schema: StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        fence: Fence | None = None,
    ) -> bool:
        """Commit staged rows atomically, together with writer id, batch number and metadata; also without rows.

        Returns
        -------
        bool
            False if this writer committed this batch before; nothing was changed then.

        Raises
        ------
        LeaseHeldError
            If another driver committed the batch meanwhile.
        RowsRefusedError
            If values of some rows do not fit; the run then leaves their records out, and commits the batch again.
        SinkError
            If the sink cannot be written; the next run finds out whether the batch was committed.
        """

    def sweep(self, batch: str) -> None:
        """Remove the leftovers of uncommitted attempts at a batch."""


@runtime_checkable
class AcceptingSink(Protocol):
    """A sink that can be taken as it is, although commits were rolled back."""

    def accept(self) -> None:
        """Give up commits that were rolled back or replaced."""


@runtime_checkable
class SettlingSink(Protocol):
    """A sink that keeps something of committed batches for a while."""

    def settled(self) -> None:
        """Remove what is older than that. All runs are judged, and no batch is being staged."""


@runtime_checkable
class OrderedSink(Protocol):
    """A sink that takes the rows of each source partition in the order of their offsets."""

    ordered: bool


@runtime_checkable
class ComparableSink(Protocol):
    """A sink that can be compared with what a restored ledger knows of its writers."""

    def ahead_of(self, known: Mapping[str, int]) -> set[str]:
        """Return which of these writers committed a higher batch than the given one."""


@runtime_checkable
class Replacing(ComparableSink, Protocol):
    """The part of a :class:`ReplaceableSink` that others lack."""

    def check_replaceable(self) -> None:
        """Raise a :class:`~sluice.errors.ConfigError` if the present state of the sink does not allow that."""

    def table_version(self) -> int:
        """Return the number of the newest commit of any writer; -1 if there is none."""

    def held(self, gone: Any) -> dict[tuple[str, int], Any]:
        """Return the offsets of a slice that the sink holds, per topic and partition, ascending."""

    def replace(
        self,
        gone: Any,
        staged: Staged,
        schema: StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        name: str,
        check: Callable[[Mapping[tuple[str, int], Any]], None] = ...,
        fence: Fence | None = None,
    ) -> dict[tuple[str, int], int] | None:
        """Remove the rows of a slice and add staged ones, in one transaction.

        Returns
        -------
        dict or None
            How many offsets were removed, per topic and partition; None if the batch was committed before.
        """


class ReplaceableSink(Sink, Replacing, Protocol):
    """A sink that can remove rows and add others in one transaction."""


class EvolvingSink(Sink, Protocol):
    """A sink whose commits can add columns; :meth:`Sink.check` lets such rows pass then."""

    def evolved(self, batch: int) -> list[dict[str, str]]:
        """Return what the commit of a batch added: ``column`` and ``type`` of each."""


class ReadableSink(Sink, Protocol):
    """A sink whose rows can be read back by the run that wrote them."""

    def rows_of(self, spark: SparkSession, runs: Sequence[str]) -> tuple[DataFrame, int]:
        """Return the rows that these runs wrote, and their number."""

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows."""
