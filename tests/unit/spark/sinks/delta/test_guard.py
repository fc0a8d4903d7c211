"""Whose a table is, and what others did to it; without a JVM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from tests.unit.spark.sinks.delta.conftest import SCHEMA, put, rows, sink

from sluice.errors import CheckpointError, ConfigError
from sluice_spark.sinks.base import NOTHING
from sluice_spark.sinks.delta.table import DeltaSink


def settings(path: Path) -> dict[str, str]:
    return dict(DeltaTable(str(path)).metadata().configuration)


def unmarked(path: Path, *pipelines: str) -> None:
    """A table as earlier versions made it: no property says whose it is."""
    write_deltalake(str(path), rows(0, 1), configuration={"delta.checkpointInterval": "30"})
    for number, name in enumerate(pipelines):
        note = {"app_id": f"sluice:{name}:1", "version": 0, "run": name, "accounts": []}
        write_deltalake(
            str(path),
            rows(number + 1, number + 2),
            mode="append",
            commit_properties=CommitProperties(
                custom_metadata={"sluice": json.dumps(note)},
                app_transactions=[Transaction(f"sluice:{name}:1", 0, None)],
            ),
        )


# --- whose it is ---------------------------------------------------------------------------------------------------


def test_a_table_says_whose_it_is_and_takes_nobody_elses_batch(tmp_path: Path) -> None:
    assert put(sink(tmp_path), 0)
    assert settings(tmp_path)["sluice.pipeline"] == "p"
    other = sink(tmp_path, "q")
    for attempt in (other.examine, lambda: other.commit(NOTHING, SCHEMA, 0, {"run": "q"})):
        with pytest.raises(ConfigError, match="belongs to pipeline 'p'") as refused:
            attempt()
        assert "sluice adopt p --as q" in refused.value.next_step
    assert DeltaTable(str(tmp_path)).transaction_version("sluice:q:1") is None


def test_a_quarantine_is_no_sink(tmp_path: Path) -> None:
    put(sink(tmp_path, suffix=":quarantine"), 0)
    with pytest.raises(ConfigError, match="cannot be its sink as well"):
        sink(tmp_path).examine()


def test_a_table_of_an_earlier_version_becomes_its_pipelines(tmp_path: Path) -> None:
    unmarked(tmp_path, "p")
    with pytest.raises(ConfigError, match="belongs to pipeline 'p'"):
        sink(tmp_path, "q").examine()
    assert "sluice.pipeline" not in settings(tmp_path)
    assert sink(tmp_path).examine() == []
    assert (settings(tmp_path)["sluice.pipeline"], settings(tmp_path)["sluice.holds"]) == ("p", "sink")
    version = DeltaTable(str(tmp_path)).version()
    assert sink(tmp_path).examine() == []
    assert DeltaTable(str(tmp_path)).version() == version


def test_a_table_that_two_wrote_to_already_is_refused_to_both(tmp_path: Path) -> None:
    unmarked(tmp_path, "p", "q")
    for one, other in (("p", "q"), ("q", "p")):
        with pytest.raises(ConfigError, match=f"belongs to pipeline '{other}'"):
            sink(tmp_path, one).examine()


def test_a_driver_that_slept_through_a_hand_over_commits_nothing(tmp_path: Path) -> None:
    old = sink(tmp_path)
    put(old, 0)
    DeltaTable(str(tmp_path)).alter.set_table_properties(
        {"sluice.pipeline": "new", "sluice.adopting": "p"}, raise_if_not_exists=False
    )
    with pytest.raises(ConfigError, match="from pipeline 'p' to 'new' was interrupted"):
        put(old, 1)
    DeltaTable(str(tmp_path)).alter.set_table_properties({"sluice.adopting": ""}, raise_if_not_exists=False)
    with pytest.raises(ConfigError, match="belongs to pipeline 'new'"):
        sink(tmp_path).examine()


# --- what others did -----------------------------------------------------------------------------------------------


def test_a_restore_between_two_batches_of_one_run_is_seen_by_the_second(tmp_path: Path) -> None:
    table = sink(tmp_path)
    for batch in (0, 1):
        put(table, batch)
    DeltaTable(str(tmp_path)).restore(DeltaTable(str(tmp_path)).version() - 1)
    with pytest.raises(
        CheckpointError, match=r"rolled back or replaced by version 3 \(RESTORE\): version 2, the commit of"
    ):
        put(table, 2)
    with pytest.raises(CheckpointError) as refused:
        sink(tmp_path).examine()
    assert "TO VERSION AS OF 2" in refused.value.next_step
    DeltaTable(str(tmp_path)).restore(2)
    assert sink(tmp_path).examine() == []
    assert put(sink(tmp_path), 3)


def test_what_others_did_is_told_once_and_in_the_way_of_nothing(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    DeltaTable(str(tmp_path)).delete("id = 3")
    DeltaTable(str(tmp_path)).optimize.compact()
    table = sink(tmp_path)
    (told,) = table.examine()
    assert "version 2 (DELETE)" in told
    assert put(table, 1)
    assert sink(tmp_path).examine() == []


def test_what_others_did_while_a_run_was_at_work_is_told_by_the_next(tmp_path: Path) -> None:
    table = sink(tmp_path)
    put(table, 0)
    table.examine()
    DeltaTable(str(tmp_path)).delete("id = 3")
    put(table, 1)
    put(table, 2)
    (told,) = sink(tmp_path).examine()
    assert "(DELETE)" in told


def test_a_history_that_was_cleaned_away_is_said(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    for number in range(3):
        DeltaTable(str(tmp_path)).delete(f"id = {number}")
    DeltaTable(str(tmp_path)).create_checkpoint()
    for number in range(3):
        (tmp_path / "_delta_log" / f"{number:020}.json").unlink()
    told = sink(tmp_path).examine()
    assert any("versions 0 to 2" in item and "no longer in its history" in item for item in told), told


# --- rows that somebody else has a hand in -------------------------------------------------------------------------


def test_a_table_that_its_user_made_and_filled_before_the_first_run_is_taken(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), rows(0, 1))
    write_deltalake(str(tmp_path), rows(1, 2), mode="overwrite")
    table = sink(tmp_path)
    assert any("(WRITE)" in told for told in table.examine())
    assert put(table, 0)
    assert sink(tmp_path).examine() == []


def test_commits_that_the_history_forgot_still_say_whose_a_table_is(tmp_path: Path) -> None:
    unmarked(tmp_path, "p")
    DeltaTable(str(tmp_path)).optimize.compact()
    DeltaTable(str(tmp_path)).create_checkpoint()
    for file in sorted((tmp_path / "_delta_log").glob("*.json"))[:-1]:
        file.unlink()
    with pytest.raises(ConfigError, match="belongs to pipeline 'p'"):
        sink(tmp_path, "q").examine()
    sink(tmp_path).examine()
    assert settings(tmp_path)["sluice.pipeline"] == "p"


def test_a_writer_that_never_looked_back_buries_nothing(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    DeltaTable(str(tmp_path)).delete("id = 3")
    put(DeltaSink(str(tmp_path), "sluice:p:redriven"), 1)
    (told,) = sink(tmp_path).examine()
    assert "(DELETE)" in told
