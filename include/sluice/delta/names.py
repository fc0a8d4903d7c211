"""Names in a Delta log: the application ids (``txn``) of writers, and the table properties that name the owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.recovery import REDRIVEN

__all__ = ["ADOPTING", "HOLDS", "KEY", "OWNER", "app_id", "interval_app_id", "log_app_id", "owner", "quarantine_app_id"]

OWNER, HOLDS, ADOPTING = "sluice.pipeline", "sluice.holds", "sluice.adopting"
"""Table properties: the pipeline, which of its tables this is and, during ``sluice adopt``, the former pipeline."""

KEY = "sluice.key"
"""The table property with the columns of which a table has one row each (``mode: upsert``), as a JSON list."""


def owner(note: Mapping[str, Any]) -> str | None:
    """Return the pipeline that wrote this commit metadata; None if it is not Sluice's."""
    parts = str(note.get("app_id", "")).split(":")
    return parts[1] if parts[0] == "sluice" and len(parts) > 2 else None


def app_id(pipeline: str, epoch: int) -> str:
    """Return the application id of a live epoch's commits to the sink, or of redrives."""
    return f"sluice:{pipeline}:{epoch if epoch != REDRIVEN else 'redriven'}"


def log_app_id(pipeline: str, epoch: int) -> str:
    """Return the application id of an epoch's seals in the write-ahead log."""
    return f"sluice:{pipeline}:{epoch}:log"


def quarantine_app_id(sink: str) -> str:
    """Return the application id of commits to the quarantine, given that of the sink's commits."""
    return f"{sink}:quarantine"


def interval_app_id(pipeline: str, interval: str) -> str:
    """Return the application id of the commits that replace an interval, given its key."""
    return f"sluice:{pipeline}:interval:{interval}"
