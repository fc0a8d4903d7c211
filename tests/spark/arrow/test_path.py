"""Runs on the Arrow path: the same account as on the Spark path, whatever is in the topic and whatever fails."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import KafkaError, Producer
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.expectations import expect
from tests.fixtures.runs import Sandbox, good

from sluice.delta.notes import note_of
from sluice.errors import SinkError
from sluice.pipeline import load
from sluice.ranges import OffsetRange, Positions, divided
from sluice.wal import WriteAheadLog
from sluice_spark.arrow import ahead, files, path, plan, shares, worker
from sluice_spark.arrow.path import ArrowPath
from sluice_spark.arrow.plan import NotArrowError, plan_of
from sluice_spark.batch.split import Split
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.sources import kafka_input
from sluice_spark.sources.base import RECORD_SCHEMA
from sluice_spark.sources.inputs import RECORDS, RangeReader, UnreadableError
from sluice_spark.sources.kafka import KafkaReader
from sluice_spark.sources.kafka_input import KafkaChunk, KafkaInput, KafkaRanges
from sluice_spark.sources.log import LogRecords
from sluice_spark.transforms.sample import shape_of
from sluice_spark.transforms.transform import transformer

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ARROW = re.compile(r"part-[0-9a-f]{32}\.snappy\.parquet")


@pytest.fixture(params=["driver", "workers"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the work is done: in the driver, or in Spark's Python workers."""
    if request.param == "workers":
        monkeypatch.setattr(shares, "_HERE", 0)
    return str(request.param)


def ways(sandbox: Sandbox) -> Counter[str]:
    """Return how many files of the sink each path wrote."""
    return Counter("arrow" if ARROW.search(file) else "spark" for file in _files(sandbox))


def _files(sandbox: Sandbox) -> list[str]:
    table = sandbox.table()
    return table.file_uris() if table else []


def log_of(sandbox: Sandbox) -> WriteAheadLog:
    """Return the write-ahead log."""
    return WriteAheadLog(str(sandbox.home / "logs" / sandbox.name), sandbox.name)


def mixed(n: int) -> bytes | None:
    """Return a record: most are good; others only Spark decodes, or nobody."""
    if n % 10 == 3:
        return json.dumps({"id": n, "name": n}).encode()  # a number as text
    if n % 10 == 6:
        return b'{"id": "x", "name": "y"}'
    return None if n % 50 == 8 else good(n)


def decodes(n: int) -> bool:
    """Return whether a record of :func:`mixed` decodes."""
    return n % 10 != 6 and n % 50 != 8


@pytest.mark.usefixtures("place")
def test_rows_that_break_an_expectation_are_split_off_by_spark(sandbox: Sandbox) -> None:
    suite = [
        expect("values_to_be_between", column="number", min_value=5),
        expect("values_to_match_regex", column="name", regex="^name"),
        {**expect("values_to_be_in_set", column="name", value_set=["name 7"]), "severity": "warning"},
    ]
    (sandbox.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": suite}))
    sandbox.configure(
        transform={"sql": "SELECT *, id AS number FROM source WHERE id <> 50"},
        decode={"json": {"schema": "id BIGINT, name STRING", "rescue": True}},
        kafka={"max_records_per_batch": 500},
        quality={"suite": "suite.json", "split": "critical", "max_quarantined": 1},
        rows="filter",
    )
    records = [{"id": n, "name": "name" if n % 10 else "other\n", **({"more": n} if n % 3 else {})} for n in range(300)]
    sandbox.produce([(n % 2, None, json.dumps(record).encode()) for n, record in enumerate(records)])
    said = sandbox.run("r").stderr
    assert "Spark path" not in said
    assert set(ways(sandbox)) == {"arrow"}, "no row of a record that was set aside is written"
    sandbox.assert_balanced()
    kept = {n for n in range(300) if n % 10 and n >= 5}
    assert sandbox.account("r") == dict(
        planned=300, written=len(kept), filtered=1, quarantined=299 - len(kept), absent=0, lost=0
    )  # fmt: skip
    rows = sandbox.rows()
    assert rows is not None
    assert Counter(rows.column("id").to_pylist()) == Counter(kept)
    refused = sandbox.rows("table_quarantine")
    assert refused is not None
    assert Counter(refused.column("value").to_pylist()) == Counter(
        json.dumps(record).encode() for record in records if record["id"] not in {*kept, 50}
    )
    rules = Counter(errors[0]["rule"] for errors in refused.column("_errors").to_pylist())
    assert rules == {"expect_column_values_to_be_between": 5, "expect_column_values_to_match_regex": 28}
    assert sandbox.ledger.account(sandbox.name, "r")["rescued"] == {"records": 200, "fields": {"more": 200}}


@pytest.mark.usefixtures("place")
def test_doubtful_records_are_decided_by_spark_and_all_are_accounted_for(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 500}, quality={"max_quarantined": 1})
    sandbox.produce([(n % 2, b"k%d" % n, mixed(n), 1000 + n, [("h", b"1")] * (n % 3)) for n in range(300)])
    said = sandbox.run("r").stderr
    assert "Spark path" not in said
    assert set(ways(sandbox)) == {"arrow", "spark"}
    sandbox.assert_exact()
    kept = [n for n in range(300) if decodes(n)]
    assert sandbox.account("r") == dict(
        planned=300, written=len(kept), filtered=0, quarantined=300 - len(kept), absent=0, lost=0
    )  # fmt: skip
    rows = sandbox.rows()
    assert rows is not None
    named = Counter(rows.column("name").to_pylist())
    assert named == Counter(str(n) if n % 10 == 3 else f"name {n}" for n in kept)
    refused = sandbox.rows("table_quarantine")
    assert refused is not None
    verbatim = sorted(zip(*(refused.column(c).to_pylist() for c in ("key", "value", "headers")), strict=True), key=str)
    expected = [
        (b"k%d" % n, mixed(n), [{"key": "h", "value": b"1"}] * (n % 3) or None) for n in range(300) if not decodes(n)
    ]
    assert verbatim == sorted(expected, key=str)
    assert not sandbox.never_committed()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_gaps_of_transactions_and_of_compaction_are_absent(sandbox: Sandbox, isolation: str) -> None:
    sandbox.configure(kafka={"isolation_level": isolation, "max_records_per_batch": 100})
    sandbox.feed(2)
    sandbox.topics.produce_transaction(sandbox.topic, [(0, None, good(n)) for n in (1, 2, 3)], commit=False)
    sandbox.topics.produce_transaction(sandbox.topic, [(1, None, good(n)) for n in (4, 5)], commit=True)
    sandbox.topics.produce_transaction(sandbox.topic, [(1, None, good(6))], commit=False)
    readable = 4 if isolation == "read_committed" else 8
    said = sandbox.run("r").stderr
    assert "Arrow path" not in said
    assert set(ways(sandbox)) == {"arrow"}
    sandbox.assert_exact(isolation)
    account = sandbox.account("r")
    assert account == dict(planned=11, written=readable, filtered=0, quarantined=0, absent=11 - readable, lost=0)


