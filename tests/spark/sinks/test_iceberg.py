"""An Iceberg table as a sink: which rows it holds, who may write to it, and what others do to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession
from sqlalchemy.exc import OperationalError
from tests.fixtures.lake import IcebergSandbox
from tests.fixtures.runs import good

from sluice.connections import Connection
from sluice.errors import ConfigError
from sluice.pipeline.sections import Sink
from sluice_spark.sinks.iceberg.catalog import _properties
from sluice_spark.sinks.iceberg.table import IcebergTable

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DDL = (
    "i INT, l BIGINT, t TINYINT, h SMALLINT, s STRING, b BOOLEAN, d DOUBLE, c DECIMAL(12,2), ts TIMESTAMP, dt DATE, "
    "a ARRAY<STRING>, o STRUCT<x: INT, y: STRING, at: TIMESTAMP>, m MAP<STRING, BIGINT>"
)
RECORDS = [
    {
        "i": -(2**31), "l": 2**63 - 1, "t": -128, "h": 32767, "s": "é😀 \\ ' \"", "b": True, "d": 1e300, "c": 12.34,
        "ts": "2026-01-31T12:00:00.123456Z", "dt": "2026-01-31", "a": ["x", None, ""],
        "o": {"x": 1, "y": "z", "at": "2026-01-31T12:00:00Z"}, "m": {"k": 1},
    },
    {"s": "", "a": [], "d": 0.1, "o": {}, "m": {}},
    {},
]  # fmt: skip


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_values_of_each_type_are_those_that_a_delta_table_gets(
    into_iceberg: IcebergSandbox, spark: SparkSession, engine: str
) -> None:
    sandbox = into_iceberg
    decode = {"json": {"schema": DDL}}
    sandbox.configure(engine=engine, decode=decode)
    sandbox.produce([(0, b"k", json.dumps(record).encode()) for record in RECORDS])
    said = sandbox.run("r").stderr
    assert ("Spark path" in said) == (engine == "spark"), said
    ours = sandbox.lines()
    sandbox.name += "d"
    sandbox.configure(engine=engine, decode=decode, sink={"delta": {"path": "beside"}})
    sandbox.run("r")
    table = sandbox.rows("beside")
    assert table is not None
    theirs = sorted(table.to_pylist(), key=lambda row: row["_offset"])
    assert [row | {"_run": ""} for row in ours] == [row | {"_run": ""} for row in theirs]


def test_the_rows_of_a_run_are_validated(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    between = {"column": "price", "min_value": 1}
    suite = {"name": "s", "expectations": [{"type": "expect_column_values_to_be_between", "kwargs": between}]}
    (sandbox.home / "suite.json").write_text(json.dumps(suite))
    sandbox.configure(decode={"json": {"schema": "price DECIMAL(10,2)"}}, quality={"suite": "suite.json"})
    for number, price in enumerate((2, 0)):
        sandbox.produce([(0, b"k", b'{"price": %d}' % price)])
        sandbox.run(f"r{number}", validate=True, expect=None)
    verdicts = [row.verdict for n in (0, 1) if (row := sandbox.ledger.run(sandbox.name, f"r{n}")) is not None]
    assert verdicts == ["passed", "failed"]


def test_another_pipeline_may_not_write_to_it(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    sandbox.feed(2)
    sandbox.run("r")
    first, sandbox.name = sandbox.name, "other"
    sandbox.file.with_name(f"{first}.yaml").unlink()
    sandbox.configure()
    assert f"belongs to pipeline '{first}'" in sandbox.run("r", expect=10).message


def test_a_table_that_is_there_is_claimed_and_its_retries_are_off(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    meta = [
        ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")), ("_run", pa.string()),
    ]  # fmt: skip
    sandbox.catalog.create_namespace("shop")
    columns = pa.schema([("more", pa.string()), ("name", pa.string()), ("id", pa.int64()), *meta])
    sandbox.catalog.create_table("shop.orders", columns)
    sandbox.feed(3)
    sandbox.run("r")
    sandbox.assert_exact()
    assert {row["more"] for row in sandbox.lines()} == {None}
    properties = sandbox.orders.properties
    assert (properties["commit.retry.num-retries"], properties["sluice.pipeline"]) == ("0", sandbox.name)


def test_a_table_that_does_not_fit_is_refused(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    sandbox.feed(1)
    sandbox.catalog.create_namespace("shop")
    sandbox.catalog.create_table("shop.orders", pa.schema([("id", pa.int32()), ("name", pa.string())]))
    said = sandbox.run("r", expect=10).message
    assert "id: int in the table, bigint in the pipeline" in said
    assert "_offset is missing in the table: add it as bigint" in said
    sandbox.catalog.drop_table("shop.orders")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    parts = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    sandbox.catalog.create_table("shop.orders", schema, partition_spec=parts)
    assert "has partitions" in sandbox.run("r", expect=10).message


def test_a_table_that_was_rolled_back_is_noticed(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    for run in ("a", "b"):
        sandbox.feed(2)
        sandbox.run(run)
    table = sandbox.orders
    first, second = (snapshot.snapshot_id for snapshot in table.snapshots())
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    sandbox.feed(2)
    assert "was rolled back" in sandbox.run("c", expect=41).message
    sandbox.orders.manage_snapshots().set_current_snapshot(snapshot_id=second).commit()
    sandbox.run("c")
    sandbox.assert_exact()


@pytest.mark.parametrize("how", ["live", "retract"])
def test_a_table_that_was_rolled_back_is_noticed_behind_snapshots_that_expired(
    into_iceberg: IcebergSandbox, how: str
) -> None:
    """Then no commit of a writer may be left, and its batches are there or were taken back."""
    sandbox = into_iceberg
    for run in ("a", "b"):
        sandbox.feed(2)
        sandbox.run(run)
    assert sandbox.cli("retract", str(sandbox.file), "b", "--reason", "x").returncode == 0
    if how == "live":
        sandbox.feed(2)
        sandbox.run("c")
    older, before, last = [snapshot.snapshot_id for snapshot in sandbox.orders.snapshots()][-3:]
    sandbox.orders.manage_snapshots().rollback_to_snapshot(before).commit()
    for snapshot in sandbox.orders.snapshots():
        if snapshot.snapshot_id not in (before, last):
            sandbox.orders.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    assert older not in [snapshot.snapshot_id for snapshot in sandbox.orders.snapshots()]
    sandbox.feed(2)
    assert "was rolled back" in sandbox.run("d", expect=41).message
    sandbox.orders.manage_snapshots().set_current_snapshot(snapshot_id=last).commit()
    sandbox.run("d")
    sandbox.assert_balanced()
    assert sum(len(row.range) for row in sandbox.ledger.lost(sandbox.name)) == 2


def test_a_batch_whose_account_expired_with_its_snapshot_is_no_dead_end(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    sandbox.feed(2)
    sandbox.run("a")
    sandbox.feed(2)
    sandbox.run("b", kill_at="sink-committed")
    gone = [snapshot.snapshot_id for snapshot in sandbox.orders.snapshots()]
    sandbox.orders.append(sandbox.orders.scan().to_arrow().slice(0, 0))
    for snapshot in gone:
        sandbox.orders.maintenance.expire_snapshots().by_id(snapshot).commit()
    said = sandbox.run("c", expect=41)
    assert "neither the ledger nor its history has an account of all of them" in said.message
    reset = ("reset", str(sandbox.file), "--reason", "x", "--truncate", "--from", "earliest", "--yes")
    assert f"sluice reset {sandbox.name} --reason TEXT --truncate" in said.message
    killed = sandbox.cli(*reset, SLUICE_KILL_AT="epoch-closed")
    assert (killed.returncode not in (0, 1, 10, 41), sum(sandbox.sink().values())) == (True, 0), killed.stderr
    sandbox.run("d")
    sandbox.assert_exact()


def test_snapshots_may_expire_and_others_may_write(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    for run in "abc":
        sandbox.feed(2)
        sandbox.run(run)
    table = sandbox.orders
    table.append(table.scan().to_arrow().slice(0, 0))  # a snapshot of somebody else's
    for snapshot in sandbox.orders.snapshots()[:-1]:
        sandbox.orders.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    sandbox.feed(2)
    sandbox.run("d")
    sandbox.assert_exact()


def test_a_lost_race_is_run_again_and_a_batch_is_there_once(
    into_iceberg: IcebergSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, real, raced = into_iceberg, SqlCatalog.commit_table, []
    sandbox.feed(2)
    sandbox.run("a")
    sandbox.feed(2)

    def commit(self: Any, *arguments: Any) -> Any:
        if not raced:  # somebody else is first
            raced.append(True)
            sandbox.orders.transaction().set_properties({"theirs": "1"}).commit_transaction()
            table = sandbox.orders
            table.append(table.scan().to_arrow().slice(0, 0))
        return real(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    sandbox.run("b")
    assert raced
    sandbox.assert_exact()
    assert not sandbox.strays()


def test_a_commit_whose_answer_is_lost_is_in_the_table_once(
    into_iceberg: IcebergSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, real, cut = into_iceberg, SqlCatalog.commit_table, []
    sandbox.feed(2)
    sandbox.run("a")
    sandbox.feed(2)

    def commit(self: Any, *arguments: Any) -> Any:
        answer = real(self, *arguments)
        if not cut:
            cut.append(True)
            raise OperationalError("COMMIT", {"secret": "s3cr3t"}, Exception("the connection is lost"))
        return answer

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    said = sandbox.run("b").stderr
    assert cut
    assert "s3cr3t" not in said
    sandbox.assert_exact()


def test_rows_beside_delete_files_are_not_replaced(
    into_iceberg: IcebergSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg writes no delete files, so a plan is made to have one; also if it comes while the run is at work."""
    sandbox, real = into_iceberg, DataScan.plan_files
    sandbox.produce([(0, b"k", good(n), 1_767_225_600_000 + n) for n in range(3)])
    sandbox.run("live")

    def plan(self: DataScan) -> Any:
        return [FileScanTask(task.file, {task.file}) for task in real(self)]

    day = ("2026-01-01", "2026-01-02")
    monkeypatch.setattr(DataScan, "plan_files", plan)
    assert "has delete files" in sandbox.run("again", expect=10, interval=day).message
    monkeypatch.setattr(IcebergTable, "check_replaceable", lambda _: None)
    assert "has delete files" in sandbox.run("again", expect=10, interval=day).message
    monkeypatch.undo()
    sandbox.run("again", interval=day)
    sandbox.assert_exact()


