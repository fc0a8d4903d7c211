"""The steps of a batch, from the event that begins it to the event that records it: one list for each kind of run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from sluice.faults import point
from sluice.ledger import Lease
from sluice.ledger.events import BatchStarted, Event, batch_committed
from sluice.ranges import OffsetRange
from sluice_spark.batch.writer import BEHIND, BatchWriter, Places, PreparedBatch
from sluice_spark.engine.tasks import watched
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import Fence, RowsRefusedError

__all__ = ["BatchSteps"]


@dataclass
class BatchSteps(ABC):
    """A batch on its way from its ranges into tables and ledger.

    Parameters
    ----------
    number
        The batch's number under the application id of ``tables``.
    ranges
        Its planned ranges.
    writer
        Stages and commits it; another one takes its place if the sink refuses rows.
    label
        Names the batch to users while Spark works.
    fence
        Refuses the commit if a rival committed first.

    Notes
    -----
    Killed before ``commit`` has changed the sink, the batch has changed no table, and the next run prepares it again.
    Killed later, the next run first finishes it: :func:`sluice_spark.runs.reconcile.reconcile`.
    """

    context: RunContext
    lease: Lease
    spark: SparkSession
    tables: Tables
    number: int
    ranges: Sequence[OffsetRange]
    writer: BatchWriter
    label: str = field(kw_only=True)
    fence: Fence | None = field(default=None, kw_only=True)
    prepared: PreparedBatch = field(init=False)

    def execute(self) -> None:
        """Do the steps in their order; those from ``prepare`` to ``commit`` again without records that a sink refuses.

        Raises
        ------
        SluiceError
            By type, from the step that failed.
        """
        self.begin()
        while True:
            try:
                if not self.prepare():
                    return self.sweep()
                self.admit()
                self.share()
                self.verify()
                self.commit()
                break
            except RowsRefusedError as error:
                self.leave_out(error)
        self.sweep()
        self.record()

    def begin(self) -> None:
        """Record the batch before any row is made: another attempt then joins the same versions of tables."""
        with self.context.watch.phase("ledger"):
            started = BatchStarted(
                epoch=self.tables.epoch.number,
                batch=self.number,
                ranges=self.ranges,
                tables=self.writer.lookups.as_dict(),
            )
            self.context.ledger.record(self.lease, started)
        point("batch-started")

    def prepare(self) -> bool:
        """Stage the batch and measure its profile; return False if nothing is left of it."""
        with self.context.watch.phase("batches"), watched(self.spark, self.label):
            staged = self.stage()
            if staged is not None:
                self.prepared = self.writer.profiled(staged)
        return staged is not None

    @abstractmethod
    def stage(self) -> PreparedBatch | None:
        """Stage rows and refused records, and account for each offset; None if nothing is left. Commits nothing."""

    def admit(self) -> None:
        """Judge the batch, if it is judged before it is published."""
        with self.context.watch.phase("judging"):
            self.context.gate.admit(self.lease, self.spark, self.writer, self.prepared, self.awaited)

    @property
    def awaited(self) -> tuple[int, int] | None:
        """Epoch and number, if a user may accept the batch; None if its run can simply be repeated."""
        return None

    def share(self) -> None:
        """Stage the rows for further sinks, too."""
        if self.writer.also:
            with self.context.watch.phase("batches"), watched(self.spark, f"{self.label} for further sinks"):
                self.prepared = self.writer.shared(self.spark, self.prepared, self.name)

    def verify(self) -> None:
        """Check that the batch may be committed: what was read is what was planned, and this driver has its lease."""
        with self.context.watch.phase("ledger"):
            self.lease.verify()

    def commit(self) -> None:
        """Commit to sink, quarantine and further sinks, in this order."""
        with self.context.watch.phase("commits"):
            self.writer.commit(
                self.number, self.prepared, self.note(), self.name, places=self.places(), fence=self.fence
            )

    def note(self) -> dict[str, Any]:
        """Return what the sink's commit says beside the account."""
        return {}

    def places(self) -> Places:
        """Return how the batch replaces rows and refused records; by default it is appended."""
        return BEHIND

    def leave_out(self, error: RowsRefusedError) -> None:
        """Prepare to stage the batch again without the records of refused rows; raise the error if that cannot be."""
        self.writer = self.writer.without(error, self.prepared.staged)
        self.context.gate.forget()

    def sweep(self) -> None:
        """Remove what other attempts staged. Before the ledger has the batch: the next run does it otherwise."""
        self.tables.sweep(self.number)

    def record(self) -> None:
        """Record account and facts in the ledger, in one transaction."""
        with self.context.watch.phase("ledger"):
            self.context.ledger.record(self.lease, *self.events())
        point("batch-recorded")

    def events(self) -> list[Event]:
        """Return the events of the committed batch."""
        facts = [self.tables.evolved(self.number), *self.prepared.facts]
        accounts = self.prepared.accounts
        return batch_committed(self.tables.epoch.number, self.number, accounts, facts=facts, **self.recorded())

    def recorded(self) -> dict[str, Any]:
        """Return what the events say beside account and facts: arguments of :func:`batch_committed`."""
        return {}

    @property
    def name(self) -> str:
        """The name of the batch's folders."""
        return self.tables.batch_name(self.number)
