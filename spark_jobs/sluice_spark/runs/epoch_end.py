"""The steps that end an epoch after the sink's commit has closed it. Any run finishes what a dead driver began."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sluice.errors import LeaseHeldError
from sluice.faults import point
from sluice.ledger import Lease, Ledger
from sluice.ledger.events import EpochOpened, PipelineReset
from sluice.recovery import Route
from sluice.run.reset_plan import may_hold
from sluice_spark.batch.quarantine import SCHEMA
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sources.base import RECORD_SCHEMA

__all__ = ["HANDOVER", "RESET", "emptied", "open_next", "seal_off"]

HANDOVER = "handover"
"""The key in the metadata of the commit that closes an epoch; its value says where the next epoch starts."""

RESET = "reset"
"""The key beside :data:`HANDOVER` if a reset closed the epoch: :meth:`sluice.run.reset_plan.Reset.as_dict`."""


def emptied(note: Mapping[str, Any]) -> bool:
    """Return whether a commit took all rows of the pipeline out of the sink: what was decided before is void.

    A driver that was frozen meanwhile must not commit rows behind it: the new epoch reads the same offsets again.

    Parameters
    ----------
    note
        The commit's metadata.
    """
    return bool((note.get(RESET) or {}).get("truncated"))


def seal_off(tables: Tables, note: Mapping[str, Any]) -> None:
    """Close the log of an epoch, too, after the sink's commit closed it; remove what was left of other batches.

    Parameters
    ----------
    note
        The metadata of the sink's commit.
    """
    for left in sorted({tables.sink.version(), *tables.left_over()}):
        tables.sweep(left)
    if tables.epoch.route is Route.LOG:
        log = tables.log_table
        ended = any(HANDOVER in note for note in log.last_notes())
        number = log.version() + (not ended)
        if not ended:
            with suppress(LeaseHeldError):  # a frozen driver sealed it: in the log, not in the sink
                log.commit(NOTHING, RECORD_SCHEMA, number, {HANDOVER: note[HANDOVER]})
        log.sweep(tables.landing_name(number))


def open_next(ledger: Ledger, lease: Lease, tables: Tables, note: Mapping[str, Any]) -> None:
    """Record the next epoch in the ledger; after a reset that took all rows out, empty the quarantine before.

    Idempotent.

    Parameters
    ----------
    tables
        Those of the closed epoch.
    note
        The metadata of the commit that closed it, with ``version``.
    """
    to = note[HANDOVER]
    if RESET not in note:
        positions = {t: {int(p): int(o) for p, o in parts.items()} for t, parts in to["positions"].items()}
        ledger.record(
            lease, EpochOpened(epoch=to["epoch"], lineage=Route(to["lineage"]), positions=positions), run_id=note["run"]
        )
        return
    told = note[RESET]
    if told["truncated"]:
        _empty_quarantine(ledger, lease, tables, note)
        point("quarantine-emptied")
    removed = sum(count for *_, count in note.get("replaced") or ())
    ledger.record(lease, PipelineReset(**{**told, "removed": removed}), run_id=note["run"])


def _empty_quarantine(ledger: Ledger, lease: Lease, tables: Tables, note: Mapping[str, Any]) -> None:
    """Take the refused records of all standing accounts out of the quarantine, in one commit."""
    quarantine, spans = tables.quarantine, may_hold(ledger, lease.pipeline)
    if not spans or quarantine.table() is None:
        return
    quarantine.accept()
    version = note["version"]
    quarantine.replace(Slice(spans), NOTHING, SCHEMA, version, {"run": note["run"]}, name=tables.batch_name(version))
