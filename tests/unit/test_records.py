"""Records of crash tests and of mutants: rows for the definitions of today, pages, shards, and patches that apply."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Any

import pytest
from tests.chaos import results
from tests.chaos.passed import Shard
from tests.chaos.states.catalog import SCENARIOS, definition
from tests.mutants import __main__ as mutants
from tests.mutants.__main__ import MUTANTS, PARTS, PRODUCT, ROOT, Mutant, applies

NOT_SINCE = {
    *(f"{strategy}-{case}" for strategy in ("hot", "ignore_batch", "ignore_range") for case in ("half", "many", "one")),
    *("hot-after-wal", "ignore_batch-after-wal", "ignore_batch-beside", "ignore_range-after-wal"),
    *("interval", "interval-half", "interval-unsunk", "interval-wal", "interval-wal-half"),
    *("lost", "lost-half", "lost-wal", "lost-wal-half", "quarantined", "quarantined-half", "quarantined-unsunk"),
    *("replay-after-wal", "replay-committed", "replay-half", "replay-judged", "replay-many"),
    *("wal-after-replay", "wal-clean", "wal-half", "wal-judged", "wal-many", "wal-unsealed"),
}
"""Scenarios that were last resumed before the steps of today; what was run since may leave this list."""


def test_chaos_record_has_a_row_for_the_definition_of_each_scenario() -> None:
    newest = {record["scenario"]: record for record in reversed(results.load()["scenarios"])}
    assert newest.keys() == SCENARIOS.keys()
    known = {name: record["steps"] for name, record in newest.items()}
    other = {name for name, s in SCENARIOS.items() if known[name] != definition(s, newest[name]["kinds"])}
    assert other <= NOT_SINCE, "run make chaos-states ARGS='--only NAME' for these"


def test_chaos_record_has_no_lost_or_doubled_record() -> None:
    parts = ("lost", "doubled", "unaccounted", "failed")
    assert [r["scenario"] for r in results.load()["scenarios"] if any(r[part] for part in parts)] == []


def test_pages_of_chaos_and_mutants_are_those_that_the_records_render() -> None:
    text = results.PAGE.read_text()
    assert text == results.page(text, results.load())
    assert results.DATA.read_text() == results.dumped(results.load())
    assert mutants.PAGE.read_text() == mutants.render(mutants.load())


def _run(date: str, deaths: int) -> dict[str, Any]:
    return {"scenario": "one", "deaths": deaths, "cuts": 0, "kills": None, "date": date, "commit": date}


def test_chaos_record_keeps_the_newest_run_and_the_one_that_tried_most() -> None:
    first, full, part = _run("2026-01-01", 3), _run("2026-01-02", 90), _run("2026-01-03", 4)
    other = _run("2026-01-01", 1) | {"scenario": "other"}
    assert results.merged([first, other], [full], "scenario") == [full, other]
    assert results.merged([full, other], [part], "scenario") == [part, full, other]
    assert results.merged([part, full], [_run("2026-01-04", 95)], "scenario") == [_run("2026-01-04", 95)]


def test_chaos_record_adds_up_shards_of_one_test_file() -> None:
    def shard(date: str, code: str, passed: list[str], failed: list[str]) -> dict[str, Any]:
        return {"file": "f", "tests": 3, "passed": passed, "failed": failed, "date": date, "commit": "c", "code": code}

    one, two = shard("2026-01-01", "x", ["a"], ["b"]), shard("2026-01-02", "x", ["b", "c"], [])
    (both,) = results.merged([one], [two], "file")
    assert (both["passed"], both["failed"], both["date"]) == (["a", "b", "c"], [], "2026-01-02")
    assert len(results.merged([both], [shard("2026-01-03", "y", ["a"], [])], "file")) == 2, "other code"


def test_chaos_shards_part_all_names_among_them() -> None:
    shards = [Shard.parse(f"{k}/4") for k in range(1, 5)]
    parts = [shard.part(SCENARIOS, str) for shard in shards if shard]
    assert sorted(name for part in parts for name in part) == sorted(SCENARIOS)
    assert all(parts)
    assert Shard.parse("") is None


@pytest.mark.parametrize("text", ["3", "0/4", "5/4", "a/b", "1/4/5"])
def test_chaos_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="3/8"):
        Shard.parse(text)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_to_the_product_and_names_tests(mutant: Mutant) -> None:
    assert applies(mutant)
    files = [line.split()[2] for line in mutant.file.read_text().splitlines() if line.startswith("diff --git")]
    assert [file for file in files if not file.removeprefix("a/").startswith(PRODUCT)] == []
    assert mutant.expects
    missing = [shlex.split(expected)[0] for expected in mutant.expects]
    assert [path for path in missing if not (ROOT / path).exists()] == []


def test_mutants_are_ten_of_each_part() -> None:
    assert Counter(mutant.part for mutant in MUTANTS) == dict.fromkeys(PARTS, 10)
