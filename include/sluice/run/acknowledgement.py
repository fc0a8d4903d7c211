"""Closes losses that will not be recovered, or opens them again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sluice.ledger import Ledger
from sluice.ledger.events import LossAcknowledged
from sluice.ranges import OffsetRange, overlaps
from sluice.run.redrive_plan import check_ranges
from sluice.text import checked_reason

__all__ = ["acknowledge"]


def acknowledge(
    ledger: Ledger,
    pipeline: str,
    *,
    reason: str,
    ranges: Sequence[OffsetRange] = (),
    of_run: str | None = None,
    undo: bool = False,
) -> list[OffsetRange]:
    """Close open lost ranges, or with ``undo`` open acknowledged ones; return them. Idempotent.

    Parameters
    ----------
    ranges
        Only these offsets; empty means all.
    of_run
        Only what the run with this id lost.

    Raises
    ------
    ConfigError
        If the reason is empty or too long, or the ledger does not have the run, or nothing of a range's partition.
    LeaseHeldError
        If a run of the pipeline is at work.
    """
    reason = checked_reason(reason)
    if of_run is not None:
        ledger.runs.known(pipeline, of_run)
    check_ranges(ledger, pipeline, ranges)
    with ledger.acquire(pipeline, f"acknowledge__{datetime.now(UTC).isoformat(timespec='milliseconds')}") as lease:
        rows = ledger.offsets.lost(pipeline, state="acknowledged" if undo else "open", run_id=of_run)
        chosen = [row.range for row in rows]
        chosen = overlaps(chosen, ranges) if ranges else chosen
        if chosen:
            was, now = ("acknowledged", "open") if undo else ("open", "acknowledged")
            ledger.record(lease, LossAcknowledged(ranges=chosen, reason=reason, was=was, now=now))
    return chosen
