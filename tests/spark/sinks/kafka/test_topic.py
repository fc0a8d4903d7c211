"""A topic as a sink: what records are made of rows, who may write to it, and what others do to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.fixtures.runs import good
from tests.fixtures.stream import StreamSandbox, origin

from sluice_spark.sinks.kafka.cluster import Topic
from sluice_spark.sinks.kafka.producer import Transactions

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DDL = (
    "i INT, l BIGINT, s STRING, b BOOLEAN, d DOUBLE, c DECIMAL(12,2), ts TIMESTAMP, dt DATE, a ARRAY<STRING>, "
    "o STRUCT<x: INT, at: TIMESTAMP>, m MAP<STRING, BIGINT>, n INT"
)


def test_values_keys_headers_partitions_and_times_are_those_of_the_columns(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.configure(
        decode={"json": {"schema": DDL}},
        sink=sandbox.into(key="l", headers=["s", "dt"], partition="i", timestamp="record"),
    )
    record = {
        "i": 2, "l": 2**63 - 1, "s": "é😀 \\ ' \"", "b": True, "d": 1e300, "c": 12.34,
        "ts": "2026-01-31T12:00:00.123456Z", "dt": "2026-01-31", "a": ["x", None, ""],
        "o": {"x": 1, "at": "2026-01-31T12:00:00Z"}, "m": {"k": 1},
    }  # fmt: skip
    times = 1_770_000_000_001, 1_770_000_000_002
    sandbox.produce([(0, b"k", json.dumps(record).encode(), times[0]), (1, b"k", b'{"i": 0}', times[1])])
    sandbox.run("a run")
    full, empty = sorted(sandbox.sent(), key=origin)
    assert json.loads(full.value) == {
        "l": 2**63 - 1, "b": True, "d": 1e300, "c": 12.34, "ts": "2026-01-31T12:00:00.123456Z", "a": ["x", None, ""],
        "o": {"x": 1, "at": "2026-01-31T12:00:00.000000Z"}, "m": {"k": 1}, "n": None,
    }  # fmt: skip
    assert (full.key, full.partition, full.timestamp) == (str(2**63 - 1).encode(), 2, times[0])
    assert {k: v.decode() for k, v in full.headers} == {
        "s": "é😀 \\ ' \"", "dt": "2026-01-31", "_topic": sandbox.topic, "_partition": "0", "_offset": "0",
        "_timestamp": str(times[0]), "_run": "a run",
    }  # fmt: skip
    assert (empty.key, empty.partition, empty.timestamp) == (None, 0, times[1])
    assert "s" not in dict(empty.headers)


def test_a_column_as_it_is_may_be_a_tombstone_and_keys_go_where_other_clients_look(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sql = "SELECT key, value, _topic, _partition, _offset, _timestamp FROM source"
    into = sandbox.into(key="key", value={"column": "value"}, origin=False)
    sandbox.configure(decode={"bytes": {}}, sink=into, transform={"sql": sql})
    sandbox.produce([(n % 2, b"key %d" % n, None if n == 3 else b"\x00%d" % n) for n in range(8)])
    sandbox.run("r")
    sent = sandbox.sent()
    assert {r.key: r.value for r in sent} == {b"key %d" % n: None if n == 3 else b"\x00%d" % n for n in range(8)}
    assert not any(record.headers for record in sent)
    placed = sandbox.topics.produce(sandbox.target, [(None, record.key, b"x") for record in sent])
    assert [partition for partition, _ in placed] == [record.partition for record in sent]


def test_the_order_of_a_partition_stays(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.configure(kafka={"max_records_per_batch": 1000}, sink=sandbox.into(key=None, partition="zero"), transform={
        "sql": "SELECT *, 0 AS zero FROM source"})  # fmt: skip
    sandbox.produce([(n % 2, None, good(n)) for n in range(300)])
    sandbox.run("r")
    came = [origin(record) for record in sandbox.sent()]
    assert len(came) == 300
    assert came == sorted(came)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"key": "idd"}, "sink.kafka.key: there is no column 'idd'"),
        ({"partition": "name"}, "sink.kafka.partition: name is string, and must be INT"),
        ({"value": {"column": "id"}}, "sink.kafka.value: id is bigint, and must be STRING or BINARY"),
        ({"headers": ["id", "name"]}, "value: json has no column left"),
    ],
)
def test_rows_that_make_no_records_are_refused_before_anything_is_read(
    into_kafka: StreamSandbox, keys: dict[str, Any], told: str
) -> None:
    sandbox = into_kafka
    sandbox.configure(sink=sandbox.into(**keys))
    sandbox.feed(1)
    assert told in " ".join(sandbox.run("r", expect=10).message.split())


def test_a_row_that_the_topic_cannot_take_is_named_and_nothing_of_its_batch_is_seen(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.topics.recreate(sandbox.target, 3, {"max.message.bytes": 1_000_000})
    sandbox.configure(sink=sandbox.into(partition="id"))
    sandbox.produce([(0, b"k", good(1)), (0, b"k", good(7))])
    said = sandbox.run("r", expect=30).message
    assert f"the row of {sandbox.topic}-0 offset 1 is for partition 7 (id)" in said
    assert sandbox.sent() == []
    sandbox.configure()
    sandbox.produce([(1, b"k", b'{"id": 8, "name": "%s"}' % (b"x" * 1_100_000))])
    said = sandbox.run("r", expect=30).message
    assert f"the row of {sandbox.topic}-1 offset 0 makes a record of 1,100," in said
    assert sum(sandbox.sink().values()) == 2
    assert sandbox.held_up() == []
    sandbox.configure(quality={"max_quarantined": "100%"}, rules=[{"name": "fits", "sql": {"passes": "id < 8"}}])
    sandbox.run("r")
    sandbox.assert_exact()


@pytest.mark.parametrize(("error", "code"), [(OSError("the mount is gone"), 30), (MemoryError(), 1)])
def test_a_transaction_is_ended_whatever_fails_within_it(
    into_kafka: StreamSandbox, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    sandbox = into_kafka
    sandbox.configure()
    sandbox.feed(6)
    send = Transactions._send_all

    def failing(self: Transactions, topic: Topic, records: Any) -> int:
        send(self, topic, records)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Transactions, "_send_all", failing)
        sandbox.run("r", expect=code)
    assert sandbox.held_up() == []
    assert sandbox.sent() == []
    sandbox.run("r")
    sandbox.assert_exact()


def test_a_topic_that_is_not_there_is_refused_or_created(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.target += "-new"
    sandbox.configure()
    sandbox.feed(3)
    said = sandbox.run("r", expect=10).message
    assert f"there is no topic {sandbox.target}" in said
    assert "sink.kafka.partitions: 6" in said
    sandbox.configure(sink=sandbox.into(partitions=4))
    sandbox.run("r")
    sandbox.assert_exact()
    assert len(sandbox.topics.ends(sandbox.target)) == 4
    sandbox.topics.recreate(sandbox.target, 4)
    said = sandbox.run("r2", expect=41).message
    assert "was made again since this pipeline wrote to it" in said
    sandbox.topics.delete(sandbox.target)
    assert "is gone since" in sandbox.run("r2", expect=41).message
    sandbox.topics.delete(f"{sandbox.target}.sluice-commits")


def test_another_pipeline_may_not_write_to_it(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.feed(2)
    sandbox.run("r")
    first, sandbox.name = sandbox.name, f"{sandbox.name}b"
    sandbox.configure()
    assert f"belongs to pipeline '{first}'" in sandbox.run("r", expect=10).message


def test_marks_that_are_gone_are_missed(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.feed(2)
    sandbox.run("r")
    sandbox.topics.recreate(f"{sandbox.target}.sluice-commits", 1, {"cleanup.policy": "compact"})
    said = sandbox.run("r2", expect=41).message
    assert "the ledger has batch 0 of" in said


def test_an_open_transaction_of_another_program_is_named(into_kafka: StreamSandbox, monkeypatch: Any) -> None:
    sandbox = into_kafka
    sandbox.feed(2)
    sandbox.run("r")
    other = Producer({"bootstrap.servers": sandbox.broker.bootstrap, "transactional.id": "another"})
    other.init_transactions()
    other.begin_transaction()
    other.produce(f"{sandbox.target}.sluice-commits", b"{}", key=b"k")
    other.flush()
    with monkeypatch.context() as hasty:
        hasty.setattr("sluice_spark.sinks.kafka.marks.patience", 0.5)
        assert "a transaction of another program is open there" in sandbox.run("r2", expect=30).message
    other.abort_transaction()
    sandbox.run("r2")
    sandbox.assert_exact()


def test_a_cluster_that_is_away_is_the_sinks_failure(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.configure(sink=sandbox.into(connection="away"))
    sandbox.feed(2)
    away = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}})
    said = sandbox.run("r", expect=30, AIRFLOW_CONN_AWAY=away).message
    assert "cannot be reached" in said
    there = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": sandbox.broker.bootstrap}})
    sandbox.run("r", AIRFLOW_CONN_AWAY=there)
    sandbox.assert_exact()


def test_a_transaction_that_the_cluster_would_not_keep_open_is_refused(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.configure(sink=sandbox.into(transaction_timeout="2h"))
    sandbox.feed(1)
    assert "transaction.max.timeout.ms" in sandbox.run("r", expect=10).message


def test_what_was_sent_is_validated_from_what_was_staged(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    between = {"column": "price", "min_value": 1}
    suite: dict[str, Any] = {"name": "s", "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": between}]}  # fmt: skip
    (sandbox.home / "suite.json").write_text(json.dumps(suite))
    keys: dict[str, Any] = {"decode": {"json": {"schema": "price DECIMAL(10,2)"}}, "quality": {"suite": "suite.json"}}
    sandbox.configure(**keys, sink=sandbox.into(key=None))
    for number, price in enumerate((2, 0)):
        sandbox.produce([(0, b"k", b'{"price": %d}' % price)])
        sandbox.run(f"r{number}", validate=True, expect=None)
    verdicts = [row.verdict for n in (0, 1) if (row := sandbox.ledger.run(sandbox.name, f"r{n}")) is not None]
    assert verdicts == ["passed", "failed"]
    assert len(sandbox.staged()) == 2
    sandbox.configure(**keys, sink=sandbox.into(key=None, keep="0s"))
    sandbox.produce([(0, b"k", b'{"price": 3}')])
    sandbox.run("r2", validate=True)
    assert sandbox.staged() == set()
    suite["expectations"][0]["meta"] = {"scope": "table"}
    (sandbox.home / "suite.json").write_text(json.dumps(suite))
    sandbox.produce([(0, b"k", b'{"price": 3}')])
    said = sandbox.run("r3", validate=True, expect=10).message
    assert "meta.scope table needs a sink that can be read back as a whole" in said
