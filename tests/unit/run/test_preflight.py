"""Refusals before anything is read, by the positions, the planned ranges and the state of the source."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import pytest
from tests.fixtures.pipelines import modelled

from sluice.errors import (
    ConfigError,
    OffsetsGoneError,
    SluiceError,
    SourceUnreachableError,
    TopicRecreatedError,
    TopicsDeletedError,
)
from sluice.ranges import OffsetRange
from sluice.run.preflight import check, never_read, refuse_rewritten, refuse_unordered, unread_of
from sluice.sources.state import PartitionState, TopicState


def topic(*spans: tuple[int, ...], name: str = "t", topic_id: str = "id-1") -> TopicState:
    """Return a topic with starts and ends of its partitions, perhaps with high watermarks."""
    return TopicState(name, topic_id, {p: PartitionState(*span) for p, span in enumerate(spans)})


def span(start: int, end: int, name: str = "t", partition: int = 0) -> OffsetRange:
    return OffsetRange(name, partition, start, end)


def of_id(topic_id: str) -> TopicState:
    return topic((0, 10), topic_id=topic_id)


TEN = topic((0, 10))
OPEN = topic((0, 8, 12))  # a transaction is open behind the last stable offset
NEW = topic((3, 9), name="new", topic_id="2")


@pytest.mark.parametrize(
    ("positions", "states", "known", "planned"),
    [
        (None, [topic((500, 600))], {}, []),
        ({"t": {0: 0, 1: 5}}, [topic((0, 10), (5, 10))], {"t": "id-1"}, []),
        ({"t": {0: 10, 1: 10}}, [topic((0, 10), (5, 10))], {"t": "id-1"}, []),
        ({"t": {0: 3, 1: 5}}, [topic((0, 10), (5, 10))], {}, [span(3, 10)]),
        ({"t": {0: 5}}, [topic((5, 10))], {}, []),
        ({"t": {0: 2}}, [of_id("")], {"t": "id-1"}, []),  # nothing is concluded without an id
        ({"t": {0: 2}}, [TEN], {}, []),
        ({"t": {0: 3}}, [of_id("a/x")], {"t": "x"}, []),  # as a ledger of an earlier version has it
        ({"t": {0: 1}}, [topic((0, 10), (0, 5))], {}, []),  # a partition was added
        ({"t": {0: 8}}, [OPEN], {}, []),
        ({"t": {0: 3}}, [TEN, topic((0, 10), name="new", topic_id="2")], {}, []),
    ],
)
def test_preflight_passes(positions: Any, states: list[TopicState], known: Any, planned: list[OffsetRange]) -> None:
    check("p", positions, states, known, planned)


GONE, RECREATED, DOWN = OffsetsGoneError, TopicRecreatedError, SourceUnreachableError
BESIDE = topic((0, 9), (4, 9), name="new", topic_id="2")


@pytest.mark.parametrize(
    ("error", "named", "positions", "states", "known", "planned"),
    [
        pytest.param(GONE, "t-0 [4, 5)", {"t": {0: 4}}, [topic((5, 10))], {}, [], id="one-offset-gone"),
        pytest.param(GONE, "t-1 [0, 3)", {"t": {0: 1}}, [topic((0, 10), (3, 5))], {}, [], id="new-partition-cut"),
        pytest.param(GONE, "t-0 [2, 4)", {"t": {0: 2}}, [topic((4, 10))], {}, [span(2, 8)], id="open-batch-cut"),
        pytest.param(
            GONE, "t-1 [1, 5)", {"t": {0: 2, 1: 1}}, [topic((0, 10), (5, 9))], {}, [span(2, 8)], id="beside-it"
        ),
        pytest.param(RECREATED, "recreated", {"t": {0: 2}}, [of_id("2")], {"t": "1"}, [], id="other-id"),
        pytest.param(RECREATED, "recreated", None, [of_id("2")], {"t": "1"}, [], id="at-first"),
        pytest.param(RECREATED, "b", {"t": {0: 3}}, [of_id("b/x")], {"t": "a/x"}, [], id="other-cluster"),
        pytest.param(RECREATED, "'t'", {"t": {0: 3}}, [of_id("a/y")], {"t": "a/x"}, [], id="other-id-there"),
        pytest.param(RECREATED, "up to 11", {"t": {0: 11}}, [TEN], {}, [], id="position-beyond-the-end"),
        pytest.param(RECREATED, "up to 12", {"t": {0: 2}}, [TEN], {}, [span(2, 12)], id="plan-beyond-the-end"),
        pytest.param(RECREATED, "up to 12", None, [TEN], {}, [span(2, 12)], id="first-plan-beyond-the-end"),
        pytest.param(RECREATED, "up to 13", {"t": {0: 13}}, [OPEN], {}, [], id="beyond-the-high-watermark"),
        pytest.param(RECREATED, "[1, 2]", {"t": {0: 1, 1: 0, 2: 0}}, [TEN], {}, [], id="partitions-vanished"),
        pytest.param(ConfigError, "'u'", {"t": {0: 3}, "u": {0: 4}}, [TEN], {}, [], id="topic-left-out"),
        pytest.param(ConfigError, "'u'", {"t": {0: 3}}, [TEN], {}, [span(0, 4, "u")], id="planned-topic-left-out"),
        pytest.param(ConfigError, "[1]", {"t": {0: 3}}, [TEN, BESIDE], {}, [], id="added-topic-cut"),
        pytest.param(DOWN, "up to 8", {"t": {0: 10}}, [OPEN], {"t": "id-1"}, [], id="open-transaction"),
        pytest.param(DOWN, "up to 8", {"t": {0: 4}}, [OPEN], {"t": "id-1"}, [span(4, 12)], id="planned-over-it"),
        # strategies that go on without the lost offsets must not go on: Spark would take the position back
        pytest.param(DOWN, "t-1", {"t": {0: 2, 1: 10}}, [topic((5, 8, 8), (0, 8, 12))], {}, [], id="gone-beside-one"),
    ],
)
def test_preflight_refuses(
    error: type[SluiceError], named: str, positions: Any, states: list[TopicState], known: Any, planned: Any
) -> None:
    with pytest.raises(error) as caught:
        check("p", positions, states, known, planned)
    assert named in caught.value.what
    assert caught.value.state
    assert caught.value.next_step


def test_preflight_names_each_range_that_retention_took_and_each_way_on() -> None:
    states = [topic((7, 10), (0, 10), (4, 4)), topic((3, 9), name="u", topic_id="id-2")]
    with pytest.raises(OffsetsGoneError) as caught:
        check("p", {"t": {0: 2, 1: 0, 2: 1}, "u": {0: 1}}, states, {})
    for named in ("10 ", "t-0 [2, 7)", "t-2 [1, 4)", "u-0 [1, 3)"):
        assert named in caught.value.what
    assert "t-1" not in caught.value.what
    for strategy in ("wal", "ignore_range", "ignore_batch"):
        assert strategy in caught.value.next_step


def test_never_read_notes_offsets_that_were_gone_before_the_first_run() -> None:
    assert never_read({}, {"t": {0: 0, 1: 0}}) is None
    note = never_read({}, {"t": {0: 0, 1: 7}, "u": {0: 3}}) or ""
    assert note.startswith("10 ")
    assert "t-1 [0, 7), u-0" in note
    assert never_read({"t": {0: 5}}, {"t": {0: 5}}) is None
    assert "t-0 [5, 9)" in (never_read({"t": {0: 5}}, {"t": {0: 9}}) or "")


def test_preflight_names_a_deleted_topic_of_a_pattern_with_its_unread_offsets() -> None:
    positions = {"t": {0: 2}, "u": {0: 5, 1: 0}}
    unread = unread_of(["u"], positions, [span(2, 9), span(4, 9, "u"), span(0, 0, "u", 1)])
    assert unread == [span(5, 9, "u")]
    with pytest.raises(TopicsDeletedError, match=r"'u'.*u-0 to 5, u-1 to 0.* u-0 \[5, 9\)") as caught:
        check("p", positions, [TEN], {}, deleted={"u": unread}, accounted={})
    assert (caught.value.ranges, caught.value.topics) == ((span(5, 9, "u"),), ("u",))
    assert "sluice reset p" in caught.value.next_step


def test_preflight_lets_a_new_topic_of_a_pattern_begin_at_zero_and_refuses_a_former_one() -> None:
    with pytest.raises(OffsetsGoneError, match=r"new-0 \[0, 3\)"):
        check("p", {"t": {0: 2}}, [TEN, NEW], {}, accounted={})
    with pytest.raises(ConfigError, match="'new'"):
        check("p", {"t": {0: 2}}, [TEN, NEW], {}, accounted={"new": {0: 4}})
    with pytest.raises(ConfigError, match="'u'"):
        check("p", {"t": {0: 2}, "u": {0: 1}}, [TEN], {}, accounted={})


@pytest.mark.parametrize(
    ("positions", "planned", "ends", "rewritten"),
    [
        ({"t": {0: 10}}, [], {("t", 0): 10}, None),
        ({"t": {0: 10}}, [], {("t", 0): 25}, None),  # the epoch went on
        ({"t": {0: 10}}, [], {("t", 0): 5}, span(5, 10)),
        ({"t": {0: 5}}, [], {("t", 0): 5}, None),  # nothing that was read is lost
        ({"t": {0: 5}}, [span(5, 10)], {("t", 0): 5}, span(5, 10)),
        ({"t": {0: 10}}, [], {}, None),  # no leader says it
        ({}, [], {("t", 0): 5}, None),
        ({"t": {0: 30}}, [], {("t", 0): 20}, None),  # read behind the end that was seen, of a later epoch
        ({"t": {0: 30}}, [], {("t", 0): 19}, span(19, 20)),
    ],
)
def test_preflight_refuses_offsets_of_other_records(positions: Any, planned: Any, ends: Any, rewritten: Any) -> None:
    named = re.escape(str(rewritten))
    with nullcontext() if rewritten is None else pytest.raises(TopicRecreatedError, match=named):
        refuse_rewritten("p", positions, planned, {("t", 0): (3, 20)}, ends)


@pytest.mark.parametrize(
    ("sequence", "partitions", "read", "refused"),
    [
        (None, 1, 1, None),
        (None, 2, 2, "sink.delta.mode: upsert has no sequence, and the source has 2 partitions"),
        (None, 2, 1, "new partitions: t-1"),
        (None, 2, 0, "has no sequence"),
        ("_offset", 2, 2, None),
        ("_offset", 2, 0, None),  # the first run
        ("_offset", 3, 2, "new partitions: t-2"),
        ("_timestamp", 3, 2, None),
        ("id", 3, 2, None),
    ],
)
def test_upsert_is_refused_where_nothing_orders_the_rows_of_a_key(
    sequence: str | None, partitions: int, read: int, refused: str | None
) -> None:
    pipeline = modelled(f"sink.delta.sequence: {sequence}" if sequence else "", "delta-upsert")
    states = [TopicState("t", "id", {number: PartitionState(0, 9) for number in range(partitions)})]
    positions = {"t": dict.fromkeys(range(read), 5)} if read else {}
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        refuse_unordered(pipeline, positions, states)
