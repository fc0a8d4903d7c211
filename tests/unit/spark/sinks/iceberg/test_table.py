"""An Iceberg table: which tables fit, what rolling back, expiring and other writers do to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimeType, UUIDType
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType as SparkString
from pyspark.sql.types import StructField, StructType
from sqlalchemy.exc import OperationalError
from tests.contract.sinks import BEGIN, Iceberg, commit, note, put, records, rows
from tests.fixtures.lake import catalog_of

from sluice.connections import Connection
from sluice.errors import CheckpointError, ConfigError, SinkError
from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import NOTHING, RowsRefusedError
from sluice_spark.sinks.iceberg import expiry, table
from sluice_spark.sinks.iceberg.catalog import _properties, telling
from sluice_spark.sinks.iceberg.expiry import AGE
from sluice_spark.sinks.iceberg.reading import columns_of, rows_of
from sluice_spark.sinks.iceberg.table import IcebergTable
from sluice_spark.sinks.parquet.slice import Slice


@pytest.fixture
def orders(case: Callable[..., Iceberg]) -> Iceberg:
    return case(Iceberg)


def expire(orders: Iceberg, *kept: int) -> None:
    """Expire all snapshots but these."""
    for snapshot in orders.table.snapshots():
        if snapshot.snapshot_id not in kept:
            orders.table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()


def append_nothing(orders: Iceberg) -> None:
    """Add a snapshot of another writer's."""
    orders.table.append(orders.table.scan().to_arrow().slice(0, 0))


def test_iceberg_table_of_a_user_is_claimed_and_its_retries_are_off(orders: Iceberg) -> None:
    catalog = catalog_of(orders.properties)
    catalog.create_namespace("shop")
    columns = {field.name: field for field in rows(0, 1).schema}
    order = ["name", "id", *(name for name in columns if name.startswith("_"))]
    catalog.create_table("shop.orders", pa.schema([("more", pa.string()), *(columns[name] for name in order)]))
    assert commit(orders, orders.writer(), 0, 0, 3)
    assert set(orders.held()) == {0, 1, 2}
    assert orders.table.scan().to_arrow()["more"].to_pylist() == [None] * 3
    assert orders.table.properties["commit.retry.num-retries"] == "0"
    assert orders.table.properties["sluice.pipeline"] == "p"


def test_iceberg_table_that_does_not_fit_is_refused(orders: Iceberg) -> None:
    catalog = catalog_of(orders.properties)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", pa.schema([("id", pa.int32()), ("name", pa.string())]))
    with pytest.raises(ConfigError) as error:
        orders.writer()
    assert ("id: int" in error.value.what, "_offset" in error.value.what) == (True, True)
    catalog.drop_table("shop.orders")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    parts = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    catalog.create_table("shop.orders", schema, partition_spec=parts)
    with pytest.raises(ConfigError, match="partitions"):
        orders.writer()


@pytest.mark.parametrize("how", ["live", "retract"])
def test_iceberg_table_rolled_back_is_refused_behind_snapshots_that_expired(orders: Iceberg, how: str) -> None:
    """Then no commit of a writer may be left, and its batches are there or were taken back."""
    for batch in range(2):
        commit(orders, orders.writer(), batch, batch, batch + 1)
    correction = orders.writer("retract:x")
    gone = Slice([OffsetRange("t", 0, 1, 2)])
    correction.replace(gone, NOTHING, orders.schema, 0, note("b", 0), name="p-x-000000")
    if how == "live":
        commit(orders, orders.writer(), 2, 2, 3)
    *_, before, last = [snapshot.snapshot_id for snapshot in orders.table.snapshots()]
    orders.table.manage_snapshots().rollback_to_snapshot(before).commit()
    expire(orders, before, last)
    with pytest.raises(CheckpointError, match="rolled back"):
        orders.writer()
    orders.table.manage_snapshots().set_current_snapshot(snapshot_id=last).commit()
    assert orders.writer().examine() == []


def test_iceberg_snapshots_may_expire_and_others_may_write(orders: Iceberg) -> None:
    for batch in range(3):
        commit(orders, orders.writer(), batch, batch, batch + 1)
    append_nothing(orders)
    expire(orders, orders.table.current_snapshot().snapshot_id)
    assert orders.writer().version() == 2
    assert commit(orders, orders.writer(), 3, 3, 4)
    assert set(orders.held()) == set(range(4))


