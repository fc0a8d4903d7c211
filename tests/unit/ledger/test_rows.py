"""What the ledger remembers of asset events: everything that was committed is told of, at least once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sluice.ledger import Ledger, Unannounced, schema
from sluice.ledger.store import open_engine
from sluice.ranges import Counts, OffsetRange, RangeAccount


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledger(url: str) -> Ledger:
    return Ledger.open(url)


def committed(
    ledger: Ledger, run: str, batch: int, start: int, end: int, *, epoch: int = 1, interval: str | None = None,
    **more: Any,
) -> None:  # fmt: skip
    counts = more.pop("counts", Counts(written=end - start))
    account = RangeAccount(OffsetRange("t", 0, start, end), counts)
    with ledger.acquire("p", run) as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={}, interval=interval)
        ledger.batch_committed(lease, epoch=epoch, batch=batch, accounts=[account], **more)


def told(found: Unannounced) -> list[str]:
    return [str(a.range) for a in found.accounts]


def test_all_that_was_committed_is_told_of_once(ledger: Ledger) -> None:
    committed(ledger, "failed", 0, 0, 5)
    committed(ledger, "passed", 1, 5, 9)
    found = ledger.unannounced("p", "passed")
    assert told(found) == ["t-0 [0, 5)", "t-0 [5, 9)"]
    assert found.written == {"failed": 5, "passed": 4}
    for _ in range(2):  # a task that is tried again notes it again
        ledger.announced("p", "passed", upto=found.upto, version=7)
        assert told(ledger.unannounced("p", "passed")) == []
    committed(ledger, "next", 2, 9, 12)
    assert told(ledger.unannounced("p", "next")) == ["t-0 [9, 12)"]


def test_what_was_committed_after_the_question_is_told_of_next_time(ledger: Ledger) -> None:
    committed(ledger, "a", 0, 0, 5)
    found = ledger.unannounced("p", "a")
    committed(ledger, "b", 1, 5, 9)
    ledger.announced("p", "a", upto=found.upto, version=None)
    assert told(ledger.unannounced("p", "b")) == ["t-0 [5, 9)"]


def test_what_was_redriven_is_told_of_and_intervals_are_by_themselves(ledger: Ledger) -> None:
    committed(ledger, "redrive", 0, 2, 4, epoch=0, redriven="lost")
    span = OffsetRange("t", 0, 0, 3)
    for batch in (0, 1):
        committed(ledger, "i", batch, 0, 3, epoch=-1, interval="a/b", replaced={span: (2, 0)})
    committed(ledger, "other", 0, 3, 5, epoch=-2, interval="b/c")
    committed(ledger, "live", 0, 0, 9)
    found = ledger.unannounced("p", "live")
    assert told(found) == ["t-0 [0, 9)", "t-0 [2, 4)"]
    ledger.announced("p", "live", upto=found.upto, version=1)
    found = ledger.unannounced("p", "i")
    assert (told(found), found.replaced, found.upto) == (["t-0 [0, 3)"], 2, {-1: 1})
    ledger.announced("p", "i", upto=found.upto, version=1)
    assert told(ledger.unannounced("p", "i")) == []
    assert told(ledger.unannounced("p", "other")) == ["t-0 [3, 5)"]


def test_it_is_remembered_by_events_and_follows_a_new_name(ledger: Ledger) -> None:
    committed(ledger, "a", 0, 0, 5)
    ledger.announced("p", "a", upto={1: 0}, version=3)
    ledger.rebuild()
    assert told(ledger.unannounced("p", "a")) == []
    with ledger.acquire("q", "adopting") as lease:
        ledger.adopted(lease, "p")
    assert told(ledger.unannounced("q", "a")) == []


def test_a_ledger_of_an_earlier_version_tells_nothing_of_its_past(url: str) -> None:
    ledger = Ledger.open(url)
    committed(ledger, "a", 0, 0, 5)
    engine = open_engine(url)
    with engine.begin() as connection:  # as version 0004 left it
        connection.execute(sa.text("ALTER TABLE sluice_batch DROP COLUMN announced"))
        connection.execute(sa.text("ALTER TABLE sluice_account DROP COLUMN closed"))
        connection.execute(sa.text("DROP INDEX sluice_event_type"))
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0004'"))
    ledger = Ledger.open(url)
    assert told(ledger.unannounced("p", "a")) == []
    committed(ledger, "b", 1, 5, 9)
    assert told(ledger.unannounced("p", "b")) == ["t-0 [5, 9)"]
