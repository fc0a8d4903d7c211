"""A run that takes rows out of the sink, and opens their offsets as lost, so that they can be redriven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sluice.errors import ConfigError, SinkError
from sluice.faults import point
from sluice.ledger import REDRIVEN, Lease
from sluice.ledger.events import BatchStarted, Degraded, rows_retracted
from sluice.ranges import OffsetRange
from sluice.run.actions import Retract
from sluice.run.retraction import Part, possible, standing, taken
from sluice_spark.engine.logs import logger
from sluice_spark.runs.epoch_end import emptied
from sluice_spark.runs.reconcile import RETRACTED
from sluice_spark.runs.redrive import REDRIVING, refuse_beside_intervals
from sluice_spark.runs.run import Run
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING, Fence, overtaken
from sluice_spark.sinks.parquet.slice import Slice

__all__ = ["RetractRun"]

_STRETCHES = 5000
"""Maximum number of gapless ranges of a retraction: its one commit names each."""

_KEPT = "nothing was retracted; the table and the ledger are unchanged"


@dataclass
class RetractRun(Run):
    """Takes what one run wrote, or the rows of some offsets, out of the sink, in one commit.

    Notes
    -----
    The commit counts among the redrives (epoch 0), and its metadata names what was taken from which account. If the
    driver dies, the next live run or redrive records it in the ledger. No Spark session is needed.
    """

    kind: ClassVar[str] = "retract"

    action: Retract

    def preview(self) -> list[dict[str, Any]]:
        """Return what would be retracted; nothing is changed, and no lease is needed."""
        possible(self.pipeline)
        return [part.as_dict() for part in self._parts(self.context.redriven())]

    def _drive(self, lease: Lease) -> str | None:
        possible(self.pipeline)
        self._reconciled(lease)
        tables = self.context.redriven()
        self._plan(lease, [], [], epoch=REDRIVEN)
        with self.ledger.acquire(self.pipeline.name, self.context.run_id, scope=REDRIVING) as emptying:
            refuse_beside_intervals(self.ledger, self.pipeline.name, _KEPT)
            self._retract(lease, emptying, tables)
        return None

    def _retract(self, lease: Lease, emptying: Lease, tables: Tables) -> None:
        sink = tables.replacing()
        sink.check_replaceable()
        tables.also.check_replaceable()
        # an interval run or a reset replaces rows that are to be removed here: once one commits, this one is refused
        fence = Fence(sink.table_version(), lambda note: note.get("interval") is not None or emptied(note))
        parts = self._parts(tables)
        there = tables.sink.as_it_is()
        if not parts or there is None:
            logger.info("there is nothing to retract")
            return
        spans = [span for part in parts for span in part.ranges]
        if len(spans) > _STRETCHES:
            raise ConfigError(
                f"{len(spans):,} ranges with gaps between them are to be retracted, and one commit names at most "
                f"{_STRETCHES:,}",
                state=_KEPT,
                next_step="name the whole run instead of a part of it, or a shorter range",
            )
        batch, reason = sink.version() + 1, self.context.reason or ""
        gone = Slice(spans)
        found = {key: len(offsets) for key, offsets in sink.held(gone).items()}
        self._say(lease, sum(part.written for part in parts) - sum(found.values()))
        self.ledger.record(lease, BatchStarted(epoch=REDRIVEN, batch=batch, ranges=spans))
        point("batch-started")
        moved = [part.as_dict() for part in parts]
        note = {
            "of": RETRACTED, "moved": moved, "reason": reason, "pipeline": self.pipeline.name,
            "run": self.context.run_id,
        }  # fmt: skip

        def check(offsets: Mapping[tuple[str, int], Any]) -> None:
            if {key: len(numbers) for key, numbers in offsets.items()} != found:
                raise SinkError(
                    f"rows of {sink.path} that are to be retracted were changed meanwhile by another program",
                    state=_KEPT,
                    next_step="run the same command again",
                )

        lease.verify()
        emptying.verify()
        point("before-sink-commit")
        name = tables.batch_name(batch)
        if sink.replace(gone, NOTHING, there[1], batch, note, name=name, check=check, fence=fence) is None:
            raise overtaken(
                f"committed batch {batch} to {sink.path}",
                state="this driver retracted nothing",
                next_step="run again: the next run records that batch in the ledger and goes on after it",
            )
        point("sink-committed")
        tables.also.take_out(gone, batch, note, name)
        tables.sweep(batch)  # before the ledger has the batch: if the driver dies, the next run sweeps it, too
        self.ledger.record(lease, *rows_retracted(REDRIVEN, batch, moved, reason))
        point("batch-recorded")
        logger.info("retracted: %d rows' offsets; %d offsets are open now", sum(found.values()), sum(map(len, spans)))

    def _say(self, lease: Lease, deleted: int) -> None:
        """Say of how many offsets a user deleted the rows: they cannot be told from those that were filtered."""
        if deleted <= 0:
            return
        note = (
            f"{deleted:,} offsets that count as written have no row in the table any more: a user deleted them. They "
            "are open now, too, and a redrive writes them again: sluice acknowledge closes what must not come back"
        )
        logger.warning("%s", note)
        self.ledger.record(lease, Degraded(note=note))

    def _parts(self, tables: Tables) -> list[Part]:
        """Return what is to be taken from which account."""
        chosen = standing(self.ledger, self.pipeline.name, run_id=self.action.of_run, ranges=self.action.ranges)
        if not chosen or tables.sink.as_it_is() is None:
            return []
        sink = tables.replacing()
        rows = sink.held(Slice([span for item in chosen for span in item.wanted]))
        parts = (
            taken(item, lambda spans: _within(rows, spans), lambda spans: tables.quarantine.held(Slice(spans)))
            for item in chosen
        )
        return [part for part in parts if part is not None]


def _within(held: Mapping[tuple[str, int], Any], spans: Sequence[OffsetRange]) -> dict[tuple[str, int], Any]:
    """Return the offsets of some ranges of one partition, of those that were found."""
    found: dict[tuple[str, int], Any] = {}
    for span in spans:
        key = (span.topic, span.partition)
        offsets = held.get(key, np.empty(0, dtype=np.int64))
        part = offsets[(offsets >= span.start) & (offsets < span.end)]
        found[key] = np.concatenate([found[key], part]) if key in found else part
    return found
