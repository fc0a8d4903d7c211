"""Hands staged rows to a receiver that has no transaction, and then puts the batch on record: at least once.

The record is a manifest in the folder of staged files (:mod:`sluice.sinks.manifest`). A driver that dies while rows are
handed over has put nothing on record, and the next run hands all rows of the batch over again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from pyspark.sql.types import StructType

from sluice.delta.names import owner
from sluice.errors import START_OVER, CheckpointError, SinkError, described
from sluice.faults import point
from sluice.sinks.foreach import Batch
from sluice.sinks.manifest import BrokenManifestError, Manifest, State
from sluice_spark.sinks.base import Fence, Staged, overtaken
from sluice_spark.sinks.parquet.kept_files import KeepsStaged, kept_as
from sluice_spark.sinks.parquet.value_checks import refuse_beyond

__all__ = ["Outward"]

_MARKS = timedelta(days=8)
"""How far back marks are looked up for their staged files."""


class Outward(KeepsStaged, ABC):
    """A sink of a pipeline; whoever takes the rows is the subclass.

    Parameters
    ----------
    path
        The sink in words, for messages.
    staging
        The folder below which files are staged, of this pipeline alone.
    keep
        How long they are kept after their run is judged.
    app_id
        The id of the writer, such as a pipeline's epoch; each writer counts its own batches.
    """

    def __init__(self, path: str, staging: str, keep: timedelta, app_id: str) -> None:
        self.path, self.staging, self.keep, self.app_id = path, staging, keep, app_id
        self.partition_by: list[str] = []
        self._manifest = Manifest(staging)

    @abstractmethod
    def hand_over(self, staged: Staged, schema: StructType, batch: Batch) -> None:
        """Hand the rows of a batch over, maybe not for the first time.

        Raises
        ------
        SinkError
            If they are not taken.
        """

    def examine(self) -> list[str]:
        """Check that the record is whole; return no warnings.

        Raises
        ------
        CheckpointError
            If a part of it is missing or damaged.
        """
        self._state()
        return []

    def is_cut_off(self) -> bool:
        """Return False: what is on record is on the disk before it gets its name."""
        return False

    def version(self) -> int:
        """Return the highest batch of this writer that is on record; -1 if there is none."""
        return self._state().batches.get(self.app_id, -1)

    def notes(self, newer_than: int) -> Iterator[dict[str, Any]]:
        """Yield the commit metadata of this writer's batches above a number, newest first."""
        for _, note in self._manifest.notes():
            if note["app_id"] == self.app_id:
                if note["version"] <= newer_than:
                    return
                yield note

    def ahead_of(self, known: Mapping[str, int]) -> set[str]:
        """Return of which of these writers a higher batch than the given one is on record."""
        batches = self._state().batches
        return {writer for writer, batch in known.items() if batches.get(writer, -1) > batch}

    def as_it_is(self) -> tuple[Outward, StructType] | None:
        """Return the sink, which has no columns of its own; None before the first batch."""
        return (self, StructType([])) if self._state().version >= 0 else None

    def check(self, schema: StructType) -> None:
        """Do nothing: each row is taken."""

    def marks(self) -> Iterator[Mapping[str, Any]]:
        """Yield the commit metadata of the last days, newest first."""
        since = (time.time() - _MARKS / timedelta(seconds=1)) * 1000
        for _, note in self._manifest.notes():
            if note["sent"] < since:
                return
            yield note

    def commit(
        self,
        staged: Staged,
        schema: StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        fence: Fence | None = None,
    ) -> bool:
        """Hand staged rows over, and then put the batch on record.

        Returns
        -------
        bool
            False if the batch was on record before; nothing was handed over then.

        Raises
        ------
        LeaseHeldError
            If another driver put something on record meanwhile.
        SinkError
            If the rows are not taken, or staged files are gone.
        """
        state = self._state()
        if state.batches.get(self.app_id, -1) >= version:
            return False
        self.refuse_missing(staged, "run again")
        run = str(note["run"])
        pipeline, epoch = str(owner({"app_id": self.app_id})), self.app_id.split(":")[2]
        if staged.files:
            refuse_beyond(self.path, self.staging, staged, schema)
            try:
                self.hand_over(staged, schema, Batch(pipeline, epoch, version, run))
            except OverflowError as error:  # an aggregate tells no record
                raise SinkError(
                    f"{self.path} got a row with a date or time that Python does not have: {described(error)}",
                    state="rows of this batch before it were taken, and will be handed over again: at least once",
                    next_step="leave such dates out of the aggregate, or write them as text; run again",
                ) from error
        point("rows-handed-over")
        mark = {
            **note, "app_id": self.app_id, "version": version, "sent": int(time.time() * 1000),
            **kept_as(staged, schema),
        }  # fmt: skip
        try:
            recorded = self._manifest.commit(state, [], [], mark)
        except OSError as error:
            raise SinkError(
                f"it could not be put on record in {self.staging} that {self.path} took batch {version}: {error}",
                state="its rows were handed over, and the next run may hand them over again",
                next_step="run again when the folder can be written",
            ) from error
        if not recorded:
            raise overtaken(
                f"handed a batch to {self.path}",
                state="rows of this batch were handed over twice",
                next_step="run again",
            )
        return True

    def _state(self) -> State:
        try:
            return self._manifest.state()
        except BrokenManifestError as error:
            raise CheckpointError(
                f"the record of {self.path} in {self.staging}/_sluice is not whole: {error}",
                state="nothing was read or written",
                next_step=f"restore this folder from a copy; or, to start over, {START_OVER}",
            ) from None
