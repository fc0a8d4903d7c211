"""Sinks of a topic and of the user: defaults, and what the id of a batch is made of."""

from __future__ import annotations

from datetime import timedelta

from tests.fixtures.pipelines import modelled

from sluice.sinks.foreach import Batch
from sluice.sinks.kafka import KafkaSink


def test_kafka_sink_has_defaults() -> None:
    sink = KafkaSink(topic="orders")
    assert (sink.connection, sink.marks, sink.needs) == ("kafka_default", "orders.sluice-commits", "kafka_default")
    assert (sink.transaction_timeout, sink.keep) == (timedelta(minutes=10), timedelta(days=1))


def test_kafka_sink_of_another_cluster_may_have_the_sources_topic() -> None:
    assert modelled("sink: {kafka: {topic: t, connection: other}}").sink.key == "kafka"


def test_foreach_batch_has_the_same_id_in_each_run() -> None:
    assert str(Batch("orders", "1", 7, "manual")) == str(Batch("orders", "1", 7, "again")) == "orders:1:7"
