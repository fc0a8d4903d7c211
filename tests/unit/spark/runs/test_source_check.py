"""What a run does if topics are made anew while it reads them, and if nobody can tell."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from sluice.errors import SourceUnreachableError, TopicRecreatedError
from sluice_spark.runs import source_check
from sluice_spark.runs.source_check import SourceCheck

KNOWN = {"orders": "cluster/one", "returns": "cluster/two"}


class Topics:
    """A source that answers with these ids, or not at all."""

    def __init__(self, **now: str) -> None:
        self.now, self.asked, self.silent = now, 0, False

    def stream_ids(self, streams: Collection[str]) -> dict[str, str]:
        self.asked += 1
        if self.silent:
            raise SourceUnreachableError("no answer", state="-", next_step="-")
        return {name: self.now[name] for name in streams if name in self.now}


def check(source: object) -> SourceCheck:
    context: Any = SimpleNamespace(pipeline=SimpleNamespace(name="p"))
    return SourceCheck(context, source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "now", [KNOWN, {}, {"orders": "cluster/one"}, {"orders": "/one", "returns": ""}, {"orders": "cluster/"}]
)
def test_the_same_topics_and_what_nobody_knows_pass(now: dict[str, str]) -> None:
    check(Topics(**now)).unchanged(KNOWN)


def test_a_topic_that_was_made_anew_and_another_cluster_are_told_apart() -> None:
    with pytest.raises(TopicRecreatedError, match="'returns' was deleted and recreated while it was read") as anew:
        check(Topics(**KNOWN | {"returns": "cluster/three"})).unchanged(KNOWN)
    assert "nothing of this batch was committed" in (anew.value.state or "")
    with pytest.raises(TopicRecreatedError, match="leads to another cluster") as elsewhere:
        check(Topics(orders="other/one")).unchanged(KNOWN)
    assert "lead to the first cluster again" in (elsewhere.value.next_step or "")


def test_a_source_that_does_not_answer_is_asked_again_after_a_minute() -> None:
    source = Topics(**KNOWN | {"orders": "cluster/anew"})
    source.silent = True
    with mock.patch.object(source_check.time, "monotonic", return_value=1000.0) as clock:
        own = check(source)
        own.unchanged(KNOWN)
        source.silent = False
        clock.return_value = 1059.0
        own.unchanged(KNOWN)
        assert source.asked == 1
        clock.return_value = 1061.0
        with pytest.raises(TopicRecreatedError):
            own.unchanged(KNOWN)


def test_nothing_is_asked_if_nothing_is_known_or_the_source_has_no_ids() -> None:
    source = Topics(**KNOWN)
    check(source).unchanged({})
    assert source.asked == 0
    check(SimpleNamespace(ids=("a",))).unchanged(KNOWN)
