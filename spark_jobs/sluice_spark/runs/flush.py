"""Plans a batch without records for a run that finds none: it emits what no record of that run would."""

from __future__ import annotations

import time
from collections.abc import Callable

from sluice.faults import point
from sluice.ledger import Lease
from sluice.pipeline.processor import TimerFlush
from sluice.pipeline.window import Window
from sluice.text import length, moment
from sluice_spark.engine.logs import logger
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.tables import Tables
from sluice_spark.windows.state import last_timer

__all__ = ["fire_timers", "flush_windows", "plan_firing", "plan_flush", "plan_held"]


def flush_windows(context: RunContext, lease: Lease, tables: Tables, epoch: int) -> None:
    """Plan what ``window.flush`` asks for: :func:`plan_flush`."""
    if (window := context.pipeline.window) is not None and window.flush is not None:
        reach = context.ledger.facts.reach(context.pipeline.name, range(epoch, epoch + 1))
        plan_flush(lease, tables, window, reach.latest)


def fire_timers(context: RunContext, lease: Lease, tables: Tables, epoch: int) -> None:
    """Plan what ``processor.flush`` asks for: :func:`plan_firing`."""
    if (processor := context.pipeline.processor) is not None and processor.flush is not None:
        path = tables.checkpoint.path
        plan_firing(lease, tables, processor.flush, lambda batch: last_timer(context.session(), path, batch))


def plan_flush(lease: Lease, tables: Tables, window: Window, latest: int | None) -> None:
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
    _plan(lease, tables, committed[-1] + 1, end)
    logger.info("no record came for %s: batch %d closes all windows", length(quiet), committed[-1] + 1)


def plan_firing(lease: Lease, tables: Tables, flush: TimerFlush, last_timer: Callable[[int], int | None]) -> None:
    """Plan a batch that fires all timers which a processor has, if no record came for as long as the file says.

    Call it only if no record waits and no batch is open.

    It plans one batch until records come again. A timer may register another when it fires, for ever, and the watermark
    would leave the records behind.

    Parameters
    ----------
    last_timer
        Return when the last timer fires that a committed batch has left, in milliseconds since 1970; None if there is
        none. It is called only if that matters: it reads the state.
    """
    checkpoint = tables.checkpoint
    committed, read = checkpoint.committed(), checkpoint.newest_read()
    if not committed or read is None or checkpoint.flushed():
        return
    quiet = time.time() - checkpoint.clock_of(read).now / 1000
    if quiet < flush.after.total_seconds():
        return
    last = last_timer(committed[-1])
    if last is None or last <= checkpoint.watermark():
        checkpoint.note_flushed(read)
        return
    _plan(lease, tables, committed[-1] + 1, last, flushed=read)
    logger.info("no record came for %s: batch %d fires all timers", length(quiet), committed[-1] + 1)


def plan_held(lease: Lease, tables: Tables, watermark: int) -> None:
    """Plan a batch that emits what the slowest partition does not hold any more, since the last run has read on.

    Call it only if no record waits and no batch is open.

    Parameters
    ----------
    watermark
        As far as the slowest partition lets it go, in milliseconds since 1970.
    """
    checkpoint = tables.checkpoint
    committed = checkpoint.committed()
    if not committed or watermark <= checkpoint.watermark():
        return
    _plan(lease, tables, committed[-1] + 1, watermark)
    logger.info("hold: batch %d moves the watermark to %s", committed[-1] + 1, moment(watermark))


def _plan(lease: Lease, tables: Tables, batch: int, watermark: int, *, flushed: int | None = None) -> None:
    lease.verify()  # looking for timers may have taken long
    tables.checkpoint.plan_closing(batch, watermark)
    if flushed is not None:
        tables.checkpoint.note_flushed(flushed)
    point("closing-planned")
