"""Many runs at once: what is summed up in the database is what the single accounts say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.postgres import new_database
from tests.fixtures.showcase import Past, fill

from sluice.ledger import Ledger
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    if request.param == "sqlite":
        return Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    return Ledger.open(new_database(request.getfixturevalue("postgres")))


def span(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


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


def part(start: int, end: int, **counts: int) -> RangeAccount:
    return RangeAccount(span(start, end), Counts(**(counts or {"written": end - start})))


@pytest.fixture
def past(ledger: Ledger) -> Ledger:
    """Four live runs, the second of which failed before it committed anything, and an interval replaced twice."""
    run(ledger, "a", part(0, 10), part(10, 20, written=7, quarantined=3), verdict="passed")
    run(ledger, "b", planned=span(20, 70), state="failed")
    run(ledger, "c", part(20, 80, written=50, filtered=10), verdict="warned", first=2)
    run(ledger, "d", part(80, 90, written=6, lost=4), verdict="failed", first=3, lost=4)
    run(ledger, "i", part(0, 10), kind="interval", epoch=-1)
    run(ledger, "i", part(0, 10, written=9, filtered=1), kind="interval", epoch=-1, first=1)
    return ledger


def test_each_line_has_the_counts_of_the_runs_account(past: Ledger) -> None:
    lines = past.page("p")
    assert [line.run_id for line in lines] == ["i", "d", "c", "b", "a"]
    for line in lines:
        account = past.account("p", line.run_id)
        assert line.counts.as_dict() == {k: account[k] for k in line.counts.as_dict()}
    assert lines[0].counts == Counts(written=9, filtered=1), "of an interval that was replaced again, the last split"


def test_pages_follow_one_another(past: Ledger) -> None:
    first = past.page("p", limit=2)
    assert [r.run_id for r in past.page("p", before=first[-1].sequence, limit=2)] == ["c", "b"]
    assert past.count("p") == 5
    assert past.pipelines() == {"p"}


def test_a_span_of_one_run_is_that_run(past: Ledger) -> None:
    spans = past.spans("p", newest=100)
    assert [(s.first, s.last, s.runs) for s in spans] == [(r, r, 1) for r in "abcdi"]
    assert [s.counts for s in spans] == [past.page("p")[n].counts for n in (4, 3, 2, 1, 0)]
    assert [s.found for s in spans] == [20, 50, 60, 10, None], "also what a failed run found; not an interval's"
    assert [s.verdicts for s in spans] == [{"passed": 1}, {}, {"warned": 1}, {"failed": 1}, {}]
    assert spans[1].states == {"failed": 1}


def test_longer_spans_are_the_sums_of_theirs(past: Ledger) -> None:
    old, middle, new = past.spans("p", newest=100, at_most=3)
    assert [(s.first, s.last, s.runs) for s in (old, middle, new)] == [("a", "a", 1), ("b", "c", 2), ("d", "i", 2)]
    assert middle.counts == Counts(written=50, filtered=10)
    assert (middle.found, middle.verdicts, middle.states) == (60, {"warned": 1}, {"failed": 1, "done": 1})
    assert new.counts == Counts(written=15, filtered=1, lost=4)
    assert [s.first for s in past.spans("p", newest=2)] == ["d", "i"]
    assert past.spans("another", newest=5) == []


def test_a_glance_has_the_newest_verdict_and_the_open_losses(past: Ledger) -> None:
    glance = past.glances(["p", "never"], runs=1)
    assert [r.run_id for r in glance["p"].runs] == ["i"]
    assert glance["p"].judged is not None
    assert (glance["p"].judged.run_id, glance["p"].judged.verdict) == ("d", "failed")
    assert glance["p"].lost == 4
    assert (glance["never"].runs, glance["never"].judged, glance["never"].lost) == ([], None, 0)


def test_many_runs_are_at_most_so_many_spans_and_nothing_is_left_out(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    fill(ledger, "p", Past(2_000, partitions=1, refused=0.1, losses={100: 5}, failures={3: "down"}))
    spans = ledger.spans("p", newest=2_000)
    assert len(spans) == 200
    assert sum(s.runs for s in spans) == 2_000
    assert sum((s.counts for s in spans), Counts()) == sum((a.counts for a in ledger.accounts("p")), Counts())
    assert spans[-1].states == {"done": 9, "failed": 1}
