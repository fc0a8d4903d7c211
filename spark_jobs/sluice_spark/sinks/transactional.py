"""What sinks with transactions share: a batch is committed once, as a whole, and not after a rival of the fence.

:meth:`TransactionalSink.transaction` begins a transaction, or reads the state that a commit will follow. If another
program commits first, the commit fails, and everything is checked again: a commit always follows the state that was
checked.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from pyspark.sql.types import StructType

from sluice.delta.names import owner
from sluice.errors import START_OVER, ConfigError, SinkError
from sluice_spark.sinks.base import Fence, Staged, TakenBackError, overtaken
from sluice_spark.sinks.parquet.staging import StagesParquet

__all__ = ["Change", "TransactionalSink"]

S = TypeVar("S")
Key = tuple[str, int]

_ATTEMPTS = 20


@dataclass
class Change:
    """What one transaction does to a sink.

    Parameters
    ----------
    gone
        The slice whose rows are removed; None if rows are only added.
    staged, schema, version, name, check
        As for :meth:`TransactionalSink.replace`.
    note
        The commit metadata. It includes ``app_id``, ``version`` and ``attempt``, an id of this attempt alone.

    Attributes
    ----------
    counts
        How many offsets are removed, per topic and partition.
    made
        Whether :meth:`TransactionalSink.put` has put it into the transaction.
    """

    gone: Any
    staged: Staged
    schema: StructType
    version: int
    note: dict[str, Any]
    name: str = ""
    check: Callable[[Mapping[Key, Any]], None] = lambda _: None
    counts: dict[Key, int] = field(default_factory=dict)
    made: bool = False

    def removes(self, offsets: Mapping[Key, Any]) -> None:
        """Check that these offsets may be removed, and take them into the commit metadata: ``replaced``."""
        self.check(offsets)
        self.counts = {key: len(numbers) for key, numbers in offsets.items()}
        self.note["replaced"] = [[*key, count] for key, count in sorted(self.counts.items())]


class TransactionalSink(StagesParquet, ABC, Generic[S]):
    """A sink that commits a batch, its number and its metadata in one transaction.

    Parameters
    ----------
    path
        The sink in words, for messages: a path, or ``table NAME``.
    app_id
        The id of the writer, such as a pipeline's epoch; each writer counts its own batches.
    staging
        The folder below which files are staged.
    """

    key: ClassVar[str]
    """The key of the pipeline file that names another place, such as ``sink.files.path``."""
    noun: ClassVar[str] = "table"
    """The kind of place, in a sentence."""
    lost_files = "run again"
    """What to do if staged files are gone."""

    def __init__(self, path: str, app_id: str, staging: str = "") -> None:
        self.path, self.app_id, self._staging = path, app_id, staging
        self.partition_by: list[str] = []
        self.owner = str(owner({"app_id": app_id}))
        self._reached = -1

    @property
    def staging(self) -> str:
        """The folder below which files are staged."""
        return self._staging

    @property
    def shown(self) -> str:
        """The sink in a sentence."""
        return f"the {self.path}"

    def version(self) -> int:
        """Return the highest batch that this writer committed; -1 if there is none."""
        found = self.newest()
        self._reached = max(self._reached, found)
        return found

    # --- what a sink says of its transactions --------------------------------------------------------------------

    @abstractmethod
    def newest(self) -> int:
        """Return the highest batch that this writer committed; -1 if there is none."""

    @abstractmethod
    def transaction(self, change: Change) -> AbstractContextManager[S]:
        """Begin a transaction that sees the sink's newest state; commit it at the end, if the change was made.

        An error after which the change is in the sink all the same, because an answer got lost, is suppressed.
        """

    @abstractmethod
    def let_pass(self, state: S) -> None:
        """Refuse a sink of another pipeline, or one whose commits were taken back."""

    @abstractmethod
    def batch_of(self, state: S, writer: str) -> int:
        """Return the highest batch of a writer; -1 if there is none."""

    @abstractmethod
    def since(self, state: S, version: int) -> Iterable[Mapping[str, Any]]:
        """Return the commit metadata of all commits after a version."""

    @abstractmethod
    def put(self, state: S, change: Change) -> bool:
        """Make the change; return False if another program committed since the state was read."""

    def has(self, state: S, change: Change) -> bool:
        """Return whether an earlier attempt at this very change was committed, and its answer got lost."""
        return False

    # --- commit ---------------------------------------------------------------------------------------------------

    def is_cut_off(self) -> bool:
        """Return False: a transaction is there whole, or not at all."""
        return False

    def commit(
        self,
        staged: Staged,
        schema: StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        fence: Fence | None = None,
    ) -> bool:
        """Commit staged rows in one transaction, with the batch's number and metadata; also without rows.

        Returns
        -------
        bool
            False if this writer committed this batch before; nothing was changed then.

        Raises
        ------
        LeaseHeldError
            If a rival committed after the fence's version.
        ConfigError, CheckpointError
            As :meth:`examine`, and if the sink does not fit.
        RowsRefusedError
            If the sink refuses rows because of their values.
        SinkError
            If the sink cannot be reached, or staged files are gone.
        """
        return self._once(self._change(None, staged, schema, version, note), fence) is not None

    def check_replaceable(self) -> None:
        """Do nothing: rows of each such sink can be replaced."""

    def replace(
        self,
        gone: Any,
        staged: Staged,
        schema: StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        name: str,
        check: Callable[[Mapping[Key, Any]], None] = lambda _: None,
        fence: Fence | None = None,
    ) -> dict[Key, int] | None:
        """Remove the rows of a slice and add staged ones, in one transaction; see :meth:`commit`.

        Files with rows to remove and rows to keep are rewritten without the former.

        Returns
        -------
        dict or None
            How many offsets were removed, per topic and partition; None if the batch was committed before.
        """
        return self._once(self._change(gone, staged, schema, version, note, name, check), fence)

    def _change(self, gone: Any, staged: Staged, schema: StructType, version: int, note: Any, *more: Any) -> Change:
        full = {**note, "app_id": self.app_id, "version": version, "attempt": uuid.uuid4().hex}
        return Change(gone, staged, schema, version, full, *more)

    def _once(self, change: Change, fence: Fence | None) -> dict[Key, int] | None:
        for _ in range(_ATTEMPTS):
            with self.transaction(change) as state:
                self.let_pass(state)
                found = self.batch_of(state, self.app_id)
                self._refuse_lost(found)
                if found >= change.version:
                    return change.counts if self.has(state, change) else None
                if fence is not None:
                    self._keep_out(state, fence)
                self.refuse_missing(change.staged, self.lost_files)
                change.made = self.put(state, change)
            if change.made:
                self._reached = change.version
                return change.counts
        raise SinkError(
            f"others commit to {self.shown} all the time: {_ATTEMPTS} attempts failed",
            state="nothing of this batch was committed",
            next_step="run again when fewer others write to it",
        )

    def _refuse_lost(self, found: int) -> None:
        """Refuse a sink that lacks a batch which this run has seen in it: all of its rows may be gone."""
        if found < self._reached:
            raise TakenBackError(
                f"{self.shown} no longer has batch {self._reached}, which it had in this run: it was dropped, emptied "
                "or put back meanwhile",
                state="nothing of this batch was committed; what was committed before is not in the sink any more",
                next_step=f"restore it to its newest state, and run again; or, to start over, {START_OVER}",
            )

    def _keep_out(self, state: S, fence: Fence) -> None:
        for note in filter(fence.rival, self.since(state, fence.since)):
            raise overtaken(
                f"(run {note.get('run')!r}) committed to {self.shown} while this one was at work on the same records",
                state="this driver did not commit this batch; its earlier commits stay",
                next_step="run the same command again",
            )

    # --- errors ---------------------------------------------------------------------------------------------------

    def refuse_other(self, other: str | None) -> None:
        """Refuse a sink that another pipeline writes to."""
        if other not in (None, self.owner):
            raise ConfigError(
                f"{self.shown} belongs to pipeline {other!r}: two pipelines in one {self.noun} would replace, redrive "
                "and validate each other's rows",
                state="nothing was read or written",
                next_step=f"give {self.owner!r} another {self.key}",
            )

    def refuse_misfits(self, problems: Sequence[str], *, since: bool = False) -> None:
        """Refuse rows that do not fit the sink.

        Parameters
        ----------
        since
            Whether they did when the run began.
        """
        if problems:
            raise ConfigError(
                f"{self.shown} does not fit the pipeline{' any more' if since else ''}: {'; '.join(problems[:8])}",
                state="nothing of this batch was committed"
                if since
                else "nothing was read or written; the position stays where it was",
                next_step="change it back, then run again"
                if since
                else f"change it or the pipeline file so that they match; or, to start over, {START_OVER}",
            )
