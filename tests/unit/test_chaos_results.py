"""The table of crash tests: each scenario has a row for its definition of today; shards part the names among them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chaos import results
from tests.chaos.passed import Shard
from tests.chaos.states.catalog import SCENARIOS, definition

NOT_SINCE = {
    *(f"{strategy}-{case}" for strategy in ("hot", "ignore_batch", "ignore_range") for case in ("half", "many", "one")),
    *("hot-after-wal", "ignore_batch-after-wal", "ignore_batch-beside", "ignore_range-after-wal"),
    *("interval", "interval-half", "interval-unsunk", "interval-wal", "interval-wal-half"),
    *("lost", "lost-half", "lost-wal", "lost-wal-half", "quarantined", "quarantined-half", "quarantined-unsunk"),
    *("replay-after-wal", "replay-committed", "replay-half", "replay-judged", "replay-many"),
    *("wal-after-replay", "wal-clean", "wal-half", "wal-judged", "wal-many", "wal-unsealed"),
}
"""Scenarios that were last resumed before the steps of today; what was run since may leave this list."""


def test_each_scenario_has_a_row_for_its_definition() -> None:
    newest = {record["scenario"]: record for record in reversed(results.load()["scenarios"])}
    assert newest.keys() == SCENARIOS.keys()
    known = {name: record["steps"] for name, record in newest.items()}
    other = {name for name, s in SCENARIOS.items() if known[name] != definition(s, newest[name]["kinds"])}
    assert other <= NOT_SINCE, "run make chaos-states ARGS='--only NAME' for these"


def test_no_row_says_that_a_record_was_lost_or_doubled() -> None:
    parts = ("lost", "doubled", "unaccounted", "failed")
    assert [r["scenario"] for r in results.load()["scenarios"] if any(r[part] for part in parts)] == []


def test_page_has_the_tables_that_the_data_renders() -> None:
    text = results.PAGE.read_text()
    assert text == results.page(text, results.load())
    assert results.DATA.read_text() == results.dumped(results.load())


def _run(date: str, deaths: int, **more: Any) -> dict[str, Any]:
    return {"scenario": "one", "deaths": deaths, "cuts": 0, "kills": None, "date": date, "commit": date, **more}


def test_newest_run_and_the_one_that_tried_most_stay_on_record() -> None:
    first, full, part = _run("2026-01-01", 3), _run("2026-01-02", 90), _run("2026-01-03", 4)
    other = {**_run("2026-01-01", 1), "scenario": "other"}
    assert results.merged([first, other], [full], "scenario") == [full, other]
    assert results.merged([full, other], [part], "scenario") == [part, full, other]
    assert results.merged([part, full], [_run("2026-01-04", 95)], "scenario") == [_run("2026-01-04", 95)]


def test_shards_of_one_test_file_add_up() -> None:
    def shard(date: str, code: str, passed: list[str], failed: list[str]) -> dict[str, Any]:
        return {"file": "f", "tests": 3, "passed": passed, "failed": failed, "date": date, "commit": "c", "code": code}

    one, two = shard("2026-01-01", "x", ["a"], ["b"]), shard("2026-01-02", "x", ["b", "c"], [])
    (both,) = results.merged([one], [two], "file")
    assert (both["passed"], both["failed"], both["date"]) == (["a", "b", "c"], [], "2026-01-02")
    assert len(results.merged([both], [shard("2026-01-03", "y", ["a"], [])], "file")) == 2, "other code"


def test_shards_part_all_names_among_them() -> None:
    shards = [Shard.parse(f"{k}/4") for k in range(1, 5)]
    parts = [shard.part(SCENARIOS, str) for shard in shards if shard]
    assert sorted(name for part in parts for name in part) == sorted(SCENARIOS)
    assert all(parts)
    assert Shard.parse("") is None


@pytest.mark.parametrize("text", ["3", "0/4", "5/4", "a/b", "1/4/5"])
def test_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="3/8"):
        Shard.parse(text)
