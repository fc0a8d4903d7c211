"""Compaction and vacuum of a pipeline's tables: no row is lost, and only old files of the pipeline are removed."""

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
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction, RemoveAction
from tests.fixtures.books import Place, rows
from tests.fixtures.deltas import aged, marked

from sluice.delta.names import ADOPTING, HOLDS, OWNER
from sluice.delta.table import Table
from sluice.errors import CheckpointError, ConfigError, LeaseHeldError, SinkError
from sluice.home import Home
from sluice.pipeline import load
from sluice.upkeep import _failed, _merge, compact, vacuum

DIED, LIVE = "batches/p-e1-000004-0123abcd", "batches/p-i2-000000-89abcdef"
"""Folders of attempts at a batch of the live epoch, and of an interval."""


def files(path: str) -> set[str]:
    """The data files in a table's folder, used or not."""
    return {str(file.relative_to(path)) for file in Path(path).rglob("*.parquet") if "_delta_log" not in file.parts}


def used(path: str) -> set[str]:
    """The files of the table's newest version."""
    return {str(Path(file).relative_to(path)) for file in DeltaTable(path).file_uris()}


def old(*paths: Path, days: int = 9) -> None:
    """Let files, which need not exist, and folders be as old as this."""
    then = time.time() - timedelta(days=days).total_seconds()
    for path in paths:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"something")
    for path in paths:
        os.utime(path, (then, then))


def swept(place: Place) -> list[int]:
    """Vacuum, after a look at what that would remove; return how many files went from each table."""
    spec = load(place.file)
    would, did = (
        [row["files"] for row in vacuum(place.ledger, spec, place.home, dry_run=dry_run)] for dry_run in (True, False)
    )
    assert did == would
    return did


def test_compact_merges_small_files_and_the_audit_balances(story: Place) -> None:
    story.write()
    spec, refused = load(story.file), f"{story.path}_quarantine"
    found = compact(spec, story.home, dry_run=True)
    assert [(row["table"], row["files"], row["small"]) for row in found] == [("sink", 3, 3), ("quarantine", 1, 0)]
    for size, small in (("1b", 0), ("1", 0), ("134217728b", 3), ("128mb", 3), ("1 GB", 3), ("much", 3), ("0", 3)):
        DeltaTable(story.path).alter.set_table_properties({"delta.targetFileSize": size})
        assert compact(spec, story.home, dry_run=True)[0]["small"] == small, size
    assert len(used(story.path)) == 3
    assert compact(spec, story.home) == [
        {"table": "sink", "path": story.path, "merged": 3, "into": 1},
        {"table": "quarantine", "path": refused, "merged": 0, "into": 0},
    ]
    assert (len(used(story.path)), len(files(story.path))) == (1, 4)
    assert story.deep().problems == []
    assert compact(spec, story.home)[0]["merged"] == 0, "done twice, it does nothing"


def test_compact_refuses_a_table_that_is_partitioned_by_negative_decimals(story: Place) -> None:
    """delta-rs writes ``-3.25`` as ``-3.-25`` (1.6.6)."""
    story.write()
    schema = pa.schema([("n", pa.decimal128(10, 2)), ("_run", pa.string())])
    made = DeltaTable.create(f"{story.path}_d", schema, partition_by=["n"])
    there = [AddAction(f"n={value}/a", 1, {"n": value}, 0, True, "{}") for value in ("-3.25", "1.00")]
    made.create_write_transaction(there, "append", schema, ["n"])
    table = Table.open("sink", f"{story.path}_d")
    with pytest.raises(ConfigError, match=r"partitioned by n, which has negative values, such as -3\.25"):
        _merge(table)
    assert DeltaTable(f"{story.path}_d").version() == 1


def test_compact_that_fails_says_whether_the_table_changed(story: Place) -> None:
    story.write()
    table, then = Table.open("sink", story.path), "RESTORE it to version"
    assert _failed(table, "compacted", OSError("full")).state == "no row was changed"
    DeltaTable(story.path).alter.set_table_properties({"delta.targetFileSize": "1"})
    found = _failed(table, "compacted", OSError("Cannot cast column 'm'"))
    assert (then in found.state, "OPTIMIZE" in found.next_step, "storage" in found.next_step) == (True, True, False)


def test_compact_does_not_merge_files_of_different_partitions(story: Place) -> None:
    story.partition_by = ["_offset"]
    story.write()
    counted = Counter(f.split("/")[0] for f in used(story.path))
    small = sum(number for number in counted.values() if number > 1)
    (found, _) = compact(load(story.file), story.home, dry_run=True)
    assert (found["files"], found["small"]) == (counted.total(), small)
    assert small < counted.total()


