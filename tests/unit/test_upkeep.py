"""Compaction and vacuum of a pipeline's tables: no row is lost, whatever happens meanwhile, and old files go."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.fixtures.books import Place, rows
from tests.fixtures.deltas import aged

from sluice.errors import CheckpointError, ConfigError, SinkError
from sluice.pipeline import load
from sluice.upkeep import compact, vacuum


def files(path: str) -> set[str]:
    """The data files in a table's folder, used or not."""
    return {str(file.relative_to(path)) for file in Path(path).rglob("*.parquet") if "_delta_log" not in file.parts}


def used(path: str) -> set[str]:
    """The files of the table's newest version."""
    return {str(Path(file).relative_to(path)) for file in DeltaTable(path).file_uris()}


def test_small_files_are_merged_and_the_account_still_holds(story: Place) -> None:
    story.write()
    spec, refused = load(story.file), f"{story.path}_quarantine"
    found = compact(spec, story.home, dry_run=True)
    assert [(row["table"], row["files"], row["small"]) for row in found] == [("sink", 3, 3), ("quarantine", 1, 0)]
    assert len(used(story.path)) == 3
    assert compact(spec, story.home) == [
        {"table": "sink", "path": story.path, "merged": 3, "into": 1},
        {"table": "quarantine", "path": refused, "merged": 0, "into": 0},
    ]
    assert (len(used(story.path)), len(files(story.path))) == (1, 4)
    assert story.deep().problems == []
    assert compact(spec, story.home)[0]["merged"] == 0, "done twice, it does nothing"
    assert compact(spec, story.home, dry_run=True)[0]["small"] == 0


def test_small_files_of_different_partitions_are_no_reason_to_merge(story: Place) -> None:
    story.partition_by = ["_offset"]
    story.write()
    counted = Counter(f.split("/")[0] for f in used(story.path))
    small = sum(number for number in counted.values() if number > 1)
    (found, _) = compact(load(story.file), story.home, dry_run=True)
    assert (found["files"], found["small"]) == (counted.total(), small)
    assert small < counted.total()


def test_only_what_went_out_of_use_long_ago_is_removed(story: Place) -> None:
    story.write()
    spec = load(story.file)
    first = used(story.path)
    compact(spec, story.home)
    orphan, staged = Path(story.path, "batches", "died", "x.parquet"), Path(story.path, "batches", "now", "y.parquet")
    for file in (orphan, staged):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"rows that nobody committed")
    nine_days = timedelta(days=9)
    for name in (*first, str(orphan.relative_to(story.path))):  # the files are old, and went out of use just now
        then = time.time() - nine_days.total_seconds()
        os.utime(Path(story.path, name), (then, then))

    assert [row["files"] for row in vacuum(story.ledger, spec, story.home, dry_run=True)] == [1, 0]
    assert orphan.exists()
    assert [row["files"] for row in vacuum(story.ledger, spec, story.home)] == [1, 0]
    assert (orphan.exists(), staged.exists(), files(story.path) >= first) == (False, True, True)

    aged(story.path, nine_days)
    assert [row["files"] for row in vacuum(story.ledger, spec, story.home)] == [3, 0]
    assert files(story.path) == used(story.path) | {"batches/now/y.parquet"}
    assert story.deep().problems == []


def test_a_time_that_a_run_may_take_is_refused(story: Place) -> None:
    story.write()
    with pytest.raises(ConfigError, match="execution_timeout"):
        vacuum(story.ledger, load(story.file), story.home, timedelta(hours=12))
    with pytest.raises(ConfigError, match="longer than 1 day"):  # what the table's own property asks for
        vacuum(story.ledger, load(story.file), story.home, timedelta(days=1))
    DeltaTable(story.path).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 1 days"})
    DeltaTable(f"{story.path}_quarantine").alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 1 days"}
    )
    assert len(vacuum(story.ledger, load(story.file), story.home, timedelta(days=1))) == 2