@pytest.mark.usefixtures("place")
def test_row_rules(sandbox: Sandbox) -> None:
    sandbox.configure(
        rules=[
            {"name": "named", "not_null": {"columns": ["name"]}},
            {"name": "small", "sql": {"passes": "id < 5 OR name = 'x' -- or so", "column": "id"}},
        ],
        quality={"max_quarantined": 1}, kafka={"max_records_per_batch": 100},
    )  # fmt: skip
    values = [
        '{"id":1}',
        '{"id":1,"name":"a"}',
        '{"id":7,"name":"x"}',
        '{"id":7,"name":"b"}',
        '{"name":"c"}',
        '{"id":9}',
    ]
    sandbox.produce([(n % 2, b"k", value.encode()) for n, value in enumerate(values)])
    said = sandbox.run("r").stderr
    assert "Spark path" not in said
    sandbox.assert_exact()
    rows, refused = sandbox.rows(), sandbox.rows("table_quarantine")
    assert rows is not None
    assert refused is not None
    assert sorted(rows.column("name").to_pylist()) == ["a", "c", "x"]  # a condition that is null passes
    why = Counter((e[0]["rule"], e[0]["column"]) for e in refused.column("_errors").to_pylist())
    assert why == {("named", "name"): 2, ("small", "id"): 1}
    assert set(ways(sandbox)) == {"arrow"}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_csv(sandbox: Sandbox, engine: str) -> None:
    csv = {"schema": "id BIGINT NOT NULL, name STRING, at TIMESTAMP", "header": True}
    sandbox.configure(engine=engine, decode={"csv": csv}, quality={"max_quarantined": 1})
    lines = [
        b'%d,"a ""b"", %d",2026-01-31T12:00:00Z' % (n, n) if n % 3 else b"%d,,2026-01-31 12:00\n" % n for n in range(60)
    ]
    lines += [b"id,name,at", b'"1', b"1,2", None]
    sandbox.produce([(n % 2, b"k", line) for n, line in enumerate(lines)])
    sandbox.run("csv")
    sandbox.assert_exact()
    assert sandbox.account("csv")["quarantined"] == 4
    rows = sandbox.rows()
    assert rows is not None
    assert ways(sandbox).keys() == ({"spark"} if engine == "spark" else {"arrow", "spark"})
    found = sorted(zip(*(rows.column(name).to_pylist() for name in ("id", "name")), strict=True))
    assert found == [(n, f'a "b", {n}' if n % 3 else None) for n in range(60)]
    assert {t.isoformat() for t in rows.column("at").to_pylist()} == {"2026-01-31T12:00:00+00:00"}


@pytest.mark.usefixtures("place")
def test_text_and_bytes(sandbox: Sandbox) -> None:
    values = [b"x", b"\xff", "é\n😀".encode(), None, b"", b'{"a":1}']
    sandbox.configure(decode={"text": {}}, quality={"max_quarantined": 1}, kafka={"max_records_per_batch": 100})
    sandbox.produce([(n % 2, b"k", value) for n, value in enumerate(values)])
    sandbox.run("text")
    sandbox.assert_exact()
    rows = sandbox.rows()
    assert rows is not None
    assert sorted(rows.column("value").to_pylist()) == ["", "x", '{"a":1}', "é\n😀"]
    assert "arrow" in ways(sandbox)
    sandbox.name += "b"
    sandbox.configure(decode={"bytes": {}}, sink={"delta": {"path": "raw"}}, kafka={"max_records_per_batch": 100})
    said = sandbox.run("bytes").stderr
    assert "Spark path" not in said
    raw = sandbox.rows("raw")
    assert raw is not None
    assert Counter(raw.column("value").to_pylist()) == Counter(values)
    assert set(raw.column("key").to_pylist()) == {b"k"}


def test_a_condition_filters_and_an_expression_adds_a_column(sandbox: Sandbox) -> None:
    sandbox.configure(
        transform={"sql": "SELECT *, id > 4 AS Late FROM source WHERE id <> 2"}, rows="filter",
        kafka={"max_records_per_batch": 100},
    )  # fmt: skip
    sandbox.feed(10)
    sandbox.run("r")
    assert set(ways(sandbox)) == {"arrow"}
    rows = sandbox.rows()
    assert rows is not None
    late = dict(zip(rows.column("id").to_pylist(), rows.column("Late").to_pylist(), strict=True))
    assert late == {n: n > 4 for n in range(10) if n != 2}
    assert sandbox.account("r") == dict(planned=10, written=9, filtered=1, quarantined=0, absent=0, lost=0)


