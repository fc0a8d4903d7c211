"""The verdict of a run: its expectations, its limits, and its history, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.fixtures.books import Place, split

from sluice.facts.profile import ColumnProfile, Profile
from sluice.ledger.events import Judged
from sluice.pipeline import load
from sluice.pipeline.quality import Quality
from sluice.ranges import Counts
from sluice.run.verdict import WARNS, causes, headed
from sluice_spark.quality import history
from sluice_spark.quality.history import with_past
from sluice_spark.quality.judgement import ExpectationResult, Judgement
from sluice_spark.quality.limits import Excess, excesses


def result(*, success: bool, severity: str = "critical", exception: str | None = None) -> ExpectationResult:
    return ExpectationResult("e", "c", severity, success, None, None, None, [], exception, "slice")


@pytest.mark.parametrize(
    ("results", "error", "verdict"),
    [
        ((), None, "passed"),
        ((result(success=True),), None, "passed"),
        ((result(success=True), result(success=False, severity="warning")), None, "warned"),
        ((result(success=False, severity="info"),), None, "warned"),
        ((result(success=False, severity="warning"), result(success=False)), None, "failed"),
        ((result(success=False, severity="info", exception="no such column"),), None, "failed"),
        ((), "boom", "error"),
        ((result(success=True),), "boom", "error"),
    ],
)
def test_judgement_follows_its_results(results: tuple[ExpectationResult, ...], error: str | None, verdict: str) -> None:
    judgement = Judgement("s", 1, results, error=error)
    assert judgement.verdict == verdict
    assert judgement.as_dict()["success"] is (verdict in ("passed", "warned"))
    assert bool(judgement.reasons) is (verdict != "passed")


def test_result_without_a_share_of_unexpected_values_says_none() -> None:
    counted = replace(result(success=False), unexpected_count=20)
    assert counted.why().endswith("20 unexpected")
    assert replace(counted, unexpected_percent=50.0).why().endswith("20 unexpected (50.00 %)")


def test_judgement_names_warnings_behind_the_causes_of_a_failed_verdict() -> None:
    warns, fails = result(success=False, severity="warning"), result(success=False)
    few = Excess("nothing_written", "warned", "all of it was refused")
    judgement = Judgement("s", 1, (warns, fails), excesses=(few,))
    assert causes(judgement.reasons) == [fails.why()]
    assert list(headed(judgement.verdict, judgement.reasons)) == [
        f"failed: {fails.why()}", "warned: nothing_written: all of it was refused", f"warned: {warns.why()}",
    ]  # fmt: skip
    only = Judgement("s", 1, (warns,))
    assert list(headed(only.verdict, only.reasons)) == [f"warned: {warns.why()}"]
    assert causes(only.reasons) == only.reasons


NONE: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("keys", "counts", "verdict", "limits"),
    [
        (NONE, Counts(written=98, quarantined=2), "failed", ["max_quarantined"]),
        (NONE, Counts(written=2, quarantined=98), "failed", ["max_quarantined"]),
        (NONE, Counts(quarantined=5), "failed", ["max_quarantined", "nothing_written"]),
        (NONE, Counts(written=99, quarantined=1), "passed", []),
        (NONE, Counts(written=98, quarantined=1, filtered=1), "passed", []),
        (NONE, Counts(written=98, quarantined=1, absent=900), "failed", ["max_quarantined"]),
        (NONE, Counts(filtered=7, absent=3), "empty", []),
        (NONE, Counts(), "empty", []),
        (NONE, Counts(written=10**9, lost=1), "warned", ["max_lost"]),
        (NONE, Counts(lost=1), "warned", ["max_lost", "nothing_written"]),
        ({"max_lost": 0}, Counts(written=10**9, lost=1), "failed", ["max_lost"]),
        ({"max_lost": 1}, Counts(written=10**9, lost=1), "passed", []),
        ({"max_lost": "10%"}, Counts(written=9, lost=1), "passed", []),
        ({"max_lost": "10 %"}, Counts(written=8, lost=1), "failed", ["max_lost"]),
        ({"max_lost": "100%"}, Counts(lost=3), "warned", ["nothing_written"]),
        ({"max_quarantined": 0}, Counts(written=10**9, quarantined=1), "failed", ["max_quarantined"]),
        ({"max_quarantined": 7}, Counts(quarantined=7), "warned", ["nothing_written"]),
        ({"max_quarantined": "0.001%"}, Counts(written=99_999, quarantined=1), "passed", []),
        ({"max_quarantined": "0.001%"}, Counts(written=99_998, quarantined=1), "failed", ["max_quarantined"]),
        ({"max_quarantined": "100%"}, Counts(written=1, quarantined=99), "passed", []),
    ],
)
def test_limits_to_refused_and_lost_records(
    keys: dict[str, Any], counts: Counts, verdict: str, limits: list[str]
) -> None:
    found = tuple(excesses(Quality.model_validate(keys), counts))
    assert [e.limit for e in found] == limits
    judgement = Judgement("s", counts.written, excesses=found, wrote=counts.written > 0)
    assert judgement.verdict == verdict
    assert [why.removesuffix(WARNS) for why in judgement.reasons] == [str(e) for e in found]


def test_limits_that_are_exceeded_name_the_numbers() -> None:
    (excess,) = excesses(Quality(), Counts(written=989_999, quarantined=10_001))
    assert all(figure in str(excess) for figure in ("max_quarantined", "10,001", "1,000,000", "(1 %)", "1% "))


FINE = Judgement("s", 5, excesses=(Excess("max_lost", "warned", "3 are lost"),))


def profile(rows: int, nulls: int = 0) -> Profile:
    return Profile(rows, {"id": ColumnProfile(rows, nulls)})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    for number, rows in enumerate((1000, 1000, 1000, 100)):
        place.commit(f"r{number}", split(10 * number, 10 * number + 10), facts=[profile(rows)])
        place.ledger.decide("p", f"r{number}", Judged(verdict="passed", judgement={}))
    return place


def seen(
    place: Place, *, found: Judgement = FINE, batch: Profile | None = None, of: Any = history.ALL, **keys: Any
) -> Any:
    history = {"at_least": 3, "volume": True, "columns": {"id": ["nulls"]}, **keys}
    place.configure(quality={"history": history})
    return with_past(found, load(str(place.file)), place.ledger, ["r3"], batch, of=of)


@pytest.mark.parametrize(("severity", "verdict"), [("warning", "warned"), ("critical", "failed")])
def test_history_limit_is_exceeded_by_a_figure_that_is_far_off(place: Place, severity: str, verdict: str) -> None:
    found = seen(place, severity=severity)
    assert found.verdict == verdict
    assert [(e.limit, e.verdict) for e in found.excesses] == [("max_lost", "warned"), ("history.volume", verdict)]
    assert "850 to 1,150" in "\n".join(found.reasons)
    checks = found.as_dict()["history"]["checks"]
    assert [(c["figure"], c["ok"]) for c in checks] == [("volume", False), ("nulls", True)]


def test_history_is_not_judged_without_its_key_and_too_few_runs_only_warn(place: Place) -> None:
    assert with_past(FINE, load(str(place.file)), place.ledger, ["r3"]) is FINE
    found = seen(place, at_least=4, severity="critical")
    assert (found.verdict, found.history["checks"]) == ("warned", [])
    assert found.history["unknown"] == {"history": "there are 3 accepted runs before this one, and 4 are needed"}


def test_history_judges_a_batch_by_its_columns_and_the_run_later_by_the_rest(place: Place) -> None:
    batch = seen(place, batch=profile(30, nulls=30), of=["columns"])
    assert [e.limit for e in batch.excesses][1:] == ["history.nulls(id)"]
    whole = seen(place, found=batch, of=["volume", "freshness"], freshness="1h")
    assert [c["figure"] for c in whole.history["checks"]] == ["nulls", "volume"]
    assert whole.history["unknown"] == {"history.freshness": "no row with a known time was written yet"}


def test_history_that_cannot_be_judged_is_an_error_and_no_pass(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "judge", mock.Mock(side_effect=ValueError("odd")))
    found = seen(place)
    assert (found.verdict, found.error) == ("error", "quality.history: ValueError: «odd»")
