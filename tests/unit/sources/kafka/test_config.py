"""The key ``source.kafka``: which topics are meant."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.sources.kafka.config import KafkaSource


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "topics or pattern is missing"),
        ({"topics": ["a"], "pattern": "a"}, "topics and pattern are both given"),
        ({"topics": ["a"], "exclude": "a"}, "exclude is for pattern"),
        ({"pattern": "a("}, "missing \\)"),
        ({"pattern": ".*", "exclude": "a("}, "missing \\)"),
        ({"pattern": ""}, "at least 1 character"),
        ({"topics": []}, "at least 1 item"),
        ({"topics": ["a b"]}, "not a Kafka topic name"),
    ],
)
def test_a_mistake_is_refused_by_name(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match="(?s)" + told.replace("(", r"\(")):
        KafkaSource.model_validate(keys)


def test_a_pattern_never_matches_what_is_internal_excluded_or_written() -> None:
    source = KafkaSource(pattern=".*", exclude=r".*\.dlq")
    source.never(["clean", "clean.sluice-commits"])
    found = source.matching(
        ["b", "a", "a.dlq", "__consumer_offsets", "__canary", "_a", "clean", "clean.sluice-commits"]
    )
    assert found == ["_a", "a", "b"]
    assert (source.streams, source.labels) == ([], [".*"])
    assert source.reads("a")
    assert not source.reads("clean")


def test_names_are_what_they_are() -> None:
    source = KafkaSource(topics=["b", "a"])
    assert (source.streams, source.labels, source.reads("a"), source.reads("c")) == (
        ["b", "a"],
        ["b", "a"],
        True,
        False,
    )
    assert source.matching(["a", "c"]) == ["a"]
