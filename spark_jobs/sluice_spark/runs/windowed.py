"""The direct route of a pipeline with windows: Spark keeps open windows in the checkpoint, from run to run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from sluice.errors import BEGIN_ANEW, CheckpointError
from sluice.faults import point
from sluice.pipeline import Pipeline
from sluice.pipeline.window import Window
from sluice.ranges import OffsetRange
from sluice.text import length
from sluice_spark.batch.windowed import WindowWriter
from sluice_spark.engine.cores import cores
from sluice_spark.engine.logs import logger
from sluice_spark.runs.batches import MicroBatches
from sluice_spark.runs.tables import Tables
from sluice_spark.strategies.base import Batch

__all__ = ["WindowRoute", "plan_closing", "plan_flush", "refuse_other"]

_STATE = "spark.sql.streaming.stateStore."
_SHARES = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class WindowRoute:
    """Processes what the source holds: windows that close go into the sink, the others stay in the checkpoint."""

    batches: MicroBatches

    def drain(self, tables: Tables) -> None:
        """Process what the source holds now, close what the watermark allows, then stop.

        Raises
        ------
        SluiceError
            By type. Committed batches stay, and the next run reads the open batch again.
        """
        context, spark = self.batches.context, self.batches.spark
        writer = context.writer(spark, tables)
        assert isinstance(writer, WindowWriter)
        sweep = tables.left_over()
        entered = context.ledger.last_batch(context.pipeline.name, tables.epoch.number)
        source = self.batches.records(tables)
        _define(context.pipeline, tables)

        def on_batch(closed: DataFrame, number: int) -> None:
            if entered is not None and number <= entered.batch:
                # a driver died between the sink's commit and Spark's: what is in the sink stays, but the state must be
                # made again, and Spark makes it only for a frame that is consumed
                _refuse_other_rows(context.pipeline, tables, number)
                logger.info("batch %d is already in the sink; only its state is made again", number)
                closed.write.format("noop").mode("overwrite").save()
                return
            ranges = tuple(tables.checkpoint.ranges_of(number))
            batch = Batch(tables.batch_name(number), ranges, source, closed, spark)
            of_batch = replace(writer, clock=tables.checkpoint.clock_of(number))
            self.batches.process(tables, of_batch, number, batch, sweep=number in sweep)

        with _settings(spark, context.pipeline):
            limit = self.batches.limit(arrow=False)
            self.batches.stream(tables, on_batch, headers=False, max_records=limit, shape=writer.closed)


def refuse_other(pipeline: Pipeline, tables: Tables) -> None:
    """Refuse to go on with a checkpoint whose windows are not those of the pipeline file.

    Spark would take some changes silently and mix old windows with new ones.

    Raises
    ------
    CheckpointError
        With what differs.
    """
    if not tables.checkpoint.planned():
        return
    kept = tables.checkpoint.window()
    asked = pipeline.window.definition if pipeline.window is not None else None
    if kept == asked:
        return
    if kept is None:
        what = "was begun without a window"
    elif asked is None:
        what = "has open windows, and the pipeline file has no window any more"
    else:
        differing = ", ".join(
            f"{key} was {kept.get(key)} and is {asked[key]}" for key in asked if asked[key] != kept.get(key)
        )
        what = f"has windows of another definition: {differing}"
    raise CheckpointError(
        f"pipeline {pipeline.name!r}: epoch {tables.epoch.number} {what}",
        state="nothing was read or written; open windows are in the checkpoint as they were",
        next_step=f"undo the change in {pipeline.file.name}; or, for the new definition, {BEGIN_ANEW}",
    )


def _refuse_other_rows(pipeline: Pipeline, tables: Tables, number: int) -> None:
    """Refuse to make the state of a committed batch from other rows than those that were accounted for.

    Raises
    ------
    CheckpointError
        If decoding, rules, transform or window changed since.
    """
    note = next((note for note in tables.sink.notes(newer_than=number - 1) if note["version"] == number), {})
    absorbed = (note.get("windows") or {}).get("absorption")
    if absorbed is None or absorbed == pipeline.absorption:
        return
    raise CheckpointError(
        f"pipeline {pipeline.name!r}: a driver died after it committed batch {number}, whose open windows are still to "
        "be made, and decode, rules, transform or window changed since",
        state=f"batch {number} is in the sink once; its windows would have other rows than its account says",
        next_step=f"undo the change in {pipeline.file.name} and run once; then change it",
    )


def plan_closing(tables: Tables, aim: Sequence[OffsetRange]) -> None:
    """Plan the batch that closes windows, if a driver died before Spark did.

    Without it, nothing would be closed until newer records come, and their lateness would be judged by an older
    watermark than without the crash.

    Parameters
    ----------
    aim
        What the last live run had planned to read. If it did not get there, the next batch has records, as it would
        have had without the crash.
    """
    checkpoint = tables.checkpoint
    due = checkpoint.closing_due()
    if due is None:
        return
    reached = checkpoint.end_of(due - 1)
    if any(r.end > reached.get(r.topic, {}).get(r.partition, 0) for r in aim):
        return
    checkpoint.plan_closing(due)
    logger.warning("a driver died before batch %d, which closes windows, was planned: it is planned now", due)
    point("closing-planned")


def plan_flush(tables: Tables, window: Window, latest: int | None) -> None:
    """Plan a batch that closes all windows, if the pipeline file asks for that and no record came for so long.

    Call it only if no record waits and no batch is open.

    Parameters
    ----------
    latest
        The latest event time that a window absorbed, in milliseconds since 1970.
    """
    checkpoint = tables.checkpoint
    committed, read = checkpoint.committed(), checkpoint.last_read()
    if window.flush is None or latest is None or not committed or read is None:
        return
    quiet = time.time() - read.now / 1000
    end = window.last_end(latest)
    if quiet < window.flush.after.total_seconds() or end <= checkpoint.watermark():
        return
    checkpoint.plan_closing(committed[-1] + 1, end)
    logger.info("no record came for %s: batch %d closes all windows", length(quiet), committed[-1] + 1)
    point("closing-planned")


def _define(pipeline: Pipeline, tables: Tables) -> None:
    assert pipeline.window is not None
    if not tables.checkpoint.planned():
        tables.checkpoint.define(pipeline.window.definition)
        point("window-defined")


@contextmanager
def _settings(spark: SparkSession, pipeline: Pipeline) -> Iterator[None]:
    """Set how Spark keeps state; a query takes the session's settings when it starts.

    The number of shares is fixed by the first batch. A small state costs time for each share, so there are as many as
    cores unless the pipeline file says another number.
    """
    wanted = {
        f"{_STATE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true",
        _SHARES: pipeline.spark.conf.get(_SHARES, str(cores(spark))),
    }
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