def test_an_expression_under_the_name_of_the_column_that_it_replaces_is_computed(sandbox: Sandbox) -> None:
    """The result's names, all of the source's in their order, do not say that nothing is to be done."""
    columns = "_topic, _partition, _offset, _timestamp"
    sandbox.configure(
        decode={"json": {"schema": "id BIGINT, name STRING, other STRING"}},
        transform={"sql": f"SELECT id * 1000 AS id, other AS name, name AS other, {columns} FROM source"},
    )
    sandbox.feed(5)
    sandbox.run("r")
    assert set(ways(sandbox)) == {"arrow"}
    rows = sandbox.rows()
    assert rows is not None
    assert sorted(zip(*(rows.column(c).to_pylist() for c in ("id", "other")), strict=True)) == [
        (n * 1000, f"name {n}") for n in range(5)
    ]
    assert set(rows.column("name").to_pylist()) == {None}


@pytest.mark.usefixtures("place")
def test_what_overflows_ends_the_run_or_is_lost_alone_as_on_the_spark_path(sandbox: Sandbox) -> None:
    keys: dict[str, Any] = {
        "transform": {"sql": "SELECT *, id * 2 AS twice FROM source"},
        "kafka": {"max_records_per_batch": 100},
    }
    sandbox.configure(**keys)
    sandbox.feed(10)
    sandbox.produce([(0, None, b'{"id": 9223372036854775807, "name": "x"}')])
    refused = sandbox.run("r", expect=1)
    assert "ARITHMETIC_OVERFLOW" in refused.message
    assert sandbox.table() is None
    sandbox.configure(recovery="ignore_range", **keys)
    sandbox.run("again")
    assert sandbox.sink() == Counter(sandbox.produced[:-1])
    assert sandbox.account("again") == dict(planned=11, written=10, filtered=0, quarantined=0, absent=0, lost=1)


def test_a_range_that_cannot_be_read_takes_the_spark_path_in_the_same_batch(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = KafkaRanges.read

    def broken(self: KafkaRanges, span: OffsetRange) -> Iterator[KafkaChunk]:
        for chunk in read(self, span):
            yield chunk
            if span.partition == 1:
                raise UnreadableError("the wire broke")

    monkeypatch.setattr(KafkaRanges, "read", broken)
    sandbox.configure(kafka={"max_records_per_batch": 100}, quality={"max_quarantined": 1})
    sandbox.produce([(0 if n % 3 else 1, None, mixed(n) or b"x") for n in range(90)])
    sandbox.run("r")
    sandbox.assert_exact()
    assert set(ways(sandbox)) == {"arrow", "spark"}
    table = sandbox.table()
    assert table is not None
    assert sum(note_of(commit) is not None for commit in table.history()) == 1  # one commit holds both


@pytest.mark.usefixtures("place")
def test_after_a_failure_the_run_goes_on_without_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(shares, "work", full)
    sandbox.feed(20)
    said = sandbox.run("r").stderr
    assert said.count("the Arrow path failed, and the run goes on without it") == 1
    assert set(ways(sandbox)) == {"spark"}
    sandbox.assert_exact()


def test_what_the_query_passes_is_compiled_only_when_it_is_executed(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, str | None]] = []
    prepare = BatchWriter.prepare

    def looked_at(writer: BatchWriter, records: DataFrame | None, *rest: Any, **more: Any) -> Any:
        code = None if records is None else records.sparkSession.conf.get("spark.sql.codegen.wholeStage")
        assert writer.arrow is not None
        seen.append((writer.arrow.works, code))
        if len(seen) == 2:
            monkeypatch.setattr(path, "_outcome", lambda *_: [][1])
        return prepare(writer, records, *rest, **more)

    monkeypatch.setattr(BatchWriter, "prepare", looked_at)
    sandbox.configure(kafka={"max_records_per_batch": 10})
    sandbox.feed(40)
    said = sandbox.run("r").stderr
    assert said.count("the Arrow path failed, and the run goes on without it") == 1
    first = [item for item in seen if item[0]]
    assert first == [(True, None)] * len(first)  # what the path declines is read again
    assert seen[len(first) :] == [(False, "true")] * (len(seen) - len(first)) != []
    sandbox.assert_exact()


@pytest.mark.parametrize("recovery", ["replay", "hot", "ignore_range"])
def test_a_run_that_plans_a_batch_without_offsets_ends_well(sandbox: Sandbox, recovery: str) -> None:
    sandbox.configure(recovery=recovery)
    assert "batch 0: 0 offsets in 0 partitions" in sandbox.run("r").stderr
    sandbox.feed(20)
    sandbox.run("s")
    sandbox.assert_exact()


def test_records_of_another_form_are_left_to_spark(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_TRIAL", 10)
    sandbox.configure(kafka={"max_records_per_batch": 40})
    sandbox.produce([(n % 2, None, b'{"id": %d, "name": %d}' % (n, n)) for n in range(80)])
    said = sandbox.run("r").stderr
    assert said.count("the Arrow path is not used from here on: 20 of 20 records are not of the form") == 1
    assert set(ways(sandbox)) == {"spark"}
    sandbox.assert_exact()
    assert not sandbox.never_committed()


def test_row_groups_and_chunks_of_any_size_hold_the_same_rows(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_ROWS", 7)
    monkeypatch.setattr(kafka_input, "_RECORDS", 5)
    sandbox.configure(kafka={"max_records_per_batch": 100})
    sandbox.feed(90, bad_every=9)
    sandbox.run("r")
    sandbox.assert_exact()
    assert "arrow" in ways(sandbox)


def test_record_times_are_noted_for_intervals(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 100})
    sandbox.produce([(0, None, good(n), 1_000_000 + n) for n in range(20)])
    sandbox.run("r")
    assert set(ways(sandbox)) == {"arrow"}
    table = sandbox.table()
    assert table is not None
    (note,) = [note for commit in table.history() if (note := note_of(commit)) is not None]
    assert note["accounts"][0]["times"] == [[0, 20, 1_000_000, 1_000_019]]
    sandbox.run("again", interval=("1970-01-01T00:16:40.005Z", "1970-01-01T00:16:40.010Z"))
    assert sandbox.sink() == Counter(sandbox.produced)


STRANGE: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]] = [
    (b"k", b"v", 1000, [("a", b"1"), ("a", None), ("", b"")]),
    (None, None, 2000, []),
    (b"", b"", 3000, [("b", b"\xff")]),
    (b"\xff\x00", b"\x00\n{", 1_774_747_800_123, []),
    (b"k", b'{"id": 1}', 1, [("c", b"x" * 3000)]),
]


