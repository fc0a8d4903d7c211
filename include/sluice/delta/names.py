"""Names in a Delta log: the application ids that a writer's batches are counted under (``txn``), and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.ledger import REDRIVEN

__all__ = ["ADOPTING", "HOLDS", "OWNER", "app_id", "interval_app_id", "owner"]

OWNER, HOLDS, ADOPTING = "sluice.pipeline", "sluice.holds", "sluice.adopting"
"""Table properties: the pipeline, which of its tables this is, and, during a hand-over, the pipeline before."""


def owner(note: Mapping[str, Any]) -> str | None:
    """Return the pipeline whose run left this commit metadata; None when it was none of ours."""
    parts = str(note.get("app_id", "")).split(":")
    return parts[1] if parts[0] == "sluice" and len(parts) > 2 else None


def app_id(pipeline: str, epoch: int) -> str:
    """Return the id of a live epoch's commits to the sink, or of what was redriven."""
    return f"sluice:{pipeline}:{epoch if epoch != REDRIVEN else 'redriven'}"


def interval_app_id(pipeline: str, interval: str) -> str:
    """Return the id of the commits that replace an interval, given its key."""
    return f"sluice:{pipeline}:interval:{interval}"
