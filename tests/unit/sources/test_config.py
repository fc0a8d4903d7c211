"""Keys below ``source``, patterns of topics, and ids of streams; see also pipeline/test_refusals.py."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.fixtures.pipelines import modelled

from sluice.errors import ConfigError
from sluice.sources.files.config import FileSource
from sluice.sources.jdbc.config import JdbcSource
from sluice.sources.kafka.config import KafkaSource
from sluice.sources.kafka.pattern import matches, problem_of
from sluice.sources.queue.config import QueueSource
from sluice.sources.state import PartitionState, TopicState, is_another, is_elsewhere, joined_ids, stream_id


@pytest.mark.parametrize(
    ("path", "stream"),
    [("inbox", "inbox"), ("/a/in box/", "in_box"), ("s3://bucket/drop", "drop"), ("/", "files"), ("d'x", "d_x")],
)
def test_file_stream_is_named_for_the_folder(path: str, stream: str) -> None:
    assert FileSource(path=path, format="json").streams == [stream]


def test_jdbc_stream_is_the_table_or_the_query() -> None:
    source = JdbcSource.model_validate({"table": "orders", "key": "id", "lag": "5m"})
    assert (source.streams, source.needs, source.lag) == (["public.orders"], "postgres_default", timedelta(minutes=5))
    assert source.shown == "public.orders (postgres_default)"
    source = JdbcSource.model_validate({"query": " select id\nFROM orders ;\n", "key": "id"})
    assert (source.query, source.streams) == ("select id\nFROM orders", ["query"])
    JdbcSource.model_validate({"query": "WITH a AS (SELECT 1 AS id) SELECT * FROM a", "key": "id"})


def test_queue_and_kafka_streams_are_those_of_the_file() -> None:
    queue = QueueSource(connection="redis_default", kind="redis_streams", streams=["orders:{1}"])
    assert (queue.streams, queue.needs) == (["orders:{1}"], "redis_default")
    kafka = KafkaSource(topics=["b", "a"])
    assert kafka.streams == kafka.labels == ["b", "a"]
    assert (kafka.reads("a"), kafka.reads("c"), kafka.matching(["a", "c"])) == (True, False, ["a"])


def test_kafka_pattern_leaves_out_internal_excluded_and_written_topics() -> None:
    source = KafkaSource(pattern=".*", exclude=r".*\.dlq")
    source.never(["clean", "clean.sluice-commits"])
    names = ["b", "a", "a.dlq", "__consumer_offsets", "__canary", "_a", "clean", "clean.sluice-commits"]
    assert source.matching(names) == ["_a", "a", "b"]
    assert (source.streams, source.labels, source.reads("a"), source.reads("clean")) == ([], [".*"], True, False)


@pytest.mark.parametrize(
    "pattern",
    ["orders(", "*orders", "[z-a]", "(?!x).*", r"(a)\1", "(?>a)b", "a*+", "(a{1001})", r"a\Z", "(?x)a b", "a)|(b",
     "(a{1000}){1000}"],
)  # fmt: skip
def test_kafka_pattern_refuses_what_re2_does_not_take(pattern: str) -> None:
    assert "RE2" in str(problem_of(pattern))


def test_kafka_pattern_matches_whole_names_and_takes_no_time() -> None:
    names = ["orders.a", "orders-a", "my.orders.a", "orders.a.b", "ORDERS.A"]
    assert matches(r"orders\..*", names) == ["orders.a", "orders.a.b"]
    assert matches("orders.a|my.*", names) == ["orders.a", "orders-a", "my.orders.a"]
    assert matches(r"(?i)orders\.a$", names) == ["orders.a", "ORDERS.A"]
    assert matches("x", []) == []
    assert problem_of("(a+)+b") is None
    assert matches("(a+)+b", ["a" * 249]) == [], "Python's own engine would not come back from this one"


def test_kafka_clusters_begin_with_the_first_and_name_each_stream() -> None:
    kafka = modelled(base="clusters").kafka
    assert (kafka.active, kafka.prefix, kafka.needs, kafka.needs_also) == ("a", "", "a", ["b"])
    second = kafka.at({"b:t": {0: 3}})
    assert (second.active, second.prefix, second.has("b:t"), second.has("t")) == ("b", "b:", True, False)
    assert [c.active for c in kafka.everywhere()] == ["a", "b"]
    with pytest.raises(ConfigError, match="'c'"):
        kafka.at({"c:t": {}})


def test_stream_id_begins_with_that_of_its_source() -> None:
    parts = {("cluster", "own"): "cluster/own", (None, "own"): "own", ("cluster", None): "cluster/", (None, None): ""}
    assert {of: stream_id(*of) for of in parts} == parts


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
def test_stream_id_tells_nothing_by_an_unknown_part(
    known: str | None, now: str, another: bool, elsewhere: bool
) -> None:
    assert (is_another(known, now), is_elsewhere(known, now)) == (another, elsewhere)


@pytest.mark.parametrize(
    ("known", "now", "joined"),
    [
        ({"t": "x"}, "a/x", {"t": "a/x"}),
        ({"t": "a/x"}, "x", {"t": "a/x"}),
        ({"t": "x"}, "a/yyy", {"t": "x"}),
        ({}, "a/x", {"t": "a/x"}),
        ({"u": "a/u"}, "", {"u": "a/u"}),
        ({"t": "x"}, "a-cluster-with-a-long-id/", {"t": "a-cluster-with-a-long-id/x"}),
        ({"t": "a/"}, "x", {"t": "a/x"}),
    ],
)
def test_stream_id_is_completed_and_never_replaced(known: dict[str, str], now: str, joined: dict[str, str]) -> None:
    assert joined_ids(known, [TopicState("t", now, {0: PartitionState(0, 10)})]) == joined
