"""Ledgers, and events of a pipeline as a driver writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sluice.ledger import Lease, Ledger, schema
from sluice.ledger.store import open_engine
from sluice.ranges import Counts, OffsetRange, RangeAccount


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledger(sqlite_url: str) -> Ledger:
    """An empty ledger in SQLite, for what does not depend on the database."""
    return Ledger.open(sqlite_url)


def span(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


def split(start: int, end: int, partition: int = 0, **parts: int) -> RangeAccount:
    return RangeAccount(span(start, end, partition), Counts(**(parts or {"written": end - start})))


def plan(ledger: Ledger, lease: Lease, *ranges: OffsetRange, ids: dict[str, str] | None = None) -> None:
    ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=ranges, topic_ids=ids or {"t": "id-1"})


def commit(ledger: Ledger, lease: Lease, batch: int, *accounts: RangeAccount, run: str | None = None) -> None:
    ledger.batch_started(lease, epoch=1, batch=batch, ranges=[a.range for a in accounts])
    ledger.batch_committed(lease, epoch=1, batch=batch, accounts=accounts, run_id=run)


def derived(url: str) -> dict[str, list[dict[str, Any]]]:
    engine = open_engine(url)
    with engine.connect() as connection:
        return {
            table.name: [dict(r) for r in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()]
            for table in schema.DERIVED
        }


NASTY = "a\0b\ud800c\udcffd"


def played(ledger: Ledger, run: str, reason: str | None = None) -> None:
    with ledger.acquire("p", run) as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={}, reason=reason)
        ledger.degraded(lease, f"a note {NASTY}")
        ledger.run_closed(lease, state="failed", error={"what": NASTY, "frames": [NASTY, (NASTY,)]})
