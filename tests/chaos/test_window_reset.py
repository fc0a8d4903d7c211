"""Windows of before a reset are not written once more, nor is a part of one; what is left out is counted."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.chaos.test_reset import reset
from tests.chaos.test_window_audit import deep
from tests.chaos.test_window_intervals import all_at_once, interval
from tests.chaos.test_windows import BEGIN, HOURLY, MINUTE, PANES, SESSIONS, SLIDING, Sessions, Stream, _span
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


@dataclass
class Anew(Stream):
    """An epoch that writes no window which begins at or before a time."""

    latest: datetime = field(default=BEGIN)

    def spans(self, at: datetime) -> list[tuple[datetime, datetime]]:
        """Return those windows of an event time that are its own."""
        return [span for span in super().spans(at) if span[0] > self.latest]


@dataclass
class SessionsAnew(Sessions):
    """An epoch that takes no record which was late before."""

    closed: datetime = field(default=BEGIN)

    def batches(self) -> Iterator[tuple[int, list[tuple[datetime, str, int]]]]:
        """Yield each batch without those records."""
        for number, records in super().batches():
            yield number, [record for record in records if not self._before(record)]

    def expected(self) -> tuple[Counter[Any], int, int]:
        """Count those records, too."""
        rows, late, partly = super().expected()
        return rows, late + sum(self._before(record) for _, found in super().batches() for record in found), partly

    def _before(self, record: tuple[datetime, str, int]) -> bool:
        return record[0] + _span(self.window["gap"]) <= self.closed


def following(stream: Stream) -> tuple[Stream, Stream]:
    """Return the epoch after that of a drained stream, and the same if it did not look back."""
    sandbox = stream.sandbox
    keys: dict[str, Any] = {
        "records": stream.records, "chance": stream.chance, "recovery": stream.recovery, "epoch": stream.epoch + 1,
        "begins": sandbox.topics.ends(sandbox.topic),
    }  # fmt: skip
    if isinstance(stream, Sessions):
        closed = datetime.fromtimestamp(sandbox.ledger.closed_to(sandbox.name, stream.epoch) / 1000, UTC)
        return SessionsAnew(sandbox, stream.window, **keys, closed=closed), Sessions(sandbox, stream.window, **keys)
    latest = max(record[0] for record in stream.records.values() if record is not None)
    return Anew(sandbox, stream.window, **keys, latest=latest), Stream(sandbox, stream.window, **keys)


def filtered(sandbox: Sandbox, *runs: str) -> tuple[int, int, int]:
    """Return how many records were late, former and filtered in runs."""
    moved = [sandbox.ledger.windows(sandbox.name, run) for run in runs]
    late, former = (sum(each.get(key, 0) for each in moved) for key in ("late", "former"))
    return late, former, sum(sandbox.account(run)["filtered"] for run in runs)


def begun_again(sandbox: Sandbox, window: dict[str, Any], recovery: str, points: tuple[str, ...] = ()) -> Stream:
    """Reset a pipeline that has written windows and has open ones, and let it go on; return the new epoch."""
    stream = (Sessions if "gap" in window else Stream)(sandbox, window, recovery=recovery)
    stream.configure()
    stream.feed(0, 200, 14, bad=True)
    sandbox.run("first")
    before, *_ = stream.expected()
    assert stream.held() == before
    assert before
    assert stream.open()
    assert "windows that are open are dropped" in reset(sandbox, expect=10)
    if points:
        options = ("--reason", "x", "--yes")
        killed = sandbox.cli("reset", str(sandbox.file), *options, SLUICE_KILL_AT="epoch-closed")
        assert killed.returncode not in (0, 1, 10), killed.stderr[-3000:]
    else:
        reset(sandbox, "--yes")
    anew, careless = following(stream)
    edge = [anew.closed - _span(window["gap"]) + n * MINUTE for n in (0, 5)] if isinstance(anew, SessionsAnew) else []
    # for windows that were written, for those that were open, and for others; one late record beside one that is not
    anew.feed(0, 260, 20, bad=True, also=edge)
    for point in (each for each in points if ":" not in each):
        sandbox.run("second", kill_at=point)
    sandbox.run("second")
    anew.feed(300, 420, 8)
    for point in (each for each in points if ":" in each):  # in the batch that closes the epoch's own windows
        sandbox.run("third", kill_at=point)
    sandbox.run("third")
    rows, out, _ = anew.expected()
    again, late, _ = careless.expected()
    assert rows, "the new epoch writes its own"
    assert again != rows, "and would write others"
    assert anew.held() == before + rows
    told = filtered(sandbox, "second", "third")
    assert told == (late, out - late, out)
    assert late < out
    sandbox.assert_balanced()
    return anew


@pytest.mark.parametrize(
    ("window", "recovery", "points"),
    [
        (HOURLY, "replay", ()),
        pytest.param(PANES, "replay", (), marks=pytest.mark.long),
        pytest.param(SESSIONS, "replay", (), marks=pytest.mark.long),
        pytest.param(
            HOURLY,
            "replay",
            ("window-defined", "before-sink-commit", "sink-committed", "batch-recorded", "before-sink-commit:2"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            PANES,
            "replay",
            ("window-defined", "before-sink-commit", "sink-committed", "sink-committed:2"),
            marks=pytest.mark.long,
        ),
        pytest.param(SESSIONS, "wal", ("sealed", "before-sink-commit", "sink-committed"), marks=pytest.mark.long),
    ],
    ids=["tumbling", "panes", "sessions", "tumbling-killed", "panes-killed", "sessions-killed"],
)
def test_no_window_is_written_once_more(
    sandbox: Sandbox, window: dict[str, Any], recovery: str, points: tuple[str, ...]
) -> None:
    anew = begun_again(sandbox, window, recovery, points)
    if "gap" not in window:
        keys = Counter[Any](row[:3] for row in anew.held().elements())
        assert set(keys.values()) == {1}
    report = deep(sandbox)
    assert report["problems"] == []
    if "gap" in window:
        assert (report["unproved"], report["tables"]["windows"]["windows"]) == ([], sum(anew.held().values()))


@pytest.mark.long
@pytest.mark.parametrize(
    ("window", "recovery"), [(PANES, "replay"), (SLIDING, "wal")], ids=["panes", "sliding-by-the-log"]
)
def test_an_interval_makes_whole_what_resets_left_out(sandbox: Sandbox, window: dict[str, Any], recovery: str) -> None:
    anew = begun_again(sandbox, window, recovery)
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    assert [(w["window_start"], w["window_end"], w["keys"]) for w in told["windows"]] == anew.open()
    (measured,) = sandbox.ledger.states(sandbox.name, limit=1)
    assert measured.windows == len(anew.open())
    # the checkpoint that says what this epoch left out is lost; the next one leaves out what both have begun
    shutil.rmtree(sandbox.home / "checkpoints" / sandbox.name)
    reset(sandbox, "--yes")
    held = anew.held()
    anew.feed(0, 300, 10)
    sandbox.run("fourth")
    assert anew.held() == held
    assert sandbox.account("fourth")["written"] == 0
    assert filtered(sandbox, "fourth") == (0, 10, 10)
    (measured,) = sandbox.ledger.states(sandbox.name, limit=1)
    assert measured.windows == 0
    assert deep(sandbox)["problems"] == []
    anew.feed(600, 700, 8)
    sandbox.run("fifth")
    sandbox.run("interval", interval=interval(0, 600))
    closed = datetime.fromtimestamp(sandbox.ledger.closed_to(sandbox.name, 3) / 1000, UTC)
    every = Stream(sandbox, window, records=anew.records)
    assert every.held() == all_at_once(every, 0, 1000, closed)
    assert deep(sandbox)["problems"] == []
