"""Which stream an id stands for: that of its source, and its own there."""

from __future__ import annotations

import pytest

from sluice.errors import TopicRecreatedError
from sluice.run.preflight import check
from sluice.sources.state import PartitionState, TopicState, is_another, is_elsewhere, joined_ids, stream_id


def topic(topic_id: str) -> TopicState:
    return TopicState("t", topic_id, {0: PartitionState(0, 10)})


def test_an_id_begins_with_that_of_its_source() -> None:
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
def test_what_one_of_two_ids_does_not_know_tells_nothing(
    known: str | None, now: str, another: bool, elsewhere: bool
) -> None:
    assert is_another(known, now) is another
    assert is_elsewhere(known, now) is elsewhere


def test_a_known_id_is_completed_and_never_replaced() -> None:
    assert joined_ids({"t": "x"}, [topic("a/x")]) == {"t": "a/x"}
    assert joined_ids({"t": "a/x"}, [topic("x")]) == {"t": "a/x"}
    assert joined_ids({"t": "x"}, [topic("a/yyy")]) == {"t": "x"}
    assert joined_ids({}, [topic("a/x")]) == {"t": "a/x"}
    assert joined_ids({"u": "a/u"}, [topic("")]) == {"u": "a/u"}
    assert joined_ids({"t": "x"}, [topic("a-cluster-with-a-long-id/")]) == {"t": "a-cluster-with-a-long-id/x"}
    assert joined_ids({"t": "a/"}, [topic("x")]) == {"t": "a/x"}


def test_another_cluster_is_named_before_anything_is_read() -> None:
    with pytest.raises(TopicRecreatedError, match="leads to another cluster") as caught:
        check("p", {"t": {0: 3}}, [topic("b/x")], {"t": "a/x"})
    assert "begins with b" in caught.value.what
    with pytest.raises(TopicRecreatedError, match="deleted and recreated"):
        check("p", {"t": {0: 3}}, [topic("a/y")], {"t": "a/x"})
    check("p", {"t": {0: 3}}, [topic("a/x")], {"t": "x"})