def test_a_catalog_that_fails_is_told_without_secrets(
    into_iceberg: IcebergSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = into_iceberg
    sandbox.feed(2)

    def fail(*_: Any) -> Any:
        raise OperationalError("UPDATE x", {"secret": "s3cr3t"}, Exception("the connection is lost"))

    monkeypatch.setattr(SqlCatalog, "commit_table", fail)
    said = sandbox.run("b", expect=30)
    assert "the connection is lost" in said.message
    assert "s3cr3t" not in said.stderr
    monkeypatch.undo()
    sandbox.run("b")
    sandbox.assert_exact()


def test_files_of_the_table_that_are_damaged_are_told_by_name(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    sandbox.produce([(0, b"k", good(n), 1_767_225_600_000 + n) for n in range(3)])
    sandbox.run("a")
    table, day = sandbox.orders, ("2026-01-01", "2026-01-02")
    manifest = next(iter(table.current_snapshot().manifests(table.io))).manifest_path  # type: ignore[union-attr]
    for file in (table.metadata_location, table.current_snapshot().manifest_list, manifest):  # type: ignore[union-attr]
        path = Path(file.removeprefix("file://"))
        whole = path.read_bytes()
        for left in (whole[: len(whole) * 2 // 3], b""):
            path.write_bytes(left)
            said = sandbox.run("b", expect=30, interval=day)
            assert "table shop.orders" in said.message
            assert "Traceback" not in said.stderr
        path.write_bytes(whole)
    sandbox.run("b", interval=day)
    sandbox.assert_exact()


@pytest.mark.long
def test_a_table_that_was_dropped_is_made_again_by_a_reset_that_takes_all_rows_out(
    into_iceberg: IcebergSandbox,
) -> None:
    sandbox = into_iceberg
    sandbox.feed(3)
    sandbox.run("a")
    sandbox.catalog.drop_table("shop.orders")
    sandbox.feed(2)
    assert "lacks the table of its commits" in sandbox.run("b", expect=41).message
    reset = ("reset", str(sandbox.file), "--reason", "x", "--truncate", "--from", "earliest", "--yes")
    done = sandbox.cli(*reset)
    assert done.returncode == 0, done.stderr
    sandbox.run("c")
    sandbox.assert_exact()


@pytest.mark.parametrize(
    ("connection", "told"),
    [
        ({"conn_type": "kafka"}, "is not an Iceberg connection"),
        ({"conn_type": "iceberg", "extra": {"type": "none"}}, "says no catalog"),
    ],
)
def test_a_connection_that_names_no_catalog_is_refused(
    into_iceberg: IcebergSandbox, connection: dict[str, Any], told: str
) -> None:
    into_iceberg.feed(1)
    said = into_iceberg.run("r", expect=10, AIRFLOW_CONN_ICEBERG_DEFAULT=json.dumps(connection)).message
    assert told in said


def test_a_connection_is_read_as_airflows_provider_does() -> None:
    rest = Connection("c", "iceberg", "https://h/ws/", login="me", password="pw", extra={"warehouse": "w"})
    assert _properties(rest) == {"warehouse": "w", "uri": "https://h/ws", "type": "rest", "credential": "me:pw"}
    with pytest.raises(ConfigError, match="not an Iceberg connection"):
        _properties(Connection("c", "spark"))


@pytest.mark.parametrize("table", ["orders", "", ".x", "a..b"])
def test_a_table_is_named_with_its_namespace(table: str) -> None:
    with pytest.raises(ValueError, match=r"NAMESPACE\.TABLE"):
        Sink.model_validate({"iceberg": {"table": table}})


def test_rows_of_an_aggregate_need_no_offsets(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    sandbox.configure(rows="aggregate", transform={"sql": "SELECT count(*) AS n, sum(id) AS total FROM source"})
    sandbox.produce([(0, b"k", good(n)) for n in range(5)])
    sandbox.run("r")
    assert sandbox.orders.scan().to_arrow().to_pylist() == [{"n": 5, "total": 10, "_run": "r"}]
