"""Many runs at once, and announced ranges: sums that the database makes are those of the single accounts."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.postgres import new_database
from tests.fixtures.showcase import Past, fill
from tests.unit.ledger.conftest import span, split

from sluice.ledger import Ledger, Unannounced, schema
from sluice.ledger.store import open_engine
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount


def run(
    ledger: Ledger, name: str, *batches: RangeAccount, state: str | None = "done", verdict: str | None = None,
    kind: str = "live", epoch: int = 1, first: int = 0, planned: OffsetRange | None = None, lost: int = 0,
) -> None:  # fmt: skip
    ranges = [planned] if planned else [b.range for b in batches]
    with ledger.acquire("p", name) as lease:
        ledger.run_planned(lease, kind=kind, recovery="replay", epoch=epoch, ranges=ranges, topic_ids={})
        for number, part in enumerate(batches, first):
            gone = [LostRange(span(part.range.start, part.range.start + lost), "gone")] if lost else []
            ledger.batch_committed(lease, epoch=epoch, batch=number, accounts=[part], lost=gone)
        if verdict:
            ledger.judged(lease, "p", name, verdict=verdict, judgement={})
        if state:
            ledger.run_closed(lease, state=state, seconds=2.0)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def past(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Four live runs, the second of which failed before it committed anything, and an interval replaced twice."""
    if request.param == "sqlite":
        ledger = Ledger.open(f"sqlite:///{tmp_path_factory.mktemp('past')}/ledger.db")
    else:
        ledger = Ledger.open(new_database(request.getfixturevalue("postgres")))
    run(ledger, "a", split(0, 10), split(10, 20, written=7, quarantined=3), verdict="passed")
    run(ledger, "b", planned=span(20, 70), state="failed")
    run(ledger, "c", split(20, 80, written=50, filtered=10), verdict="warned", first=2)
    run(ledger, "d", split(80, 90, written=6, lost=4), verdict="failed", first=3, lost=4)
    run(ledger, "i", split(0, 10), kind="interval", epoch=-1)
    run(ledger, "i", split(0, 10, written=9, filtered=1), kind="interval", epoch=-1, first=1)
    return ledger


def test_pages_of_runs_have_the_counts_of_their_accounts(past: Ledger) -> None:
    lines = past.page("p")
    assert [line.run_id for line in lines] == ["i", "d", "c", "b", "a"]
    for line in lines:
        account = past.account("p", line.run_id)
        assert line.counts.as_dict() == {k: account[k] for k in line.counts.as_dict()}
    assert lines[0].counts == Counts(written=9, filtered=1), "the last split of an interval that was replaced again"
    first = past.page("p", limit=2)
    assert [r.run_id for r in past.page("p", before=first[-1].sequence, limit=2)] == ["c", "b"]
    assert (past.count("p"), past.pipelines()) == (5, {"p"})


def test_spans_of_runs_are_sums(past: Ledger) -> None:
    spans = past.spans("p", newest=100)
    assert [(s.first, s.last, s.runs) for s in spans] == [(r, r, 1) for r in "abcdi"]
    assert [s.counts for s in spans] == [past.page("p")[n].counts for n in (4, 3, 2, 1, 0)]
    assert [s.found for s in spans] == [20, 50, 60, 10, None], "also of a failed run; not of an interval"
    assert [s.verdicts for s in spans] == [{"passed": 1}, {}, {"warned": 1}, {"failed": 1}, {}]
    assert spans[1].states == {"failed": 1}
    old, middle, new = past.spans("p", newest=100, at_most=3)
    assert [(s.first, s.last, s.runs) for s in (old, middle, new)] == [("a", "a", 1), ("b", "c", 2), ("d", "i", 2)]
    assert middle.counts == Counts(written=50, filtered=10)
    assert (middle.found, middle.verdicts, middle.states) == (60, {"warned": 1}, {"failed": 1, "done": 1})
    assert new.counts == Counts(written=15, filtered=1, lost=4)
    assert [s.first for s in past.spans("p", newest=2)] == ["d", "i"]
    assert past.spans("another", newest=5) == []


def test_glance_has_the_newest_verdict_and_the_open_losses(past: Ledger) -> None:
    glance = past.glances(["p", "never"], runs=1)
    assert [r.run_id for r in glance["p"].runs] == ["i"]
    assert glance["p"].judged is not None
    assert (glance["p"].judged.run_id, glance["p"].judged.verdict, glance["p"].lost) == ("d", "failed", 4)
    assert (glance["never"].runs, glance["never"].judged, glance["never"].lost) == ([], None, 0)


