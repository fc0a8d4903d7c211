"""What Sluice writes into the commits of a Delta table: commit metadata, and the number of the batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["NOTE", "last_batch", "note_of"]

NOTE = "sluice"
"""The key of the commit metadata."""


def note_of(commit: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the commit metadata of an entry of delta-rs' history; None if another program committed.

    delta-rs returns metadata of nested values as text, in some versions as values.
    """
    note = commit.get(NOTE)
    if isinstance(note, str):
        try:
            note = json.loads(note)
        except ValueError:
            return None
    return note if isinstance(note, dict) else None


def last_batch(table: Any, app_id: str) -> int:
    """Return the newest batch that a writer committed to an open table; -1 if there is none, or no table (None)."""
    found = None if table is None else table.transaction_version(app_id)
    return -1 if found is None else int(found)
