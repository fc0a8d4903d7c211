"""The options with which Spark reads from Kafka, and the offsets that Kafka no longer has."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fixtures.wal import span

from sluice.errors import TopicRecreatedError
from sluice.ranges import OffsetRange
from sluice.sources.kafka import KafkaSettings
from sluice.sources.kafka.config import KafkaSource
from sluice.sources.state import PartitionState, TopicState
from sluice_spark.sources import kafka
from sluice_spark.sources.kafka import KafkaReader


class Reading(dict[str, Any]):
    """Spark's reader: it keeps its options, and its frame is a list of them."""

    def format(self, name: str) -> Reading:
        return self.option("format", name)

    def options(self, **options: str) -> Reading:
        self |= options
        return self

    def option(self, name: str, value: Any) -> Reading:
        self[name] = value
        return self

    def load(self) -> list[dict[str, Any]]:
        return [dict(self)]


def reader(*states: TopicState, by_pattern: bool = False, **keys: Any) -> KafkaReader:
    """Return a reader whose frames are the options that they were read with."""
    there = {state.topic for state in states}
    config = KafkaSource(topics=["t", "u"], **keys)
    cluster = SimpleNamespace(
        settings=KafkaSettings("broker:9092", {"bootstrap.servers": "broker:9092"}),
        snapshot=lambda topics: [state for state in states if state.topic in topics],
    )
    source: Any = SimpleNamespace(
        config=config, cluster=cluster, topics=["t", "u"],
        deleted=lambda topics: sorted(set(topics) - there) if by_pattern else [],
    )  # fmt: skip
    spark: Any = SimpleNamespace(read=Reading(), readStream=Reading())
    return KafkaReader(spark, config, source)


@pytest.fixture(autouse=True)
def _frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "DataFrame", SimpleNamespace(unionByName=lambda one, other: one + other))


def topic(name: str, *spans: tuple[int, int]) -> TopicState:
    return TopicState(name, "id", {p: PartitionState(*ends) for p, ends in enumerate(spans)})


def test_kafka_stream_starts_where_the_file_says() -> None:
    (first,) = cast(Any, reader(starting_offsets="latest").stream(70))
    assert (first["format"], first["subscribe"], first["startingOffsets"]) == ("kafka", "t,u", "latest")
    assert (first["maxOffsetsPerTrigger"], first["kafka.bootstrap.servers"]) == (70, "broker:9092")
    assert (first["includeHeaders"], first["failOnDataLoss"]) == ("false", "true")
    (over,) = cast(Any, reader(isolation_level="read_committed").stream(70, headers=True, over_gaps=True))
    assert (over["includeHeaders"], over["failOnDataLoss"]) == ("true", "false")
    assert over["kafka.isolation.level"] == "read_committed"


def test_kafka_stream_reads_partitions_without_a_position_from_their_beginning() -> None:
    states = [topic("t", (0, 9), (0, 9), (4, 9)), topic("u", (2, 3))]
    (options,) = cast(Any, reader().stream(70, start={"t": {0: 5, 2: 6}}, states=states))
    assert json.loads(options["startingOffsets"]) == {"t": {"0": 5, "1": -2, "2": 6}, "u": {"0": -2}}, "-2 is earliest"


def test_kafka_reads_ranges_exactly_and_each_partition_once_a_round() -> None:
    rounds = cast(Any, reader().read([span(0, 3), span(5, 9), span(1, 2, 1), span(7, 8, topic="u"), span(12, 13)]))
    options = ("assign", "startingOffsets", "endingOffsets")
    assert [tuple(json.loads(each[name]) for name in options) for each in rounds] == [
        ({"t": [0, 1], "u": [0]}, {"t": {"0": 0, "1": 1}, "u": {"0": 7}}, {"t": {"0": 3, "1": 2}, "u": {"0": 8}}),
        ({"t": [0]}, {"t": {"0": 5}}, {"t": {"0": 9}}),
        ({"t": [0]}, {"t": {"0": 12}}, {"t": {"0": 13}}),
    ]
    assert {(r["includeHeaders"], r["failOnDataLoss"]) for r in rounds} == {("true", "true")}


@pytest.mark.parametrize(
    ("asked", "by_pattern", "missing"),
    [
        ([], False, []),
        ([span(4, 10), span(0, 5, 1)], False, []),
        ([span(0, 6), span(2, 5, 1), span(3, 9, topic="u")], False, [span(0, 4), span(3, 9, topic="u")]),
        ([span(0, 3)], False, [span(0, 3)]),
        ([span(3, 6), span(3, 9, topic="v")], True, [span(3, 9, topic="v"), span(3, 4)]),  # v was deleted
    ],
)
def test_kafka_misses_offsets_below_the_log_start_and_all_of_a_deleted_topic_of_a_pattern(
    asked: list[OffsetRange], by_pattern: bool, missing: list[OffsetRange]
) -> None:
    states = topic("t", (4, 10), (0, 5)), topic("u", (9, 9))
    assert reader(*states, by_pattern=by_pattern).missing(asked) == missing


@pytest.mark.parametrize(("item", "named"), [(span(5, 11), "t-0 .* 10"), (span(0, 1, 3), "t-3")])
def test_kafka_refuses_offsets_beyond_the_end_as_those_of_another_topic(item: OffsetRange, named: str) -> None:
    with pytest.raises(TopicRecreatedError, match=named):
        reader(topic("t", (4, 10))).missing([item])
