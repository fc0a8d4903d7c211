"""Epochs of pipelines with state: a reset writes no window twice, and with ``--rebuild-state`` loses nothing open."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from tests.chaos.cases import DIRECT
from tests.chaos.commands import AGAIN, assert_audited, deep, killed, reset
from tests.chaos.models import dedupe, windows
from tests.chaos.models.planned import BEGIN, MINUTE, Place, milliseconds
from tests.chaos.models.processor import Feed, departure
from tests.chaos.models.windows import HOURLY, PANES, SESSIONS, SLIDING, UPDATED, Sessions, Stream, Updated, stream_of
from tests.chaos.test_window_intervals import all_at_once, closed_to, interval
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1800), pytest.mark.long]

# --- without the state ---------------------------------------------------------------------------------------------


@dataclass
class NewEpoch(Stream):
    """An epoch that writes no window which begins at or before a time."""

    latest: datetime = field(default=BEGIN)

    def spans(self, at: datetime) -> list[tuple[datetime, datetime]]:
        return [span for span in super().spans(at) if span[0] > self.latest]


@dataclass
class NewEpochSessions(Sessions):
    """An epoch that takes no record which was late before."""

    closed: datetime = field(default=BEGIN)

    def batches(self) -> Iterator[tuple[int, list[Any]]]:
        for number, records in super().batches():
            yield number, [record for record in records if not self._before(record)]

    def expected(self) -> tuple[Counter[Any], int, int]:
        rows, late, partly = super().expected()
        return rows, late + sum(self._before(record) for _, found in super().batches() for record in found), partly

    def _before(self, record: Any) -> bool:
        return record[0] + windows.length(self.window["gap"]) <= self.closed


def following(stream: Stream) -> tuple[Stream, Stream]:
    """Return the epoch after that of a drained stream, and the same if it did not look back."""
    sandbox = stream.sandbox
    keys: dict[str, Any] = {
        "records": stream.records, "chance": stream.chance, "recovery": stream.recovery, "epoch": stream.epoch + 1,
        "begins": sandbox.topics.ends(sandbox.topic),
    }  # fmt: skip
    if isinstance(stream, Sessions):
        closed = closed_to(sandbox, stream.epoch)
        return NewEpochSessions(sandbox, stream.window, **keys, closed=closed), Sessions(sandbox, stream.window, **keys)
    latest = max(record[0] for record in stream.records.values() if record is not None)
    return NewEpoch(sandbox, stream.window, **keys, latest=latest), Stream(sandbox, stream.window, **keys)


@pytest.mark.parametrize(
    ("window", "recovery", "points"),
    [
        (HOURLY, "replay", ()),
        (HOURLY, "replay", ("window-defined", *DIRECT[:2], "batch-recorded", "before-sink-commit:2")),
        (PANES, "replay", ("window-defined", "before-sink-commit", "sink-committed:2")),
        (SESSIONS, "replay", ()),
        (SESSIONS, "wal", ("sealed", *DIRECT[:2])),
    ],
    ids=["tumbling", "tumbling-killed", "panes-killed", "sessions", "sessions-killed"],
)
def test_new_epoch_writes_no_window_once_more(
    sandbox: Sandbox, window: dict[str, Any], recovery: str, points: tuple[str, ...]
) -> None:
    stream = stream_of(sandbox, window, recovery=recovery)
    stream.feed(0, 200, 14, bad=True, run="first")
    before, *_ = stream.expected()
    assert stream.held() == before
    assert before
    assert stream.open()
    assert "open" in reset(sandbox, expect=10), "open windows are not dropped without consent"
    if points:
        killed(sandbox, "epoch-closed", "reset", "--reason", "x", "--yes")
    else:
        reset(sandbox, "--yes")
    new, careless = following(stream)
    edge = []
    if isinstance(new, NewEpochSessions):
        edge = [new.closed - windows.length(window["gap"]) + n * MINUTE for n in (0, 5)]
    # for windows that were written, for those that were open, and for others; one late record beside one that is not
    new.feed(0, 260, 20, bad=True, also=edge)
    for point in (each for each in points if ":" not in each):
        sandbox.run("second", kill_at=point)
    sandbox.run("second")
    new.feed(300, 420, 8)
    for point in (each for each in points if ":" in each):  # in the batch that closes the epoch's own windows
        sandbox.run("third", kill_at=point)
    sandbox.run("third")
    rows, out, _ = new.expected()
    again, late, _ = careless.expected()
    assert rows, "the new epoch writes its own"
    assert again != rows, "and would write others"
    assert new.held() == before + rows
    moved = [sandbox.ledger.runs.account(sandbox.name, run).get("windows", {}) for run in ("second", "third")]
    assert [sum(each.get(key, 0) for each in moved) for key in ("late", "former")] == [late, out - late]
    assert sum(sandbox.account(run)["filtered"] for run in ("second", "third")) == out
    assert late < out
    sandbox.assert_balanced()
    if "gap" not in window:
        assert set(Counter(row[:3] for row in new.held().elements()).values()) == {1}
    report = deep(sandbox, "--windows")
    assert report["problems"] == []
    if "gap" in window:
        assert (report["unproved"], report["tables"]["windows"]["windows"]) == ([], sum(new.held().values()))


@pytest.mark.parametrize("size", ["1h", "30m"], ids=["sliding", "tumbling"])
def test_updated_window_is_never_replaced_by_a_part_of_it(sandbox: Sandbox, size: str) -> None:
    """The new epoch has read only a part of the windows that the one before began. An interval makes them whole."""
    window = {**UPDATED, "size": size, "slide": "30m", "watermark": "1h"}
    stream = stream_of(sandbox, window)
    stream.give([(BEGIN + n * MINUTE, "a", 1) for n in (70, 100, 130)])
    sandbox.run("first")
    before = stream.held()
    assert before == stream.expected()[0]
    assert "open" in reset(sandbox, expect=10)
    reset(sandbox, "--yes")
    new = [(BEGIN + n * MINUTE, "a", 1) for n in (140, 160, 190, 90)]
    stream.give(new)
    sandbox.run("second", kill_at="sink-committed")
    sandbox.run("second")
    behind = Counter(span for at, *_ in new for span in stream.spans(at) if span[0] > BEGIN + 130 * MINUTE)
    assert stream.held() == before + Counter((*span, "a", n, n) for span, n in behind.items())
    moved = sandbox.ledger.runs.account(sandbox.name, "second").get("windows", {})
    assert (moved["former"], moved["late"], moved["partly_late"]) == (2, 0, 1 if size == "1h" else 0)
    assert sandbox.account("second") == dict(planned=4, written=2, filtered=2, quarantined=0, absent=0, lost=0)
    assert {w["window_start"] for w in stream.state()["windows"]} == {milliseconds(start) for start, _ in behind}
    stream.give([(BEGIN + 720 * MINUTE, "a", 1)])
    sandbox.run("third")
    sandbox.run("interval", interval=interval(0, 1440))
    assert stream.held() == all_at_once(stream, 0, 1440, BEGIN + 1440 * MINUTE)
    deep(sandbox)


@pytest.mark.parametrize("truncate", [True, False])
def test_reset_drops_the_state_of_a_processor(sandbox: Sandbox, truncate: bool) -> None:
    feed = Feed(sandbox)
    feed.configure()
    first, second = feed.parts(2)
    feed.put(first)
    sandbox.run("first")
    before = feed.held()
    assert before
    reset(sandbox, *(AGAIN if truncate else ()), "--yes")
    watermark = feed.model()[-1]
    ends = {p: max(o for q, o in feed.records if q == p) + 1 for p in (0, 1)}
    feed.put(second)
    sandbox.run("second")
    feed.epoch, feed.begins = 2, {} if truncate else ends
    if truncate:
        assert feed.held() == feed.model()[0]
        deep(sandbox)
        return
    new = [f for place, f in feed.records.items() if f is not None and place[1] >= ends[place[0]]]
    former = [f for f in new if f["dep_time"] is not None and departure(f) <= watermark]
    assert former
    account = sandbox.ledger.runs.account(sandbox.name, "second")["processor"]
    assert 0 < account["former"] <= len(former), "those that the new epoch's own watermark did not make late"
    assert account["former"] + account["late"] >= len(former)
    assert account["former_to"] == milliseconds(watermark)
    assert not before - feed.held(), "rows stay in the sink"


# --- with the state ------------------------------------------------------------------------------------------------

POINTS = (
    "records-gathered", "batch-started", "rows-staged", "before-sink-commit", "sink-committed", "state-rebuilt",
    "batch-recorded",  # of the batch behind it
)  # fmt: skip


@dataclass
class GoneOn(Stream):
    """A stream whose epochs go on with the state of the one before: the model has the batches of all."""

    earlier: list[list[tuple[int, list[Place]]]] = field(default_factory=list)

    def places(self) -> Iterator[tuple[int, list[Place]]]:
        yield from (batch for found in self.earlier for batch in found)
        yield from super().places()

    def begin_again(self, *options: str) -> None:
        """Reset, and keep the state."""
        self.earlier.append(list(super().places()))
        self.begins = self.sandbox.topics.ends(self.sandbox.topic)
        self.epoch += 1
        reset(self.sandbox, "--rebuild-state", *options)


class UpdatedOn(GoneOn, Updated):
    """The same of windows that each batch updates."""


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
def test_windows_stay_open_when_state_is_rebuilt(
    sandbox: Sandbox, window: dict[str, Any], recovery: str, points: tuple[str, ...]
) -> None:
    kind = UpdatedOn if window.get("output") == "update" else GoneOn
    stream = kind(sandbox, window, recovery=recovery)
    stream.configure()
    stream.feed(0, 200, 24, bad=True, run="first")
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
    assert stream.assert_open()["shares"] == 3
    stream.feed(300, 420, 8, run="third")
    stream.assert_exact()
    rows, late, _ = stream.expected()
    assert rows
    assert late
    assert_audited(sandbox, "--windows")
    stream.begin_again()
    sandbox.run("idle")
    stream.assert_open()
    stream.feed(600, 620, 4, run="fourth")
    stream.assert_exact()
    assert_audited(sandbox, "--windows")


@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_dedupe_remembers_its_keys_when_state_is_rebuilt(sandbox: Sandbox, recovery: str) -> None:
    stream = dedupe.Stream(sandbox, recovery=recovery)
    stream.configure()
    stream.feed(0, 120, 20, bad=True, ids=12, run="first")
    assert stream.model()[-1]
    stream.earlier = list(stream.batches())
    stream.begins = sandbox.topics.ends(sandbox.topic)
    stream.epoch += 1
    reset(sandbox, "--rebuild-state")
    shutil.rmtree(sandbox.home / "checkpoints" / sandbox.name)
    stream.feed(60, 150, 14, bad=True, ids=12)
    for point in ("records-gathered", "sink-committed", "state-rebuilt"):
        sandbox.run("second", kill_at=point)
    sandbox.run("second")
    assert stream.assert_exact()["duplicate"]
    remembered = stream.model()[-1]
    assert remembered
    assert stream.assert_open()["last_forgotten_at"] == milliseconds(max(remembered.values()))
    stream.feed(0, 240, 14, ids=12, run="third")
    assert stream.assert_exact()["late"]
    assert deep(sandbox)["problems"] == []


def test_windows_that_were_updated_are_written_once_after_a_change_to_append(sandbox: Sandbox) -> None:
    stream = GoneOn(sandbox, UPDATED)
    stream.configure()
    stream.feed(0, 200, 24, bad=True, run="first")
    assert len(stream.held()) > len(stream.expected()[0]), "the table has windows that are open"
    stream.window = SLIDING
    stream.configure()
    stream.begin_again()
    sandbox.run("second", kill_at="sink-committed")
    sandbox.run("second")
    assert stream.held() == stream.expected()[0], "they are not written before they are closed"
    stream.feed(100, 320, 20, run="third")
    assert stream.held() == stream.expected()[0]
    assert stream.open()


def test_rebuild_is_refused_when_records_of_open_windows_are_gone(sandbox: Sandbox) -> None:
    stream = GoneOn(sandbox, HOURLY)
    stream.configure()
    stream.feed(0, 200, 24, run="first")
    before = stream.held()
    stream.begin_again()
    sandbox.topics.delete_records(sandbox.topic, {0: 10, 1: 10})
    assert f"sluice reset {sandbox.file} --reason" in sandbox.run("second", expect=21).message
    reset(sandbox, expect=10)
    reset(sandbox, "--rebuild-state", expect=21)
    reset(sandbox, "--yes")
    stream.feed(300, 420, 8, run="third")
    assert before == before & stream.held()
    sandbox.assert_balanced()
