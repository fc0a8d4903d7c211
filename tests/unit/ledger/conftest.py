"""Ledgers, and events of a pipeline as a driver writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.books import lost, span, split
from tests.fixtures.ledgers import attempt

from sluice.ledger import Lease, Ledger, schema
from sluice.ledger.events import BatchStarted, Degraded, Judged, batch_committed
from sluice.ranges import RangeAccount

__all__ = ["NASTY", "commit", "derived", "played", "run", "span", "split"]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledger(sqlite_url: str) -> Ledger:
    """An empty ledger in SQLite, for what does not depend on the database."""
    return Ledger.open(sqlite_url)


@pytest.fixture
def each_ledger(ledger_url: str) -> Ledger:
    """An empty ledger, in each database."""
    return Ledger.open(ledger_url)


def commit(
    ledger: Ledger, lease: Lease, batch: int, *accounts: RangeAccount, epoch: int = 1, run_id: str | None = None,
    **more: Any,
) -> None:  # fmt: skip
    ledger.record(lease, BatchStarted(epoch=epoch, batch=batch, ranges=[a.range for a in accounts]))
    ledger.record(lease, *batch_committed(epoch, batch, accounts, **more), run_id=run_id)


def run(
    ledger: Ledger, name: str, *batches: RangeAccount | list[RangeAccount], state: str | None = "done",
    verdict: str | None = None, epoch: int = 1, first: int = 0, planned: Any = None, gone: int = 0, **more: Any,
) -> None:  # fmt: skip
    """Record a run with its batches, of one account or several; it lost the first offsets of each."""
    parts = [batch if isinstance(batch, list) else [batch] for batch in batches]
    ranges = [a.range for accounts in parts for a in accounts] if planned is None else planned
    closed = {"seconds": 2.0, "error": {"exit_code": 1} if state == "failed" else None}
    with attempt(ledger, name, *ranges, epoch=epoch, state=state, closed=closed, **more) as lease:
        for number, accounts in enumerate(parts, first):
            lacks = [lost(a.range.start, a.range.start + gone) for a in accounts if gone]
            ledger.record(lease, *batch_committed(epoch, number, accounts, lost=lacks))
        if verdict:
            ledger.record(lease, Judged(verdict=verdict, judgement={}), run_id=name)


def derived(ledger: Ledger) -> dict[str, list[dict[str, Any]]]:
    with ledger._engine.connect() as connection:
        return {
            table.name: [dict(r) for r in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()]
            for table in schema.DERIVED
        }


NASTY = "a\0b\ud800c\udcffd"


def played(ledger: Ledger, name: str, reason: str | None = None) -> None:
    error = {"what": NASTY, "frames": [NASTY, (NASTY,)]}
    with attempt(ledger, name, reason=reason, state="failed", closed={"error": error}) as lease:
        ledger.record(lease, Degraded(note=f"a note {NASTY}"))
