"""Commits of others in the history of a Delta table."""

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
    """Return the version that undid commits, and the newest of these."""
    gone = undone(commits, base, lambda commit: commit.note is not None)
    return None if gone is None else (gone.by.version, gone.lost.version if gone.lost else None)


RESTORED = theirs(3, "RESTORE", version=1)
PART = theirs(2, "WRITE", mode="Overwrite", predicate='["(id = 1)"]')


@pytest.mark.parametrize(
    ("commits", "base", "expected"),
    [
        pytest.param([], 0, None, id="no-commit"),
        pytest.param([mine(1), mine(2)], 0, None, id="our-commits"),
        pytest.param(
            [mine(1), theirs(2, "OPTIMIZE"), theirs(3, "DELETE", predicate="x"), mine(4)], 0, None, id="alterations"
        ),
        pytest.param([mine(1), mine(2), RESTORED], 0, (3, 2), id="restore-below-our-commit"),
        pytest.param(
            [mine(1), mine(2), theirs(3, "RESTORE", version="1", timestamp=None)], 0, (3, 2), id="version-as-text"
        ),
        pytest.param([theirs(6, "RESTORE", version=3)], 5, (6, None), id="restore-below-the-version-that-was-seen"),
        pytest.param([mine(1), mine(2), RESTORED, mine(4)], 0, (3, 2), id="restore-buried-by-a-commit"),
        pytest.param([mine(1), mine(2), RESTORED, theirs(4, "RESTORE", version=2)], 0, None, id="restored-away"),
        pytest.param(
            [mine(1), mine(2), RESTORED, theirs(4, "OPTIMIZE"), theirs(5, "RESTORE", version=1)], 0, (5, 2),
            id="restored-again",
        ),
        pytest.param([mine(1), theirs(2, "DELETE"), RESTORED], 0, None, id="restore-takes-back-what-others-did"),
        pytest.param(
            [mine(1), theirs(2, "RESTORE", version=None, timestamp="2026-11-01T00:00:00")], 0, (2, None),
            id="restore-to-a-time-of-an-unknown-clock",
        ),
        pytest.param([mine(1), PART], 0, None, id="overwrite-of-a-part"),
        pytest.param(
            [mine(1), Commit(2, "WRITE", {"mode": "Overwrite"}, {"app_id": "sluice:p:1", "version": 2})], 0, None,
            id="overwrite-of-ours",
        ),
    ],
)  # fmt: skip
def test_delta_history_shows_undone_commits_of_the_pipeline(
    commits: list[Commit], base: int, expected: tuple[int, int | None] | None
) -> None:
    assert found(*commits, base=base) == expected
    assert altered([PART]) == [PART]


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("CREATE OR REPLACE TABLE AS SELECT", {}),
        ("REPLACE TABLE", {}),
        ("WRITE", {"mode": "Overwrite", "partitionBy": "[]"}),
        ("WRITE", {"mode": "Overwrite", "predicate": None}),
    ],
)
def test_delta_history_of_another_table_in_its_place_undoes_all(operation: str, parameters: dict[str, Any]) -> None:
    assert found(mine(1), theirs(2, operation, **parameters)) == (2, None)
    assert found(mine(1), theirs(2, operation, **parameters), theirs(3, "RESTORE", version=1)) is None


def test_delta_history_shows_operations_that_may_alter_rows() -> None:
    kept = ["OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "ADD COLUMNS", "RESTORE", "CREATE TABLE"]
    changed = ["DELETE", "UPDATE", "MERGE", "TRUNCATE", "WRITE", "FSCK", "SOMETHING NEW", ""]
    commits = [theirs(n, name) for n, name in enumerate(kept + changed)]
    assert [commit.operation for commit in altered([*reversed(commits), mine(99)])] == changed


def test_delta_history_entry_is_read_with_and_without_metadata() -> None:
    entry = {"version": 3, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    assert Commit.of(entry).note is None
    assert Commit.of({**entry, "sluice": '{"app_id": "sluice:p:1"}'}).note == {"app_id": "sluice:p:1"}
    assert Commit.of({"version": 0}).operation == ""
