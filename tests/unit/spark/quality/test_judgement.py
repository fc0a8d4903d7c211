"""The verdict that results make."""

from __future__ import annotations

import pytest

from sluice.run.verdict import causes, headed
from sluice_spark.quality.judgement import ExpectationResult, Judgement
from sluice_spark.quality.limits import Excess


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
def test_verdicts(results: tuple[ExpectationResult, ...], error: str | None, verdict: str) -> None:
    judgement = Judgement("s", 1, results, error=error)
    assert judgement.verdict == verdict
    assert judgement.as_dict()["success"] is (verdict in ("passed", "warned"))
    assert bool(judgement.reasons) is (verdict != "passed")


def test_what_only_warns_stands_behind_the_causes_and_says_so() -> None:
    """A warning among the reasons of a failed verdict was taken for its cause."""
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
