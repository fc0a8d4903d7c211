"""The verdict that results make."""

from __future__ import annotations

import pytest

from sluice_spark.quality.judgement import ExpectationResult, Judgement


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
