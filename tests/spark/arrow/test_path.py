"""Whole runs on the Arrow path: the rows and the account of the Spark path, whatever comes and whatever fails."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from tests.fixtures.expectations import expect
from tests.fixtures.pipelines import KAFKA
from tests.fixtures.runs import Sandbox, good

from sluice.delta.notes import note_of
from sluice.errors import SinkError
from sluice.pipeline import load
from sluice.ranges import OffsetRange, divided
from sluice.wal import WriteAheadLog
from sluice_spark.arrow import files, path, plan, read_ahead, shares, worker
from sluice_spark.arrow.path import ArrowPath
from sluice_spark.arrow.plan import NotArrowError, plan_of
from sluice_spark.batch.split import Split
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.sources import kafka_input
from sluice_spark.sources.base import RECORD_SCHEMA
from sluice_spark.sources.inputs import RECORDS, RangeReader, UnreadableError
from sluice_spark.sources.kafka_input import KafkaChunk, KafkaRanges
from sluice_spark.sources.log import LogRecords
from sluice_spark.transforms.sample import shape_of
from sluice_spark.transforms.transform import transformer

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ARROW = re.compile(r"part-[0-9a-f]{32}\.snappy\.parquet")
LARGE: dict[str, Any] = {"kafka": {"max_records_per_batch": 500}, "quality": {"max_quarantined": 1}}

Place = tuple[str, int, int]


def ways(sandbox: Sandbox, path: str = "table") -> set[str]:
    """Return which paths wrote the files of a table."""
    table = sandbox.table(path)
    return {"arrow" if ARROW.search(file) else "spark" for file in (table.file_uris() if table else [])}


def log_of(sandbox: Sandbox) -> WriteAheadLog:
    """Return the write-ahead log."""
    return WriteAheadLog(str(sandbox.home / "logs" / sandbox.name), sandbox.name)


def mixed(n: int) -> bytes | None:
    """Return a record: most are good, some only Spark decodes, and some are refused."""
    if n % 10 == 3:
        return json.dumps({"id": n, "name": n}).encode()  # a number as text
    if n % 10 == 6:
        return b'{"id": "x", "name": "y"}'
    return None if n % 50 == 8 else good(n)


def unreadable(monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    """Let no range of partition 1 be read to its end: it breaks after the first chunk, or after the last."""
    read = KafkaRanges.read

    def broken(self: KafkaRanges, span: OffsetRange) -> Iterator[KafkaChunk]:
        for chunk in read(self, span):
            yield chunk
            if span.partition == 1 and after == "first":
                raise UnreadableError("the wire broke")
        if span.partition == 1:
            raise UnreadableError("the wire broke")

    monkeypatch.setattr(KafkaRanges, "read", broken)


# --- the same as the Spark path ------------------------------------------------------------------------------------

WRITTEN, FILTERED = "", "filtered"


@dataclass
class Case:
    """A pipeline, its records with what becomes of each (the rule and the column, if it is refused), and who works."""

    records: list[tuple[bytes | None, str]]
    keys: dict[str, Any] = field(default_factory=dict)
    workers: bool = True
    ways: set[str] = field(default_factory=lambda: {"arrow", "spark"})
    notes: list[str] = field(default_factory=list)


NO_FOLDERS = {60: "x" * 300, 70: "__HIVE_DEFAULT_PARTITION__", 80: "a\0b"}
PLACES = ["a", "b c", "", None, "é/ü", "50%=x?", "a", ".", "😀:'", "_"]
SUITE = [
    expect("values_to_be_between", column="number", min_value=5),
    expect("values_to_match_regex", column="name", regex="^name"),
    {**expect("values_to_be_in_set", column="name", value_set=["name 7"]), "severity": "warning"},
]
RULES = [
    {"name": "named", "not_null": {"columns": ["other"]}},
    {"name": "small", "sql": {"passes": "id < 90 OR other = 'name 95' -- or so", "column": "id"}},
]


def of_many_columns(n: int, chance: random.Random) -> tuple[bytes | None, str]:
    """Return a record with values of all kinds, some null and some left out, and what becomes of it."""
    if n % 20 == 17 or n == 8:
        return (b'{"id": "x"}', "type id") if n % 20 == 17 else (None, "null_value")
    lists = [None, [], [None], [{"q": 1, "r s": "s"}, {}]]
    inner = {"x.y": chance.choice([None, "", "ü", "x" * 500]), "z": chance.choice(lists)}
    made = {
        "id": n, "name": NO_FOLDERS.get(n, PLACES[n % 10]), "other": {3: "odd\n", 11: None}.get(n % 20, f"name {n}"),
        "day": ["2026-01-31", None, "2026-02-01"][n % 3], "b": [True, False, None][n % 7 % 3],
        "a.b": chance.choice([None, {}, inner]), "l": chance.choice([None, [], [[1, 2], None, []]]),
        "m": chance.choice([None, {}, {"k": 1.5, "": None}]), "d": chance.choice([None, 1.25, -3]),
        "é": chance.choice([None, "2024-02-29T01:02:03.123456Z"]),
    }  # fmt: skip
    became = WRITTEN
    if made["other"] is None:
        became = "named other"
    elif n >= 90 and n != 95:
        became = "small id"
    elif n == 50:
        became = FILTERED
    elif n < 5:
        became = "expect_column_values_to_be_between number"
    elif n % 20 == 3:
        became = "expect_column_values_to_match_regex name"
    elif n in NO_FOLDERS or made["name"] == "":
        became = "partition_value other"
    more = {"more": n} if n % 3 and became in (WRITTEN, FILTERED) else {}
    kept = {name: value for name, value in made.items() if value is not None or chance.random() < 0.5}
    return json.dumps(kept | more).encode(), became


MANY: dict[str, Any] = {
    "decode": {"json": {"rescue": True, "schema": (
        "id BIGINT, `a.b` STRUCT<`x.y`: STRING, z: ARRAY<STRUCT<q: INT, `r s`: STRING>>>, l ARRAY<ARRAY<BIGINT>>, "
        "m MAP<STRING, DOUBLE>, d DECIMAL(10,2), nothing STRING, `é` TIMESTAMP, b BOOLEAN, name STRING, other STRING, "
        "day DATE"
    )}},
    "transform": {"sql": (
        "SELECT id * 1000 AS id, other AS name, name AS other, id > 4 AS Late, id AS number, `a.b`, l, m, d, nothing, "
        "`é`, b, day, _rescued, _topic, _partition, _offset, _timestamp FROM source WHERE id <> 50"
    )},
    "rules": RULES, "rows": "filter", "quality": {"suite": "suite.json", "split": "critical", "max_quarantined": 1},
    "sink": {"delta": {"path": "?", "partition_by": ["other", "day", "b", "_partition"]}}, "recovery": "hot",
}  # fmt: skip
LINES = [
    b'%d,"a ""b"", %d",2026-01-31T12:00:00Z' % (n, n) if n % 3 else b"%d,,2026-01-31 12:00\n" % n for n in range(60)
]
CSV = {"csv": {"schema": "id BIGINT NOT NULL, name STRING, at TIMESTAMP", "header": True}}
CHANCE = random.Random(1)
CASES = {
    "records that only Spark decodes, in small chunks in the driver": Case(
        [(mixed(n), "type id" if n % 10 == 6 else "null_value" if n % 50 == 8 else WRITTEN) for n in range(300)],
        workers=False,
    ),
    "many columns, rules and partitions": Case(
        [of_many_columns(n, CHANCE) for n in range(100)], MANY,
        notes=["hot continued as replay: there is one executor, and a second copy needs two"],
    ),
    "CSV by way of the log": Case(
        [*((line, WRITTEN) for line in LINES), (b"id,name,at", "header"), (b'"1', "csv"), (b"1,2", "fields"),
         (None, "null_value")],
        {"decode": CSV, "recovery": "wal", "wal": {"keep": "36500d"}},
    ),
}  # fmt: skip


def places(rows: Sequence[dict[str, Any]]) -> list[Place]:
    """Return where rows come from."""
    return [(row["_topic"], row["_partition"], row["_offset"]) for row in rows]


@pytest.mark.parametrize("name", CASES)
def test_arrow_path_writes_what_the_spark_path_writes(
    sandbox: Sandbox, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    if case.workers:
        monkeypatch.setattr(shares, "_HERE", 0)
    else:
        monkeypatch.setattr(files, "_ROWS", 7)
        monkeypatch.setattr(kafka_input, "_RECORDS", 5)
    (sandbox.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": SUITE}))
    values = [value for value, _ in case.records]
    sandbox.produce([(n % 2, b"k%d" % n, v, 1000 + n, [("h", b"1")] * (n % 3)) for n, v in enumerate(values)])
    given = dict(zip(sandbox.produced, case.records, strict=True))
    counts = Counter(became for _, became in case.records)
    found = []
    for engine in ("auto", "spark"):
        sandbox.name += engine[0]
        sink = {"delta": {**case.keys.get("sink", {}).get("delta", {}), "path": engine}}
        sandbox.configure(**{**LARGE, **case.keys, "engine": engine, "sink": sink})
        said = sandbox.run("r").stderr
        rows = spark.read.format("delta").load(str(sandbox.home / engine)).drop("_run")
        refused = sandbox.rows(f"{engine}_quarantine").drop(["_run"]).to_pylist()  # type: ignore[union-attr]
        found.append((rows.dtypes, Counter(map(str, rows.collect())), Counter(map(str, refused))))
        why = [" ".join(filter(None, (row["_errors"][0]["rule"], row["_errors"][0]["column"]))) for row in refused]
        wanted = Counter(place for place, (_, became) in given.items() if became not in (WRITTEN, FILTERED))
        assert Counter(places(refused)) == wanted
        assert [(row["value"], w) for row, w in zip(refused, why, strict=True)] == [given[p] for p in places(refused)]
        assert sandbox.offsets(engine) == Counter(place for place, (_, became) in given.items() if became == WRITTEN)
        assert sandbox.account("r") == dict(
            planned=len(values), written=counts[WRITTEN], filtered=counts[FILTERED], quarantined=len(refused), absent=0,
            lost=0,
        )  # fmt: skip
        assert ways(sandbox, engine) == (case.ways if engine == "auto" else {"spark"}), said
        assert sandbox.ledger.runs.find(sandbox.name, "r").notes == case.notes  # type: ignore[union-attr]
        more = sum(b'"more"' in (value or b"") for value in values)
        rescued = {"records": more, "fields": {"more": more}} if more else None
        assert sandbox.ledger.runs.account(sandbox.name, "r").get("rescued") == rescued
        assert not sandbox.never_committed(engine)
        actions = sandbox.table(engine).get_add_actions(flatten=True)  # type: ignore[union-attr]
        assert {p.count("/") for p in actions["path"].to_pylist()} == {2 + len(sink["delta"].get("partition_by", []))}
        assert sum(actions["num_records"].to_pylist()) == counts[WRITTEN]
        assert min(actions["min._offset"].to_pylist()) < 4
        if case.keys.get("recovery") == "wal":
            segments = log_of(sandbox).segments()
            assert {bool(ARROW.search(segment.path)) for segment in segments} == {engine == "auto"}
            assert sum(segment.records for segment in segments) == len(values)
    assert found[0] == found[1]


@pytest.mark.long
def test_arrow_path_leaves_records_of_another_form_to_spark(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_TRIAL", 10)
    sandbox.configure(kafka={"max_records_per_batch": 40})
    sandbox.produce([(n % 2, None, b'{"id": %d, "name": %d}' % (n, n)) for n in range(80)])
    assert sandbox.run("r").stderr.count("20 of 20 records") == 1
    assert ways(sandbox) == {"spark"}
    sandbox.assert_exact()
    assert not sandbox.never_committed()


@pytest.mark.long
def test_arrow_path_takes_a_batch_without_offsets(sandbox: Sandbox) -> None:
    sandbox.configure(recovery="ignore_range")
    assert "batch 0: 0 offsets in 0 partitions" in sandbox.run("r").stderr
    sandbox.feed(20)
    sandbox.run("s")
    sandbox.assert_exact()


# --- what fails ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_arrow_path_leaves_a_range_that_cannot_be_read_to_spark_in_the_same_batch(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, recovery: str
) -> None:
    unreadable(monkeypatch, "first" if recovery == "replay" else "last")
    most = 500 if recovery == "replay" else 30
    sandbox.configure(**LARGE | {"kafka": {"max_records_per_batch": most}, "recovery": recovery})
    sandbox.produce([(0 if n % 3 else 1, None, mixed(n) or b"x") for n in range(90)])
    said = sandbox.run("r").stderr
    sandbox.assert_exact()
    assert ways(sandbox) == {"arrow", "spark"}, "workers read the log again"
    assert not sandbox.never_committed()
    if recovery == "wal":
        assert said.count("the wire broke") == 1
        assert not any(ARROW.search(segment.path) for segment in log_of(sandbox).segments())
        assert not sandbox.never_committed(f"logs/{sandbox.name}")
    else:
        history = sandbox.table().history()  # type: ignore[union-attr]
        assert sum(note_of(commit) is not None for commit in history) == 1  # one commit holds both


@pytest.mark.long
def test_arrow_path_that_fails_is_left_for_all_of_the_run(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(tasks: Sequence[worker.Decoding], *_: Any) -> None:
        # a worker that is still there removes its file while the folder is removed, or comes after it
        shutil.rmtree(tasks[0].folder)
        raise MemoryError

    monkeypatch.setattr(shares, "work", failed)
    sandbox.feed(20)
    assert sandbox.run("r").stderr.count("goes on without it: MemoryError") == 1
    assert ways(sandbox) == {"spark"}
    sandbox.assert_exact()


class Chunks:
    """A reader of two chunks of three records, the last of a given time."""

    def __init__(self, time: int) -> None:
        self.offsets, self.times = range(3), np.array([1, 2, time])

    def records(self) -> pa.Table:
        rows = [{"topic": "t", "partition": 0, "offset": n, "timestamp": n, "timestampType": 0} for n in range(3)]
        return pa.Table.from_pylist(rows, RECORDS)

    def read(self, _: OffsetRange) -> Iterator[Any]:
        yield from (self, self)


@pytest.mark.long
@pytest.mark.parametrize("error", [MemoryError(), UnreadableError("an expression fails"), OSError("disk full")])
def test_arrow_worker_copies_records_whatever_fails_when_rows_are_written(tmp_path: Path, error: Exception) -> None:
    class Failing:
        def process(self, reader: RangeReader, span: OffsetRange) -> worker.Done:
            next(iter(reader.read(span)))
            raise error

    task = worker.Copying(str(tmp_path), Failing())  # type: ignore[arg-type]
    done = task.process(Chunks(3), OffsetRange("t", 0, 0, 6))  # type: ignore[arg-type]
    assert (done.read, done.declined, len(done.files)) == (6, None, 1)
    assert done.decoded.declined == (str(error) or "MemoryError")


@pytest.mark.parametrize("time", [-1, 2**63 // 1000 + 1])
def test_arrow_worker_copies_no_record_whose_time_would_wrap_around(tmp_path: Path, time: int) -> None:
    with pytest.raises(UnreadableError):
        worker.Copying(str(tmp_path)).process(Chunks(time), OffsetRange("t", 0, 0, 6))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_arrow_worker_names_the_cause_of_its_failure(spark: SparkSession) -> None:
    def full(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise OSError("no space left on device")

    def killed(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from ()

    for process, expected in ((full, "OSError: no space left on device"), (killed, "exited unexpectedly")):
        with pytest.raises(Exception, match=expected) as failure:
            spark.range(1).mapInArrow(process, "done STRING").collect()
        assert expected in shares.cause_of(failure.value)
    assert shares.cause_of(OSError("full\nmore")) == "full"


# --- by way of the write-ahead log ---------------------------------------------------------------------------------


STRANGE: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]] = [
    (b"k", b"v", 1000, [("a", b"1"), ("a", None), ("", b"")]),
    (None, None, 2000, []),
    (b"", b"", 3000, [("b", b"\xff")]),
    (b"\xff\x00", b"\x00\n{", 1_774_747_800_123, []),
    (b"k", b'{"id": 1}', 1, [("c", b"x" * 3000)]),
]


def test_arrow_path_lands_in_the_log_what_spark_reads_byte_for_byte(sandbox: Sandbox, spark: SparkSession) -> None:
    wal = {"segment_records": 2, "keep": "36500d"}  # some records are old
    sandbox.configure(recovery="wal", decode={"bytes": {}}, kafka={"max_records_per_batch": 100}, wal=wal)
    producer = Producer({"bootstrap.servers": sandbox.broker.bootstrap})
    for partition in (0, 1):
        for key, value, time, headers in STRANGE:
            place: dict[str, Any] = {"partition": partition, "timestamp": time, "headers": headers}
            producer.produce(sandbox.topic, value, key, **place)
    assert producer.flush(30) == 0
    sandbox.run("r")
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
    stream = spark.read.format("kafka").option("kafka.bootstrap.servers", sandbox.broker.bootstrap)
    by_spark = stream.option("subscribe", sandbox.topic).option("includeHeaders", "true").load().select(*RECORDS.names)
    landed = spark.read.schema(RECORD_SCHEMA).parquet(*(f"{log.path}/{segment.path}" for segment in segments))
    order = ("partition", "offset")
    assert landed.orderBy(*order).collect() == by_spark.orderBy(*order).collect()
    assert pa.Table.from_batches(log.read_from({})).num_rows == 2 * len(STRANGE)
    assert ways(sandbox) == {"arrow"}
    assert sandbox.sink() == sandbox.on_broker()


@pytest.mark.long
@pytest.mark.parametrize("transform", [{"sql": "SELECT * FROM source"}, {"arrow": "arrowgate:held"}])
def test_arrow_path_reads_once_for_log_and_sink_unless_a_function_may_take_its_time(
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
    assert ways(sandbox) == {"arrow"}
    assert sum(opened) == (150 if "arrow" in transform else 0)
    assert not sandbox.never_committed()


@pytest.mark.long
def test_arrow_path_uses_no_rows_written_for_other_ranges(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    end = ArrowPath.end

    def other(self: ArrowPath, name: str, attempt: Any, done: list[worker.Done]) -> None:
        first, *rest = attempt.ranges
        end(self, name, replace(attempt, ranges=(replace(first, end=first.end - 1), *rest)), done)

    monkeypatch.setattr(ArrowPath, "end", other)
    sandbox.configure(recovery="wal", kafka={"max_records_per_batch": 60})
    sandbox.feed(150)
    sandbox.run("r")
    sandbox.assert_exact()
    assert ways(sandbox) == {"arrow"}
    assert not sandbox.never_committed()


# --- ahead of Spark's plan -----------------------------------------------------------------------------------------


class Watched(read_ahead.ReadAhead[Any]):
    """Reads ahead as ever, and notes which batches were taken."""

    taken: ClassVar[list[tuple[str, bool]]] = []

    def take(self, name: str, ranges: Sequence[OffsetRange]) -> Any:
        found = super().take(name, ranges)
        self.taken.append((name[-6:], found is not None))
        return found


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return the batches of a run, each with whether it had been read ahead."""
    monkeypatch.setattr(path, "ReadAhead", Watched)
    monkeypatch.setattr(Watched, "taken", [])
    return Watched.taken


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_arrow_path_reads_batches_before_spark_plans_them(
    sandbox: Sandbox, taken: list[tuple[str, bool]], isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isolation == "read_committed":
        monkeypatch.setattr(shares, "_HERE", 0)
    sandbox.configure(kafka={"isolation_level": isolation, "max_records_per_batch": 70}, quality={"max_quarantined": 1})
    sandbox.produce([(n % 7 % 2, b"k", mixed(n)) for n in range(300)])
    for commit in (True, False):
        sandbox.topics.produce_transaction(sandbox.topic, [(n % 2, None, good(n)) for n in range(90)], commit=commit)
    sandbox.run("r")
    assert len(taken) > 5
    assert [name for name, early in taken if not early] == ["000000"]
    sandbox.assert_exact(isolation)
    assert not sandbox.never_committed()


@pytest.mark.long
def test_arrow_path_loses_nothing_of_a_batch_that_retention_passes_after_it_was_read(
    sandbox: Sandbox, taken: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The markers of transactions are gaps, and a gap is only one if the source still has the start."""
    sandbox.configure(kafka={"isolation_level": "read_committed", "max_records_per_batch": 40})
    for first in range(0, 70, 10):
        records = [(n % 2, None, good(n)) for n in range(first, first + 10)]
        sandbox.topics.produce_transaction(sandbox.topic, records, commit=True)
    take = Watched.take

    def retained(self: Watched, name: str, ranges: Sequence[OffsetRange]) -> Any:
        found = take(self, name, ranges)
        if name.endswith("000001"):
            sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
        return found

    monkeypatch.setattr(Watched, "take", retained)
    sandbox.run("r")
    assert taken[1] == ("000001", True)
    assert (sum(sandbox.sink().values()), sandbox.account("r")["absent"] > 0) == (70, True)


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_arrow_path_removes_rows_of_batches_that_a_failed_run_did_not_come_to(
    sandbox: Sandbox, taken: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch, recovery: str
) -> None:
    sandbox.configure(recovery=recovery, kafka={"max_records_per_batch": 40})
    sandbox.feed(200)
    commit = BatchWriter.commit

    def broken(self: BatchWriter, batch: int, *rest: Any, **more: Any) -> None:
        if batch == 2:
            raise SinkError("the disk is full", state="s", next_step="n")
        commit(self, batch, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(BatchWriter, "commit", broken)
        assert sandbox.run("r", expect=30).code == 30
    if recovery == "wal":
        assert sum(segment.records for segment in log_of(sandbox).segments()) == 200
    else:
        assert taken == [("000000", False), ("000001", True), ("000002", True)]
    left = {folder[-15:-9] for folder in sandbox.never_committed()}
    assert left == {"000002"}  # what is prepared stays for the next run to remove, what was read ahead does not
    sandbox.run("r")
    sandbox.assert_exact()
    assert not sandbox.never_committed()


# --- which pipelines take it, without a run ------------------------------------------------------------------------


SUITES = {
    "of_arrow.json": expect("values_to_be_between", column="id", min_value=0),
    "of_spark.json": expect("values_to_be_in_set", column="id", value_set=[0, 2.5]),
}

JSON_KEY = {"json": {"schema": "name STRING", "key": "id", "tombstone": "delete"}}
UPSERT: dict[str, Any] = {"table": "t", "mode": "upsert", "key": ["id"]}
PIPELINES: list[tuple[dict[str, Any], str | None]] = [
    ({}, None), ({"quality": {"suite": "of_arrow.json", "split": "critical"}}, None), ({"recovery": "hot"}, None),
    ({"quality": {"suite": "of_spark.json", "split": "critical"}}, "quality.suite: expect_column_values_to_be_in_set"),
    ({"quality": {"suite": "of_spark.json"}}, None), ({"engine": "spark"}, "engine: spark"),
    ({"recovery": "wal"}, None), ({"decode": {"csv": {"schema": "id INT"}}}, None),
    ({"decode": {"csv": {"schema": "id INT, day TIMESTAMP_NTZ"}}}, "column day is TIMESTAMP_NTZ"),
    ({"decode": {"csv": {"schema": "id INT, b BINARY"}}}, "column b is BINARY"),
    ({"decode": {"json": {"schema": "id FLOAT"}}}, "column id is FLOAT"),
    ({"decode": {"json": {"schema": "id STRUCT<d: DECIMAL(5,2)>"}}}, "column id is DECIMAL"),
    ({"decode": {"json": {"schema": "id DECIMAL(28,11)"}}}, "column id is DECIMAL"),
    ({"decode": {"json": {"schema": "id MAP<STRING, DATE>"}}}, "column id is MAP"),
    ({"decode": {"json": {"schema": "id STRING COLLATE UTF8_LCASE"}}}, "column id is STRING COLLATE"),
    ({"sink": {"delta": {"path": "t", "partition_by": ["id", "_topic"]}}}, None),
    ({"sink": {"delta": {"path": "t", "partition_by": ["_timestamp"]}}}, "partition_by: _timestamp is timestamp"),
    ({"rows": "aggregate", "transform": {"sql": "SELECT count(*) AS n FROM source"}}, "rows: aggregate"),
    ({"transform": {"sql": "SELECT *, id / 2 AS x FROM source"}}, "transform.sql: it has id / 2"),
    ({"transform": {"sql": "SELECT *, id + 1 AS x, to_date(_timestamp) AS day FROM source"}}, None),
    ({"rules": [{"name": "r", "sql": {"passes": "id / 2 > 2"}}]}, "rule r: it has id / 2"),
    ({"rules": [{"name": "r", "sql": {"passes": "id + 1 > 2"}}]}, None), ({"sink": {"postgres": UPSERT}}, None),
    ({"sink": {"delta": {"path": "t", "mode": "upsert", "key": ["id"]}}}, "sink.delta"),
    ({"sink": {"postgres": UPSERT}, "decode": JSON_KEY}, "tombstones"),
    ({"decode": {"by_topic": {"formats": {"t": {"json": {"schema": "id INT"}}}}}}, "decode.by_topic"),
    ({"spark": {"conf": {"spark.sql.caseSensitive": True}}}, "spark.sql.caseSensitive"),
    ({"spark": {"conf": {"spark.sql.parquet.compression.codec": "lz4"}}}, "lz4"),
    ({"spark": {"conf": {"spark.sql.parquet.compression.codec": "zstd"}}}, None),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "why"), PIPELINES)
def test_arrow_path_takes_pipelines_that_it_can(
    spark: SparkSession, tmp_path: Path, keys: dict[str, Any], why: str | None
) -> None:
    usual = {"decode": {"json": {"schema": "id INT"}}, "sink": {"delta": {"path": "t"}}}
    (tmp_path / "p.yaml").write_text(json.dumps(KAFKA | usual | keys))
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


@pytest.mark.parametrize("key", plan._DIALECT)
def test_arrow_path_is_not_taken_if_settings_change_sparks_sql(spark: SparkSession, tmp_path: Path, key: str) -> None:
    spark.conf.set(key, "true")
    try:
        test_arrow_path_takes_pipelines_that_it_can(spark, tmp_path, {}, key)
    finally:
        spark.conf.unset(key)


@pytest.mark.parametrize(
    ("lengths", "count", "expected"),
    [([10], 3, [[4], [4], [2]]), ([1, 1, 1], 2, [[1, 1], [1]]), ([100, 1, 1], 4, [[26], [26], [26], [22, 1, 1]]),
     ([0, 5], 2, [[3], [2]]), ([1], 8, [[1]])],
)  # fmt: skip
def test_arrow_path_divides_ranges_evenly(lengths: list[int], count: int, expected: list[list[int]]) -> None:
    ranges = [OffsetRange("t", number, 5, 5 + length) for number, length in enumerate(lengths)]
    found = divided(ranges, -(-sum(lengths) // count))
    assert [[len(part) for part in share] for share in found] == expected
    joined: dict[int, int] = {}
    for part in (part for share in found for part in share):
        assert joined.get(part.partition, 5) == part.start
        joined[part.partition] = part.end
    assert joined == {r.partition: r.end for r in ranges if len(r)}


def started() -> None:
    """Wait until no warming up is under way."""
    for thread in threading.enumerate():
        if thread.name == "sluice-warm-up":
            thread.join(60)


def test_arrow_warm_up_starts_workers_and_returns_at_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, done = threading.Event(), list[Any]()

    def counted(frame: DataFrame) -> list[Any]:
        may_end.wait(60)
        done.extend(frame.toArrow().to_pylist())
        return []

    monkeypatch.setattr(DataFrame, "collect", counted)
    shares.warm_up(spark)
    assert done == []
    may_end.set()
    started()
    assert done == [{"done": True}] * 2


def test_arrow_warm_up_leaves_a_failure_of_the_session_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "cores", lambda _: 2)
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    shares.warm_up(None)  # type: ignore[arg-type]
    started()
    assert failed == []
