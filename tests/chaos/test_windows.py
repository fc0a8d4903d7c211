"""Windows over several runs: a new epoch, changes of the file, and files of the state that do not grow.

Their kills are in ``test_operators.py`` and in recorded states, which also flush them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.chaos.commands import said
from tests.chaos.models import windows
from tests.chaos.models.windows import BEGIN, HOURLY, Record, Stream, event, stream_of
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


def test_complete_output_of_a_new_epoch_begins_empty(sandbox: Sandbox) -> None:
    stream = stream_of(sandbox, windows.COMPLETE)
    for first in (600, 500, 0):  # each is older than what came before
        stream.feed(first, first + 60, 6, bad=True, run=f"from-{first}")
    stream.assert_exact()
    assert {w["closes_at"] for w in stream.assert_open()["windows"]} == {None}
    said(sandbox, "reset", "--reason", "x", "--yes")
    sandbox.produce([(0, b"k", b"no record")])
    sandbox.run("nothing")
    assert stream.held() == Counter()
    assert sandbox.rows() is not None


def test_state_of_a_committed_batch_is_made_from_the_rows_that_were_counted(sandbox: Sandbox) -> None:
    stream = stream_of(sandbox, HOURLY)
    stream.feed(0, 100, 4, run="dies", kill_at="sink-committed")
    stream.configure(window={**HOURLY, "ahead": "2d"})
    assert "undo the change" in sandbox.run("second", expect=41).message
    stream.configure()
    sandbox.run("third")
    stream.configure(window={**HOURLY, "ahead": "2d"})
    stream.feed(0, 300, 4, run="last")
    stream.assert_exact()


def test_values_of_open_windows_keep_their_type(sandbox: Sandbox) -> None:
    stream = stream_of(sandbox, {**HOURLY, "aggregates": {"n": "count(*)", "total": "size(collect_set(V))"}})
    stream.feed(0, 50, 6, run="first")
    stream.configure(decode={"json": {"schema": "at TIMESTAMP, k STRING, v BIGINT, more STRING"}})
    stream.feed(0, 50, 6)
    assert "v was INT and is BIGINT" in sandbox.run("refused", expect=41).message


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
