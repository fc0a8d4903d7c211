"""A topic as a sink: which rows make records, who else writes to it, and a transaction that ends whatever fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from tests.contract.sinks import SCHEMA, Kafka, commit, put, rows
from tests.fixtures.runs import consume

from sluice.errors import CheckpointError, ConfigError, SinkError
from sluice_spark.sinks.kafka import marks
from sluice_spark.sinks.kafka.cluster import Topic
from sluice_spark.sinks.kafka.columns import _KEY, _PARTITION, _TIME, _VALUE
from sluice_spark.sinks.kafka.producer import Transactions

pytestmark = pytest.mark.kafka


@pytest.fixture
def sending(case: Callable[..., Kafka]) -> Kafka:
    return case(Kafka)


def with_settings(sending: Kafka, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Give the sink other keys of the pipeline file."""
    monkeypatch.setattr(sending, "settings", lambda: {"topic": sending.topic, "key": "id", **more})


def held_up(sending: Kafka) -> list[int]:
    """Return the partitions in which an open transaction holds up readers."""
    with sending.topics._admin() as admin:
        ends = sending.topics._offsets(admin, sending.topic, earliest=False)
        stable = sending.topics._offsets(admin, sending.topic, earliest=False, committed=True)
    return [partition for partition, end in ends.items() if stable[partition] < end]


@pytest.mark.parametrize(
    ("settings", "token"),
    [
        pytest.param({"key": "idd"}, "sink.kafka.key: there is no column 'idd'", id="key"),
        pytest.param({"partition": "name"}, "sink.kafka.partition: name is string", id="partition"),
        pytest.param({"value": {"column": "id"}}, "sink.kafka.value: id is bigint", id="value"),
        pytest.param({"headers": ["id", "name"]}, "no column left", id="no-column-left"),
        pytest.param({"transaction_timeout": "2h"}, "transaction.max.timeout.ms", id="transaction-timeout"),
    ],
)
def test_kafka_sink_refuses_rows_that_make_no_records(
    sending: Kafka, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], token: str
) -> None:
    with_settings(sending, monkeypatch, **settings)
    with pytest.raises(ConfigError) as error:
        sending.writer()
    assert token in " ".join(str(error.value).split())


@pytest.mark.parametrize(
    ("name", "value", "token"),
    [
        pytest.param(_PARTITION, 7, "partition 7", id="partition-that-is-not-there"),
        pytest.param(_VALUE, b"x" * 1_100_000, "1,100,", id="too-large"),
        pytest.param(_KEY, None, "is compacted", id="without-a-key"),
        pytest.param(_TIME, 1_772_323_200_000_000, "1,772,323,200,000,000 ms", id="far-future"),
        pytest.param(_TIME, -1, "-1 ms", id="before-1970"),
        pytest.param(_TIME, 0, "cannot be sent one", id="of-1970"),
    ],
)
def test_kafka_sink_names_a_row_that_the_topic_cannot_take_and_sends_nothing_of_its_batch(
    sending: Kafka, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, token: str
) -> None:
    compacted = {"cleanup.policy": "compact"} if name == _KEY else {}
    sending.topics.recreate(sending.topic, 3, {"max.message.bytes": 1_000_000, **compacted})
    timestamp = "record" if name == _TIME else "now"
    with_settings(sending, monkeypatch, partition="id" if name == _PARTITION else None, timestamp=timestamp)
    sink, real = sending.writer(), sending.staged

    def spoilt(table: pa.Table) -> pa.Table:
        made = real(table)
        usual = [0] * made.num_rows if name == _PARTITION else made[name].to_pylist()
        parts = pa.array([*usual[:-1], value], pa.int64() if name in (_PARTITION, _TIME) else pa.binary())
        return made.drop_columns([name] if name in made.column_names else []).append_column(name, parts)

    with monkeypatch.context() as patched:
        patched.setattr(sending, "staged", spoilt)
        with pytest.raises(SinkError) as error:
            commit(sending, sink, 0, 0, 3)
    assert ("t-0 offset 2" in error.value.what.replace("t/0", "t-0"), token in error.value.what) == (True, True)
    assert (sending.held(), held_up(sending)) == ({}, [])