def test_thousand_runs_are_two_hundred_spans(ledger: Ledger) -> None:
    fill(ledger, "p", Past(1_000, partitions=1, refused=0.1, losses={100: 5}, failures={3: "down"}))
    spans = ledger.spans("p", newest=1_000)
    assert (len(spans), sum(s.runs for s in spans)) == (200, 1_000)
    assert sum((s.counts for s in spans), Counts()) == sum((a.counts for a in ledger.accounts("p")), Counts())
    assert spans[-1].states == {"done": 4, "failed": 1}


def committed(
    ledger: Ledger, run: str, batch: int, start: int, end: int, *, epoch: int = 1, interval: str | None = None,
    **more: Any,
) -> None:  # fmt: skip
    counts = more.pop("counts", Counts(written=end - start))
    account = RangeAccount(OffsetRange("t", 0, start, end), counts)
    with ledger.acquire("p", run) as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={}, interval=interval)
        ledger.batch_committed(lease, epoch=epoch, batch=batch, accounts=[account], **more)


def ranges_of(found: Unannounced) -> list[str]:
    return [str(a.range) for a in found.accounts]


def test_committed_ranges_are_announced_once(ledger: Ledger) -> None:
    committed(ledger, "failed", 0, 0, 5)
    committed(ledger, "passed", 1, 5, 9)
    found = ledger.unannounced("p", "passed")
    assert ranges_of(found) == ["t-0 [0, 5)", "t-0 [5, 9)"]
    assert found.written == {"failed": 5, "passed": 4}
    for _ in range(2):  # a task that is tried again notes it again
        ledger.announced("p", "passed", upto=found.upto, version=7)
        assert ranges_of(ledger.unannounced("p", "passed")) == []
    committed(ledger, "next", 2, 9, 12)
    assert ranges_of(ledger.unannounced("p", "next")) == ["t-0 [9, 12)"]


def test_later_commit_is_announced_next_time(ledger: Ledger) -> None:
    committed(ledger, "a", 0, 0, 5)
    found = ledger.unannounced("p", "a")
    committed(ledger, "b", 1, 5, 9)
    ledger.announced("p", "a", upto=found.upto, version=None)
    assert ranges_of(ledger.unannounced("p", "b")) == ["t-0 [5, 9)"]


def test_redriven_ranges_and_intervals_are_announced(ledger: Ledger) -> None:
    committed(ledger, "redrive", 0, 2, 4, epoch=0, redriven="lost")
    span = OffsetRange("t", 0, 0, 3)
    for batch in (0, 1):
        committed(ledger, "i", batch, 0, 3, epoch=-1, interval="a/b", replaced={span: (2, 0)})
    committed(ledger, "other", 0, 3, 5, epoch=-2, interval="b/c")
    committed(ledger, "live", 0, 0, 9)
    found = ledger.unannounced("p", "live")
    assert ranges_of(found) == ["t-0 [0, 9)", "t-0 [2, 4)"]
    ledger.announced("p", "live", upto=found.upto, version=1)
    found = ledger.unannounced("p", "i")
    assert (ranges_of(found), found.replaced, found.upto) == (["t-0 [0, 3)"], 2, {-1: 1})
    ledger.announced("p", "i", upto=found.upto, version=1)
    assert ranges_of(ledger.unannounced("p", "i")) == []
    assert ranges_of(ledger.unannounced("p", "other")) == ["t-0 [3, 5)"]


def test_announcements_survive_a_rebuild_and_a_new_name(ledger: Ledger) -> None:
    committed(ledger, "a", 0, 0, 5)
    ledger.announced("p", "a", upto={1: 0}, version=3)
    ledger.rebuild()
    assert ranges_of(ledger.unannounced("p", "a")) == []
    with ledger.acquire("q", "adopting") as lease:
        ledger.adopted(lease, "p")
    assert ranges_of(ledger.unannounced("q", "a")) == []


def test_migrated_ledger_announces_nothing_of_its_past(sqlite_url: str) -> None:
    ledger = Ledger.open(sqlite_url)
    committed(ledger, "a", 0, 0, 5)
    engine = open_engine(sqlite_url)
    with engine.begin() as connection:  # as version 0004 left it
        connection.execute(sa.text("ALTER TABLE sluice_batch DROP COLUMN announced"))
        connection.execute(sa.text("ALTER TABLE sluice_account DROP COLUMN closed"))
        connection.execute(sa.text("DROP INDEX sluice_event_type"))
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0004'"))
    ledger = Ledger.open(sqlite_url)
    assert ranges_of(ledger.unannounced("p", "a")) == []
    committed(ledger, "b", 1, 5, 9)
    assert ranges_of(ledger.unannounced("p", "b")) == ["t-0 [5, 9)"]
