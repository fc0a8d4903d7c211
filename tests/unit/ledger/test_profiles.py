"""What the ledger has of the rows of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fixtures.books import Place, split

from sluice.profile import NO_ROWS, ColumnProfile, Profile


def told(rows: int, nulls: int = 0) -> dict[str, Any]:
    return Profile(rows, {"id": ColumnProfile(rows, nulls, "number", 1, rows)}).as_dict()


def test_batches_add_up_and_one_that_is_recorded_again_counts_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    ledger = place.ledger
    with ledger.acquire("p", "a") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        for batch, rows in ((0, 4), (1, 6), (1, 6)):  # reconciling records a batch again
            ledger.batch_committed(lease, epoch=1, batch=batch, accounts=[split(batch * 4, 10)], profile=told(rows, 1))
    whole = ledger.profile("p", ["a"])
    assert whole == Profile(10, {"id": ColumnProfile(10, 2, "number", 1, 6)})


def test_of_an_interval_the_last_replacement_counts(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.ledger.acquire("p", "i") as lease:
        place.ledger.run_planned(lease, kind="interval", recovery="replay", epoch=-1, ranges=[], topic_ids={})
        for batch, rows in ((0, 4), (1, 5)):
            place.ledger.batch_committed(lease, epoch=-1, batch=batch, accounts=[split(0, 5)], profile=told(rows))
    assert (place.ledger.profile("p", ["i"]) or NO_ROWS).rows == 5


def test_runs_of_earlier_versions_have_no_profile_and_an_empty_batch_has_one(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.commit("old", split(0, 5))
    place.commit("new", split(5, 9), profile=told(4))
    place.commit("empty", split(9, 12, filtered=3), profile=NO_ROWS.as_dict())
    assert place.ledger.profile("p", ["old"]) is None
    assert place.ledger.profile("p", ["empty"]) == NO_ROWS
    assert place.ledger.profiled("p", limit=5) == ["empty", "new"]
    assert place.ledger.profiled("p", limit=1) == ["empty"]


def test_what_was_accepted_is_found_behind_any_number_of_failed_runs(tmp_path: Path) -> None:
    """Otherwise what fails each time would become normal."""
    place = Place(tmp_path)
    for number in range(33):
        run, verdict = f"r{number}", "passed" if number < 2 else "failed"
        place.commit(run, split(number * 5, number * 5 + 5), profile=told(number + 1))
        place.ledger.judged(None, "p", run, verdict=verdict, judgement={})
    place.ledger.verdict_accepted("p", "r2", verdict="failed", reason="x")
    found = place.ledger.accepted("p", before=1 << 40, limit=3)
    assert [profile.rows for profile in found] == [3, 2, 1]
