"""Application ids: under which name a writer's batches are counted in Delta's log (``txn``)."""

from __future__ import annotations

from sluice.ledger import REDRIVEN

__all__ = ["app_id", "interval_app_id"]


def app_id(pipeline: str, epoch: int) -> str:
    """Return the id of a live epoch's commits to the sink, or of what was redriven."""
    return f"sluice:{pipeline}:{epoch if epoch != REDRIVEN else 'redriven'}"


def interval_app_id(pipeline: str, interval: str) -> str:
    """Return the id of the commits that replace an interval, given its key."""
    return f"sluice:{pipeline}:interval:{interval}"
