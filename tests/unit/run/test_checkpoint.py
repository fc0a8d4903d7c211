"""Checkpoints: positions, clocks, notes, files that a power cut emptied, state made beside them, segments applied."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import span, split
from tests.fixtures.checkpoints import commit, written
from tests.fixtures.pipelines import modelled
from tests.fixtures.wal import Made

from sluice.errors import CheckpointError, LeaseHeldError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.ledger.events import batch_committed
from sluice.pipeline import load
from sluice.ranges import OffsetRange
from sluice.run.checkpoint import Checkpoint, Clock
from sluice.run.log_cleaning import clean_log
from sluice.run.transfer import Transfer


@pytest.mark.parametrize(
    ("planned", "committed", "initial", "positions", "open_batch", "ranges"),
    [
        ({0: {"t": {"0": 5, "1": 2}}, 1: {"t": {"0": 9, "1": 2}}}, [0], {"t": {"0": 1, "1": 0}},
         {"t": {0: 5, 1: 2}}, 1, {0: [span(1, 5), span(0, 2, 1)], 1: [span(5, 9)]}),
        ({0: {"t": {"0": 8}}}, [], {"t": {"0": 3}}, {"t": {0: 3}}, 0, {0: [span(3, 8)]}),
        ({n: {"t": {"0": n}} for n in range(8, 12)}, [8, 9, 10, 11], {}, {"t": {0: 11}}, None, {}),
        ({0: {"t": {"0": 4}}, 1: {"t": {"0": 4, "1": 3}, "u": {"0": 1}}}, [0], {}, {"t": {0: 4}}, 1,
         {1: [span(0, 3, 1), OffsetRange("u", 0, 0, 1)]}),
    ],
    ids=["last-committed-batch", "before-a-commit", "numbers-are-no-strings", "new-partition-begins-at-zero"],
)  # fmt: skip
def test_checkpoint_positions_are_those_of_the_last_committed_batch(
    tmp_path: Path, planned: Any, committed: Any, initial: Any, positions: Any, open_batch: int | None, ranges: Any
) -> None:
    checkpoint = written(tmp_path, planned, committed, initial=initial)
    assert (checkpoint.positions(), checkpoint.open_batch()) == (positions, open_batch)
    assert checkpoint.planned() == [*planned]
    assert {batch: checkpoint.ranges_of(batch) for batch in ranges} == ranges
    missing = Checkpoint(str(tmp_path / "none"))
    assert (missing.planned(), missing.committed(), missing.open_batch(), missing.initial()) == ([], [], None, None)
    assert (missing.positions(), missing.last_read()) == (None, None)


@pytest.mark.parametrize("damage", ["", "v1", "v1\n{}", "v1\n{}\n-", 'v1\n{}\n{"t": 5}', "\0\0\0"])
def test_checkpoint_with_a_damaged_offsets_file_names_it(tmp_path: Path, damage: str) -> None:
    checkpoint = written(tmp_path, {0: {}}, [0], initial={})
    (tmp_path / "offsets/0").write_text(damage)
    with pytest.raises(CheckpointError, match="offsets/0") as caught:
        checkpoint.positions()
    assert "restore" in caught.value.next_step


def test_checkpoint_whose_folder_cannot_be_listed_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("no folder")
    with pytest.raises(CheckpointError, match="offsets"):
        Checkpoint(str(tmp_path / "c")).planned()


def test_checkpoint_takes_no_other_name_for_a_batch(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "²").touch()
    assert Checkpoint(str(tmp_path)).committed() == []


def test_checkpoint_that_lacks_a_plan_or_its_beginning_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        written(tmp_path / "plan", committed=[3], initial={"t": {"0": 0}}).positions()
    checkpoint = written(tmp_path / "first", initial={})
    (tmp_path / "first/sources/0/0").write_text("")
    with pytest.raises(CheckpointError, match="sources/0/0"):
        checkpoint.positions()


def held_up_to(root: Path, planned: int, committed: int, state: int = 0) -> Checkpoint:
    """Write a checkpoint of so many batches, and so many versions of the state of two shares."""
    checkpoint = written(root, {n: {"t": {"0": n}} for n in range(planned)}, range(committed), initial={})
    (root / "metadata").write_text('{"id":"1"}')
    for folder in (root / "state/0/0", root / "state/0/1"):
        for version in range(1, state + 1):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{version}.changelog").write_text("v")
            (folder / f".{version}.changelog.crc").write_text("c")
    return checkpoint


@pytest.mark.parametrize("nothing", [b"", bytes(512)], ids=["empty", "zeros"])
@pytest.mark.parametrize(
    ("planned", "committed", "held", "emptied", "goes"),
    [
        (3, 2, 1, "offsets/2", True),
        (3, 2, 2, "offsets/2", False),  # a table holds the records that were planned there
        (3, 3, 2, "offsets/2", False),  # and Spark, too
        (3, 2, 1, "offsets/1", False),
        (3, 2, 1, "commits/1", True),
        (3, 2, 0, "commits/1", False),  # the table was rolled back: not for us to hide
        (0, 0, -1, "metadata", True),
        (0, 0, -1, "sources/0/0", True),
        (1, 0, -1, "metadata", False),
        (1, 0, -1, "sources/0/0", False),
    ],
)
def test_mend_removes_an_emptied_file_if_nothing_rests_on_it(
    tmp_path: Path, planned: int, committed: int, held: int, emptied: str, goes: bool, nothing: bytes
) -> None:
    checkpoint = held_up_to(tmp_path, planned, committed)
    (tmp_path / emptied).write_bytes(nothing)
    assert checkpoint.mend(held) == ([emptied] if goes else [])
    assert (tmp_path / emptied).exists() is not goes
    if emptied == "offsets/2":
        assert (tmp_path / "offsets/.2.crc").exists() is not goes
    assert checkpoint.mend(held) == []


@pytest.mark.parametrize(
    ("planned", "committed", "held", "emptied", "torn", "goes"),
    [
        (2, 2, 1, [2], [2], ["commits/1"]),
        (3, 2, 1, [2], [2], ["offsets/2", "commits/1"]),
        (3, 2, 2, [2], [2], []),  # Spark would go on with the plan of records that a table holds
        (2, 2, 0, [2], [2], []),  # the table was rolled back
        (3, 3, 2, [2, 3], [2, 3], []),  # the state would have to be made from two batches
        (3, 2, 1, [3], [], []),  # of a batch that is not committed: its state goes when it is read again
        (2, 2, 1, [], [], []),
    ],
)
def test_mend_lets_spark_read_the_batch_of_emptied_state_again(
    tmp_path: Path, planned: int, committed: int, held: int, emptied: list[int], torn: list[int], goes: Any
) -> None:
    checkpoint = held_up_to(tmp_path, planned, committed, state=planned)
    for version in emptied:
        (tmp_path / f"state/0/1/{version}.changelog").write_text("")
    assert checkpoint.torn_state() == torn
    assert checkpoint.mend(held) == goes
    assert all(not (tmp_path / name).exists() for name in goes)
    assert checkpoint.torn_state() == ([] if goes else torn)
    left = {path.name for path in (tmp_path / "state/0").rglob("*") if path.is_file()}
    assert (f"{held + 1}.changelog" in left) is not bool(goes)
    assert (f".{held + 1}.changelog.crc" in left) is not bool(goes)
    if any(name.startswith("offsets/") for name in goes):
        assert f"{planned}.changelog" not in left, "planned again, the batch may have other records"
    assert "1.changelog" in left


@pytest.mark.parametrize("nothing", [b"", bytes(4096)], ids=["empty", "zeros"])
def test_state_is_torn_until_each_share_has_a_newer_snapshot(tmp_path: Path, nothing: bytes) -> None:
    checkpoint = held_up_to(tmp_path, 3, 3, state=3)
    for share in "01":
        (tmp_path / f"state/0/{share}/2.changelog").write_bytes(nothing)
    assert checkpoint.torn_state() == [2]
    for snapshot, content, torn in (("0/2.zip", b"z", [2]), ("1/2.zip", nothing, [2]), ("1/3.zip", b"z", [])):
        (tmp_path / "state/0" / snapshot).write_bytes(content)
        assert checkpoint.torn_state() == torn


@pytest.mark.parametrize("committed", [0, 1])
def test_mend_removes_an_empty_description_of_state_until_a_batch_is_committed(tmp_path: Path, committed: int) -> None:
    checkpoint = held_up_to(tmp_path, 1, committed)
    texts = {"_metadata/metadata": "", "0/_metadata/schema": "", "1/_metadata/schema": "v2"}
    for name, text in texts.items():
        file = tmp_path / "state/0" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        (file.parent / f".{file.name}.crc").write_text("")
    assert len(checkpoint.mend(0)) == (0 if committed else 2)
    assert [(tmp_path / "state/0" / name).exists() for name in texts] == [bool(committed)] * 2 + [True]
    assert checkpoint.mend(0) == []


def test_mend_leaves_a_whole_checkpoint_and_removes_leftovers_of_its_first_plan(tmp_path: Path) -> None:
    checkpoint = held_up_to(tmp_path / "whole", 3, 2)
    before = sorted(tmp_path.rglob("*"))
    assert checkpoint.mend(1) == []
    assert sorted(tmp_path.rglob("*")) == before
    fresh = held_up_to(tmp_path / "fresh", 0, 0)
    for name in (".0.7f8c.tmp", "..0.7f8c.tmp.crc", "kept"):
        (tmp_path / "fresh" / "offsets" / name).write_text("{")
    assert fresh.mend(-1) == []
    assert [f.name for f in (tmp_path / "fresh" / "offsets").iterdir()] == ["kept"]


def test_sync_writes_files_that_a_batch_rests_on_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "checkpoints/p/epoch-1"
    checkpoint = held_up_to(root, 12, 11, state=12)
    for name in ("state/0/_metadata/metadata", "state/0/0/SSTs/7-a.sst"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(Path(os.readlink(f"/proc/self/fd/{handle}"))))
    checkpoint.sync(11)
    needed = ["offsets/11", "commits/10", "state/0/_metadata/metadata", "state/0/0/SSTs/7-a.sst"]
    needed += [f"state/0/{share}/{name}" for share in "01" for name in ("12.changelog", ".12.changelog.crc")]
    files = {root / name for name in needed}
    folders = {folder for file in files for folder in file.parents if folder.is_relative_to(tmp_path)} - {tmp_path}
    assert files | folders <= synced
    assert root / "state/0/0/9.changelog" not in synced, "it is on the disk since batch 8"
    Checkpoint("memory://nowhere").sync(1)  # objects appear as a whole


def test_state_of_one_batch_can_be_dropped(tmp_path: Path) -> None:
    folders = [tmp_path / "state/0/0", tmp_path / "state/0/1"]
    for folder in folders:
        folder.mkdir(parents=True)
        for name in ("3.changelog", "4.changelog", ".4.changelog.crc", "4.zip", "14.changelog", "44.zip"):
            (folder / name).touch()
    checkpoint = Checkpoint(str(tmp_path))
    assert checkpoint.drop_state(3)
    for folder in folders:
        assert {file.name for file in folder.iterdir()} == {"3.changelog", "14.changelog", "44.zip"}
    assert not checkpoint.drop_state(3)
    assert not Checkpoint(str(tmp_path / "other")).drop_state(0)


def clocked(root: Path, watermarks: list[int], committed: dict[int, int]) -> Checkpoint:
    """Write the checkpoint of a pipeline with windows, whose batches read one record each."""
    ends = {n: {"t": {"0": n + 1}} for n in range(len(watermarks))}
    return written(root, ends, committed, initial={}, watermarks=watermarks, at=70)


def test_clock_of_a_batch_has_the_watermark_before_its_own_for_late_records(tmp_path: Path) -> None:
    checkpoint = clocked(tmp_path, [0, 500, 900], {0: 500, 1: 900})
    assert [checkpoint.clock_of(n) for n in range(3)] == [Clock(0, 0, 70), Clock(0, 500, 71), Clock(500, 900, 72)]


@pytest.mark.parametrize(
    ("watermarks", "committed", "due"),
    [
        ([], {}, None),
        ([0], {}, None),
        ([0], {0: 0}, None),
        ([0], {0: 500}, 1),
        ([0, 500], {0: 500}, None),
        ([0, 500], {0: 500, 1: 500}, None),
        ([0, 500], {0: 500, 1: 900}, 2),
    ],
)
def test_closing_batch_is_due_by_a_newer_watermark(tmp_path: Path, watermarks: Any, committed: Any, due: Any) -> None:
    assert clocked(tmp_path, watermarks, committed).closing_due() == due


def test_closing_batch_is_planned_without_records_and_is_not_the_newest_read(tmp_path: Path) -> None:
    checkpoint = clocked(tmp_path, [0, 500], {0: 500, 1: 900})
    checkpoint.plan_closing(2)
    assert (checkpoint.closing_due(), checkpoint.open_batch(), checkpoint.ranges_of(2)) == (None, 2, [])
    assert (checkpoint.clock_of(2).late, checkpoint.clock_of(2).closing) == (500, 900)
    version, head, ends = (tmp_path / "offsets/2").read_text().splitlines()
    assert (version, json.loads(head)["conf"], json.loads(ends)) == ("v1", {"a": "b"}, {"t": {"0": 2}})
    assert not list((tmp_path / "offsets").glob("*.sluice"))
    assert checkpoint.last_read() == checkpoint.clock_of(1)
    assert not checkpoint.flushed()
    commit(tmp_path, 2, 900)
    checkpoint.plan_closing(3, 5000)
    assert checkpoint.clock_of(3).closing == 5000
    assert checkpoint.last_read() == checkpoint.clock_of(1)
    commit(tmp_path, 3, 5000)
    assert checkpoint.watermark() == 5000
    assert not checkpoint.flushed(), "a watermark does not tell who moved it"
    checkpoint.note_flushed(1)
    assert checkpoint.flushed()
    checkpoint.note_flushed(0)
    assert not checkpoint.flushed(), "batch 1 has read records since"
    with pytest.raises(CheckpointError, match="batch 3"):
        checkpoint.plan_closing(3)


def test_checkpoint_keeps_definitions_former_windows_and_types(tmp_path: Path) -> None:
    checkpoint, other = Checkpoint(str(tmp_path / "made" / "here")), Checkpoint(str(tmp_path / "other"))
    assert (checkpoint.definition(), checkpoint.former_to(), checkpoint.types()) == (None, None, None)
    checkpoint.define("window", {"size": 3600.0, "by": ["ä"]})
    other.define("dedupe", {"keys": ["ä"]})
    assert checkpoint.definition() == ("window", {"size": 3600.0, "by": ["ä"]})
    assert other.definition() == ("dedupe", {"keys": ["ä"]})
    for to in (3_600_000, None):
        checkpoint.note_former(to)
        assert checkpoint.former_to() == to
    checkpoint.note_types({"ä": "int"})
    assert Checkpoint(checkpoint.path).types() == {"ä": "int"}
    assert checkpoint.planned() == []


def made(transfer: Transfer, watermark: int) -> None:
    """Write what Spark leaves behind after one batch of stored records."""
    beside = Path(transfer.beside)
    meta = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 5, "conf": {"spark.sql.shuffle.partitions": "3"}})
    files = {
        "offsets/0": f'v1\n{meta}\n{{"logOffset":0}}',
        "commits/0": json.dumps({"nextBatchWatermarkMs": watermark}).join(("v1\n", "")),
        "state/0/0/1.changelog": "changes",
        "metadata": "{}",
    }
    for name, text in files.items():
        (beside / name).parent.mkdir(parents=True, exist_ok=True)
        (beside / name).write_text(text)


def test_checkpoint_names_streams_as_the_source_does(tmp_path: Path) -> None:
    """A queue's streams may have a colon in their names; only a Kafka topic may stand behind its cluster's name."""
    start = {"orders:eu": {0: 7}, "refunds": {0: 3}}
    queue = modelled(base="queue").source.config
    kafka = modelled(base="clusters").source.config
    assert (queue.prefix_at(start), kafka.prefix_at({"b:t": {0: 7}})) == ("", "b:")
    transfer = Transfer(f"{tmp_path}/p/epoch-2", 1)
    made(transfer, 40)
    transfer.plan(start)
    assert Checkpoint(f"{tmp_path}/p/epoch-2", start, prefix=queue.prefix_at(start)).end_of(0) == start


def test_transferred_state_goes_on_behind_a_batch_that_read_nothing(tmp_path: Path) -> None:
    path = f"{tmp_path}/p/epoch-2"
    transfer = Transfer(path, 3)
    made(transfer, 40)
    checkpoint = Checkpoint(path, {"t": {0: 7}})
    transfer.plan({"t": {0: 7}})
    assert not transfer.done()
    assert (checkpoint.open_batch(), checkpoint.ranges_of(0), checkpoint.shares()) == (0, [], 3)
    transfer.take(25)
    assert transfer.done()
    assert (checkpoint.planned(), checkpoint.committed()) == ([0, 1], [0])
    assert checkpoint.clock_of(1).closing == 40, "no further back than the records"
    assert checkpoint.positions() == {"t": {0: 7}}
    assert Path(f"{path}/state/0/0/1.changelog").read_text() == "changes"
    assert [p.name for p in tmp_path.joinpath("p").iterdir()] == ["epoch-2"]


def test_transferred_state_keeps_closed_windows_closed(tmp_path: Path) -> None:
    transfer = Transfer(f"{tmp_path}/epoch-2", 3)
    made(transfer, 0)
    transfer.plan({"t": {0: 7}})
    transfer.take(0)
    assert transfer.planned() == [0], "there is no watermark to go on from"
    other = Transfer(f"{tmp_path}/epoch-3", 3)
    made(other, 0)
    other.plan({"t": {0: 7}})
    other.take(25)
    assert other.clock_of(1).closing == 25


def test_transfer_of_a_driver_that_wakes_is_refused(tmp_path: Path) -> None:
    frozen, other = Transfer(f"{tmp_path}/epoch-2", 3), Transfer(f"{tmp_path}/epoch-2", 4)
    made(other, 40)
    made(frozen, 50)
    other.plan({"t": {0: 7}})
    Path(f"{tmp_path}/epoch-2/state/0/0").mkdir(parents=True)
    Path(f"{tmp_path}/epoch-2/state/0/0/1.zip").write_text("of an attempt that died")
    other.clear()
    assert not Path(frozen.beside).exists()
    made(other, 40)
    other.take(0)
    assert not Path(f"{tmp_path}/epoch-2/state/0/0/1.zip").exists()
    made(frozen, 50)
    with pytest.raises(LeaseHeldError, match="another driver"):
        frozen.take(0)
    assert Path(f"{tmp_path}/epoch-2/state/0/0/1.changelog").exists()


PIPELINE = """\
pipeline: p
source: {kafka: {topics: [t]}}
decode: {json: {schema: "id BIGINT, at TIMESTAMP"}}
recovery: wal
sink: {delta: {path: table}}
"""
STATE = "dedupe: {keys: [id], time: at, within: 1h}\n"


@pytest.mark.parametrize("kept", [STATE, ""])
def test_cleaning_goes_by_offsets_where_the_checkpoint_has_state(tmp_path: Path, kept: str) -> None:
    """The sink numbers its batches by itself, so its numbers say nothing of the log's."""
    home = Home(str(tmp_path))
    made = Made(Path(home.log("p")))
    made.seal_lines(4)
    Checkpoint(home.checkpoint("p", 1)).define("dedupe", {"keys": ["id"]})
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with ledger.acquire("p", "r") as lease:
        for number, at in enumerate((0, None, 10, None)):  # each second one only forgets keys
            accounts = [] if at is None else [split(at, at + 10, n) for n in (0, 1)]
            ledger.record(lease, *batch_committed(1, number, accounts))
        ledger.record(lease, *batch_committed(1, 4, [split(20, 30, n) for n in (0, 1)]))
    (tmp_path / "p.yaml").write_text(PIPELINE + kept)
    found = clean_log(ledger, load(tmp_path / "p.yaml"), home, datetime(2100, 1, 1, tzinfo=UTC))
    assert len(found.segments) == 4, "batches 0 and 1: the state of 2 may still be made, and 3 was not applied"
    assert {segment.range.start for segment in made.log.segments()} == {20, 30}