def test_iceberg_commit_that_loses_a_race_is_made_again(orders: Iceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, real, raced = orders.writer(), SqlCatalog.commit_table, []
    commit(orders, sink, 0, 0, 2)

    def race(self: Any, *arguments: Any) -> Any:
        if not raced:  # another writer is first
            raced.append(True)
            orders.table.transaction().set_properties({"theirs": "1"}).commit_transaction()
            append_nothing(orders)
        return real(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", race)
    assert commit(orders, sink, 1, 2, 4)
    assert (raced, set(orders.held())) == ([True], set(range(4)))


def test_iceberg_rows_beside_delete_files_are_not_replaced(orders: Iceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg writes no delete files, so a plan is made to have one; also if it comes while the run is at work."""
    sink, real = orders.writer(), DataScan.plan_files
    commit(orders, sink, 0, 0, 3)
    monkeypatch.setattr(DataScan, "plan_files", lambda self: [FileScanTask(t.file, {t.file}) for t in real(self)])
    with pytest.raises(ConfigError, match="delete files"):
        sink.check_replaceable()
    gone, name = Slice([OffsetRange("t", 0, 0, 3)]), "p-i1-000000"
    staged = orders.stage(sink, 0, rows(0, 3, "new"), "p-i1")
    with pytest.raises(ConfigError, match="delete files"):
        orders.writer("interval:x").replace(gone, staged, orders.schema, 0, note("new", 0), name=name)
    monkeypatch.undo()
    orders.connect()
    assert orders.held() == dict.fromkeys(range(3), "r")


def test_iceberg_catalog_that_fails_is_named_without_secrets(orders: Iceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = orders.writer()

    def fail(*_: Any) -> Any:
        raise OperationalError("UPDATE x", {"secret": "s3cr3t"}, Exception("the connection is lost"))

    with monkeypatch.context() as failing:
        failing.setattr(SqlCatalog, "commit_table", fail)
        with pytest.raises(SinkError, match="the connection is lost") as error:
            commit(orders, sink, 0, 0, 2)
    assert "s3cr3t" not in str(error.value)
    assert commit(orders, sink, 0, 0, 2)


def test_iceberg_files_that_are_damaged_are_the_sinks_failure(orders: Iceberg) -> None:
    commit(orders, orders.writer(), 0, 0, 3)
    table, gone = orders.table, Slice([OffsetRange("t", 0, 0, 3)], BEGIN, BEGIN + 10_000)
    snapshot = table.current_snapshot()
    manifest = next(iter(snapshot.manifests(table.io))).manifest_path
    for file in (table.metadata_location, snapshot.manifest_list, manifest):
        path = Path(file.removeprefix("file://"))
        whole = path.read_bytes()
        for left in (whole[: len(whole) * 2 // 3], b""):
            path.write_bytes(left)
            with pytest.raises(SinkError, match=r"shop\.orders"):
                orders.writer().held(gone)
        path.write_bytes(whole)
    assert list(orders.writer().held(gone)) == [("t", 0)]


@pytest.mark.parametrize("connection", [{"conn_type": "kafka"}, {"conn_type": "iceberg", "extra": {"type": "none"}}])
def test_iceberg_connection_that_names_no_catalog_is_refused(
    orders: Iceberg, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
    with pytest.raises(ConfigError):
        orders.writer()


def test_iceberg_connection_is_read_as_airflows_provider_does() -> None:
    rest = Connection("c", "iceberg", "https://h/ws/", login="me", password="pw", extra={"warehouse": "w"})
    assert _properties(rest) == {"warehouse": "w", "uri": "https://h/ws", "type": "rest", "credential": "me:pw"}


def test_iceberg_table_has_no_staging_folder_before_it_exists(orders: Iceberg) -> None:
    assert IcebergTable(orders.config, orders.place, "sluice:p:1").as_it_is() is None


def test_iceberg_rows_are_read_as_they_are_stored(orders: Iceberg) -> None:
    """pyiceberg makes an empty list of a null one whose elements are structs, and an empty map of a null one."""
    part = pa.struct([("x", pa.int64())])
    types = {"id": pa.int64(), "parts": pa.list_(part), "map": pa.map_(pa.string(), part), "name": pa.string()}
    some = {"id": 1, "parts": [{"x": 1}], "map": [("k", {"x": 2})], "name": "a"}
    put(orders, orders.writer(check=False), 0, records(some, {"id": 2}, {"id": 3, "parts": [], "map": []}, **types))
    with orders.table.update_schema() as update:
        update.rename_column("name", "called")
        update.add_column("more", LongType())
    columns = to_arrow_schema(columns_of(orders.table), timezone="UTC")
    found = pa.Table.from_batches(rows_of(orders.table, columns, ["r"])).sort_by("id").to_pylist()
    assert [(row["parts"], row["map"], row["called"], row["more"]) for row in found] == [
        ([{"x": 1}], [("k", {"x": 2})], "a", None),
        (None, None, None, None),
        ([], [], None, None),
    ]
    assert list(rows_of(orders.table, columns, ["other"])) == []
    with orders.table.update_schema() as update:
        update.rename_column(("parts", "element", "x"), "y")
    columns = to_arrow_schema(columns_of(orders.table), timezone="UTC")
    (first, *_) = pa.Table.from_batches(rows_of(orders.table, columns, ["r"])).sort_by("id").to_pylist()
    assert first["parts"] == [{"y": 1}], "a field of a struct that was renamed has its values"


def test_iceberg_names_that_moved_to_other_columns_are_told(orders: Iceberg) -> None:
    commit(orders, orders.writer(), 0, 0, 2)
    with orders.table.update_schema() as update:
        update.add_column("later", LongType())
    assert orders.writer().examine() == []
    for old, new in (("name", "other"), ("later", "name")):
        with orders.table.update_schema() as update:
            update.rename_column(old, new)
    (warning,) = orders.writer(check=False).examine()
    assert "name was the name of another column" in warning


def test_iceberg_columns_of_other_engines_are_left_alone_if_spark_has_no_type_for_them(orders: Iceberg) -> None:
    commit(orders, orders.writer(), 0, 0, 2)
    with orders.table.update_schema() as update:
        update.add_column("ref", UUIDType())
        update.add_column("clock", TimeType())
    sink = orders.writer()
    commit(orders, sink, 1, 2, 4)
    columns = columns_of(orders.table)
    assert not {"ref", "clock"} & set(columns.names)
    (there, schema), arrow = sink.as_it_is(), to_arrow_schema(columns, timezone="UTC")
    assert (there, schema) == (sink, columns)
    assert sum(batch.num_rows for batch in rows_of(orders.table, arrow, ["r"])) == 4
    sink.replace(Slice([OffsetRange("t", 0, 0, 1)]), NOTHING, columns, 2, note("r", 2), name="p-e1-000002")
    assert set(orders.held()) == {1, 2, 3}
    with pytest.raises(ConfigError) as refused:
        sink.check(StructType([*orders.schema.fields, StructField("ref", SparkString())]))
    assert "ref: uuid in the table" in refused.value.what


def test_iceberg_names_that_cannot_be_told_apart_are_refused(orders: Iceberg) -> None:
    inner = StructType([StructField("b", SparkString())])
    with pytest.raises(ConfigError) as refused:
        orders.writer(check=False).check(StructType([StructField("a", inner), StructField("a.b", SparkString())]))
    assert "a.b" in refused.value.what


def test_iceberg_table_keeps_the_metadata_of_a_limited_number_of_commits(orders: Iceberg) -> None:
    sink = orders.writer()
    commit(orders, sink, 0, 0, 1)
    assert orders.table.properties["write.metadata.previous-versions-max"] == "100"
    with orders.table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "2"})
    for batch in range(1, 6):
        commit(orders, sink, batch, batch, batch + 1)
    assert len(list(orders.root.glob("lake/**/*.metadata.json"))) == 3
    assert [note["version"] for note in orders.writer().notes(-1)] == [5, 4, 3, 2, 1, 0]


def test_iceberg_old_snapshots_expire_with_files_of_their_own(orders: Iceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "youngest", 0)
    for batch in range(30):
        commit(orders, orders.writer(), batch, batch, batch + 1)
    interval = orders.writer("interval:x")
    staged = orders.stage(interval, 0, rows(4, 5, "again"), "p-i1")
    gone, name = Slice([OffsetRange("t", 0, 4, 5)]), "p-i1-000000"
    assert interval.replace(gone, staged, orders.schema, 0, note("again", 0), name=name) is not None
    commit(orders, orders.writer(), 30, 30, 31)
    writer, held = orders.writer(), orders.held()
    writer.settled()
    assert len(orders.table.snapshots()) == 32, "none is five days old"
    few = {AGE: "0", "history.expire.min-snapshots-to-keep": "4"}
    orders.table.transaction().set_properties(few).commit_transaction()
    orders.table.manage_snapshots().create_tag(orders.table.snapshots()[0].snapshot_id, "theirs").commit()
    writer.settled()
    assert len(orders.table.snapshots()) == 32, "a tag names one"
    orders.table.manage_snapshots().remove_tag("theirs").commit()
    files = data_files(orders)
    interval.settled()
    assert len(orders.table.snapshots()) == 32, "only a live run knows that all commits are in the ledger"
    real = expiry._files_of
    monkeypatch.setattr(expiry, "_files_of", lambda *given: (append_nothing(orders), real(*given))[1])
    writer.settled()
    assert len(orders.table.snapshots()) == 33, "others committed meanwhile"
    monkeypatch.setattr(expiry, "_files_of", real)
    writer.settled()
    assert len(orders.table.snapshots()) == 4
    assert files - data_files(orders) == set(), "the snapshot before the interval is kept"
    oldest = orders.table.snapshots()[0].snapshot_id
    assert orders.table.scan(snapshot_id=oldest).to_arrow()["_run"].to_pylist() == ["r"] * 30
    for batch in range(31, 60):
        commit(orders, orders.writer(), batch, batch, batch + 1)
    files = data_files(orders)
    orders.writer().settled()
    (removed,) = files - data_files(orders)
    assert "p-e1-000004" in removed
    assert orders.held() == {**held, **dict.fromkeys(range(31, 60), "r")}
    assert orders.writer().version() == 59
    needed = {str(snapshot.manifest_list) for snapshot in orders.table.snapshots()}
    needed |= {m.manifest_path for snapshot in orders.table.snapshots() for m in snapshot.manifests(orders.table.io)}
    there = {file.name for file in (orders.root / "lake").rglob("*.avro")}
    assert there == {path.rsplit("/", 1)[-1] for path in needed}


def test_iceberg_manifests_are_merged(orders: Iceberg) -> None:
    commit(orders, orders.writer(), 0, 0, 1)
    orders.table.transaction().set_properties({"commit.manifest.min-count-to-merge": "5"}).commit_transaction()
    for batch in range(1, 12):
        commit(orders, orders.writer(), batch, batch, batch + 1)
    assert len(orders.table.current_snapshot().manifests(orders.table.io)) < 5
    assert orders.held() == dict.fromkeys(range(12), "r")


def data_files(orders: Iceberg) -> set[str]:
    return {str(file) for file in (orders.root / "lake").rglob("*.parquet")}


def test_iceberg_metadata_of_an_earlier_version_is_read(orders: Iceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_packed", json.dumps)
    commit(orders, orders.writer(), 0, 0, 1)
    monkeypatch.undo()
    orders.connect()
    commit(orders, orders.writer(), 1, 1, 2)
    assert [known["version"] for known in orders.writer().notes(newer_than=-1)] == [1, 0]


def test_iceberg_text_without_an_upper_bound_is_refused_by_its_record(orders: Iceberg) -> None:
    sink, table = orders.writer(), rows(0, 3)
    texts = pa.array(["a", "x" * 15 + "\ud7ffyy", None])
    table = table.set_column(table.column_names.index("name"), "name", texts)
    with pytest.raises(RowsRefusedError) as refused:
        sink.commit(orders.stage(sink, 0, table), orders.schema, 0, note("r", 0))
    assert {place: why.column for place, why in refused.value.rows.items()} == {("t", 0, 1): "name"}


def test_iceberg_struct_with_a_field_that_is_called_like_a_type_is_no_foreign_column(orders: Iceberg) -> None:
    inner = pa.struct([("time(ms)", pa.int64())])
    put(orders, orders.writer(check=False), 0, records({"id": 1, "took": {"time(ms)": 5}}, id=pa.int64(), took=inner))
    assert "took" in columns_of(orders.table).names


@pytest.mark.parametrize(
    ("said", "kind", "way"),
    [("Unable to load libjvm", ConfigError, "libhdfs"), ("connection reset", SinkError, "run again")],
)
def test_iceberg_names_the_library_that_hdfs_lacks(said: str, kind: type[Exception], way: str) -> None:
    with pytest.raises(kind) as caught, telling("the table"):
        raise OSError(said)
    assert way in str(caught.value).lower()
