"""Finds out whether a sink was restored to an earlier state than the ledger knows."""

from __future__ import annotations

from sluice.delta.names import app_id, interval_app_id
from sluice.errors import START_OVER
from sluice.ledger import REDRIVEN, Ledger
from sluice_spark.runs.reconcile import contradiction
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import ComparableSink

__all__ = ["refuse_restored"]


def refuse_restored(ledger: Ledger, pipeline: str, tables: Tables) -> None:
    """Refuse a sink that lacks batches of the ledger, whichever kind of run committed them.

    A database that is restored has lost rows and their marks together. A Delta table's own history tells that.

    Raises
    ------
    CheckpointError
        If it does.
    """
    sink = tables.sink
    if tables.kind.delta or not isinstance(sink, ComparableSink):
        return
    apps = {-known.number: interval_app_id(pipeline, known.interval) for known in ledger.offsets.intervals(pipeline)}
    base = ledger.offsets.resets(pipeline).base  # earlier epochs were closed, perhaps with the sink
    last = {
        apps.get(n) or app_id(pipeline, n): batch
        for n, batch in ledger.offsets.last_batches(pipeline).items()
        if n <= REDRIVEN or n >= base
    }
    lacking = sorted(set(last) - sink.ahead_of({app: batch - 1 for app, batch in last.items()}))
    if lacking:
        raise contradiction(
            f"the ledger has batch {last[lacking[0]]} of {lacking[0]} committed, and the sink {tables.sink.path} does "
            "not: it was restored to an earlier state, or lacks the table of its commits",
            f"restore it to its newest state; or, to start over, {START_OVER}",
        )
