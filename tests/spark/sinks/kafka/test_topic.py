"""Records of a topic as whole runs make them: values, keys, headers, partitions, times, tombstones, and their order."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.fixtures.runs import good
from tests.fixtures.stream import StreamSandbox, origin

from sluice.sinks.kafka import KafkaSink
from sluice_spark.sinks.kafka.columns import misfits

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DDL = (
    "i INT, l BIGINT, s STRING, b BOOLEAN, d DOUBLE, c DECIMAL(12,2), ts TIMESTAMP, dt DATE, a ARRAY<STRING>, "
    "o STRUCT<x: INT, at: TIMESTAMP>, m MAP<STRING, BIGINT>, n INT, w DECIMAL(38,18), "
    "z ARRAY<STRUCT<y: DECIMAL(20,12)>>"
)


def test_kafka_record_has_value_key_headers_partition_and_time_of_its_row(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.configure(
        decode={"json": {"schema": DDL}},
        sink=sandbox.into(key="l", headers=["s", "dt"], partition="i", timestamp="record"),
    )
    record = {
        "i": 2, "l": 2**63 - 1, "s": "é😀 \\ ' \"", "b": True, "d": 1e300, "c": 12.34,
        "ts": "2026-01-31T12:00:00.123456Z", "dt": "2026-01-31", "a": ["x", None, ""],
        "o": {"x": 1, "at": "2026-01-31T12:00:00Z"}, "m": {"k": 1}, "w": 0, "z": [{"y": 0.0000001}],
    }  # fmt: skip
    times = 1_770_000_000_001, 1_770_000_000_002
    sandbox.produce(
        [
            (0, b"k", json.dumps(record).replace("1e-07", "0.0000001").encode(), times[0]),
            (1, b"k", b'{"i": 0}', times[1]),
        ]
    )
    sandbox.run("a run")
    full, empty = sorted(sandbox.sent(), key=origin)
    assert json.loads(full.value) == {
        "l": 2**63 - 1, "b": True, "d": 1e300, "c": 12.34, "ts": "2026-01-31T12:00:00.123456Z", "a": ["x", None, ""],
        "o": {"x": 1, "at": "2026-01-31T12:00:00.000000Z"}, "m": {"k": 1}, "n": None, "w": 0, "z": [{"y": 0.0000001}],
    }  # fmt: skip
    assert b"E-" not in full.value, "a pipeline that reads a DECIMAL of many digits takes no exponent"
    assert (full.key, full.partition, full.timestamp) == (str(2**63 - 1).encode(), 2, times[0])
    assert {k: v.decode() for k, v in full.headers} == {
        "s": "é😀 \\ ' \"", "dt": "2026-01-31", "_topic": sandbox.topic, "_partition": "0", "_offset": "0",
        "_timestamp": str(times[0]), "_run": "a run",
    }  # fmt: skip
    assert (empty.key, empty.partition, empty.timestamp) == (None, 0, times[1])
    assert "s" not in dict(empty.headers)


def test_kafka_tombstones_and_keys_are_where_other_clients_look(into_kafka: StreamSandbox) -> None:
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


def test_kafka_records_keep_the_order_of_their_source_partition(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.configure(kafka={"max_records_per_batch": 1000}, sink=sandbox.into(key=None, partition="zero"), transform={
        "sql": "SELECT *, 0 AS zero FROM source"})  # fmt: skip
    sandbox.produce([(n % 2, None, good(n)) for n in range(300)])
    sandbox.run("r")
    came = [origin(record) for record in sandbox.sent()]
    assert len(came) == 300
    assert came == sorted(came)


@pytest.mark.parametrize(
    ("ddl", "key"),
    [
        ("m MAP<STRING, INT>, n MAP<BIGINT, MAP<BOOLEAN, INT>>", None),
        ("m MAP<BINARY, INT>", "binary"),
        ("m ARRAY<STRUCT<x: MAP<STRING, MAP<DATE, INT>>>>", "date"),
        ("m MAP<DECIMAL(9,7), INT>", "decimal(9,7)"),
        ("m MAP<STRUCT<a: INT>, INT>", "struct<a:int>"),
    ],
)
def test_kafka_json_has_no_map_whose_keys_have_no_text(spark: SparkSession, ddl: str, key: str | None) -> None:
    config = KafkaSink.model_validate({"topic": "t", "value": "json"})
    found = misfits(config, StructType.fromDDL(ddl))
    assert found == [] if key is None else [f"value: json: m has a map whose keys are {key}," in text for text in found]
