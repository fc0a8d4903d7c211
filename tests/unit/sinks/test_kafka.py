"""The key ``sink.kafka``: what is refused when the file is read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from tests.fixtures.specs import GOOD, write

from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice.sinks.kafka import KafkaSink


def test_the_defaults() -> None:
    sink = KafkaSink(topic="orders")
    assert (sink.connection, sink.marks, sink.needs) == ("kafka_default", "orders.sluice-commits", "kafka_default")
    assert (sink.transaction_timeout, sink.keep) == (timedelta(minutes=10), timedelta(days=1))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"topic": "a b"}, "is no name of a topic"),
        ({"topic": "x" * 240}, "is no name of a topic"),
        ({"topic": "orders.sluice-commits"}, "holds commits"),
        ({"topic": "t", "value": "avro"}, "value"),
        ({"topic": "t", "value": {"colum": "v"}}, "column"),
        ({"topic": "t", "headers": ["a", "a"]}, "stands twice"),
        ({"topic": "t", "headers": ["_offset"]}, "is there already"),
        ({"topic": "t", "transaction_timeout": "0s"}, "at least 1s"),
        ({"topic": "t", "keep": "30d"}, "at most 6d"),
        ({"topic": "t", "partitions": 0}, "partitions"),
    ],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        KafkaSink(**keys)


@pytest.mark.parametrize("topic", ["t", "t.sluice-commits"])
def test_a_pipeline_does_not_read_what_it_writes(tmp_path: Any, topic: str) -> None:
    text = GOOD.replace("delta: {path: p}", "kafka: {topic: t}")
    assert text != GOOD
    text = text.replace("topics: [t]", f"topics: [{topic}]")
    with pytest.raises(ConfigError, match="would read what it writes"):
        load(write(tmp_path, text))
    load(write(tmp_path, text.replace("{topic: t}", "{topic: t, connection: other}")))


@pytest.mark.parametrize(("sink", "read"), [("{topic: t}", ["u"]), ("{topic: t, connection: other}", ["t", "u"])])
def test_a_pattern_never_matches_what_the_pipeline_writes(tmp_path: Any, sink: str, read: list[str]) -> None:
    text = GOOD.replace("delta: {path: p}", f"kafka: {sink}").replace("topics: [t]", 'pattern: ".*"')
    assert load(write(tmp_path, text)).kafka.matching(["t", "u"]) == read


def test_intervals_are_refused_by_name(tmp_path: Any) -> None:
    text = GOOD.replace("delta: {path: p}", "kafka: {topic: clean}")
    assert load(write(tmp_path, text)).no_intervals == "pipeline 'p' has no intervals: sink.kafka cannot replace rows"
