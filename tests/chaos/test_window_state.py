"""The files of Spark's state: they do not grow from run to run, and a power cut that empties them loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.chaos.models import dedupe
from tests.chaos.models.windows import BEGIN, HOURLY, Record, Stream, event
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

RETAINED = "spark.sql.streaming.minBatchesToRetain"


class Tiny(Stream):
    """Runs of one record of each partition, each later than those before: a batch, and one that closes."""

    def batches(self) -> Iterator[tuple[int, list[Record]]]:
        # Spark forgets the plans of old ones
        for run in range(len(self.records) // 2):
            yield 2 * run, [record for p in (0, 1) if (record := self.records[p, run]) is not None]
            yield 2 * run + 1, []


def shares_of(stream: Any) -> list[Path]:
    return sorted(folder for folder in (stream.checkpoint / "state" / "0").iterdir() if folder.name.isdigit())


@pytest.mark.long
@pytest.mark.parametrize(
    ("runs", "retained"),
    [(6, 100), (16, 4), pytest.param(200, 100, marks=pytest.mark.timeout(3600))],
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
            stream.feed(run * 30, run * 30 + 20, 2, run=f"run-{run}")
    finally:
        spark.conf.set(RETAINED, before)
    for share in shares_of(stream):
        assert list(share.glob("*.zip")), "a snapshot, on which later runs build"
        # as many as are retained, three tenths more before cleaning begins, and two rounded snapshots at its ends
        assert len(list(share.glob("*.changelog"))) <= 1.3 * retained + 21
    stream.assert_exact()
    assert stream.held()
    history = stream.state("--history", "--limit", str(runs))
    assert [row["run"] for row in history["runs"]] == [f"run-{run}" for run in range(runs)]
    *_, state = stream.model()
    newest = history["runs"][-1]
    assert (newest["keys"], newest["windows"]) == (len(state), len({end for _, end, _ in state}))
    assert sum(row["removed"] for row in history["runs"]) == sum(stream.held().values())
    assert history["alarm"] is None


@pytest.mark.long
def test_state_that_only_grows_raises_an_alarm(sandbox: Sandbox) -> None:
    """Event time stands still, and each run brings new keys."""
    stream = Stream(sandbox, {**HOURLY, "size": "1s", "watermark": "0s"})
    stream.configure(state={"growing_runs": 2})
    for run in range(3):
        sandbox.produce([(0, b"", event(BEGIN, f"k{run}", 1))])
        ended = sandbox.run(f"run-{run}")
        assert ("grows and is not cleaned" in ended.stderr) is (run == 2)
    history = stream.state("--history")
    counts = [(row["keys"], row["windows"], row["updated"], row["removed"]) for row in history["runs"]]
    assert counts == [(1, 1, 1, 0), (2, 1, 1, 0), (3, 1, 1, 0)]
    live = [row["live"] for row in history["runs"]]
    assert live == [live[0], 2 * live[0], 3 * live[0]], "Spark reads all there is to find closed windows"
    assert all(row["bytes"] > 0 for row in history["runs"])
    assert "bytes in 2 runs" in history["alarm"]
    for command in ("status", "state"):
        assert "is not cleaned" in " ".join(sandbox.cli(command, str(sandbox.file)).stderr.split())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["window", "dedupe"])
def test_state_that_a_power_cut_emptied_is_rebuilt(sandbox: Sandbox, kind: str) -> None:
    stream: Any = Stream(sandbox, HOURLY) if kind == "window" else dedupe.Stream(sandbox)
    stream.configure()
    stream.feed(0, 90, 6, run="first")
    stream.feed(60, 200, 6, run="dies", kill_at="sink-committed")
    for share in shares_of(stream):  # a power cut leaves names, and nothing in them
        newest = max(share.glob("*.changelog"), key=lambda file: int(file.stem))
        newest.write_bytes(b"")
        (share / f".{newest.name}.crc").write_bytes(b"")
    sandbox.run("dies")
    for run in range(2):
        stream.feed(run * 90, 200 + run * 90, 6, run=f"later-{run}")
    stream.assert_exact()
    assert stream.held()
