"""Promises of each source without Spark: its streams, their offsets, the times of these, and its errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.contract.sources import CASES, SECRET, SourceCase

from sluice.errors import AuthorizationError, ExitCode, SourceUnreachableError, TopicRecreatedError
from sluice.kinds import BUILT_IN, imported
from sluice.ledger import Ledger
from sluice.ranges import Positions
from sluice.run.preflight import refuse_behind
from sluice.run.redrive_plan import states_for
from sluice.shipped import CHECKOUT
from sluice.sources.base import Announcing, Numbering, Replaced, Rewritten, Source
from sluice.sources.state import is_another

BY_NAME = {case.name: case for case in CASES}
TIMELESS = ("socket", "lines")
"""Sources whose records have no times."""


def these(chosen: Callable[[type[SourceCase]], bool] = lambda _: True) -> pytest.MarkDecorator:
    """Run a test with each source of which something is true."""
    return pytest.mark.parametrize("case", [case.name for case in CASES if chosen(case)], indirect=True)


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceCase:
    return BY_NAME[request.param](tmp_path, monkeypatch, request)


def spans(source: Source) -> dict[tuple[str, int], tuple[int, int]]:
    return {(s.topic, p): (state.start, state.end) for s in source.snapshot() for p, state in s.partitions.items()}


def positions(source: Source) -> Positions:
    return {s.topic: {p: state.end for p, state in s.partitions.items()} for s in source.snapshot()}


def test_source_that_is_built_in_has_a_case_and_a_row_in_the_documents() -> None:
    page = (CHECKOUT / "docs" / "sources-and-sinks.md").read_text()
    assert {case.key for case in CASES} >= BUILT_IN["sources"].keys()
    assert [key for key in BUILT_IN["sources"] if f"\n| `{key}`" not in page] == []


@these()
def test_source_kind_declares_interfaces_that_it_has(case: SourceCase) -> None:
    reader = imported(case.kind.reader)
    assert [n for n in ("stream", "read", "missing", "verify", "diagnose", "signs") if not hasattr(reader, n)] == []
    assert hasattr(reader, "inputs") == case.kind.by_range
    assert case.kind.seek_by_time == (case.key not in TIMELESS)
    assert case.kind.replayable == (case.key != "socket")
    with case.opened() as source:
        assert isinstance(source, Replaced) == (case.key == "kafka")
        assert isinstance(source, Rewritten) == (case.key in ("kafka", "queue"))
        assert isinstance(source, Announcing) == case.announces
        assert list(source.notes) == []


@these()
def test_source_snapshot_names_its_streams_and_its_offsets_only_grow(case: SourceCase) -> None:
    known: dict[str, str] = {}
    seen: dict[tuple[str, int], tuple[int, int]] = {}
    for count in (0, 3, 0, 2):
        case.add(count)
        with case.opened() as source:
            states, now = source.snapshot(), spans(source)
        assert [state.topic for state in states] == case.config.streams
        assert all(0 <= start <= end for start, end in now.values())
        for key, (start, end) in seen.items():
            assert start <= now[key][0]
            assert end <= now[key][1]
        if seen and case.key != "rate":
            assert sum(end - seen[key][1] for key, (_, end) in now.items()) == count
        assert not any(is_another(known.get(state.topic), state.topic_id) for state in states)
        known, seen = {state.topic: state.topic_id for state in states}, now


@these()
def test_source_is_the_same_for_two_that_open_it_at_once(case: SourceCase) -> None:
    case.add(2)
    with case.opened() as one, case.opened() as other:
        first = spans(one)
        second = spans(other)
    assert first.keys() == second.keys()
    assert all(first[key][1] <= second[key][1] for key in first)
    assert case.key == "rate" or first == second


@these(lambda case: case.key not in TIMELESS)
def test_source_finds_offsets_by_time(case: SourceCase) -> None:
    with case.opened() as source:
        (begin,) = [end for _, end in spans(source).values()]
    early = case.moment()
    case.add(2)
    between = case.moment()
    case.add(2)
    with case.opened() as source:
        ((key, (_, end)),) = spans(source).items()
        assert end >= begin + 4
        assert source.offsets_at([key], early - timedelta(days=1)) == {key: begin if case.key != "rate" else 0}
        assert source.offsets_at([key], datetime.now(UTC) + timedelta(days=1)) == {key: None}
        if case.key != "rate":  # whose clock begins when it is first opened
            assert source.offsets_at([key], between) == {key: begin + 2}
        assert source.offsets_at([], between) == {}


@these()
def test_source_forgets_no_unread_record_when_others_are_done(case: SourceCase) -> None:
    case.add(3)
    with case.opened() as source:
        ends = positions(source)
        for upto in ({}, {s: dict.fromkeys(parts, 0) for s, parts in ends.items()}, ends, ends):
            source.done(upto)
    case.add(2)
    with case.opened() as source:
        for (stream, partition), (start, end) in spans(source).items():
            assert start <= ends[stream][partition]
            assert end >= ends[stream][partition] + (2 if case.key != "rate" else 0)
            assert case.kind.retention or start == 0


@these(lambda case: case.shrinks)
def test_source_with_retention_moves_the_start_and_not_the_end(case: SourceCase) -> None:
    assert case.kind.retention
    case.add(5)
    with case.opened() as source:
        ((_, (_, end)),) = spans(source).items()
        case.shrink(2)
        assert list(spans(source).values()) == [(end - 2, end)]


@these(lambda case: case.recreates)
def test_source_tells_a_recreated_stream_by_its_id(case: SourceCase) -> None:
    case.add(2)
    with case.opened() as source:
        (before,) = source.snapshot()
        case.recreate()
        (after,) = source.snapshot()
        assert is_another(before.topic_id, after.topic_id)
        if isinstance(source, Replaced):
            assert source.stream_ids([before.topic]) == {after.topic: after.topic_id}


@these(lambda case: case.rewinds)
def test_source_that_goes_on_from_an_earlier_state_says_up_to_where_it_has_what_it_had(case: SourceCase) -> None:
    case.add(3)
    back = case.rewind()
    case.add(3)
    with case.opened() as source:
        assert isinstance(source, Rewritten)
        (before,) = source.snapshot()
        state = before.partitions[0]
        assert state.epoch is not None
        seen = {(before.topic, 0): (state.epoch, state.end)}
        case.add(2)
        assert source.ends_of_epochs(seen) == {}
        case.shrink(1)
        assert source.ends_of_epochs(seen) == {}
    back()
    with case.opened() as source:
        assert source.snapshot()[0].partitions[0].end == state.end - 3, "a position beyond the end is refused by itself"
        case.add(5)
        assert source.ends_of_epochs(seen) == {(before.topic, 0): state.end - 3}
        case.shrink(6)
        assert source.ends_of_epochs(seen) == {(before.topic, 0): state.end - 3}


@these(lambda case: case.key in ("file", "jdbc"))
def test_source_that_numbers_its_records_gives_no_offset_twice_from_an_older_home(case: SourceCase) -> None:
    home, older = case.root / "home", case.root / "older"
    for copied in (False, True):
        if copied:
            shutil.copytree(home, older)
        case.add(3)
        with case.opened() as source:
            (state,) = source.snapshot()
    shutil.rmtree(home)
    older.rename(home)
    case.add(3)
    known, end = {state.topic: state.topic_id}, state.partitions[0].end
    with case.opened() as source:
        assert isinstance(source, Numbering)
        with pytest.raises(TopicRecreatedError):
            refuse_behind("p", source, {state.topic: {0: end}}, known)
        refuse_behind("p", source, {state.topic: {0: end - 3}}, known)
        refuse_behind("p", source, {state.topic: {0: end}}, {state.topic: "another"})
        ledger = Ledger.open(f"sqlite:///{case.root}/ledger.db")
        assert states_for(source, [state.topic], ledger, "p") == source.recorded(), "a redrive looks for no new record"
        assert source.recorded()[0].partitions[0].end == end - 3


@these(lambda case: case.announces)
def test_source_announces_records_only_if_there_are_some(case: SourceCase) -> None:
    heard: list[int] = []
    for count in (0, 3, 0):
        case.add(count)
        with case.opened() as source:
            assert isinstance(source, Announcing)
            source.found = lambda count=count: heard.append(count)  # type: ignore[misc]
            source.snapshot()
    assert set(heard) == {3}


@these()
def test_source_closes_twice(case: SourceCase) -> None:
    with case.opened() as source:
        source.snapshot()
        source.close()
    source.close()


@these(lambda case: case.reachable)
def test_source_out_of_reach_ends_with_20_and_tells_no_secret(case: SourceCase) -> None:
    case.add(1)
    with case.opened() as source:
        source.snapshot()
    case.shut()
    with pytest.raises(SourceUnreachableError) as caught, case.opened() as source:
        source.snapshot()
    assert caught.value.exit_code == ExitCode.SOURCE_UNREACHABLE == 20
    assert SECRET not in str(caught.value)
    assert caught.value.state
    assert caught.value.next_step


@these(lambda case: case.guarded)
def test_source_that_refuses_a_stranger_ends_with_23_and_tells_no_secret(case: SourceCase) -> None:
    case.add(1)
    case.stranger()
    with pytest.raises(AuthorizationError) as caught, case.opened() as source:
        source.snapshot()
    assert caught.value.exit_code == ExitCode.NOT_AUTHORIZED == 23
    assert SECRET not in str(caught.value)
