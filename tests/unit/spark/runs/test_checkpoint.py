"""The checkpoint of a run that keeps state: batches that are planned without records, and refusals."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import IntegerType, LongType, StructType
from tests.fixtures.books import Place, span, split
from tests.fixtures.checkpoints import commit, written

from sluice.errors import CheckpointError, ConfigError
from sluice.ledger import Lease
from sluice.pipeline import load
from sluice.pipeline.processor import TimerFlush
from sluice.pipeline.window import Window
from sluice.ranges import OffsetRange
from sluice.run.checkpoint import Checkpoint
from sluice_spark.batch.stateful import Opening
from sluice_spark.batch.windows import WindowWriter
from sluice_spark.runs.flush import plan_firing, plan_flush, plan_held
from sluice_spark.runs.stateful_route import _refuse_torn, plan_closing
from sluice_spark.sinks.delta.table import DeltaSink


def tables(root: Path, watermarks: list[int], commits: dict[int, int], planned_at: int = 0) -> Any:
    """Make a checkpoint: of each batch the watermark, of each commit the next one; each batch reads ten records."""
    ends = {batch: {"t": {"0": 10 * (batch + 1)}} for batch in range(len(watermarks))}
    return SimpleNamespace(checkpoint=written(root, ends, commits, watermarks=watermarks, at=planned_at))


@pytest.mark.parametrize(
    ("aim", "last", "planned"),
    [([], 500, True), ([], 900, False), ([span(0, 20)], 500, True), ([span(10, 21)], 500, False),
     ([span(0, 20), span(0, 1, 1)], 500, False)],
)  # fmt: skip
def test_closing_batch_is_planned_if_it_is_due_and_the_dead_run_had_no_more_to_read(
    tmp_path: Path, aim: list[OffsetRange], last: int, planned: bool
) -> None:
    found = tables(tmp_path, [0, last], {0: last, 1: 900})
    plan_closing(found, aim)
    assert found.checkpoint.open_batch() == (2 if planned else None)


def opened(checkpoint: Checkpoint, ledger: Any = None) -> Opening:
    return Opening(None, ledger, checkpoint, 1, None, None)  # type: ignore[arg-type]


INT = IntegerType()


def writer(pipeline: Any, sink: Any = None, v: Any = INT) -> WindowWriter:
    asked = SimpleNamespace(name="p", file=Path("p.yaml"), no_rebuilding="sessions have no bound")
    asked.window = window(None, aggregates={"n": "collect_list(v)"})
    taken = StructType().add("v", v).add("other", v)
    return WindowWriter(pipeline or asked, "r", lambda rows: rows, taken, sink, mock.Mock(), taken=taken)


def test_types_of_state_cannot_change_once_there_is_state(tmp_path: Path) -> None:
    found = opened(Checkpoint(str(tmp_path)))
    writer(None).refuse_other_types(found)  # this run died before it planned a batch
    writer(None, v=LongType()).refuse_other_types(found)
    assert found.checkpoint.types() == {"v": "bigint"}
    tables(tmp_path, [0], {0: 500})
    with pytest.raises(CheckpointError, match="v was BIGINT"):
        writer(None).refuse_other_types(found)


def test_state_of_several_batches_that_a_power_cut_emptied_is_refused(tmp_path: Path) -> None:
    found = tables(tmp_path, [0, 900], {0: 900, 1: 900})
    asked: Any = SimpleNamespace(name="p", no_rebuilding=None)
    share = tmp_path / "state/0/0"
    share.mkdir(parents=True)
    for content in ("v", ""):
        _refuse_torn(asked, found)
        for version in (1, 2):
            (share / f"{version}.changelog").write_text(content)
    assert found.checkpoint.mend(1) == []
    with pytest.raises(CheckpointError, match="1, 2") as caught:
        _refuse_torn(asked, found)
    assert "--rebuild-state" in caught.value.next_step


def test_first_result_does_not_replace_rows_of_another_writer(tmp_path: Path) -> None:
    place = Place(tmp_path)
    pipeline, found = load(place.file), opened(Checkpoint(str(tmp_path / "c")), place.ledger)
    path = str(tmp_path / "t")
    writer(pipeline, DeltaSink(path, "sluice:p:1")).refuse_to_empty(found)
    write_deltalake(path, pa.table({"n": [1]}))
    with pytest.raises(ConfigError, match="'p'"):
        writer(pipeline, DeltaSink(path, "sluice:p:1")).refuse_to_empty(found)
    place.commit("a", split(0, 5))
    writer(pipeline, DeltaSink(path, "sluice:p:1")).refuse_to_empty(found)


LEASE = mock.create_autospec(Lease, instance=True)
FLUSH = TimerFlush.model_validate({"after": "1h"})


def window(after: str | None, **more: Any) -> Window:
    flush = {} if after is None else {"flush": {"after": after}}
    given = {"time": "at", "size": "1h", "aggregates": {"n": "count(*)"}, "watermark": "1s", **flush, **more}
    return Window.model_validate(given)


@pytest.fixture
def resting(tmp_path: Path) -> Any:
    """Return tables of two batches, the last of which was planned two hours ago, with a watermark of 4 s."""
    return tables(tmp_path, [0, 4_000], {0: 4_000, 1: 4_000}, round(time.time() * 1000) - 7_200_000)


def plans(resting: Any, root: Path, watermark: int | None) -> bool:
    """Commit the batch that is planned with a watermark, if one is; none may be planned without one."""
    assert resting.checkpoint.open_batch() == (None if watermark is None else 2)
    if watermark is None:
        return False
    assert resting.checkpoint.clock_of(2).closing == watermark
    commit(root, 2, watermark)
    return True


@pytest.mark.parametrize(
    ("after", "latest", "watermark"),
    [(None, 5_000, None), ("1h", None, None), ("3h", 5_000, None), ("1h", 5_000, 3_600_000), ("1h", -1, None),
     ("1h", 3_599_999, 3_600_000), ("1h", 3_600_000, 7_200_000)],
)  # fmt: skip
def test_flush_closes_the_last_window_of_a_resting_stream_once(
    resting: Any, tmp_path: Path, after: str | None, latest: int | None, watermark: int | None
) -> None:
    plan_flush(LEASE, resting, window(after), latest)
    if plans(resting, tmp_path, watermark):
        plan_flush(LEASE, resting, window(after), latest)
        assert resting.checkpoint.open_batch() is None


def test_last_window_of_an_event_time_is_the_one_that_ends_last() -> None:
    assert window(None, slide="20m").last_end(25 * 60_000) == (20 + 60) * 60_000
    assert window(None).last_end(-1) == 0


@pytest.mark.parametrize(
    ("after", "last", "watermark"),
    [("3h", 9_000, None), ("1h", None, None), ("1h", 4_000, None), ("1h", 4_001, 4_001)],
)  # fmt: skip
def test_firing_plans_the_last_timer_of_a_resting_stream_once(
    resting: Any, tmp_path: Path, after: str, last: int | None, watermark: int | None
) -> None:
    flush, asked = TimerFlush.model_validate({"after": after}), list[int]()

    def last_timer(batch: int) -> int | None:
        asked.append(batch)
        return last

    plan_firing(LEASE, resting, flush, last_timer)
    assert asked == ([1] if after == "1h" else []), "the state is only read if the stream rests"
    if plans(resting, tmp_path, watermark):
        plan_firing(LEASE, resting, flush, lambda _: 9_999)
        assert resting.checkpoint.open_batch() is None, "a timer that these have registered waits for records"
        assert resting.checkpoint.flushed()


def test_firing_looks_for_timers_of_a_resting_stream_once(resting: Any) -> None:
    no_timer = mock.Mock(return_value=None)
    for _ in range(2):
        plan_firing(LEASE, resting, FLUSH, no_timer)
    no_timer.assert_called_once_with(1)


def test_firing_and_holding_plan_nothing_before_the_first_batch(tmp_path: Path) -> None:
    found = tables(tmp_path, [], {})
    plan_firing(LEASE, found, TimerFlush.model_validate({"after": "0s"}), lambda _: 1)
    plan_held(LEASE, found, 5_000)
    assert found.checkpoint.open_batch() is None


def test_held_watermark_without_records_moves_once_to_the_slowest_partition(resting: Any, tmp_path: Path) -> None:
    plan_held(LEASE, resting, 4_000)
    assert resting.checkpoint.open_batch() is None, "it is there already"
    plan_held(LEASE, resting, 5_000)
    assert plans(resting, tmp_path, 5_000)
    plan_held(LEASE, resting, 5_000)
    assert resting.checkpoint.open_batch() is None
    # that was no flush, which is still to come, whatever the file says of hold now
    plan_firing(LEASE, resting, FLUSH, lambda _: 6_000)
    assert resting.checkpoint.open_batch() == 3


def test_firing_leaves_a_plan_that_another_driver_made_meanwhile(resting: Any, tmp_path: Path) -> None:
    def slow(batch: int) -> int:
        (tmp_path / "offsets/2").write_text("that of another driver")
        return 9_000

    with pytest.raises(CheckpointError, match="batch 2"):
        plan_firing(LEASE, resting, FLUSH, slow)
    assert (tmp_path / "offsets/2").read_text() == "that of another driver"


def test_fenced_driver_plans_nothing(resting: Any) -> None:
    fenced = mock.create_autospec(Lease, instance=True)
    fenced.verify.side_effect = RuntimeError("fenced")
    with pytest.raises(RuntimeError, match="fenced"):
        plan_held(fenced, resting, 9_000)
    assert resting.checkpoint.open_batch() is None
