"""What is told of a failed expectation."""

from __future__ import annotations

from typing import Any

from sluice.run.verdict import line, title, told

RESULT: dict[str, Any] = {
    "expectation": "expect_column_values_to_be_in_set", "column": "name", "severity": "critical", "scope": "slice",
    "success": False, "unexpected_count": 12, "unexpected_percent": 1.23456, "exception": None,
}  # fmt: skip


def record(partition: int, offset: int, topic: str = "o") -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "offset": offset}


def test_values_come_with_counts_and_offsets_by_partition() -> None:
    values = [{"value": "x", "count": 10}, {"value": None, "count": 1}]
    found = {
        **RESULT,
        "values": values,
        "seen": 11,
        "records": [record(1, 7), record(0, 9), record(1, 3), record(0, 1, "a")],
    }
    assert told(found) == [
        "values: 'x' × 10, null (the first 11 rows of 12)",
        "offsets: a-0 1; o-0 9; o-1 3, 7, …",
    ]
    assert told(found, most=1) == ["values: 'x' × 10, … (the first 11 rows of 12)", "offsets: o-1 7, …"]


def test_what_older_ledgers_have_and_what_is_not_known() -> None:
    assert told({**RESULT, "examples": ["a", 1]}) == ["values: 'a', 1"]
    assert told(RESULT) == []


def test_a_result_has_a_title_and_a_line() -> None:
    assert title(RESULT) == "expect_column_values_to_be_in_set(name)"
    assert title({**RESULT, "column": None}) == "expect_column_values_to_be_in_set"
    assert list(line(RESULT).values())[4:] == ["FAILED", 12, "1.23"]
    assert [line({**RESULT, **more})["result"] for more in ({"success": True}, {"exception": "x"})] == ["ok", "error"]
    assert line({**RESULT, "unexpected_percent": None})["percent"] is None