def test_vacuum_removes_only_files_that_are_unused_for_long(story: Place) -> None:
    story.write()
    first = used(story.path)
    compact(load(story.file), story.home)
    orphan, staged = Path(story.path, DIED, "x.parquet"), Path(story.path, LIVE, "y.parquet")
    old(orphan, *(Path(story.path, name) for name in first))  # these went out of use just now
    old(staged, days=0)
    assert swept(story) == [1, 0]
    assert (orphan.exists(), staged.exists(), files(story.path) >= first) == (False, True, True)
    aged(story.path, timedelta(days=9))
    assert swept(story) == [3, 0]
    assert files(story.path) == used(story.path) | {f"{LIVE}/y.parquet"}
    assert story.deep().problems == []


def test_vacuum_refuses_an_age_that_a_run_may_take(story: Place) -> None:
    story.write()
    spec = load(story.file)
    for age, named in ((timedelta(hours=12), "execution_timeout"), (timedelta(days=1), "1 day")):
        with pytest.raises(ConfigError, match=named):
            vacuum(story.ledger, spec, story.home, age)
    for path in (story.path, f"{story.path}_quarantine"):
        DeltaTable(path).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 1 days"})
    assert len(vacuum(story.ledger, spec, story.home, timedelta(days=1))) == 2


def test_compact_that_is_overtaken_tries_again(story: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program rewrites the same files between the look and the commit: the first time, or every time."""
    monkeypatch.setattr("sluice.upkeep._PAUSE", 0)
    story.write()
    spec, opened, often = load(story.file), DeltaTable.optimize.fget, 1  # type: ignore[attr-defined]

    def late(table: DeltaTable) -> object:
        nonlocal often
        if table.table_uri.rstrip("/").endswith("/table") and often:
            often -= 1
            write_deltalake(story.path, DeltaTable(story.path).to_pyarrow_table(), mode="overwrite")
            story.append(rows("more", 99), {})
        return opened(table)

    monkeypatch.setattr(DeltaTable, "optimize", property(late))
    assert compact(spec, story.home)[0]["merged"] == 2
    often = 1000
    story.append(rows("more", 100), {})
    with pytest.raises(SinkError, match="replaced"):
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
    marked(place.path, "p", "sink")
    before = files(place.path)
    argv = [sys.executable, "-c", KILLED, str(place.file), place.home.root]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        while files(place.path) == before and process.poll() is None:
            pass
        process.send_signal(signal.SIGKILL)
    committed = DeltaTable(place.path).version() > 8
    return set() if committed or process.returncode == 0 else files(place.path) - before


def test_compact_that_is_killed_changes_nothing(place: Place) -> None:
    rows = 160_000
    while not (left := killed(place, rows)):  # on a busy machine it may be done before we look
        rows *= 2
    assert DeltaTable(place.path).count() == rows

    assert compact(load(place.file), place.home)[0]["merged"] == 8
    old(*(Path(place.path, name) for name in files(place.path)))
    assert swept(place)[0] == 0
    aged(place.path, timedelta(days=9))
    assert swept(place)[0] == 8
    assert files(place.path) == used(place.path) | left, "others may keep files there"
    assert sorted(DeltaTable(place.path).to_pyarrow_table()["_offset"].to_pylist()) == list(range(rows))


def test_vacuum_leaves_files_of_others(story: Place, tmp_path: Path) -> None:
    """However old it is: what others keep below the sink, deletion vectors, and what a link leads to."""
    story.write()
    sink, elsewhere = Path(story.path), tmp_path / "elsewhere"
    write_deltalake(str(sink / "nested"), pa.table({"a": [1]}))
    others = [
        *(path for path in (sink / "nested").rglob("*") if path.is_file()),
        sink / "deletion_vector_61d16c75-6994-46b7-a15b-8b538852e50e.bin",
        sink / "notes" / "readme.txt",
        sink / "batches" / "mine" / "x.parquet",
        sink / "batches" / "q-e1-000000-0123abcd" / "x.parquet",
        sink / "batches" / "p-x-e1-000000-0123abcd" / "x.parquet",
        sink / "batches" / "p-e1-000000-0123abcd-copy" / "x.parquet",
        elsewhere / "linked.parquet",
        elsewhere / "p-e1-000000-0123abcd" / "linked.parquet",
    ]
    old(*others)
    (sink / DIED).mkdir(parents=True)
    (sink / DIED / "linked").symlink_to(elsewhere)
    (sink / DIED / "linked.parquet").symlink_to(elsewhere / "linked.parquet")
    (sink / LIVE).symlink_to(elsewhere)
    Path(f"{story.path}_quarantine", "batches").symlink_to(elsewhere)
    assert swept(story) == [0, 0]
    assert [str(path) for path in others if not path.exists()] == []
    assert (sink / DIED / "linked").is_symlink()
    assert DeltaTable(str(sink / "nested")).to_pyarrow_table()["a"].to_pylist() == [1]


def test_vacuum_of_a_sink_around_the_home_leaves_the_home(story: Place) -> None:
    story.write()
    story.home = home = Home(str(Path(story.path, "home")))
    story.configure(sink={"delta": {"path": story.path}})
    old(
        Path(home.root, "ledger.db"),
        Path(home.checkpoint("p", 1), "offsets", "0"),
        Path(home.log("p"), "_delta_log", "0"),
    )
    before = set(Path(home.root).rglob("*"))
    assert swept(story) == [0, 0]
    assert set(Path(home.root).rglob("*")) == before


def test_vacuum_removes_files_of_attempts_that_are_old_and_in_no_version(story: Place) -> None:
    """An attempt's files that were committed stay with their checksums; and those whose rows were replaced just now."""
    story.partition_by = ["_run"]
    story.write()
    sink = Path(story.path)
    folder = f"{DIED}/_run=a b%2Fc"
    first, second, third = (sink / folder / f"{n}.parquet" for n in (1, 2, 3))

    def change(action: AddAction | RemoveAction) -> None:
        table = DeltaTable(story.path)
        table.create_write_transaction([action], "append", table.schema(), ["_run"])

    for file in (first, second):
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [1], "_topic": ["t"], "_partition": [0], "_offset": [77]}), file)
        change(AddAction(f"{folder}/{file.name}", file.stat().st_size, {"_run": "a b/c"}, 0, True, "{}"))
    change(RemoveAction(f"{folder}/2.parquet", True, int(time.time() * 1000)))
    assert {name for name in used(story.path) if name.startswith(folder)} == {f"{folder}/1.parquet"}
    # a checkpoint forgets what was removed, here at once
    settings = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(story.path).alter.set_table_properties(settings)
    DeltaTable(story.path).create_checkpoint()

    gone, empty = (sink / "batches" / name for name in ("p-e0-1234567-00000000", "p-i3-000000-00000000"))
    sums = [file.with_name(f".{file.name}.crc") for file in (first, third)]
    old(first, second, third, *sums, gone / "_temporary" / "0" / "part.parquet")
    empty.mkdir()
    old(*(path for path in gone.rglob("*") if path.is_dir()), gone, empty)
    young = sink / LIVE / "y.parquet"  # of a run that is at work
    old(young, days=0)
    assert swept(story) == [2, 0]
    assert {path.name for path in first.parent.iterdir()} == {"1.parquet", ".1.parquet.crc", "2.parquet"}
    assert (young.exists(), gone.exists(), empty.exists()) == (True, False, False)


