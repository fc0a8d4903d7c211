"""Retractions, as drivers record them, and the deep audit of a place after any change."""

from __future__ import annotations

import shutil

from tests.fixtures.books import Place
from tests.fixtures.ledgers import attempt

from sluice.ledger import REDRIVEN
from sluice.ledger.events import rows_retracted


def take_back(place: Place, run: str, start: int, end: int, batch: int = 0, epoch: int = 1) -> None:
    """Retract rows of a batch from its first one on."""
    moved = {
        "epoch": epoch, "batch": batch, "run": run, "topic": "t", "partition": 0, "start": start,
        "ranges": [[start, end]], "written": end - start, "filtered": 0, "absent": 0,
    }  # fmt: skip
    with attempt(place.ledger, "back", kind="retract", epoch=REDRIVEN) as lease:
        place.ledger.record(lease, *rows_retracted(REDRIVEN, start, [moved], "wrong"))


def proved(place: Place) -> list[str]:
    """Write the tables again; return the problems that a deep audit finds."""
    for table in ("table", "table_quarantine"):
        shutil.rmtree(place.root / table, ignore_errors=True)
    return place.found()
