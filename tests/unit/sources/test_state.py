"""Ids of streams: that of the source, and the stream's own there."""

from __future__ import annotations

import pytest

from sluice.sources.state import PartitionState, TopicState, is_another, is_elsewhere, joined_ids, stream_id


def topic(topic_id: str) -> TopicState:
    return TopicState("t", topic_id, {0: PartitionState(0, 10)})


def test_stream_id_begins_with_that_of_its_source() -> None:
    assert stream_id("cluster", "own") == "cluster/own"
    assert stream_id(None, "own") == "own"
    assert stream_id("cluster", None) == "cluster/"
    assert stream_id(None, None) == ""


@pytest.mark.parametrize(
    ("known", "now", "another", "elsewhere"),
    [
        ("a/x", "a/x", False, False),
        ("a/x", "a/y", True, False),
        ("a/x", "b/x", True, True),
        ("a/x", "b/", True, True),
        ("a/x", "a/", False, False),
        ("x", "a/x", False, False),  # as a ledger of an earlier version has it
        ("x", "a/y", True, False),
        ("a/x", "x", False, False),
        ("", "a/x", False, False),
        (None, "a/x", False, False),
        ("a/x", "", False, False),
    ],
)
def test_unknown_part_of_a_stream_id_distinguishes_nothing(
    known: str | None, now: str, another: bool, elsewhere: bool
) -> None:
    assert is_another(known, now) is another
    assert is_elsewhere(known, now) is elsewhere


def test_known_stream_id_is_completed_and_never_replaced() -> None:
    assert joined_ids({"t": "x"}, [topic("a/x")]) == {"t": "a/x"}
    assert joined_ids({"t": "a/x"}, [topic("x")]) == {"t": "a/x"}
    assert joined_ids({"t": "x"}, [topic("a/yyy")]) == {"t": "x"}
    assert joined_ids({}, [topic("a/x")]) == {"t": "a/x"}
    assert joined_ids({"u": "a/u"}, [topic("")]) == {"u": "a/u"}
    assert joined_ids({"t": "x"}, [topic("a-cluster-with-a-long-id/")]) == {"t": "a-cluster-with-a-long-id/x"}
    assert joined_ids({"t": "a/"}, [topic("x")]) == {"t": "a/x"}