def test_a_batch_that_the_ledger_does_not_know_yet_keeps_its_files(
    story: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.upkeep._PAUSE", 0)
    story.write()
    story.append(rows("died", 20), {"sluice:p:2": story.ends["sluice:p:2"] + 1})
    with pytest.raises(CheckpointError, match="does not have it yet") as refused:
        vacuum(story.ledger, load(story.file), story.home)
    assert "run p once" in refused.value.next_step
    compact(load(story.file), story.home)  # changes no row and removes no file
    assert sum(DeltaTable(story.path).to_pyarrow_table()["_offset"].to_pylist()) == sum(
        row[2] or 0 for row in [*story.sink, *rows("died", 20)]
    )


def test_another_pipelines_table_is_left_alone(story: Place) -> None:
    story.write()
    DeltaTable(story.path).alter.set_table_properties({"sluice.pipeline": "other"}, raise_if_not_exists=False)
    spec = load(story.file)
    with pytest.raises(ConfigError, match="belongs to pipeline 'other'"):
        compact(spec, story.home)
    with pytest.raises(ConfigError, match="belongs to pipeline 'other'"):
        vacuum(story.ledger, spec, story.home)
    assert len(used(story.path)) == 3


def test_a_pipeline_that_never_ran_has_nothing_to_look_after(place: Place) -> None:
    spec = load(place.file)
    assert compact(spec, place.home) == vacuum(place.ledger, spec, place.home) == []


def test_who_is_overtaken_looks_again(story: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program rewrites the same files between the look and the commit: the first time, or every time."""
    monkeypatch.setattr("sluice.upkeep._PAUSE", 0)
    story.write()
    spec, opened, often = load(story.file), DeltaTable.optimize.fget, 0  # type: ignore[attr-defined]
    limit = 1

    def late(table: DeltaTable) -> object:
        nonlocal often
        if table.table_uri.rstrip("/").endswith("/table") and often < limit:
            often += 1
            write_deltalake(story.path, DeltaTable(story.path).to_pyarrow_table(), mode="overwrite")
            story.append(rows("more", 99), {})
        return opened(table)

    monkeypatch.setattr(DeltaTable, "optimize", property(late))
    assert compact(spec, story.home)[0]["merged"] == 2
    often, limit = 0, 1000
    story.append(rows("more", 100), {})
    with pytest.raises(SinkError, match="others replaced its files"):
        compact(spec, story.home)


KILLED = """\
import sys
from sluice.home import Home
from sluice.pipeline import load
from sluice.upkeep import compact

print("begun", flush=True)
compact(load(sys.argv[1]), Home(sys.argv[2]))
"""


def killed(place: Place, rows: int) -> set[str]:
    """Fill the table, kill a compaction while it writes, and return the files that it left; none if it was faster."""
    shutil.rmtree(place.path, ignore_errors=True)
    for part in range(8):
        numbers = range(part * rows // 8, (part + 1) * rows // 8)
        data = {"_offset": list(numbers), "text": [f"{n * 7919 % 1000003:x}" * 8 for n in numbers]}
        write_deltalake(place.path, pa.table(data), mode="append")
    before = files(place.path)
    argv = [sys.executable, "-c", KILLED, str(place.file), place.home.root]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        while files(place.path) == before and process.poll() is None:
            pass
        process.send_signal(signal.SIGKILL)
    committed = DeltaTable(place.path).version() > 7
    return set() if committed or process.returncode == 0 else files(place.path) - before


def test_killed_while_it_writes_it_has_changed_nothing(place: Place) -> None:
    rows = 320_000
    while not (left := killed(place, rows)):  # on a busy machine it may be done before we look
        rows *= 2
    assert DeltaTable(place.path).count() == rows

    spec = load(place.file)
    assert compact(spec, place.home)[0]["merged"] == 8
    then = time.time() - timedelta(days=9).total_seconds()
    for name in files(place.path):
        os.utime(Path(place.path, name), (then, then))
    assert vacuum(place.ledger, spec, place.home)[0]["files"] == len(left)
    aged(place.path, timedelta(days=9))
    assert vacuum(place.ledger, spec, place.home)[0]["files"] == 8
    assert sorted(DeltaTable(place.path).to_pyarrow_table()["_offset"].to_pylist()) == list(range(rows))
