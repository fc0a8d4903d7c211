"""Failed expectations: how they are shown, and which are covered by an acceptance."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.run.verdict import MASKED, faults, line, title, told, worse

RESULT: dict[str, Any] = {
    "expectation": "expect_column_values_to_be_in_set", "column": "name", "severity": "critical", "scope": "slice",
    "success": False, "unexpected_count": 12, "unexpected_percent": 1.23456, "exception": None,
}  # fmt: skip


def test_verdict_shows_values_with_counts_and_offsets_by_partition() -> None:
    places = [("o", 1, 7), ("o", 0, 9), ("o", 1, 3), ("a", 0, 1)]
    records = [{"topic": topic, "partition": partition, "offset": offset} for topic, partition, offset in places]
    values = [{"value": "x", "count": 10}, {"value": None, "count": 1}]
    found = {**RESULT, "values": values, "seen": 11, "records": records}
    assert told(found) == [
        "values: 'x' × 10, null (the first 11 rows of 12)",
        "offsets: a-0 1; o-0 9; o-1 3, 7, …",
    ]
    assert told(found, most=1) == ["values: 'x' × 10, … (the first 11 rows of 12)", "offsets: o-1 7, …"]
    assert told({**RESULT, "examples": ["a", 1]}) == ["values: 'a', 1"], "of an older ledger"
    assert told(RESULT) == []


def test_result_has_a_title_and_a_line() -> None:
    assert title(RESULT) == "expect_column_values_to_be_in_set(name)"
    assert title({**RESULT, "column": None}) == "expect_column_values_to_be_in_set"
    assert list(line(RESULT).values())[4:] == ["FAILED", 12, "1.23"]
    assert [line({**RESULT, **more})["result"] for more in ({"success": True}, {"exception": "x"})] == ["ok", "error"]
    assert line({**RESULT, "unexpected_percent": None})["percent"] is None


def test_accepted_fault_of_the_history_is_its_figure() -> None:
    def known(value: float, runs: int) -> dict[str, int | None]:
        excess = {"limit": "history.nulls(a)", "verdict": "failed", "why": f"{value}; in the last {runs} accepted runs"}
        checks = [{"figure": "nulls", "column": "a", "value": value}]
        return faults({"excesses": [excess], "history": {"checks": checks}})

    assert known(0.1 + 0.2, 20) == known(0.3, 19)
    assert known(0.3, 20) != known(0.4, 20)


@pytest.mark.parametrize(
    ("known", "now", "more"),
    [
        ({"unexpected_count": 3}, {"unexpected_count": 3}, 0),
        ({"unexpected_count": 3}, {"unexpected_count": 2}, 0),
        ({"unexpected_count": 3}, {"unexpected_count": 4}, 1),
        ({"unexpected_count": 3}, {"unexpected_count": 1, "exception": "TypeError"}, 1),
        ({"observed": 9.5}, {"observed": 9.5 + 1e-12}, 0),
        ({"observed": 9.5}, {"observed": 9500000.0}, 1),
        ({"observed": {"values": [1.0, 2.0]}}, {"observed": {"values": [1.0, 3.0]}}, 1),
        ({"observed": 9.5}, {"observed": 9.6, "severity": "warning"}, 0),
        ({"observed": 3e-17}, {"observed": -2e-17}, 0),
        ({"observed": None, "missing_count": 1}, {"observed": None, "missing_count": 2}, 1),
        ({"unexpected_count": 0, "missing_count": 1}, {"unexpected_count": 0, "missing_count": 50}, 1),
        ({"unexpected_count": 3, "arguments": "a"}, {"unexpected_count": 3, "arguments": "a"}, 0),
        ({"unexpected_count": 3, "arguments": "a"}, {"unexpected_count": 1, "arguments": "b"}, 1),
    ],
)
def test_verdict_is_worse_than_the_accepted_one(known: dict[str, Any], now: dict[str, Any], more: int) -> None:
    fault = {"expectation": "e", "column": "id", "scope": "slice", "success": False}
    found = [faults({"results": [fault | item]}) for item in (known, now)]
    assert len(worse(*found)) == more


@pytest.mark.parametrize("found", [{"observed": MASKED}, {"unexpected_count": 3}])
def test_accepted_faults_do_not_cover_rows_made_in_another_way(found: dict[str, Any]) -> None:
    wrong = {"expectation": "e", "column": "id", "scope": "slice", "success": False, **found}
    known, again, other = (faults({"results": [wrong], "made_by": made}) for made in ("a", "a", "b"))
    assert worse(known, again) == []
    assert worse(known, other) == ["rows made by another decode, rules or transform (b)"]
    assert faults({"results": [wrong | {"success": True}], "made_by": "a"}) == {}


def test_accepted_error_of_the_history_does_not_cover_the_suite() -> None:
    known = faults({"error": "quality.history: KeyError: 'x'"})
    assert worse(known, faults({"error": "ValueError: no suite"})) == ["error: ValueError"]


@pytest.mark.parametrize(("count", "why", "more"), [(3, "3 of 7, and 20% may be", 0), (4, "4 of 7, and 10% may be", 1)])
def test_accepted_limit_is_known_by_its_number_of_records(count: int, why: str, more: int) -> None:
    limit = {"limit": "max_quarantined", "verdict": "failed", "count": 3, "why": "3 of 7, and 10% may be"}
    found = faults({"excesses": [limit | {"count": count, "why": why}]})
    assert len(worse(faults({"excesses": [limit]}), found)) == more
