"""Whose a table is, and that nobody else commits to it; without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from sluice.errors import CheckpointError, ConfigError, LeaseHeldError, SinkError
from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import NOTHING, Fence, Staged
from sluice_spark.sinks.delta.slice import Slice
from sluice_spark.sinks.delta.staged import read_back
from sluice_spark.sinks.delta.table import DeltaSink

SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("_topic", StringType()),
        StructField("_partition", LongType()),
        StructField("_offset", LongType()),
        StructField("_timestamp", TimestampType()),
        StructField("_run", StringType()),
    ]
)


def sink(path: Path, pipeline: str = "p", suffix: str = "") -> DeltaSink:
    return DeltaSink(str(path), f"sluice:{pipeline}:1{suffix}")


def rows(first: int, last: int) -> pa.Table:
    count = last - first
    return pa.table(
        {
            "id": list(range(first, last)),
            "_topic": ["t"] * count,
            "_partition": [0] * count,
            "_offset": list(range(first, last)),
            "_timestamp": pa.array([1_356_998_400_000_000 + n for n in range(count)], pa.timestamp("us", "UTC")),
            "_run": ["r"] * count,
        }
    )


def staged(path: Path, batch: int, first: int, last: int) -> Staged:
    folder = f"batches/p-e1-{batch:06d}-0123456{batch}"
    (path / folder).mkdir(parents=True)
    pq.write_table(rows(first, last), path / folder / "part.parquet")
    return read_back(str(path), folder, offsets=True)


def put(table: DeltaSink, batch: int, **more: Any) -> bool:
    path = Path(table.path)
    return table.commit(
        staged(path, batch, 10 * batch, 10 * batch + 10), SCHEMA, batch, {"run": f"r{batch}"}, **more
    )  # fmt: skip


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


# --- commits that lose their answer, or their files ----------------------------------------------------------------


@pytest.mark.parametrize("error", [CommitFailedError("version exists"), OSError("connection reset")])
def test_a_commit_whose_answer_was_lost_is_its_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    table = sink(tmp_path)
    put(table, 0)
    committed = DeltaTable.create_write_transaction

    def losing(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        committed(self, *args, **kwargs)
        raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", losing)
    assert put(table, 1) is True
    monkeypatch.undo()
    assert sorted(DeltaTable(str(tmp_path)).to_pyarrow_table()["id"].to_pylist()) == list(range(20))


def test_another_drivers_commit_is_not_taken_for_an_answer_that_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sink(tmp_path)
    put(table, 0)
    committed = DeltaTable.create_write_transaction

    def second(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        sink(tmp_path).commit(NOTHING, SCHEMA, 1, {"run": "faster"})
        committed(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", second)
    with pytest.raises(LeaseHeldError):
        put(table, 1)


@pytest.mark.parametrize(("spoil", "what"), [(Path.unlink, "is gone"), (lambda f: f.write_bytes(b"x"), "has 1 bytes")])
def test_staged_files_that_vanished_are_not_committed(tmp_path: Path, spoil: Callable[[Path], Any], what: str) -> None:
    table = sink(tmp_path)
    put(table, 0)
    files = staged(tmp_path, 1, 10, 20)
    spoil(tmp_path / files.files[0].path)
    with pytest.raises(SinkError, match=what):
        table.commit(files, SCHEMA, 1, {"run": "r"})
    assert table.version() == 0


# --- fences --------------------------------------------------------------------------------------------------------


def test_a_rival_behind_the_fence_keeps_a_commit_out(tmp_path: Path) -> None:
    live = sink(tmp_path)
    put(live, 0)
    fence = Fence(live.table_version(), lambda note: note.get("interval") is not None)
    put(live, 1)
    assert put(DeltaSink(str(tmp_path), "sluice:p:redriven"), 2, fence=fence)
    interval = DeltaSink(str(tmp_path), "sluice:p:interval:a/b")
    interval.commit(NOTHING, SCHEMA, 0, {"run": "march", "interval": "a/b"})
    with pytest.raises(LeaseHeldError, match="run 'march' committed"):
        put(DeltaSink(str(tmp_path), "sluice:p:redriven"), 3, fence=fence)


def test_a_rival_that_commits_in_the_last_moment_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = sink(tmp_path)
    put(live, 0)
    fence = Fence(live.table_version(), lambda note: note.get("interval") is not None)
    committed = DeltaTable.create_write_transaction

    def second(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        interval = DeltaSink(str(tmp_path), "sluice:p:interval:a/b")
        interval.commit(NOTHING, SCHEMA, 0, {"run": "march", "interval": "a/b"})
        committed(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", second)
    with pytest.raises(LeaseHeldError, match="run 'march' committed"):
        put(DeltaSink(str(tmp_path), "sluice:p:redriven"), 1, fence=fence)


# --- rows that somebody else has a hand in -------------------------------------------------------------------------


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist())


def test_rows_that_stay_are_written_again_when_a_vacuum_took_their_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sink(tmp_path)
    put(table, 0)
    kept = Slice.keep

    def vacuumed(self: Slice, root: str, *rest: Any) -> Staged:
        files = kept(self, root, *rest)
        monkeypatch.undo()
        DeltaTable(root).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        return files

    monkeypatch.setattr(Slice, "keep", vacuumed)
    with pytest.raises(SinkError, match="is gone"):
        table.replace(Slice([OffsetRange("t", 0, 0, 3)]), NOTHING, SCHEMA, 1, {"run": "r"}, name="p-e1-000001")
    assert ids(tmp_path) == list(range(10))
    gone = table.replace(Slice([OffsetRange("t", 0, 0, 3)]), NOTHING, SCHEMA, 1, {"run": "r"}, name="p-e1-000001")
    assert gone == {("t", 0): 3}
    assert ids(tmp_path) == list(range(3, 10))


def test_a_row_without_metadata_is_nobodys_and_in_nobodys_way(tmp_path: Path) -> None:
    table = sink(tmp_path)
    put(table, 0)
    foreign = rows(0, 1).set_column(3, "_offset", pa.array([None], pa.int64()))
    foreign = foreign.set_column(4, "_timestamp", pa.array([None], pa.timestamp("us", "UTC")))
    write_deltalake(str(tmp_path), foreign, mode="append")
    everything = Slice([OffsetRange("t", 0, 0, 100)])
    assert len(table.held(everything)["t", 0]) == 10
    assert table.replace(everything, NOTHING, SCHEMA, 1, {"run": "r"}, name="p-e1-000001") == {("t", 0): 10}
    assert ids(tmp_path) == [0]


def test_files_that_delta_rs_wrote_for_a_delete_are_taken_apart(tmp_path: Path) -> None:
    """They hold texts in another form."""
    table = sink(tmp_path)
    put(table, 0)
    DeltaTable(str(tmp_path)).delete("id = 5")
    assert table.replace(Slice([OffsetRange("t", 0, 0, 3)]), NOTHING, SCHEMA, 1, {"run": "r"}, name="p-e1-000001") == {
        ("t", 0): 3
    }
    assert ids(tmp_path) == [3, 4, 6, 7, 8, 9]


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
