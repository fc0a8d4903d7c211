"""A stream that rests is flushed once: to the end of its last window, or to its last timer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.unit.spark.runs.test_stateful import tables

from sluice.errors import CheckpointError
from sluice.ledger import Lease
from sluice.pipeline.processor import TimerFlush
from sluice.pipeline.window import Window
from sluice_spark.runs.flushing import plan_firing, plan_flush, plan_held

LEASE = mock.create_autospec(Lease, instance=True)
"""One that nobody has taken over."""


def window(after: str | None, **more: Any) -> Window:
    flush = {} if after is None else {"flush": {"after": after}}
    given = {"time": "at", "size": "1h", "aggregates": {"n": "count(*)"}, "watermark": "1s", **flush, **more}
    return Window.model_validate(given)


@pytest.mark.parametrize(
    ("after", "latest", "watermark"),
    [(None, 5_000, None), ("1h", None, None), ("3h", 5_000, None), ("1h", 5_000, 3_600_000), ("1h", -1, None),
     ("1h", 3_599_999, 3_600_000), ("1h", 3_600_000, 7_200_000)],
)  # fmt: skip
def test_a_stream_is_flushed_when_it_rests_to_the_end_of_its_last_window(
    tmp_path: Path, after: str | None, latest: int | None, watermark: int | None
) -> None:
    two_hours_ago = round(time.time() * 1000) - 7_200_000
    found = tables(tmp_path, [0, 4_000], {0: 4_000, 1: 4_000}, two_hours_ago)
    plan_flush(LEASE, found, window(after), latest)
    assert found.checkpoint.open_batch() == (None if watermark is None else 2)
    if watermark is not None:
        assert found.checkpoint.clock_of(2).closing == watermark
        (tmp_path / "commits/2").write_text(f"v1\n{json.dumps({'nextBatchWatermarkMs': watermark})}")
        plan_flush(LEASE, found, window(after), latest)
        assert found.checkpoint.open_batch() is None, "once is enough"


def test_the_last_window_of_an_event_time_is_that_which_ends_last() -> None:
    assert window(None, slide="20m").last_end(25 * 60_000) == (20 + 60) * 60_000
    assert window(None).last_end(-1) == 0


@pytest.mark.parametrize(
    ("after", "last", "watermark"),
    [("3h", 9_000, None), ("1h", None, None), ("1h", 4_000, None), ("1h", 4_001, 4_001)],
)  # fmt: skip
def test_timers_fire_when_a_stream_rests(tmp_path: Path, after: str, last: int | None, watermark: int | None) -> None:
    two_hours_ago, flush = round(time.time() * 1000) - 7_200_000, TimerFlush.model_validate({"after": after})
    found = tables(tmp_path, [0, 4_000], {0: 4_000, 1: 4_000}, two_hours_ago)
    asked = list[int]()

    def last_timer(batch: int) -> int | None:
        asked.append(batch)
        return last

    plan_firing(LEASE, found, flush, last_timer)
    assert asked == ([1] if after == "1h" else []), "the state is only read if the stream rests"
    assert found.checkpoint.open_batch() == (None if watermark is None else 2)
    if watermark is None:
        return
    assert found.checkpoint.clock_of(2).closing == watermark
    (tmp_path / "commits/2").write_text(f"v1\n{json.dumps({'nextBatchWatermarkMs': watermark})}")
    plan_firing(LEASE, found, flush, lambda _: watermark + 1)
    assert found.checkpoint.open_batch() is None, "a timer that these have registered waits for records"
    assert found.checkpoint.flushed()


def test_a_stream_that_has_read_nothing_has_no_timers(tmp_path: Path) -> None:
    found = tables(tmp_path, [], {})
    plan_firing(LEASE, found, TimerFlush.model_validate({"after": "0s"}), lambda _: 1)
    assert found.checkpoint.open_batch() is None


def test_a_run_without_records_goes_on_to_what_the_slowest_partition_allows(tmp_path: Path) -> None:
    two_hours_ago = round(time.time() * 1000) - 7_200_000
    found = tables(tmp_path, [0, 4_000], {0: 4_000, 1: 4_000}, two_hours_ago)
    plan_held(LEASE, found, 4_000)
    assert found.checkpoint.open_batch() is None, "it is there already"
    plan_held(LEASE, found, 5_000)
    assert found.checkpoint.open_batch() == 2
    assert found.checkpoint.clock_of(2).closing == 5_000
    (tmp_path / "commits/2").write_text(f"v1\n{json.dumps({'nextBatchWatermarkMs': 5_000})}")
    plan_held(LEASE, found, 5_000)
    assert found.checkpoint.open_batch() is None, "once is enough"
    # that was no flush, which is still to come, whatever the file says of hold now
    plan_firing(LEASE, found, TimerFlush.model_validate({"after": "1h"}), lambda _: 6_000)
    assert found.checkpoint.open_batch() == 3


def test_nothing_is_planned_before_anything_was_read(tmp_path: Path) -> None:
    found = tables(tmp_path, [], {})
    plan_held(LEASE, found, 5_000)
    assert found.checkpoint.open_batch() is None


def test_a_stream_without_timers_is_looked_through_once(tmp_path: Path) -> None:
    found = tables(tmp_path, [0, 4_000], {0: 4_000, 1: 4_000}, round(time.time() * 1000) - 7_200_000)
    asked = list[int]()

    def no_timer(batch: int) -> None:
        asked.append(batch)

    for _ in range(2):
        plan_firing(LEASE, found, TimerFlush.model_validate({"after": "1h"}), no_timer)
    assert asked == [1], "looking starts Spark"


def test_a_plan_that_another_driver_made_meanwhile_stays(tmp_path: Path) -> None:
    found = tables(tmp_path, [0, 4_000], {0: 4_000, 1: 4_000}, round(time.time() * 1000) - 7_200_000)

    def slow(batch: int) -> int:
        (tmp_path / "offsets/2").write_text("that of another driver")
        return 9_000

    with pytest.raises(CheckpointError, match="another driver has planned batch 2"):
        plan_firing(LEASE, found, TimerFlush.model_validate({"after": "1h"}), slow)
    assert (tmp_path / "offsets/2").read_text() == "that of another driver"


def test_a_driver_that_was_fenced_plans_nothing(tmp_path: Path) -> None:
    found = tables(tmp_path, [0, 4_000], {0: 4_000, 1: 4_000}, round(time.time() * 1000) - 7_200_000)
    fenced = mock.create_autospec(Lease, instance=True)
    fenced.verify.side_effect = RuntimeError("fenced")
    with pytest.raises(RuntimeError, match="fenced"):
        plan_held(fenced, found, 9_000)
    assert found.checkpoint.open_batch() is None
