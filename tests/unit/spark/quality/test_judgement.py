"""The verdict of a judgement, and the limits to records that are refused or lost."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.pipeline.quality import Quality
from sluice.ranges import Counts
from sluice.run.verdict import WARNS, causes, headed
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
def test_judgement_has_the_verdict_of_its_results(
    results: tuple[ExpectationResult, ...], error: str | None, verdict: str
) -> None:
    judgement = Judgement("s", 1, results, error=error)
    assert judgement.verdict == verdict
    assert judgement.as_dict()["success"] is (verdict in ("passed", "warned"))
    assert bool(judgement.reasons) is (verdict != "passed")


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
