"""State that was made beside a checkpoint comes into it as a whole, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.errors import LeaseHeldError
from sluice.run.checkpoint import Checkpoint
from sluice.run.transfer import Transfer


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