@pytest.mark.parametrize(
    ("settings", "then"),
    [
        ({}, "run p once"),
        ({OWNER: "other"}, ""),
        ({OWNER: "p"}, "name the path of the sink"),
        ({OWNER: "p", HOLDS: "quarantine"}, "name the path of the sink"),
        ({OWNER: "p", HOLDS: "sink", ADOPTING: "was"}, "sluice adopt was --as p"),
    ],
    ids=["unowned", "other", "unknown", "quarantine", "adopting"],
)
def test_compact_and_vacuum_refuse_a_table_that_is_not_the_pipeline_s(
    story: Place, settings: dict[str, str], then: str
) -> None:
    story.marked = False
    story.write()
    if settings:
        DeltaTable(story.path).alter.set_table_properties(settings, raise_if_not_exists=False)
    left = Path(story.path, DIED, "x.parquet")
    old(left)
    spec = load(story.file)
    for work in (lambda: compact(spec, story.home), lambda: vacuum(story.ledger, spec, story.home)):
        with pytest.raises(ConfigError) as refused:
            work()
        assert story.path in str(refused.value)
        assert then in refused.value.next_step
    assert left.exists()
    assert len(used(story.path)) == 3


def test_vacuum_refuses_while_the_ledger_lacks_a_batch_of_the_sink(
    story: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.upkeep._PAUSE", 0)
    story.write()
    story.append(rows("now", 20), {"sluice:p:2": story.ends["sluice:p:2"] + 1})
    spec = load(story.file)
    with story.ledger.acquire("p", "now"), pytest.raises(LeaseHeldError, match="now"):
        vacuum(story.ledger, spec, story.home)
    with pytest.raises(CheckpointError) as refused:
        vacuum(story.ledger, spec, story.home)
    assert "run p once" in refused.value.next_step
    compact(spec, story.home)  # changes no row and removes no file
    held = DeltaTable(story.path).to_pyarrow_table()["_offset"].to_pylist()
    assert sorted(held) == sorted(row[2] or 0 for row in [*story.sink, *rows("now", 20)])


def test_vacuum_removes_leftovers_of_a_former_name_also_by_url(story: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    story.write()
    story.configure(sink={"delta": {"path": f"file://{story.path}"}})
    monkeypatch.setattr(type(story.ledger.runs), "former_names", lambda *_: {"was"})
    folders = (DIED, "batches/was-e1-000000-0123abcd", "batches/q-e1-000004-0123abcd")
    mine, former, another = (Path(story.path, folder, "x.parquet") for folder in folders)
    old(mine, former, another)
    assert swept(story) == [2, 0]
    assert (mine.exists(), former.exists(), another.exists()) == (False, False, True)
