"""The owner of a Delta table, and the commits of others that its pipeline finds; without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from tests.unit.spark.sinks.delta.conftest import SCHEMA, put, rows, set_properties, sink

from sluice.delta.commits import Commit, altered, undone
from sluice.errors import CheckpointError, ConfigError, LeaseHeldError
from sluice_spark.sinks.base import NOTHING, Fence


def settings(path: Path) -> dict[str, str]:
    return dict(DeltaTable(str(path)).metadata().configuration)


def unmarked(path: Path, *pipelines: str) -> None:
    """Make a table as earlier versions did: no property names its owner."""
    write_deltalake(str(path), rows(0, 1), configuration={"delta.checkpointInterval": "30"})
    for number, name in enumerate(pipelines):
        note = {"app_id": f"sluice:{name}:1", "version": 0, "run": name, "accounts": []}
        marks = CommitProperties(
            custom_metadata={"sluice": json.dumps(note)}, app_transactions=[Transaction(f"sluice:{name}:1", 0, None)]
        )
        write_deltalake(str(path), rows(number + 1, number + 2), mode="append", commit_properties=marks)


def test_delta_table_names_its_pipeline_and_takes_no_batch_of_another(tmp_path: Path) -> None:
    assert put(sink(tmp_path), 0)
    assert settings(tmp_path)["sluice.pipeline"] == "p"
    other = sink(tmp_path, "q:1")
    for attempt in (other.examine, lambda: other.commit(NOTHING, SCHEMA, 0, {"run": "q"})):
        with pytest.raises(ConfigError, match="belongs to pipeline 'p'") as refused:
            attempt()
        assert "sluice adopt p --as q" in refused.value.next_step
    assert DeltaTable(str(tmp_path)).transaction_version("sluice:q:1") is None


def test_delta_quarantine_is_no_sink(tmp_path: Path) -> None:
    put(sink(tmp_path, "p:1:quarantine"), 0)
    with pytest.raises(ConfigError, match="cannot be its sink as well"):
        sink(tmp_path).examine()


@pytest.mark.parametrize("history", [True, False], ids=["with-its-history", "without-its-history"])
def test_delta_table_of_an_earlier_version_is_claimed_by_its_only_writer(tmp_path: Path, history: bool) -> None:
    unmarked(tmp_path, "p")
    if not history:
        DeltaTable(str(tmp_path)).optimize.compact()
        DeltaTable(str(tmp_path)).create_checkpoint()
        for file in sorted((tmp_path / "_delta_log").glob("*.json"))[:-1]:
            file.unlink()
    with pytest.raises(ConfigError, match="belongs to pipeline 'p'"):
        sink(tmp_path, "q:1").examine()
    assert "sluice.pipeline" not in settings(tmp_path)
    assert (sink(tmp_path).examine() == []) is history
    assert (settings(tmp_path)["sluice.pipeline"], settings(tmp_path)["sluice.holds"]) == ("p", "sink")
    version = DeltaTable(str(tmp_path)).version()
    sink(tmp_path).examine()
    assert DeltaTable(str(tmp_path)).version() == version


def test_delta_table_with_two_writers_of_an_earlier_version_is_refused_to_both(tmp_path: Path) -> None:
    unmarked(tmp_path, "p", "q")
    for one, other in (("p", "q"), ("q", "p")):
        with pytest.raises(ConfigError, match=f"belongs to pipeline '{other}'"):
            sink(tmp_path, f"{one}:1").examine()


def test_delta_driver_commits_nothing_after_its_table_was_handed_over(tmp_path: Path) -> None:
    old = sink(tmp_path)
    put(old, 0)
    set_properties(tmp_path, sluice_pipeline="new", sluice_adopting="p")
    with pytest.raises(ConfigError, match="from pipeline 'p' to 'new' was interrupted"):
        put(old, 1)
    set_properties(tmp_path, sluice_adopting="")
    with pytest.raises(ConfigError, match="belongs to pipeline 'new'"):
        sink(tmp_path).examine()


def test_delta_restore_between_two_batches_of_a_run_is_refused_by_the_second(tmp_path: Path) -> None:
    table = sink(tmp_path)
    for batch in (0, 1):
        put(table, batch)
    DeltaTable(str(tmp_path)).restore(1)
    restored = r"rolled back or replaced by version 3 \(RESTORE\): version 2, the commit of"
    for attempt in (lambda: put(table, 2), sink(tmp_path).examine):
        with pytest.raises(CheckpointError, match=restored) as refused:
            attempt()
        assert "TO VERSION AS OF 2" in refused.value.next_step
    DeltaTable(str(tmp_path)).restore(2)
    assert sink(tmp_path).examine() == []
    assert put(sink(tmp_path), 3)


@pytest.mark.parametrize(
    ("examined", "writers"),
    [
        pytest.param(False, [], id="between-two-runs"),
        pytest.param(True, ["p:1", "p:1"], id="during-a-run"),
        pytest.param(False, ["p:redriven"], id="before-a-writer-that-examines-nothing"),
    ],
)
def test_delta_delete_by_users_is_a_warning_of_the_next_run(tmp_path: Path, examined: bool, writers: list[str]) -> None:
    table = sink(tmp_path)
    put(table, 0)
    if examined:
        table.examine()
    DeltaTable(str(tmp_path)).delete("id = 3")
    DeltaTable(str(tmp_path)).optimize.compact()  # changes no row
    for batch, writer in enumerate(writers, 1):
        put(table if examined else sink(tmp_path, writer), batch)
    following = sink(tmp_path)
    (warning,) = following.examine()
    assert "version 2 (DELETE)" in warning
    assert put(following, 3)
    assert sink(tmp_path).examine() == []


def test_delta_versions_that_the_history_lost_are_a_warning(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    for number in range(3):
        DeltaTable(str(tmp_path)).delete(f"id = {number}")
    DeltaTable(str(tmp_path)).create_checkpoint()
    for number in range(3):
        (tmp_path / "_delta_log" / f"{number:020}.json").unlink()
    warnings = sink(tmp_path).examine()
    assert any("versions 0 to 2" in item and "no longer in its history" in item for item in warnings), warnings


def test_delta_table_that_a_user_made_and_filled_is_taken(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), rows(0, 1))
    write_deltalake(str(tmp_path), rows(1, 2), mode="overwrite")
    table = sink(tmp_path)
    assert any("(WRITE)" in warning for warning in table.examine())
    assert put(table, 0)
    assert sink(tmp_path).examine() == []


@pytest.mark.parametrize(
    ("writer", "rival", "fenced", "says"),
    [
        pytest.param("p:1", "p:1", False, "another driver committed batch 1", id="with-the-same-batch"),
        pytest.param("p:redriven", "p:interval:a/b", True, "run 'march' committed", id="behind-a-fence"),
    ],
)
def test_delta_rival_that_commits_in_the_last_moment_is_refused_the_batch(
    tmp_path: Path, before_commits: Callable[..., None], writer: str, rival: str, fenced: bool, says: str
) -> None:
    put(sink(tmp_path), 0)
    fence = Fence(sink(tmp_path).table_version(), lambda note: note.get("run") == "march") if fenced else None
    before_commits(lambda: sink(tmp_path, rival).commit(NOTHING, SCHEMA, 1, {"run": "march"}))
    with pytest.raises(LeaseHeldError, match=says):
        put(sink(tmp_path, writer), 1, fence=fence)


def mine(version: int) -> Commit:
    return Commit(
        version, "WRITE", {"mode": "Append"}, {"app_id": "sluice:p:1", "version": version, "run": f"r{version}"}
    )


def theirs(at: int, operation: str, **parameters: Any) -> Commit:
    return Commit(at, operation, parameters, None)


def found(*commits: Commit) -> tuple[int, int | None] | None:
    """Return the version that undid commits, and the newest of these; what came before the first one was seen."""
    gone = undone(commits, commits[0].version - 1 if commits else 0, lambda commit: commit.note is not None)
    return None if gone is None else (gone.by.version, gone.lost.version if gone.lost else None)


RESTORED = theirs(3, "RESTORE", version=1)
PART = theirs(2, "WRITE", mode="Overwrite", predicate='["(id = 1)"]')
BY_TIME = theirs(2, "RESTORE", version=None, timestamp="2026-11-01T00:00:00")
WHOLE = Commit(2, "WRITE", {"mode": "Overwrite"}, {"app_id": "sluice:p:1", "version": 2})
OURS = [mine(1), mine(2)]
HISTORIES: dict[str, tuple[list[Commit], tuple[int, int | None] | None]] = {
    "no-commit": ([], None),
    "our-commits": (OURS, None),
    "alterations": ([mine(1), theirs(2, "OPTIMIZE"), theirs(3, "DELETE", predicate="x"), mine(4)], None),
    "restore-below-our-commit": ([*OURS, RESTORED], (3, 2)),
    "version-as-text": ([*OURS, theirs(3, "RESTORE", version="1", timestamp=None)], (3, 2)),
    "restore-below-the-version-that-was-seen": ([theirs(6, "RESTORE", version=3)], (6, None)),
    "restore-buried-by-a-commit": ([*OURS, RESTORED, mine(4)], (3, 2)),
    "restored-away": ([*OURS, RESTORED, theirs(4, "RESTORE", version=2)], None),
    "restored-again": ([*OURS, RESTORED, theirs(4, "OPTIMIZE"), theirs(5, "RESTORE", version=1)], (5, 2)),
    "restore-takes-back-what-others-did": ([mine(1), theirs(2, "DELETE"), RESTORED], None),
    "restore-to-a-time-of-an-unknown-clock": ([mine(1), BY_TIME], (2, None)),
    "overwrite-of-a-part": ([mine(1), PART], None),
    "overwrite-of-ours": ([mine(1), WHOLE], None),
}


@pytest.mark.parametrize("what", HISTORIES)
def test_delta_history_shows_undone_commits_of_the_pipeline(what: str) -> None:
    commits, expected = HISTORIES[what]
    assert found(*commits) == expected
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
