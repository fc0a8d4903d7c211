"""An epoch goes on with the state of the one before, which is made anew of its records: as if nobody had reset.

The oracle is the model of windows over the batches of all epochs, one after another.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.chaos.test_reset import reset
from tests.chaos.test_window_audit import deep
from tests.chaos.test_windows import HOURLY, PANES, SLIDING, Stream, Updated
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

UPDATED = {**SLIDING, "output": "update"}
POINTS = (
    "records-gathered",
    "batch-started",
    "rows-staged",
    "before-sink-commit",
    "sink-committed",
    "state-rebuilt",
    "batch-recorded",  # of the batch behind it
)


@dataclass
class GoneOn(Stream):
    """A stream whose epochs go on with the state of the one before."""

    earlier: list[list[tuple[int, list[tuple[int, int]]]]] = field(default_factory=list)

    def places(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield the batches of all epochs."""
        for found in self.earlier:
            yield from found
        yield from super().places()

    def begin_again(self, *options: str) -> None:
        """Reset, and keep the state."""
        self.earlier.append(list(super().places()))
        self.begins = self.sandbox.topics.ends(self.sandbox.topic)
        self.epoch += 1
        reset(self.sandbox, "--rebuild-state", *options)

    def state(self) -> dict[str, Any]:
        """Return what ``sluice state`` says, after comparing it with the model."""
        told: dict[str, Any] = json.loads(self.sandbox.cli("state", str(self.sandbox.file), "--json").stdout)
        assert [(w["window_start"], w["window_end"], w["keys"]) for w in told["windows"]] == self.open()
        return told


class UpdatedOn(GoneOn, Updated):
    """The same of windows that each batch updates."""


def test_windows_that_are_open_stay_open(sandbox: Sandbox) -> None:
    gone_on(sandbox, HOURLY, "replay", ("batch-started",))


@pytest.mark.long
@pytest.mark.timeout(1800)  # each kill costs a driver's start
@pytest.mark.parametrize(
    ("window", "recovery", "points"),
    [
        (HOURLY, "replay", POINTS),
        (PANES, "replay", POINTS),
        (UPDATED, "replay", POINTS),
        ({**UPDATED, "panes": "auto"}, "replay", ("sink-committed", "state-rebuilt")),
        (SLIDING, "hot", ("sink-committed",)),
        (SLIDING, "wal", ("sealed", *POINTS)),
        (PANES, "wal", ("records-gathered", "state-rebuilt")),
    ],
    ids=["tumbling", "panes", "updated", "updated-panes", "hot", "wal", "panes-wal"],
)
def test_killed_at_any_point(sandbox: Sandbox, window: dict[str, Any], recovery: str, points: tuple[str, ...]) -> None:
    stream = gone_on(sandbox, window, recovery, points)
    stream.begin_again()
    sandbox.run("idle")
    stream.state()
    stream.feed(600, 620, 4)
    sandbox.run("fourth")
    stream.assert_exact()
    told = deep(sandbox)
    assert (told["problems"], told["unproved"]) == ([], [])


def gone_on(sandbox: Sandbox, window: dict[str, Any], recovery: str, points: Sequence[str]) -> GoneOn:
    kind = UpdatedOn if window.get("output") == "update" else GoneOn
    stream = kind(sandbox, window, recovery=recovery)
    stream.configure()
    stream.feed(0, 200, 24, bad=True)
    sandbox.run("first")
    stream.assert_exact()
    assert stream.open()
    # the checkpoint is lost, and state is divided otherwise from now on
    stream.begin_again()
    shutil.rmtree(sandbox.home / "checkpoints" / sandbox.name)
    stream.configure(spark={"conf": {"spark.sql.shuffle.partitions": "3"}})
    stream.feed(0, 260, 20, bad=True)
    for point in points:
        sandbox.run("second", kill_at=point)
    sandbox.run("second")
    stream.assert_exact()
    assert stream.state()["shares"] == 3
    stream.feed(300, 420, 8)
    sandbox.run("third")
    stream.assert_exact()
    rows, late, _ = stream.expected()
    assert rows
    assert late
    told = deep(sandbox)
    assert (told["problems"], told["unproved"]) == ([], [])
    return stream


@pytest.mark.long
def test_windows_that_were_updated_are_written_once_from_now_on(sandbox: Sandbox) -> None:
    stream = GoneOn(sandbox, UPDATED)
    stream.configure()
    stream.feed(0, 200, 24, bad=True)
    sandbox.run("first")
    assert len(stream.held()) > len(stream.expected()[0]), "the table has windows that are open"
    stream.window = SLIDING
    stream.configure()
    stream.begin_again()
    sandbox.run("second", kill_at="sink-committed")
    sandbox.run("second")
    assert stream.held() == stream.expected()[0], "they are not written before they are closed"
    stream.feed(100, 320, 20)
    sandbox.run("third")
    assert stream.held() == stream.expected()[0]
    assert stream.open()


@pytest.mark.long
def test_what_is_gone_is_said_and_nothing_is_open_without_it(sandbox: Sandbox) -> None:
    stream = GoneOn(sandbox, HOURLY)
    stream.configure()
    stream.feed(0, 200, 24)
    sandbox.run("first")
    before = stream.held()
    stream.begin_again()
    sandbox.topics.delete_records(sandbox.topic, {0: 10, 1: 10})
    said = sandbox.run("second", expect=21)
    assert "no longer in the source or the write-ahead log" in said.message
    assert f"sluice reset {sandbox.name} --reason TEXT" in said.message
    again = reset(sandbox, expect=10)
    assert "windows that are open are dropped" in again, "not without a word"
    assert "no longer in the source" in reset(sandbox, "--rebuild-state", expect=21)
    reset(sandbox, "--yes")
    stream.feed(300, 420, 8)
    sandbox.run("third")
    assert before == before & stream.held()
    sandbox.assert_balanced()
