"""A run refuses topics that are recreated while it reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from sluice.errors import SourceUnreachableError, TopicRecreatedError
from sluice_spark.runs import source_check
from sluice_spark.runs.source_check import SourceCheck

KNOWN = {"orders": "cluster/one", "returns": "cluster/two"}


def topics(**now: str) -> mock.Mock:
    """Return a source that answers with these ids."""
    return mock.Mock(stream_ids=mock.Mock(side_effect=lambda names: {n: now[n] for n in names if n in now}))


def check(source: object) -> SourceCheck:
    context: Any = SimpleNamespace(pipeline=SimpleNamespace(name="p"))
    return SourceCheck(context, source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "now", [KNOWN, {}, {"orders": "cluster/one"}, {"orders": "/one", "returns": ""}, {"orders": "cluster/"}]
)
def test_source_check_passes_the_same_topics_and_unknown_ids(now: dict[str, str]) -> None:
    check(topics(**now)).unchanged(KNOWN)


@pytest.mark.parametrize(
    ("now", "named"), [({**KNOWN, "returns": "cluster/three"}, "'returns'"), ({"orders": "other/one"}, "cluster")]
)
def test_source_check_refuses_a_recreated_topic_and_another_cluster(now: dict[str, str], named: str) -> None:
    with pytest.raises(TopicRecreatedError, match=named) as refused:
        check(topics(**now)).unchanged(KNOWN)
    assert refused.value.state


def test_source_check_asks_a_silent_source_again_after_a_minute() -> None:
    source = topics(**KNOWN | {"orders": "cluster/another"})
    answer, source.stream_ids.side_effect = source.stream_ids.side_effect, SourceUnreachableError("no answer")
    with mock.patch.object(source_check.time, "monotonic", return_value=1000.0) as clock:
        own = check(source)
        own.unchanged(KNOWN)
        source.stream_ids.side_effect = answer
        clock.return_value = 1059.0
        own.unchanged(KNOWN)
        assert source.stream_ids.call_count == 1
        clock.return_value = 1061.0
        with pytest.raises(TopicRecreatedError):
            own.unchanged(KNOWN)


def test_source_check_asks_nothing_if_no_id_is_known_or_the_source_has_none() -> None:
    source = topics(**KNOWN)
    check(source).unchanged({})
    source.stream_ids.assert_not_called()
    check(SimpleNamespace(ids=("a",))).unchanged(KNOWN)