@pytest.mark.usefixtures("place")
def test_what_is_landed_is_what_spark_reads_byte_for_byte(sandbox: Sandbox, spark: SparkSession) -> None:
    wal = {"segment_records": 2, "keep": "36500d"}  # some records are old
    sandbox.configure(recovery="wal", decode={"bytes": {}}, kafka={"max_records_per_batch": 100}, wal=wal)
    producer = Producer({"bootstrap.servers": sandbox.broker.bootstrap})
    for partition in (0, 1):
        for key, value, time, headers in STRANGE:
            producer.produce(
                sandbox.topic,
                value,
                key,
                partition=partition,
                timestamp=time,
                headers=headers,  # type: ignore[arg-type]
            )
    assert producer.flush(30) == 0
    said = sandbox.run("r").stderr
    assert "Spark" not in said
    log = log_of(sandbox)
    segments = log.segments()
    assert max(segment.records for segment in segments) == 2
    assert all(ARROW.search(segment.path) for segment in segments)
    assert log.check(segments, pages=True) == []
    damaged = Path(log.path, next(s.path for s in segments if b'{"id": 1}' in Path(log.path, s.path).read_bytes()))
    sound = damaged.read_bytes()
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    pages = sound[:footer].replace(b'{"id": 1}', b'{"id": 7}')  # only their checksum shows it
    damaged.write_bytes(pages + sound[footer:])
    assert len(log.check(segments, pages=True)) == 1
    damaged.write_bytes(sound)
    by_spark = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", sandbox.broker.bootstrap)
        .option("subscribe", sandbox.topic)
        .option("includeHeaders", "true")
        .load()
        .select(*RECORDS.names)
        .orderBy("partition", "offset")
    )
    landed = spark.read.schema(RECORD_SCHEMA).parquet(*(f"{log.path}/{segment.path}" for segment in segments))
    assert landed.orderBy("partition", "offset").collect() == by_spark.collect()
    assert pa.Table.from_batches(log.read_from({})).num_rows == 2 * len(STRANGE)
    assert set(ways(sandbox)) == {"arrow"}
    assert sandbox.sink() == sandbox.on_broker()


@pytest.mark.usefixtures("place")
def test_the_log_is_landed_and_applied_and_doubtful_records_are_decided_by_spark(sandbox: Sandbox) -> None:
    sandbox.configure(recovery="wal", kafka={"max_records_per_batch": 100}, quality={"max_quarantined": 1})
    sandbox.produce([(n % 2, b"k%d" % n, mixed(n), 1000 + n, [("h", b"1")] * (n % 3)) for n in range(300)])
    sandbox.topics.produce_transaction(sandbox.topic, [(0, None, good(n)) for n in (1, 2, 3)], commit=False)
    sandbox.run("r")
    sandbox.assert_exact()
    assert set(ways(sandbox)) == {"arrow", "spark"}
    assert all(ARROW.search(segment.path) for segment in log_of(sandbox).segments())
    refused = sandbox.rows("table_quarantine")
    assert refused is not None
    assert sorted(refused.column("key").to_pylist()) == sorted(b"k%d" % n for n in range(300) if not decodes(n))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("transform", [{"sql": "SELECT * FROM source"}, {"arrow": "arrowgate:held"}])
def test_records_are_read_once_for_the_log_and_for_the_sink_unless_a_function_may_take_its_time(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, transform: dict[str, str]
) -> None:
    opened: list[int] = []
    read = LogRecords.inputs

    def watched(self: LogRecords, ranges: Sequence[OffsetRange]) -> Any:
        opened.append(sum(map(len, ranges)))
        return read(self, ranges)

    monkeypatch.setattr(LogRecords, "inputs", watched)
    sandbox.configure(recovery="wal", kafka={"max_records_per_batch": 60}, transform=transform)
    sandbox.feed(150)
    sandbox.run("r")
    sandbox.assert_exact()
    assert set(ways(sandbox)) == {"arrow"}
    assert sum(opened) == (150 if "arrow" in transform else 0)
    assert not sandbox.never_committed()