@pytest.mark.parametrize("limit", [500, 2000])
def test_kafka_sink_fills_a_topic_with_a_small_limit(
    sending: Kafka, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    sending.topics.recreate(sending.topic, 3, {"max.message.bytes": limit})
    with_settings(sending, monkeypatch, compression="none")
    assert put(sending, sending.writer(), 0, rows(0, 300))
    assert len(sending.held()) == 300


@pytest.mark.parametrize("error", [OSError("the mount is gone"), MemoryError()])
def test_kafka_sink_ends_its_transaction_whatever_fails_within_it(
    sending: Kafka, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real = Transactions._send_all

    def failing(self: Transactions, topic: Topic, records: Any) -> int:
        real(self, topic, records)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Transactions, "_send_all", failing)
        with pytest.raises((SinkError, MemoryError)):
            commit(sending, sending.writer(), 0, 0, 6)
    assert (sending.held(), held_up(sending)) == ({}, [])
    assert commit(sending, sending.writer(), 0, 0, 6)
    assert set(sending.held()) == set(range(6))


def test_kafka_sink_refuses_or_creates_a_topic_that_is_not_there(
    sending: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending.topic += "-new"
    with pytest.raises(ConfigError, match=sending.topic) as error:
        sending.writer()
    assert "sink.kafka.partitions" in error.value.next_step
    with_settings(sending, monkeypatch, partitions=4)
    commit(sending, sending.writer(), 0, 0, 3)
    assert len(sending.topics.ends(sending.topic)) == 4
    assert set(sending.held()) == {0, 1, 2}
    sending.topics.delete(sending.topic)
    with pytest.raises(CheckpointError, match="is gone"):
        sending.writer()


def test_kafka_sink_names_an_open_transaction_of_another_program(
    sending: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(sending, sending.writer(), 0, 0, 2)
    other = Producer({"bootstrap.servers": sending.broker.bootstrap, "transactional.id": "another"})
    other.init_transactions()
    other.begin_transaction()
    other.produce(f"{sending.topic}.sluice-commits", b"{}", key=b"k")
    other.flush()
    with monkeypatch.context() as hasty:
        hasty.setattr("sluice_spark.sinks.kafka.marks.patience", 0.5)
        with pytest.raises(SinkError, match="transaction of another program"):
            sending.writer()
    other.abort_transaction()
    assert commit(sending, sending.writer(), 1, 2, 4)


def test_kafka_sink_whose_cluster_is_away_is_the_sinks_failure(sending: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    away = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}})
    with monkeypatch.context() as patched:
        patched.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", away)
        with pytest.raises(SinkError) as error:
            sending.writer()
    assert error.value.exit_code == 30


def test_kafka_case_stages_what_the_sink_reads(sending: Kafka) -> None:
    """The contract's staged columns are those of the sink: a record has key, value and origin of its row."""
    commit(sending, sending.writer(), 0, 5, 6)
    (record,) = consume(sending.broker, sending.topic)
    assert (record.key, json.loads(record.value)) == (b"5", {"id": 5, "name": "näme 5"})
    assert {key: value.decode() for key, value in record.headers}["_offset"] == "5"
    assert rows(0, 1).schema.names == SCHEMA.names


def test_kafka_sink_keeps_the_accounts_of_its_newest_marks_in_memory(
    sending: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(3):
        assert commit(sending, sending.writer(), batch, batch, batch + 1)
    monkeypatch.setattr(marks, "WHOLE", 2)
    sink = sending.writer()
    assert [note["version"] for note in sink.notes(newer_than=-1)] == [2, 1]
    assert [("accounts" in mark, mark["version"], bool(mark["staged"])) for mark in sink.marks()] == [
        (False, 0, True), (True, 1, True), (True, 2, True),
    ]  # fmt: skip
