"""Named points at which the crash tests kill the driver. They cost nothing unless ``SLUICE_KILL_AT`` is set."""

from __future__ import annotations

import os
import signal

__all__ = ["POINTS", "point"]

POINTS = (
    "rows-landed",
    "position-committed",
    "closing-planned",
    "run-planned",
    "session-started",
    "window-defined",
    "state-dropped",
    "records-gathered",
    "state-rebuilt",
    "segments-staged",
    "before-seal",
    "sealed",
    "seal-recorded",
    "batch-started",
    "rows-staged",
    "quarantine-staged",
    "also-staged",
    "before-sink-commit",
    "rows-refused",
    "columns-added",
    "columns-rewritten",
    "columns-widened",
    "records-sent",
    "rows-handed-over",
    "sink-committed",
    "quarantine-committed",
    "also-committed",
    "batch-recorded",
    "query-ended",
    "epoch-closed",
    "quarantine-emptied",
    "epoch-opened",
    "judged",
    "segments-forgotten",
    "segments-removed",
    "events-applied",
    "adoption-begun",
    "tables-adopted",
    "folders-adopted",
    "ledger-adopted",
)
"""Every point, in a run's order: landing comes between planning and the first batch, cleaning at the end.
``events-applied`` belongs to the ledger's migration, the last four to ``sluice adopt``."""

_seen: dict[str, int] = {}


def point(name: str) -> None:
    """Kill the driver's process group (JVM and Python) if ``SLUICE_KILL_AT`` is ``name`` or ``name:nth``."""
    target = os.environ.get("SLUICE_KILL_AT")
    if not target:
        return
    assert name in POINTS, name
    wanted, _, nth = target.partition(":")
    if name == wanted:
        _seen[name] = _seen.get(name, 0) + 1
        if _seen[name] == int(nth or 1):
            os.killpg(os.getpgid(0), signal.SIGKILL)
