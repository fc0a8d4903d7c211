"""Each sink has a batch whole or not at all, once, and of its own pipeline alone; rows are staged without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType
from tests.contract.sinks import BEGIN, CASES, SinkCase, commit, note, rows

from sluice.errors import CheckpointError, ConfigError, ExitCode, LeaseHeldError, SinkError
from sluice.kinds import BUILT_IN, kind_of
from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import NOTHING, Fence, RowsRefusedError
from sluice_spark.sinks.parquet.all_rows import AllRows
from sluice_spark.sinks.parquet.rows_by_key import RowsByKey
from sluice_spark.sinks.parquet.rows_by_time import RowsByTime
from sluice_spark.sinks.parquet.slice import Slice

BY_NAME = {case.name: case for case in CASES}


def these(chosen: Callable[[type[SinkCase]], bool] = lambda _: True) -> pytest.MarkDecorator:
    """Run a test with each sink of which something is true."""
    return pytest.mark.parametrize("sink_case", [case.name for case in CASES if chosen(case)], indirect=True)


def replaceable(case: type[SinkCase]) -> bool:
    return case.replaceable


@pytest.fixture
def sink_case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SinkCase]:
    return BY_NAME[request.param](tmp_path, monkeypatch, request)


def test_sink_that_is_built_in_has_a_case() -> None:
    assert {case.key for case in CASES} >= BUILT_IN["sinks"].keys()


@these()
def test_sink_declares_the_interfaces_that_its_case_tests(sink_case: SinkCase) -> None:
    kind = sink_case.config.of(sink_case.kind)
    assert (kind.replaceable, kind.transactional or kind.at_least_once) == (sink_case.replaceable, True)
    assert all(hasattr(sink_case.writer(), name) for name in ("replace", "held")) or not kind.replaceable


# --- a batch -------------------------------------------------------------------------------------------------------


@these()
def test_sink_holds_a_batch_from_its_commit_on_and_once(sink_case: SinkCase) -> None:
    sink = sink_case.writer()
    assert sink.version() == -1
    staged = sink_case.stage(sink, 0, rows(0, 3))
    assert {key: (t.rows, t.offsets, t.first, t.last) for key, t in staged.tallies.items()} == {("t", 0): (3, 3, 0, 2)}
    if sink_case.readable:
        assert sink_case.held() == {}
    assert sink.commit(staged, sink_case.schema, 0, note("r", 0)) is True
    assert not commit(sink_case, sink, 0, 0, 3)
    assert commit(sink_case, sink, 1, 3, 6)
    assert not commit(sink_case, sink, 0, 6, 9)  # of a driver that comes late
    assert commit(sink_case, sink, 2, 0, 0)  # a batch without rows is one, too
    assert not sink.is_cut_off()
    again = sink_case.writer()
    assert (again.version(), again.examine()) == (2, [])
    if sink_case.readable:
        assert sink_case.held() == dict.fromkeys(range(6), "r")


@these()
def test_sink_gives_commit_metadata_back_newest_first(sink_case: SinkCase) -> None:
    sink = sink_case.writer()
    for batch in range(4):
        commit(sink_case, sink, batch, batch, batch + 1, run=f"r{batch}")
    found = list(sink_case.writer().notes(0))
    assert [(n["version"], n["run"], n["accounts"]) for n in found] == [
        (batch, f"r{batch}", [["t", 0, batch, {"é": None}]]) for batch in (3, 2, 1)
    ]
    assert {n["app_id"] for n in found} == {"sluice:p:1"}
    assert list(sink.notes(3)) == []


@these(lambda case: case.name != "jsonl")
def test_sink_counts_the_batches_of_each_writer_alone(sink_case: SinkCase) -> None:
    first = sink_case.writer()
    for batch in range(3):
        commit(sink_case, first, batch, batch, batch + 1)
    second = sink_case.writer("2")
    assert second.version() == -1
    assert commit(sink_case, second, 0, 3, 4)
    assert (sink_case.writer("1").version(), sink_case.writer("2").version()) == (2, 0)
    assert sink_case.writer("2").ahead_of({"sluice:p:1": 1, "sluice:p:2": 0, "sluice:p:3": -1}) == {"sluice:p:1"}


@these()
def test_sink_takes_one_batch_of_two_drivers_with_the_same(sink_case: SinkCase) -> None:
    """Both at once, but for what hands rows over or fences by a producer of the process: there one after the other."""
    sinks = [sink_case.writer(), sink_case.writer()]
    staged = [sink_case.stage(sink, 0, rows(0, 3, run)) for sink, run in zip(sinks, "ab", strict=True)]
    together = threading.Barrier(1 if sink_case.name in ("kafka", "foreach", "console") else 2)

    def drive(number: int) -> bool:
        together.wait()
        try:
            return bool(sinks[number].commit(staged[number], sink_case.schema, 0, note("ab"[number], 0)))
        except LeaseHeldError:
            return False

    with ThreadPoolExecutor(together.parties) as pool:
        outcomes = list(pool.map(drive, range(2)))
    assert outcomes.count(True) == 1
    if sink_case.readable:
        assert sink_case.held() == dict.fromkeys(range(3), "ab"[outcomes.index(True)])


@these(lambda case: case.lose_answer not in (SinkCase.lose_answer, BY_NAME["foreach"].lose_answer))
def test_sink_counts_a_commit_whose_answer_is_lost_once(sink_case: SinkCase) -> None:
    sink = sink_case.writer()
    commit(sink_case, sink, 0, 0, 3)
    lost = sink_case.lose_answer()
    try:
        assert commit(sink_case, sink, 1, 3, 6)
    except SinkError:
        assert sink_case.writer().version() == 1  # it says so, and the next run finds the batch
    assert lost == [True]
    assert not commit(sink_case, sink_case.writer(), 1, 3, 6)
    assert sink_case.held() == dict.fromkeys(range(6), "r")


@these(lambda case: case.name != "jsonl")
def test_sink_commits_nothing_of_a_batch_whose_staged_file_is_gone(sink_case: SinkCase) -> None:
    sink = sink_case.writer()
    staged = sink_case.stage(sink, 0, rows(0, 3))
    Path(sink.staging, staged.files[0].path).unlink()
    with pytest.raises(SinkError) as gone:
        sink.commit(staged, sink_case.schema, 0, note("r", 0))
    assert (gone.value.exit_code, staged.files[0].path in gone.value.what) == (ExitCode.SINK_FAILED, True)
    assert sink_case.writer().version() == -1
    if sink_case.readable:
        assert sink_case.held() == {}


@these()
def test_sink_sweeps_attempts_that_no_commit_names_and_no_others(sink_case: SinkCase) -> None:
    sink = sink_case.writer()
    sink.sweep("p-e1-000000")
    commit(sink_case, sink, 0, 0, 3)
    dead, other = sink_case.stage(sink, 1, rows(3, 6)), sink_case.stage(sink, 2, rows(6, 9))
    commit(sink_case, sink, 1, 3, 6)
    root = Path(sink.staging or sink_case.place)
    for batch in (0, 1):
        sink.sweep(f"p-e1-{batch:06d}")
    assert not (root / dead.files[0].path).exists()
    assert (root / other.files[0].path).exists()
    if sink_case.readable:
        assert sink_case.held() == dict.fromkeys(range(6), "r")


@these(lambda case: case.worst is not SinkCase.worst)
def test_sink_names_the_rows_that_it_refuses_and_takes_the_others(sink_case: SinkCase) -> None:
    (column, value), bad = sink_case.worst(), {3, 20, 21, 39}
    sink, table = sink_case.writer(), rows(0, 40)
    kind = table.schema.field(column).type
    spoilt = pc.if_else(pc.is_in(table["_offset"], pa.array(bad)), pa.scalar(value, kind), table[column])
    table = table.set_column(table.column_names.index(column), column, spoilt)
    rest = table.filter(pc.invert(pc.is_in(table["_offset"], pa.array(bad))))
    slices = [None, slice_of(0, 40)] if sink_case.replaceable else [None]

    def write(rows: pa.Table, batch: int, gone: Slice | None) -> Any:
        staged = sink_case.stage(sink, batch, rows)
        if gone is None:
            return sink.commit(staged, sink_case.schema, batch, note("r", batch))
        return sink.replace(gone, staged, sink_case.schema, batch, note("r", batch), name=f"p-e1-{batch:06d}")

    for batch, gone in enumerate(slices):
        before = sink_case.held()
        with pytest.raises(RowsRefusedError) as refused:
            write(table, batch, gone)
        assert refused.value.rows.keys() == {("t", 0, offset) for offset in bad}
        assert all(why.detail for why in refused.value.rows.values())
        assert (sink_case.held(), sink_case.writer().version()) == (before, batch - 1)
        assert write(rest, batch, gone)
        assert sink_case.held() == dict.fromkeys(set(range(40)) - bad, "r")


# --- whose it is ---------------------------------------------------------------------------------------------------


@these(lambda case: case.shared)
def test_sink_refuses_a_second_pipeline(sink_case: SinkCase) -> None:
    commit(sink_case, sink_case.writer(), 0, 0, 3)
    with pytest.raises(ConfigError) as refused:
        commit(sink_case, sink_case.writer(pipeline="other"), 0, 3, 6)
    assert (refused.value.exit_code, "'p'" in refused.value.what or " p" in refused.value.what) == (10, True)
    assert sink_case.held() == dict.fromkeys(range(3), "r")


@these(lambda case: case.take_back is not SinkCase.take_back)
def test_sink_whose_commits_were_taken_back_is_refused(sink_case: SinkCase) -> None:
    for batch in range(2):
        commit(sink_case, sink_case.writer(), batch, batch, batch + 1)
    sink_case.take_back()
    with pytest.raises(CheckpointError) as refused:
        sink_case.writer()
    assert refused.value.exit_code == ExitCode.CHECKPOINT_MISFIT


@these(lambda case: case.drop is not SinkCase.drop)
def test_sink_that_is_dropped_during_a_run_takes_no_further_batch(sink_case: SinkCase) -> None:
    sink = sink_case.writer()
    commit(sink_case, sink, 0, 0, 1)
    sink_case.drop()
    with pytest.raises(CheckpointError) as refused:
        commit(sink_case, sink, 1, 1, 2)
    assert refused.value.exit_code == ExitCode.CHECKPOINT_MISFIT


@these(lambda case: case.name not in ("kafka", "foreach", "console", "jsonl"))
def test_sink_refuses_rows_of_other_columns_by_name(sink_case: SinkCase) -> None:
    sink = sink_case.writer()
    commit(sink_case, sink, 0, 0, 3)
    there, columns = sink.as_it_is()
    assert (there.path, set(columns.names)) == (sink.path, set(sink_case.schema.names))
    narrower = [StructField("name", IntegerType()) if f.name == "name" else f for f in sink_case.schema.fields]
    with pytest.raises(ConfigError) as refused:
        sink.check(StructType([*narrower, StructField("more", IntegerType())]))
    assert (refused.value.exit_code, "name" in refused.value.what, "more" in refused.value.what) == (10, True, True)


# --- fences --------------------------------------------------------------------------------------------------------


def rival(found: Any) -> bool:
    """Say of the commit metadata of run ``rival`` that it conflicts."""
    return found.get("run") == "rival"


@these(replaceable)
def test_sink_commits_nothing_behind_the_fence_of_a_rival(sink_case: SinkCase) -> None:
    live = sink_case.writer()
    commit(sink_case, live, 0, 0, 3)
    fence = Fence(live.table_version(), rival)
    commit(sink_case, sink_case.writer("2"), 0, 3, 6, run="other")
    assert commit(sink_case, live, 1, 6, 9, fence=fence)
    commit(sink_case, sink_case.writer("2"), 1, 9, 12, run="rival")
    with pytest.raises(LeaseHeldError) as fenced:
        commit(sink_case, live, 2, 12, 15, fence=fence)
    assert fenced.value.exit_code == ExitCode.LEASE_HELD
    assert live.version() == 1
    assert set(sink_case.held()) == set(range(12))


# --- replacing -----------------------------------------------------------------------------------------------------


def slice_of(first: int, last: int, *, seconds: tuple[int, int] | None = None) -> Slice:
    """Return the rows of some offsets, and of some seconds since the first."""
    ranges = [OffsetRange("t", 0, first, last)]
    return Slice(ranges, *(BEGIN + 1000 * s for s in seconds)) if seconds else Slice(ranges)


def replace(case: SinkCase, sink: Any, gone: Slice, batch: int, first: int, last: int, **more: Any) -> Any:
    """Replace a slice by a range of offsets of run ``new``."""
    name = f"p-i1-{batch:06d}"
    staged = case.stage(sink, batch, rows(first, last, "new"), "p-i1") if last > first else NOTHING
    return sink.replace(gone, staged, case.schema, batch, note("new", batch), name=name, **more)


@these(replaceable)
def test_sink_replaces_a_slice_in_one_commit_and_nothing_else(sink_case: SinkCase) -> None:
    live, interval = sink_case.writer(), sink_case.writer("interval:x")
    commit(sink_case, live, 0, 0, 10)
    commit(sink_case, live, 1, 10, 20)
    interval.check_replaceable()
    by_time = slice_of(5, 15, seconds=(0, 12))
    assert {key: list(found) for key, found in interval.held(by_time).items()} == {("t", 0): list(range(5, 12))}
    assert replace(sink_case, interval, by_time, 0, 5, 12) == {("t", 0): 7}
    assert sink_case.held() == {n: "new" if 5 <= n < 12 else "r" for n in range(20)}
    assert replace(sink_case, interval, by_time, 0, 5, 12) is None
    assert (live.version(), interval.version()) == (1, 0)
    (found,) = interval.notes(-1)
    assert found["replaced"] == [["t", 0, 7]]
    assert replace(sink_case, interval, slice_of(5, 15, seconds=(0, 12)), 1, 5, 12) == {("t", 0): 7}
    assert replace(sink_case, interval, slice_of(0, 6), 2, 0, 0) == {("t", 0): 6}
    assert sink_case.held() == {n: "new" if n < 12 else "r" for n in range(6, 20)}
    assert commit(sink_case, live, 2, 20, 22)
    assert replace(sink_case, interval, Slice([]), 3, 30, 31) == {}


@these(lambda case: replaceable(case) and getattr(kind_of("sinks", case.key), "by_value", False))
def test_sink_replaces_rows_by_their_values(sink_case: SinkCase) -> None:
    sink = sink_case.writer()
    commit(sink_case, sink, 0, 0, 10)
    timed = RowsByTime((), BEGIN + 2000, BEGIN + 5000, column="_timestamp")
    assert sink.replace(timed, NOTHING, sink_case.schema, 1, note("r", 1), name="p-1-000001") == {}
    left = {0, 1, *range(5, 10)}
    assert (timed.found, sink_case.held()) == (3, dict.fromkeys(left, "r"))
    staged = sink_case.stage(sink, 2, rows(8, 12, "new"))
    keyed = RowsByKey.of(str(sink.staging), staged, ("_timestamp", "id"))
    assert sink.replace(keyed, staged, sink_case.schema, 2, note("new", 2), name="p-1-000002") == {}
    assert sink_case.held() == {n: "new" if n >= 8 else "r" for n in left | {10, 11}}
    assert sink.replace(AllRows(()), NOTHING, sink_case.schema, 3, note("r", 3), name="p-1-000003") == {}
    assert sink_case.held() == {}


@these(replaceable)
def test_sink_replacement_is_stopped_by_the_check_of_offsets(sink_case: SinkCase) -> None:
    sink = sink_case.writer()
    commit(sink_case, sink, 0, 0, 10)

    def refuse(found: Any) -> None:
        assert {key: list(offsets) for key, offsets in found.items()} == {("t", 0): [3, 4]}
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        replace(sink_case, sink_case.writer("interval:x"), slice_of(3, 5), 0, 3, 5, check=refuse)
    assert sink_case.held() == dict.fromkeys(range(10), "r")
    assert sink_case.writer("interval:x").version() == -1


@these(lambda case: replaceable(case) and case.key != "postgres")  # whose transaction keeps others out
@pytest.mark.parametrize("other", ["append", "replacement"])
def test_sink_replacement_looks_again_when_others_commit_meanwhile(sink_case: SinkCase, other: str) -> None:
    live = sink_case.writer()
    commit(sink_case, live, 0, 0, 10)
    looks: list[Any] = []

    def meanwhile(found: Any) -> None:
        looks.append({key: list(offsets) for key, offsets in found.items()})
        if len(looks) == 1 and other == "append":
            commit(sink_case, sink_case.writer(), 1, 10, 12)
        elif len(looks) == 1:
            replace(sink_case, sink_case.writer("interval:y"), slice_of(0, 4), 0, 0, 4)

    interval = sink_case.writer("interval:x")
    assert replace(sink_case, interval, slice_of(4, 8), 0, 4, 8, check=meanwhile) == {("t", 0): 4}
    assert looks == [{("t", 0): [4, 5, 6, 7]}] * 2
    new = range(4, 8) if other == "append" else range(8)
    assert sink_case.held() == {n: "new" if n in new else "r" for n in range(12 if other == "append" else 10)}


@these(replaceable)
def test_sink_replaces_nothing_behind_a_fence(sink_case: SinkCase) -> None:
    live = sink_case.writer()
    commit(sink_case, live, 0, 0, 10)
    fence = Fence(live.table_version(), rival)
    commit(sink_case, sink_case.writer("2"), 0, 10, 12, run="rival")
    with pytest.raises(LeaseHeldError):
        replace(sink_case, sink_case.writer("interval:x"), slice_of(4, 8), 0, 4, 8, fence=fence)
    assert sink_case.held() == {n: "r" if n < 10 else "rival" for n in range(12)}
