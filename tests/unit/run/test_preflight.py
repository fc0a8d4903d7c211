"""What is refused before anything is read."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigError, OffsetsGoneError, SourceUnreachableError, TopicRecreatedError, TopicsDeletedError
from sluice.ranges import OffsetRange
from sluice.run.preflight import check, never_read, unread_of
from sluice.sources.kafka.cluster import PartitionState, TopicState


def topic(*spans: tuple[int, int], name: str = "t", topic_id: str = "id-1") -> TopicState:
    return TopicState(name, topic_id, {p: PartitionState(*span) for p, span in enumerate(spans)})


def test_what_can_be_read_passes() -> None:
    state = topic((0, 10), (5, 10))
    check("p", None, [state], {})
    check("p", {"t": {0: 0, 1: 5}}, [state], {"t": "id-1"})
    check("p", {"t": {0: 10, 1: 10}}, [state], {"t": "id-1"})
    check("p", {"t": {0: 3, 1: 5}}, [state], {}, [OffsetRange("t", 0, 3, 10)])


def test_a_first_run_starts_wherever_the_log_starts() -> None:
    check("p", None, [topic((500, 600))], {})


def test_what_retention_took_is_named_range_by_range() -> None:
    states = [topic((7, 10), (0, 10), (4, 4)), topic((3, 9), name="u", topic_id="id-2")]
    with pytest.raises(OffsetsGoneError) as caught:
        check("p", {"t": {0: 2, 1: 0, 2: 1}, "u": {0: 1}}, states, {})
    assert "10 planned offsets are gone" in caught.value.what
    for span in ("t-0 [2, 7)", "t-2 [1, 4)", "u-0 [1, 3)"):
        assert span in caught.value.what
    assert "t-1" not in caught.value.what
    assert "position stays" in caught.value.state
    for strategy in ("wal", "ignore_range", "ignore_batch"):
        assert strategy in caught.value.next_step


def test_one_offset_that_is_gone_is_one_too_many() -> None:
    check("p", {"t": {0: 5}}, [topic((5, 10))], {})
    with pytest.raises(OffsetsGoneError, match=r"1 planned offsets are gone from the source: t-0 \[4, 5\)"):
        check("p", {"t": {0: 4}}, [topic((5, 10))], {})


def test_a_topic_with_another_id_is_another_topic_whatever_its_offsets() -> None:
    with pytest.raises(TopicRecreatedError, match="deleted and recreated"):
        check("p", {"t": {0: 2}}, [topic((0, 10), topic_id="id-2")], {"t": "id-1"})
    with pytest.raises(TopicRecreatedError):
        check("p", None, [topic((0, 10), topic_id="id-2")], {"t": "id-1"})


def test_without_an_id_on_either_side_nothing_is_concluded() -> None:
    check("p", {"t": {0: 2}}, [topic((0, 10), topic_id="")], {"t": "id-1"})
    check("p", {"t": {0: 2}}, [topic((0, 10))], {})


def test_a_position_beyond_the_end_means_truncation() -> None:
    with pytest.raises(TopicRecreatedError, match="t-0 ends at 10, but offsets up to 11"):
        check("p", {"t": {0: 11}}, [topic((0, 10))], {})


def test_a_vanished_partition_is_named() -> None:
    with pytest.raises(TopicRecreatedError, match=r"no longer has the partitions \[1, 2\]"):
        check("p", {"t": {0: 1, 1: 0, 2: 0}}, [topic((0, 10))], {})


def test_a_partition_added_since_is_read_from_its_beginning() -> None:
    check("p", {"t": {0: 1}}, [topic((0, 10), (0, 5))], {})
    with pytest.raises(OffsetsGoneError, match=r"t-1 \[0, 3\)"):
        check("p", {"t": {0: 1}}, [topic((0, 10), (3, 5))], {})


def test_an_open_batch_must_be_there_from_its_first_to_its_last_offset() -> None:
    with pytest.raises(OffsetsGoneError, match=r"t-0 \[2, 4\)"):
        check("p", {"t": {0: 2}}, [topic((4, 10))], {}, [OffsetRange("t", 0, 2, 8)])
    with pytest.raises(TopicRecreatedError, match="offsets up to 12 were planned"):
        check("p", {"t": {0: 2}}, [topic((0, 10))], {}, [OffsetRange("t", 0, 2, 12)])
    with pytest.raises(TopicRecreatedError, match="offsets up to 12 were planned"):
        check("p", None, [topic((0, 10))], {}, [OffsetRange("t", 0, 2, 12)])


def test_an_open_batch_does_not_excuse_the_partitions_that_it_leaves_out() -> None:
    with pytest.raises(OffsetsGoneError, match=r"t-1 \[1, 5\)"):
        check("p", {"t": {0: 2, 1: 1}}, [topic((0, 10), (5, 9))], {}, [OffsetRange("t", 0, 2, 8)])


def test_a_topic_that_was_read_cannot_be_left_out() -> None:
    for positions, planned in (({"t": {0: 3}, "u": {0: 4}}, []), ({"t": {0: 3}}, [OffsetRange("u", 0, 0, 4)])):
        with pytest.raises(ConfigError, match="read the topic 'u', which its file no longer names"):
            check("p", positions, [topic((0, 10))], {}, planned)


def test_a_topic_that_is_added_must_be_whole() -> None:
    check("p", {"t": {0: 3}}, [topic((0, 10)), topic((0, 10), name="new", topic_id="2")], {})
    with pytest.raises(ConfigError, match=r"'new' is new .* partitions \[1\]"):
        check("p", {"t": {0: 3}}, [topic((0, 10)), topic((0, 9), (4, 9), name="new", topic_id="2")], {})


def committed(start: int, stable: int, high: int) -> TopicState:
    return TopicState("t", "id-1", {0: PartitionState(start, stable, high)})


def test_a_position_behind_an_open_transaction_is_waited_for_and_is_no_sign_of_another_topic() -> None:
    """As after a change to read_committed: the last stable offset lies below what was read before."""
    check("p", {"t": {0: 8}}, [committed(0, 8, 12)], {})
    for positions, planned in (({"t": {0: 10}}, []), ({"t": {0: 4}}, [OffsetRange("t", 0, 4, 12)])):
        with pytest.raises(SourceUnreachableError, match="a transaction is open") as caught:
            check("p", positions, [committed(0, 8, 12)], {"t": "id-1"}, planned)
        assert "t-0 can be read up to 8" in caught.value.what
        assert "read_uncommitted" in caught.value.next_step
    with pytest.raises(TopicRecreatedError, match="t-0 ends at 12, but offsets up to 13"):
        check("p", {"t": {0: 13}}, [committed(0, 8, 12)], {})


def test_no_strategy_begins_while_a_position_lies_behind_an_open_transaction() -> None:
    """Strategies that go on without what is gone must not go on here: Spark would take the position back."""
    states = [TopicState("t", "id-1", {0: PartitionState(5, 8, 8), 1: PartitionState(0, 8, 12)})]
    with pytest.raises(SourceUnreachableError):
        check("p", {"t": {0: 2, 1: 10}}, states, {})


def test_what_was_gone_before_the_first_run_is_told_range_by_range() -> None:
    assert never_read({}, {"t": {0: 0, 1: 0}}) is None
    told = never_read({}, {"t": {0: 0, 1: 7}, "u": {0: 3}}) or ""
    assert told.startswith(
        "10 offsets were gone from the source before this pipeline first read the topic: t-1 [0, 7), u-0"
    )
    assert never_read({"t": {0: 5}}, {"t": {0: 5}}) is None
    assert "t-0 [5, 9)" in (never_read({"t": {0: 5}}, {"t": {0: 9}}) or "")


def test_a_deleted_topic_of_a_pattern_is_named_with_what_was_seen_and_not_read() -> None:
    positions = {"t": {0: 2}, "u": {0: 5, 1: 0}}
    planned = [OffsetRange("t", 0, 2, 9), OffsetRange("u", 0, 4, 9), OffsetRange("u", 1, 0, 0)]
    unread = unread_of(["u"], positions, planned)
    assert unread == [OffsetRange("u", 0, 5, 9)]
    with pytest.raises(TopicsDeletedError, match=r"'u' of .* was deleted.*u-0 to 5, u-1 to 0.* u-0 \[5, 9\)") as caught:
        check("p", positions, [topic((0, 10))], {}, deleted=["u"], unread=unread, accounted={})
    assert (caught.value.ranges, caught.value.topics) == ((OffsetRange("u", 0, 5, 9),), ("u",))
    assert "sluice reset p" in caught.value.next_step


def test_a_new_topic_of_a_pattern_begins_at_zero_and_a_former_one_is_not_read_again() -> None:
    new = topic((3, 9), name="new", topic_id="2")
    with pytest.raises(OffsetsGoneError, match=r"new-0 \[0, 3\)"):
        check("p", {"t": {0: 2}}, [topic((0, 10)), new], {}, accounted={})
    with pytest.raises(ConfigError, match="a second time"):
        check("p", {"t": {0: 2}}, [topic((0, 10)), new], {}, accounted={"new": {0: 4}})
    with pytest.raises(ConfigError, match="no longer matches"):
        check("p", {"t": {0: 2}, "u": {0: 1}}, [topic((0, 10))], {}, accounted={})
