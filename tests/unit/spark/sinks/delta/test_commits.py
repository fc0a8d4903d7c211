"""What others did to a table is told from its history."""

from __future__ import annotations

from typing import Any

import pytest

from sluice_spark.sinks.delta.commits import Commit, altered, undone


def mine(version: int) -> Commit:
    return Commit(
        version, "WRITE", {"mode": "Append"}, {"app_id": "sluice:p:1", "version": version, "run": f"r{version}"}
    )


def theirs(at: int, operation: str, **parameters: Any) -> Commit:
    return Commit(at, operation, parameters, None)


def found(*commits: Commit, base: int = 0) -> tuple[int, int | None] | None:
    """By which version, and which commit went."""
    what = undone(commits, base, lambda commit: commit.note is not None)
    return None if what is None else (what.by.version, what.lost.version if what.lost else None)


def test_nothing_is_undone_where_nobody_went_back() -> None:
    assert found() is None
    assert found(mine(1), mine(2)) is None
    assert found(mine(1), theirs(2, "OPTIMIZE"), theirs(3, "DELETE", predicate="x"), mine(4)) is None


def test_a_restore_below_a_commit_of_the_pipeline_undoes_it() -> None:
    assert found(mine(1), mine(2), theirs(3, "RESTORE", version=1)) == (3, 2)
    assert found(mine(1), mine(2), theirs(3, "RESTORE", version="1", timestamp=None)) == (3, 2)


def test_a_restore_below_the_version_that_was_seen_is_one_whatever_was_there() -> None:
    assert found(theirs(6, "RESTORE", version=3), base=5) == (6, None)


def test_a_restore_that_was_buried_by_a_commit_still_counts() -> None:
    assert found(mine(1), mine(2), theirs(3, "RESTORE", version=1), mine(4)) == (3, 2)


def test_a_restore_that_was_restored_away_undoes_nothing() -> None:
    back = theirs(3, "RESTORE", version=1)
    assert found(mine(1), mine(2), back, theirs(4, "RESTORE", version=2)) is None
    assert found(mine(1), mine(2), back, theirs(4, "OPTIMIZE"), theirs(5, "RESTORE", version=1)) == (5, 2)


def test_a_restore_that_takes_back_only_what_others_did_undoes_nothing() -> None:
    assert found(mine(1), theirs(2, "DELETE"), theirs(3, "RESTORE", version=1)) is None


def test_a_restore_to_a_time_is_refused_since_nobody_knows_whose_clock() -> None:
    assert found(mine(1), theirs(2, "RESTORE", version=None, timestamp="2026-11-01T00:00:00")) == (2, None)


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("CREATE OR REPLACE TABLE AS SELECT", {}),
        ("REPLACE TABLE", {}),
        ("WRITE", {"mode": "Overwrite", "partitionBy": "[]"}),
        ("WRITE", {"mode": "Overwrite", "predicate": None}),
    ],
)
def test_another_table_in_its_place_undoes_all(operation: str, parameters: dict[str, Any]) -> None:
    assert found(mine(1), theirs(2, operation, **parameters)) == (2, None)
    assert found(mine(1), theirs(2, operation, **parameters), theirs(3, "RESTORE", version=1)) is None


def test_an_overwrite_of_a_part_is_an_alteration() -> None:
    part = theirs(2, "WRITE", mode="Overwrite", predicate='["(id = 1)"]')
    assert found(mine(1), part) is None
    assert altered([part]) == [part]


def test_an_overwrite_with_our_metadata_is_no_stranger() -> None:
    own = Commit(2, "WRITE", {"mode": "Overwrite"}, {"app_id": "sluice:p:1", "version": 2})
    assert found(mine(1), own) is None


def test_what_may_concern_rows_is_told_and_what_cannot_is_not() -> None:
    kept = ["OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "ADD COLUMNS", "RESTORE", "CREATE TABLE"]
    changed = ["DELETE", "UPDATE", "MERGE", "TRUNCATE", "WRITE", "FSCK", "SOMETHING NEW", ""]
    commits = [theirs(n, name) for n, name in enumerate(kept + changed)]
    assert [commit.operation for commit in altered([*reversed(commits), mine(99)])] == changed


def test_an_entry_of_the_history_is_read_with_and_without_metadata() -> None:
    entry = {"version": 3, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    assert Commit.of(entry).note is None
    assert Commit.of({**entry, "sluice": '{"app_id": "sluice:p:1"}'}).note == {"app_id": "sluice:p:1"}
    assert Commit.of({"version": 0}).operation == ""
