"""The files of Spark's state: they do not grow from run to run, and a power cut that empties them loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.chaos.test_dedupe import Stream as Deduped
from tests.chaos.test_windows import HOURLY, Stream
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

RETAINED = "spark.sql.streaming.minBatchesToRetain"


class Tiny(Stream):
    """Runs of one record of each partition, each later than those before: a batch, and one that closes."""

    def batches(self) -> Iterator[tuple[int, list[tuple[datetime, str, int]]]]:
        """Yield the batches that there must be; Spark forgets the plans of old ones."""
        for run in range(len(self.records) // 2):
            yield 2 * run, [record for p in (0, 1) if (record := self.records[p, run]) is not None]
            yield 2 * run + 1, []


def shares_of(sandbox: Sandbox, epoch: str = "epoch-1") -> list[Path]:
    """Return the folders of the state."""
    folders = sandbox.home / "checkpoints" / sandbox.name / epoch / "state" / "0"
    return sorted(folder for folder in folders.iterdir() if folder.name.isdigit())


def empty_newest(sandbox: Sandbox) -> None:
    """Leave the newest version of the state as a power cut would: names, and nothing in them."""
    for share in shares_of(sandbox):
        newest = max(share.glob("*.changelog"), key=lambda file: int(file.stem))
        newest.write_bytes(b"")
        (share / f".{newest.name}.crc").write_bytes(b"")


@pytest.mark.parametrize(
    ("runs", "retained"),
    [
        (6, 100),
        pytest.param(16, 4, marks=pytest.mark.long),
        pytest.param(200, 100, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
    ids=["a-snapshot", "cleaned", "many"],
)
def test_state_does_not_grow_with_the_number_of_runs(
    sandbox: Sandbox, spark: SparkSession, runs: int, retained: int
) -> None:
    """Each run is shorter than the minute after which Spark would look after its state by itself."""
    stream = Tiny(sandbox, HOURLY)
    stream.configure()
    before = spark.conf.get(RETAINED)
    spark.conf.set(RETAINED, str(retained))
    try:
        for run in range(runs):
            stream.feed(run * 30, run * 30 + 20, 2)
            sandbox.run(f"run-{run}")
    finally:
        spark.conf.set(RETAINED, before)
    for share in shares_of(sandbox):
        assert list(share.glob("*.zip")), "a snapshot, on which later runs build"
        # what is retained, three tenths more before anything is cleaned, and what two snapshots at its ends round up
        assert len(list(share.glob("*.changelog"))) <= 1.3 * retained + 21
    stream.assert_exact()
    assert stream.held()
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--history", "--limit", str(runs), "--json").stdout)
    assert [row["run"] for row in told["runs"]] == [f"run-{run}" for run in range(runs)]
    *_, state = stream.model()
    assert (told["runs"][-1]["keys"], told["runs"][-1]["windows"]) == (len(state), len({end for _, end, _ in state}))
    assert sum(row["removed"] for row in told["runs"]) == sum(stream.held().values())
    assert told["alarm"] is None


def test_state_that_grows_and_is_not_cleaned_is_told(sandbox: Sandbox) -> None:
    """Event time stands still, and each run brings new keys."""
    window = {**HOURLY, "size": "1s", "watermark": "0s"}
    sandbox.configure(
        decode={"json": {"schema": "at TIMESTAMP, k STRING, v INT"}}, window=window, state={"growing_runs": 2}
    )
    for run in range(3):
        value = json.dumps({"at": "2026-03-01T00:00:00Z", "k": f"k{run}", "v": 1}).encode()
        sandbox.produce([(0, b"", value)])
        ended = sandbox.run(f"run-{run}")
        assert ("grows and is not cleaned" in ended.stderr) is (run == 2)
    history = json.loads(sandbox.cli("state", str(sandbox.file), "--history", "--json").stdout)
    counts = [(row["keys"], row["windows"], row["updated"], row["removed"]) for row in history["runs"]]
    assert counts == [(1, 1, 1, 0), (2, 1, 1, 0), (3, 1, 1, 0)]
    live = [row["live"] for row in history["runs"]]
    assert live == [live[0], 2 * live[0], 3 * live[0]], "what Spark reads to find what is over, is all there is"
    assert all(row["bytes"] > 0 for row in history["runs"])
    assert "bytes in 2 runs" in history["alarm"]
    said = sandbox.cli("status", str(sandbox.file)).stderr
    assert f"run-2: the state of {sandbox.name} grows and is not cleaned" in said
    assert "is not cleaned" in sandbox.cli("state", str(sandbox.file)).stderr


@pytest.mark.long
@pytest.mark.parametrize("kind", [Stream, pytest.param(Deduped, marks=pytest.mark.long)], ids=["window", "dedupe"])
def test_state_that_a_power_cut_emptied_behind_the_sinks_commit_is_made_again(
    sandbox: Sandbox, kind: type[Stream] | type[Deduped]
) -> None:
    stream = Stream(sandbox, HOURLY) if kind is Stream else Deduped(sandbox)
    stream.configure()
    stream.feed(0, 90, 6)
    sandbox.run("first")
    stream.feed(60, 200, 6)
    sandbox.run("dies", kill_at="sink-committed")
    empty_newest(sandbox)
    sandbox.run("dies")
    for run in range(2):
        stream.feed(run * 90, 200 + run * 90, 6)
        sandbox.run(f"later-{run}")
    stream.assert_exact()
    assert stream.held()