@pytest.mark.parametrize("error", [MemoryError(), UnreadableError("an expression fails"), OSError("disk full")])
def test_what_fails_while_rows_are_written_does_not_keep_records_out_of_the_log(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(self: worker.Decoding, reader: RangeReader, span: OffsetRange) -> worker.Done:
        next(iter(reader.read(span)))
        raise error

    monkeypatch.setattr(worker.Decoding, "process", broken)
    sandbox.configure(recovery="wal", kafka={"max_records_per_batch": 60})
    sandbox.feed(150)
    sandbox.run("r")
    assert all(ARROW.search(segment.path) for segment in log_of(sandbox).segments())
    assert sum(segment.records for segment in log_of(sandbox).segments()) == 150
    assert set(ways(sandbox)) == {"spark"}
    sandbox.assert_exact()
    assert not sandbox.never_committed()
    assert not sandbox.never_committed(f"logs/{sandbox.name}")


def test_rows_that_were_written_for_a_batch_with_other_ranges_are_not_used(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = ArrowPath.end

    def other(self: ArrowPath, name: str, attempt: Any, done: list[worker.Done]) -> None:
        first, *rest = attempt.ranges
        end(self, name, replace(attempt, ranges=(replace(first, end=first.end - 1), *rest)), done)

    monkeypatch.setattr(ArrowPath, "end", other)
    sandbox.configure(recovery="wal", kafka={"max_records_per_batch": 60})
    sandbox.feed(150)
    sandbox.run("r")
    sandbox.assert_exact()
    assert set(ways(sandbox)) == {"arrow"}
    assert not sandbox.never_committed()


def test_rows_that_were_written_for_batches_that_are_not_applied_are_removed(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.configure(recovery="wal", kafka={"max_records_per_batch": 40})
    sandbox.feed(200)
    commit = BatchWriter.commit

    def broken(self: BatchWriter, batch: int, *rest: Any, **more: Any) -> None:
        if batch == 1:
            raise SinkError("the disk is full", state="s", next_step="n")
        commit(self, batch, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(BatchWriter, "commit", broken)
        assert sandbox.run("r", expect=30).code == 30
    assert sum(segment.records for segment in log_of(sandbox).segments()) == 200
    assert {folder[-15:-9] for folder in sandbox.never_committed()} == {"000001"}
    sandbox.run("r")
    sandbox.assert_exact()
    assert not sandbox.never_committed()


def test_a_range_that_cannot_be_copied_is_landed_by_spark(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    read = KafkaRanges.read

    def broken(self: KafkaRanges, span: OffsetRange) -> Iterator[KafkaChunk]:
        yield from read(self, span)
        if span.partition == 1:
            raise UnreadableError("the wire broke")

    monkeypatch.setattr(KafkaRanges, "read", broken)
    sandbox.configure(recovery="wal", kafka={"max_records_per_batch": 30})
    sandbox.feed(90)
    said = sandbox.run("r").stderr
    assert said.count("records are landed by Spark from here on: the wire broke") == 1
    assert not any(ARROW.search(segment.path) for segment in log_of(sandbox).segments())
    assert set(ways(sandbox)) == {"arrow"}  # the log is read again by workers
    sandbox.assert_exact()
    assert not sandbox.never_committed()
    assert not sandbox.never_committed(f"logs/{sandbox.name}")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_an_interval_has_its_rows_and_no_others(sandbox: Sandbox, recovery: str) -> None:
    keys: dict[str, Any] = {"kafka": {"max_records_per_batch": 100}, "quality": {"max_quarantined": 1}}
    sandbox.configure(recovery=recovery, **keys)
    late = {60: 101, 70: 51}  # at the end and at the beginning, between others
    times = [1_000_000 + late.get(n, n if n % 5 else 7 * n) for n in range(200)]
    sandbox.produce([(n % 2, b"k", mixed(n), times[n]) for n in range(200)])
    sandbox.run("live")
    before = sandbox.sink()
    expect = {n for n, time in enumerate(times) if 1_000_051 <= time < 1_000_101 and decodes(n)}
    written = set(_files(sandbox))
    sandbox.run("again", interval=("1970-01-01T00:16:40.051Z", "1970-01-01T00:16:40.101Z"))
    assert sandbox.sink() == before
    rows = sandbox.rows()
    assert rows is not None
    of_run = rows.filter(pc.equal(rows.column("_run"), "again"))
    assert set(of_run.column("_timestamp").cast(pa.int64()).to_pylist()) == {times[n] * 1000 for n in expect}
    account = sandbox.account("again")
    assert account["written"] == len(expect) == of_run.num_rows
    assert account["planned"] == sum(account[k] for k in ("written", "filtered", "quarantined", "absent", "lost"))
    new = set(_files(sandbox)) - written
    assert any(ARROW.search(file) for file in new)


NESTED = (
    "id BIGINT, `a.b` STRUCT<`x.y`: STRING, z: ARRAY<STRUCT<q: INT, `r s`: STRING>>>, l ARRAY<ARRAY<BIGINT>>, "
    "m MAP<STRING, DOUBLE>, d DECIMAL(10,2), nothing STRING, `é` TIMESTAMP, b BOOLEAN"
)


def test_nested_columns_of_any_name_are_those_of_the_spark_path(
    sandbox: Sandbox, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "_HERE", 0)
    chance = random.Random(1)
    lists = [None, [], [None], [{"q": 1, "r s": "s"}, {}]]

    def nested() -> dict[str, Any]:
        return {"x.y": chance.choice([None, "", "ü", "x" * 500]), "z": chance.choice(lists)}

    def record(n: int) -> bytes:
        made = {
            "id": n,
            "a.b": chance.choice([None, {}, nested()]),
            "l": chance.choice([None, [], [[1, 2], None, []]]),
            "m": chance.choice([None, {}, {"k": 1.5, "": None}]),
            "d": chance.choice([None, 1.25, -3]),
            "é": chance.choice([None, "2024-02-29T01:02:03.123456Z"]),
            "b": chance.choice([None, True, False]),
        }
        return json.dumps({k: v for k, v in made.items() if v is not None or chance.random() < 0.5}).encode()

    sandbox.produce([(n % 2, None, record(n)) for n in range(400)])
    found = []
    for engine in ("auto", "spark"):
        sandbox.name += engine[0]
        sandbox.configure(
            engine=engine, decode={"json": {"schema": NESTED}}, kafka={"max_records_per_batch": 5000},
            sink={"delta": {"path": engine}},
        )  # fmt: skip
        sandbox.run("r")
        rows = spark.read.format("delta").load(str(sandbox.home / engine)).drop("_run").orderBy("id").collect()
        found.append(rows)
    assert len(found[0]) == 400
    assert found[0] == found[1]


@pytest.mark.parametrize("engines", [("auto", "spark", "auto"), ("spark", "auto", "spark")])
def test_a_log_that_both_paths_wrote_is_read_by_either(sandbox: Sandbox, engines: tuple[str, str, str]) -> None:
    def configure(engine: str) -> None:
        sandbox.configure(
            engine=engine, recovery="wal", wal={"keep": "36500d"}, kafka={"max_records_per_batch": 20},
            quality={"max_quarantined": 1},
        )  # fmt: skip

    for number, engine in enumerate(engines):
        configure(engine)
        numbers = range(40 * number, 40 * number + 40)
        sandbox.produce([(n % 2, None, mixed(n) or b"x", 946_684_800_000 + n) for n in numbers])
        sandbox.run(f"r{number}")
    sandbox.assert_exact()
    before = sandbox.sink()
    configure(engines[1])
    sandbox.run("again", interval=("2000-01-01T00:00:00Z", "2001-01-01T00:00:00Z"))
    assert sandbox.sink() == before
    assert sandbox.sink() + sandbox.quarantine() == Counter(sandbox.produced)


PLACES = ["a", "b c", "", None, "é/ü", "50%=x?", "a", ".", "😀:'", "_"]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_partitioned_table(sandbox: Sandbox, spark: SparkSession, engine: str) -> None:
    schema = "id INT, name STRING, day DATE, ok BOOLEAN"
    sandbox.configure(
        engine=engine, decode={"json": {"schema": schema}}, kafka={"max_records_per_batch": 100},
        sink={"delta": {"path": "table", "partition_by": ["name", "day", "ok", "_partition"]}},
    )  # fmt: skip
    days = ["2026-01-31", None, "2026-02-01"]
    made = [
        {"id": n, "name": PLACES[n % 10], "day": days[n % 3], "ok": [True, False, None][n % 7 % 3]} for n in range(60)
    ]
    sandbox.produce([(n % 2, None, json.dumps(row).encode()) for n, row in enumerate(made)])
    sandbox.run("r")
    assert set(ways(sandbox)) == {"spark" if engine == "spark" else "arrow"}
    sandbox.assert_exact()
    table = sandbox.table()
    assert table is not None
    found = [
        {**row, "day": row["day"] and row["day"].isoformat()}
        for row in table.to_pyarrow_table(columns=["id", "name", "day", "ok"]).to_pylist()
    ]
    batches = sandbox.home / "table" / "batches"
    depths = {len(file.relative_to(batches).parts) for file in batches.rglob("*.parquet")}
    assert depths == {6}  # a folder for each column, whatever its value is
    wanted = [{**row, "name": row["name"] or None} for row in made]  # Spark takes no empty text there
    assert sorted(found, key=lambda row: row["id"]) == wanted
    rows = spark.read.format("delta").load(table.table_uri).orderBy("id").select("id", "name", "day", "ok")
    assert [(r.id, r.name, r.day and r.day.isoformat(), r.ok) for r in rows.collect()] == [
        tuple(row.values()) for row in wanted
    ]


@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_a_time_that_no_timestamp_holds_does_not_wrap_around(
    sandbox: Sandbox, spark: SparkSession, topic: Callable[..., str], recovery: str
) -> None:
    found = []
    for engine in ("auto", "spark"):
        sandbox.name += engine[0]
        sandbox.topic = topic(2, retention_ms=-1, message_timestamp_after_max_ms=2**63 - 1)
        sandbox.configure(
            engine=engine, recovery=recovery, wal={"keep": "36500d"}, sink={"delta": {"path": engine}}
        )  # fmt: skip
        sandbox.produce([(0, None, good(1), 2**63 // 1000 + 1_000_000)])
        outcome = sandbox.run("r", expect=None)
        rows = spark.read.format("delta").load(str(sandbox.home / engine)) if outcome.code == 0 else None
        found.append((outcome.code, rows and rows.selectExpr("unix_micros(_timestamp)").collect()))
    assert found[0] == found[1]


def test_files_that_others_read(sandbox: Sandbox) -> None:
    sandbox.feed(10)
    sandbox.run("r")
    table = sandbox.table()
    assert table is not None
    actions = table.get_add_actions(flatten=True)
    found = {name: actions.column(name).to_pylist() for name in ("num_records", "min._offset", "max._offset")}
    assert sum(found["num_records"]) == 10
    assert min(found["min._offset"]) == 0
    assert sandbox.spark is not None  # type: ignore[attr-defined]
    rows = sandbox.spark.read.format("delta").load(table.table_uri)  # type: ignore[attr-defined]
    assert rows.count() == 10


SUITES = {
    "of_arrow.json": expect("values_to_be_between", column="id", min_value=0),
    "of_spark.json": expect("values_to_be_in_set", column="id", value_set=[0, 2.5]),
}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, None),
        ({"quality": {"suite": "of_arrow.json", "split": "critical"}}, None),
        (
            {"quality": {"suite": "of_spark.json", "split": "critical"}},
            "quality.suite: expect_column_values_to_be_in_set: 2.5 is compared with column id, which is int32",
        ),
        ({"quality": {"suite": "of_spark.json"}}, None),
        ({"engine": "spark"}, "the pipeline file says engine: spark"),
        ({"recovery": "hot"}, None),
        ({"recovery": "wal"}, None),
        ({"decode": {"csv": {"schema": "id INT"}}}, None),
        ({"decode": {"csv": {"schema": "id INT, day TIMESTAMP_NTZ"}}}, "column day is TIMESTAMP_NTZ"),
        ({"decode": {"csv": {"schema": "id INT, b BINARY"}}}, "column b is BINARY"),
        ({"decode": {"json": {"schema": "id FLOAT"}}}, "column id is FLOAT"),
        ({"decode": {"json": {"schema": "id STRUCT<d: DECIMAL(5,2)>"}}}, "column id is DECIMAL"),
        ({"decode": {"json": {"schema": "id DECIMAL(28,11)"}}}, "column id is DECIMAL"),
        ({"decode": {"json": {"schema": "id MAP<STRING, DATE>"}}}, "column id is MAP"),
        ({"decode": {"json": {"schema": "id STRING COLLATE UTF8_LCASE"}}}, "column id is STRING COLLATE"),
        ({"sink": {"delta": {"path": "t", "partition_by": ["id", "_topic"]}}}, None),
        ({"sink": {"delta": {"path": "t", "partition_by": ["_timestamp"]}}}, "partition_by: _timestamp is timestamp"),
        ({"rows": "aggregate", "transform": {"sql": "SELECT count(*) AS n FROM source"}}, "it has rows: aggregate"),
        ({"transform": {"sql": "SELECT *, id / 2 AS x FROM source"}}, "transform.sql: it has id / 2"),
        ({"transform": {"sql": "SELECT *, id + 1 AS x, to_date(_timestamp) AS day FROM source"}}, None),
        ({"rules": [{"name": "r", "sql": {"passes": "id / 2 > 2"}}]}, "rule r: it has id / 2"),
        ({"rules": [{"name": "r", "sql": {"passes": "id + 1 > 2"}}]}, None),
        ({"sink": {"delta": {"path": "t", "mode": "upsert", "key": ["id"]}}}, "sink.delta merges rows by a key"),
        ({"sink": {"postgres": {"table": "t", "mode": "upsert", "key": ["id"]}}}, None),
        (
            {
                "sink": {"postgres": {"table": "t", "mode": "upsert", "key": ["id"]}},
                "decode": {"json": {"schema": "name STRING", "key": "id", "tombstone": "delete"}},
            },
            "tombstones delete rows",
        ),
        (
            {"decode": {"by_topic": {"formats": {"t": {"json": {"schema": "id INT"}}}}}},
            "decode.by_topic chooses a format for each record, which Spark alone does",
        ),
        ({"spark": {"conf": {"spark.sql.caseSensitive": True}}}, "Spark has the setting spark.sql.caseSensitive"),
        ({"spark": {"conf": {"spark.sql.parquet.compression.codec": "lz4"}}}, "Spark compresses Parquet with lz4"),
        ({"spark": {"conf": {"spark.sql.parquet.compression.codec": "zstd"}}}, None),
    ],
)
def test_which_pipelines_take_it(spark: SparkSession, tmp_path: Path, keys: dict[str, Any], why: str | None) -> None:
    spec: dict[str, Any] = {
        "pipeline": "p",
        "source": {"kafka": {"topics": ["t"]}},
        "decode": {"json": {"schema": "id INT"}},
        "sink": {"delta": {"path": "t"}},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(spec | keys))
    for name, item in SUITES.items():
        (tmp_path / name).write_text(json.dumps({"name": "s", "expectations": [item]}))
    pipeline = load(tmp_path / "p.yaml")
    schema = shape_of(spark, pipeline, transformer(pipeline)).schema
    split = Split.of(spark, pipeline, schema)
    rules = () if split is None else split.rules
    if why is None:
        assert (plan_of(spark, pipeline, pipeline.recovery, schema, rules).split is None) == (not rules)
        return
    with pytest.raises(NotArrowError, match=re.escape(why)):
        plan_of(spark, pipeline, pipeline.recovery, schema, rules)


@pytest.mark.parametrize(
    ("lengths", "count", "expected"),
    [
        ([10], 1, [[10]]),
        ([10], 3, [[4], [4], [2]]),
        ([1, 1, 1], 2, [[1, 1], [1]]),
        ([100, 1, 1], 4, [[26], [26], [26], [22, 1, 1]]),
        ([0, 5], 2, [[3], [2]]),
        ([1], 8, [[1]]),
    ],
)
def test_ranges_are_divided_evenly(lengths: list[int], count: int, expected: list[list[int]]) -> None:
    ranges = [OffsetRange("t", number, 5, 5 + length) for number, length in enumerate(lengths)]
    found = divided(ranges, -(-sum(lengths) // count))
    assert [[len(part) for part in share] for share in found] == expected
    joined: dict[int, int] = {}
    for part in (part for share in found for part in share):
        assert joined.get(part.partition, 5) == part.start
        joined[part.partition] = part.end
    assert joined == {r.partition: r.end for r in ranges if len(r)}


def test_a_silent_broker_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_input, "_IDLE", 0.2)
    nobody = {"bootstrap.servers": "127.0.0.1:9"}
    task = worker.Copying(".")
    ranges = [OffsetRange("t", n, 0, 5) for n in range(64)]
    done = worker.work([task], KafkaInput(nobody, False), [(0, span) for span in ranges])
    assert [item.range for _, item in done] == ranges
    assert {item.declined for _, item in done} == {"no record came for 0 s"}


@pytest.mark.parametrize("error", [MemoryError(), OSError("full\nmore")])
def test_what_a_failed_job_leaves_stops_nobody(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failed(tasks: Sequence[worker.Decoding], *_: Any) -> None:
        # a worker that is still there removes its file while the folder is removed, or comes after it
        shutil.rmtree(tasks[0].folder)
        raise error

    monkeypatch.setattr(shares, "work", failed)
    sandbox.configure(kafka={"max_records_per_batch": 100})
    sandbox.feed(20)
    said = sandbox.run("r").stderr
    assert f"goes on without it: {str(error).partition(chr(10))[0] or 'MemoryError'}" in said
    assert set(ways(sandbox)) == {"spark"}
    sandbox.assert_exact()


class Watched(ahead.Ahead[Any]):
    """Reads ahead as ever, and notes which batches were taken."""

    taken: ClassVar[list[tuple[str, bool]]] = []

    def take(self, name: str, ranges: Sequence[OffsetRange]) -> Any:
        found = super().take(name, ranges)
        self.taken.append((name[-6:], found is not None))
        return found


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return the batches of a run, each with whether it had been read ahead."""
    monkeypatch.setattr(path, "Ahead", Watched)
    monkeypatch.setattr(Watched, "taken", [])
    return Watched.taken


@pytest.mark.usefixtures("place")
def test_hot_takes_it_too_and_tells_that_there_is_one_executor(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 50}, recovery="hot", quality={"max_quarantined": 1})
    sandbox.produce([(n % 2, b"k", mixed(n)) for n in range(120)])
    sandbox.run("r")
    assert set(ways(sandbox)) == {"arrow", "spark"}
    sandbox.assert_exact()
    notes = sandbox.ledger.run(sandbox.name, "r").notes  # type: ignore[union-attr]
    assert notes == ["hot continued as replay: there is one executor, and a second copy needs two"]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_batches_are_read_before_spark_plans_them(
    sandbox: Sandbox, taken: list[tuple[str, bool]], isolation: str
) -> None:
    sandbox.configure(kafka={"isolation_level": isolation, "max_records_per_batch": 70}, quality={"max_quarantined": 1})
    sandbox.produce([(n % 7 % 2, b"k", mixed(n)) for n in range(300)])
    for commit in (True, False):
        sandbox.topics.produce_transaction(sandbox.topic, [(n % 2, None, good(n)) for n in range(90)], commit=commit)
    sandbox.run("r")
    assert len(taken) > 5
    assert [name for name, early in taken if not early] == ["000000"]
    sandbox.assert_exact(isolation)
    assert not sandbox.never_committed()


def test_a_batch_is_as_large_as_what_fits_into_half_a_minute(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"max_records_per_batch": None})
    sandbox.feed(60)
    assert "batch 0: 60 offsets" in sandbox.run("r").stderr
    sandbox.execute("UPDATE sluice_event SET at = '2020-01-01T00:00:00.000+00:00' WHERE type = 'BatchStarted'")
    sandbox.feed(1500)
    said = sandbox.run("s").stderr
    assert "batch 1: 1,000 offsets" in said
    assert "batch 2: 500 offsets" in said
    sandbox.configure(kafka={"max_records_per_batch": 1200})
    sandbox.feed(1200)
    assert "batch 3: 1,200 offsets" in sandbox.run("t").stderr


@pytest.mark.parametrize("lie", ["short", "long"])
def test_what_was_foreseen_wrongly_is_read_again(
    sandbox: Sandbox, taken: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 40})
    sandbox.feed(200)
    true = KafkaReader.batch_end

    def wrong(self: KafkaReader, start: Positions, ends: Positions, limit: int) -> Positions:
        begun = any(start.get(sandbox.topic, {}).values())
        found = true(self, start, ends, (limit - 2 if lie == "short" else limit + 2) if begun else limit)
        return found

    monkeypatch.setattr(KafkaReader, "batch_end", wrong)
    sandbox.run("r")
    assert len(taken) > 3
    assert not any(early for _, early in taken)
    sandbox.assert_exact()
    assert not sandbox.never_committed()


def test_what_a_failed_run_read_ahead_is_removed(
    sandbox: Sandbox, taken: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 40})
    sandbox.feed(200)
    commit = BatchWriter.commit

    def broken(self: BatchWriter, batch: int, *rest: Any, **more: Any) -> None:
        if batch == 2:
            raise SinkError("the disk is full", state="s", next_step="n")
        commit(self, batch, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(BatchWriter, "commit", broken)
        assert sandbox.run("r", expect=30).code == 30
    assert taken == [("000000", False), ("000001", True), ("000002", True)]
    left = {folder[-15:-9] for folder in sandbox.never_committed()}
    assert left == {"000002"}  # what is prepared stays for the next run to remove, what was read ahead does not
    sandbox.run("r")
    sandbox.assert_exact()
    assert not sandbox.never_committed()


def test_a_range_that_follows_on_the_last_one_goes_on_with_what_was_fetched(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.produce([(0, b"k%d" % n, good(n)) for n in range(20)])
    for commit in (True, False, False, True):
        sandbox.topics.produce_transaction(sandbox.topic, [(0, b"t", good(n)) for n in range(5)], commit=commit)
    end = sandbox.topics.ends(sandbox.topic)[0]
    opened: list[Any] = []
    consumer = kafka_input.Consumer
    monkeypatch.setattr(kafka_input, "Consumer", lambda *a, **k: opened.append(1) or consumer(*a, **k))
    settings = {"bootstrap.servers": sandbox.topics.bootstrap}

    def offsets(reader: KafkaRanges, start: int, stop: int) -> list[int]:
        chunks = list(reader.read(OffsetRange(sandbox.topic, 0, start, stop)))
        return [int(n) for chunk in chunks for n in chunk.offsets]

    with KafkaInput(settings, True).opened() as reader:
        expected = offsets(reader, 0, end)
    assert 20 < len(expected) < end
    for step in (1, 3, 7, 26):
        opened.clear()
        with KafkaInput(settings, True).opened() as reader:
            cuts = [*range(0, end, step), end]
            found = [n for a, b in pairwise(cuts) for n in offsets(reader, a, b)]
            assert found == expected
            assert len(opened) == 1
            assert offsets(reader, 2, end) == [n for n in expected if n >= 2]
            assert len(opened) == 2


def test_an_error_that_is_no_end_of_the_partition_is_not_carried_to_the_next_range(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.produce([(0, b"k%d" % n, good(n)) for n in range(20)])

    class Event:
        """As librdkafka reports what it goes on after by itself: it has no offset."""

        def error(self) -> KafkaError:
            return KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)

        def offset(self) -> None:
            return None

    class Consumer(kafka_input.Consumer):  # type: ignore[misc]
        def consume(self, *arguments: Any) -> list[Any]:
            return [*super().consume(*arguments), Event()]

    monkeypatch.setattr(kafka_input, "Consumer", Consumer)
    with KafkaInput({"bootstrap.servers": sandbox.topics.bootstrap}, False).opened() as reader:
        for start in range(0, 20, 5):
            (chunk,) = reader.read(OffsetRange(sandbox.topic, 0, start, start + 5))
            assert list(chunk.offsets) == list(range(start, start + 5))


@pytest.mark.parametrize("key", plan._DIALECT)
def test_settings_that_change_how_spark_reads_sql_exclude_it(sandbox: Sandbox, spark: SparkSession, key: str) -> None:
    sandbox.configure(transform={"sql": 'SELECT * FROM source WHERE name <> "name"'}, rows="filter")
    sandbox.feed(4)
    spark.conf.set(key, "true")
    try:
        said = sandbox.run("r").stderr
    finally:
        spark.conf.unset(key)
    assert f"records take the Spark path: Spark has the setting {key}" in said


def test_the_log_says_why_workers_failed(spark: SparkSession) -> None:
    def full(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise OSError("no space left on device")

    def killed(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from ()

    for process, expected in ((full, "OSError: no space left on device"), (killed, "exited unexpectedly")):
        with pytest.raises(Exception, match=expected) as failure:
            spark.range(1).mapInArrow(process, "done STRING").collect()
        assert expected in shares.cause_of(failure.value)
