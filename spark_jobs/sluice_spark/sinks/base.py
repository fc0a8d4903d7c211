"""What a run asks of its sink, whichever it is.

A batch's rows are staged, read back, accounted for, and committed with a mark: the writer's id, the batch's number and
the commit metadata, in the sink's own transaction. Nobody sees staged rows before that. What makes a crash harmless is
that :meth:`Sink.commit` is atomic, and that it enters a batch of a writer once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.errors import CheckpointError, LeaseHeldError

__all__ = [
    "NOTHING",
    "Fence",
    "ReadableSink",
    "ReplaceableSink",
    "Sink",
    "Staged",
    "StagedFile",
    "TakenBackError",
    "Tally",
    "overtaken",
]


@dataclass(frozen=True)
class Tally:
    """Rows and offsets of one partition in staged files."""

    rows: int
    offsets: int
    first: int
    last: int


@dataclass(frozen=True)
class StagedFile:
    """One Parquet file below the table's root, as the Delta log will name it."""

    path: str
    size: int
    modified: int
    rows: int
    partition_values: Mapping[str, str | None]
    stats: str


@dataclass(frozen=True)
class Staged:
    """What a write left in its folder. Nobody sees it until it is committed."""

    folder: str
    files: tuple[StagedFile, ...]
    tallies: Mapping[tuple[str, int], Tally]

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)


NOTHING = Staged("", (), {})
"""What a batch leaves that has no rows."""


@dataclass(frozen=True)
class Fence:
    """What other writers of the same table must not have committed in the meantime, whatever leases say.

    A lease lapses while its driver is frozen; the table's log is what both drivers have in common.

    Parameters
    ----------
    since
        The version of the table that the driver rests its decisions on; -1 where there was none.
    rival
        Tells by the metadata of a commit behind it whether that is in the way.
    """

    since: int
    rival: Callable[[Mapping[str, Any]], bool]


class TakenBackError(CheckpointError):
    """Commits of the pipeline, or records that they name, are no longer part of the table."""


def overtaken(what: str, *, state: str, next_step: str) -> LeaseHeldError:
    """Return the error of a driver whose commit came second: ``what`` was done by another one first."""
    return LeaseHeldError(f"another driver {what} first", state=state, next_step=next_step)


class Sink(Protocol):
    """Where one writer's batches go. It need not exist before the first commit, and is made by that.

    Attributes
    ----------
    path
        Where it is, for messages.
    app_id
        The writer: it counts its batches by itself, and names the pipeline.
    partition_by
        The columns by which its files are partitioned.
    """

    path: str
    app_id: str
    partition_by: list[str]

    def examine(self) -> list[str]:
        """Look at what others did since this pipeline's newest commit; return in words what may concern rows.

        Raises
        ------
        ConfigError
            When it is another pipeline's.
        CheckpointError
            When commits of this pipeline were rolled back.
        """

    def is_cut_off(self) -> bool:
        """Tell whether its newest commit was damaged, as by a power cut, so that readers no longer see it."""

    def version(self) -> int:
        """Return the highest batch that this writer committed; -1 for none."""

    def notes(self, newer_than: int) -> Iterator[dict[str, Any]]:
        """Yield the commit metadata of this writer's batches above a number, newest first, with ``version``."""

    def check(self, schema: StructType) -> None:
        """Raise a :class:`~sluice.errors.ConfigError` when rows of this schema do not fit what is there."""

    def as_it_is(self) -> tuple[Sink, StructType] | None:
        """Return the sink and the columns that it has, for a commit without rows; None where there is none yet."""

    def stage(self, rows: DataFrame, batch: str, *, offsets: bool = True) -> Staged:
        """Write rows to where nobody sees them, in one pass, and read back what is there.

        Parameters
        ----------
        batch
            Names the batch; what earlier attempts at it left is found by this name.
        offsets
            Whether the rows have ``_topic``, ``_partition`` and ``_offset``, to be counted by partition.
        """

    def staged_rows(self, spark: SparkSession, staged: Staged, schema: StructType) -> DataFrame:
        """Return the rows that were staged."""

    def staged_offsets(self, staged: Staged) -> dict[tuple[str, int], Any]:
        """Return the offsets of staged rows per topic and partition, ascending, each once."""

    def commit(
        self,
        staged: Staged,
        schema: StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        fence: Fence | None = None,
    ) -> bool:
        """Make staged rows visible together with their mark, whole or not at all; an empty batch is a commit, too.

        Returns
        -------
        bool
            False when this writer committed this batch before: nothing was changed.

        Raises
        ------
        LeaseHeldError
            When another driver committed it just now.
        SinkError
            When it cannot be written; the next run finds out whether it was.
        """

    def sweep(self, batch: str) -> None:
        """Discard what attempts at a batch left that no commit entered."""


class ReplaceableSink(Sink, Protocol):
    """A sink of which rows can be taken out in the transaction that enters others."""

    def check_replaceable(self) -> None:
        """Raise a :class:`~sluice.errors.ConfigError` when the state of this one forbids it."""

    def table_version(self) -> int:
        """Return the number of the newest commit, whoever's; -1 where there is none."""

    def ahead_of(self, known: Mapping[str, int]) -> set[str]:
        """Return which of these writers committed a higher batch than the one given; in one look."""

    def held(self, gone: Any) -> dict[tuple[str, int], Any]:
        """Return the offsets of a slice that it holds, per topic and partition, ascending."""

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
        """Take the rows of a slice out and enter staged ones, in one transaction.

        Returns
        -------
        dict or None
            How many offsets went, per topic and partition; None when the batch was committed before.
        """


class ReadableSink(Sink, Protocol):
    """A sink whose rows can be read back, by the runs that wrote them."""

    def rows_of(self, spark: SparkSession, runs: Sequence[str]) -> tuple[DataFrame, int]:
        """Return the rows that these runs wrote, and how many there are."""

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows."""
