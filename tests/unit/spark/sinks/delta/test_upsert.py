"""A Delta table with one row for each key: which rows win, whatever the batches are and whatever others commit."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types as T

from sluice.errors import ConfigError, LeaseHeldError, SinkError
from sluice.sinks.delta import DeltaSink as Config
from sluice_spark.sinks.base import Fence, Staged, TakenBackError
from sluice_spark.sinks.delta.table import DeltaSink, opened
from sluice_spark.sinks.parquet.attempts import new_folder
from sluice_spark.sinks.parquet.staged import read_back

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
META = [
    T.StructField("_topic", T.StringType()), T.StructField("_partition", T.IntegerType()),
    T.StructField("_offset", T.LongType()), T.StructField("_timestamp", T.TimestampType()),
    T.StructField("_run", T.StringType()),
]  # fmt: skip
OWN = [
    T.StructField("shop", T.StringType()), T.StructField("id", T.LongType()), T.StructField("at", T.IntegerType()),
    T.StructField("name", T.StringType()),
]  # fmt: skip
SCHEMA = T.StructType([*OWN, *META])
DELETING = T.StructType([*OWN, T.StructField("__sluice_deleted", T.BooleanType()), *META])
ARROW = pa.schema([
    ("shop", pa.string()), ("id", pa.int64()), ("at", pa.int32()), ("name", pa.string()),
    ("__sluice_deleted", pa.bool_()), ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()),
    ("_timestamp", pa.timestamp("us", "UTC")), ("_run", pa.string()),
])  # fmt: skip


def table(path: Path, *, sequence: str | None = None, key: tuple[str, ...] = ("shop", "id"), writer: int = 1) -> Any:
    """A sink of the pipeline ``p``."""
    path.mkdir(exist_ok=True)
    config = Config(path=str(path), mode="upsert", key=key, sequence=sequence)
    return opened(config, str(path), f"sluice:p:{writer}")


def row(key: int, offset: int, *, at: int | None = None, time: int = 0, name: str | None = "", **more: Any) -> Any:
    """A row of a key, whose partition follows from it; without a name it deletes."""
    return {
        "shop": f"s{key % 2}", "id": key, "at": at, "name": name, "__sluice_deleted": name is None, "_topic": "t",
        "_partition": key % 3, "_offset": offset, "_timestamp": NOON + timedelta(seconds=time), "_run": "r",
    } | more  # fmt: skip


def stage(sink: DeltaSink, rows: list[dict[str, Any]], batch: int, *, flags: bool = True) -> Staged:
    """Stage rows in two files, one of them with several row groups."""
    folder, schema = new_folder(f"p-e1-{batch:06d}"), ARROW if flags else ARROW.remove(4)
    fs, base = fsspec.core.url_to_fs(sink.path)
    fs.makedirs(f"{base}/{folder}", exist_ok=True)
    for number, part in enumerate((rows[::2], rows[1::2])):
        found = pa.Table.from_pylist([{n: r[n] for n in schema.names} for r in part], schema)
        pq.write_table(found, f"{base}/{folder}/part-{number}.parquet", row_group_size=3)
    return read_back(sink.path, folder, offsets=True)


def write(sink: Any, rows: list[dict[str, Any]], batch: int, *, fence: Fence | None = None) -> bool:
    note = {"pipeline": "p", "run": "r", "accounts": []}
    return bool(sink.commit(stage(sink, rows, batch), DELETING, batch, note, fence=fence))


def held(path: Path) -> dict[tuple[str, int], tuple[str, int]]:
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    rows = {(r["shop"], r["id"]): (r["name"], r["_offset"]) for r in found}
    assert len(rows) == len(found), "a key has two rows"
    return rows


@pytest.mark.parametrize("sequence", [None, "at"])
def test_the_order_in_which_rows_come_does_not_matter(tmp_path: Path, sequence: str | None) -> None:
    chance = random.Random(5)
    for turn in range(6):
        sent = [row(chance.randrange(9), n, at=chance.choice([None, *range(4)]), time=chance.randrange(5), name=f"{n}")
                for n in range(40)]  # fmt: skip
        order = (lambda r: (-1 if r["at"] is None else r["at"], r["_timestamp"], r["_offset"])) if sequence else (
            lambda r: r["_offset"]
        )  # fmt: skip
        wanted: dict[tuple[str, int], Any] = {}
        for each in sorted(sent, key=order):
            wanted[each["shop"], each["id"]] = (each["name"], each["_offset"])
        path = tmp_path / str(turn)
        sink, came = table(path, sequence=sequence), chance.sample(sent, 40) + chance.sample(sent, 8)
        for batch in range(6):
            assert write(sink, came[batch * 8 : batch * 8 + 8], batch)
            if chance.random() < 0.3:
                DeltaTable(str(path)).optimize.compact()
        assert held(path) == wanted


def test_tombstones_delete_and_keys_come_back(tmp_path: Path) -> None:
    chance, sink, wanted = random.Random(6), table(tmp_path / "t"), dict[tuple[str, int], Any]()
    for batch in range(8):
        rows = [row(chance.randrange(7), 10 * batch + n, name=chance.choice([None, f"{batch}-{n}"])) for n in range(10)]
        for each in rows:
            wanted.pop((each["shop"], each["id"]), None)
            wanted |= {} if each["name"] is None else {(each["shop"], each["id"]): (each["name"], each["_offset"])}
        assert write(sink, rows, batch)
        assert held(tmp_path / "t") == wanted
        named = {file.split("/")[1] for file in DeltaTable(str(tmp_path / "t")).get_add_actions()["path"].to_pylist()}
        assert {f.name for f in (tmp_path / "t/batches").glob(f"p-e1-{batch:06d}-*")} <= named, "nothing is left behind"
        assert not write(table(tmp_path / "t"), rows, batch), "a batch is committed once"
    assert "__sluice_deleted" not in DeltaTable(str(tmp_path / "t")).to_pyarrow_table().column_names
    assert write(sink, [row(key, 99, name=None) for key in range(7)], 8)
    assert held(tmp_path / "t") == {}
    assert write(sink, [row(1, 100, name=None)], 9), "deleting what is not there is a commit, too"
    assert sink.version() == 9


def test_a_table_that_begins_with_a_tombstone(tmp_path: Path) -> None:
    assert write(table(tmp_path / "t"), [row(1, 0, name=None)], 0)
    assert held(tmp_path / "t") == {}
    assert write(table(tmp_path / "t"), [row(1, 1)], 1)
    assert len(held(tmp_path / "t")) == 1


def test_what_others_commit_meanwhile_is_looked_at_again(tmp_path: Path, monkeypatch: Any) -> None:
    path, sink = tmp_path / "t", table(tmp_path / "t")
    write(sink, [row(key, key) for key in range(8)], 0)
    write(sink, [row(key, 10 + key) for key in range(4)], 1)
    theirs = iter([
        lambda: DeltaTable(str(path)).optimize.compact(),
        lambda: DeltaTable(str(path)).update(updates={"name": "'theirs'"}, predicate="id IN (1, 7)"),
        lambda: write_deltalake(
            str(path), pa.Table.from_pylist([row(40, 0, _offset=None, _timestamp=None, _topic=None, _partition=None,
                                                 name="inserted")], ARROW.remove(4)), mode="append"),
        lambda: DeltaTable(str(path)).delete("id = 6"),
    ])  # fmt: skip
    real = DeltaTable.create_write_transaction

    def late(self: Any, *arguments: Any, **keys: Any) -> Any:
        next(theirs, lambda: None)()
        return real(self, *arguments, **keys)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", late)
    assert write(sink, [row(1, 30, name="new"), row(2, 31, name=None), row(40, 32, name="ours"), row(3, 2)], 2)
    found = held(path)
    assert found["s1", 1] == ("new", 30)
    assert found["s0", 40] == ("ours", 32), "a row that somebody else put there is older"
    assert found["s1", 7][0] == "theirs"
    assert ("s0", 2) not in found
    assert ("s0", 6) not in found
    assert found["s1", 3] == ("", 13), "an older record changes nothing"
    assert len(found) == 7


def test_a_rival_is_kept_out(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(table(path), [row(1, 1)], 0)
    since = DeltaTable(str(path)).version()
    write(table(path, writer=2), [row(1, 2)], 0)
    with pytest.raises(LeaseHeldError):
        write(table(path), [row(1, 3)], 1, fence=Fence(since, lambda note: True))
    assert held(path) == {("s1", 1): ("", 2)}


def test_a_table_that_was_rolled_back_is_told_a_way_out_that_is_not_refused(tmp_path: Path) -> None:
    sink = table(tmp_path / "t")
    write(sink, [row(1, 1)], 0)
    write(sink, [row(1, 2)], 1)
    DeltaTable(str(tmp_path / "t")).restore(DeltaTable(str(tmp_path / "t")).version() - 1)
    with pytest.raises(TakenBackError, match="was rolled back or replaced") as told:
        table(tmp_path / "t").examine()
    assert "sluice reset" not in told.value.next_step, "its rows cannot be taken out"
    assert "another name" in told.value.next_step


def test_a_driver_that_wakes_up_late_is_told_that_another_one_was_first(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(table(path), [row(1, 1)], 0)
    late = table(path)
    staged = stage(late, [row(1, 2, name="late")], 1)
    assert write(table(path), [row(1, 2, name="first")], 1)
    table(path).sweep("p-e1-000001")
    assert not late.commit(staged, DELETING, 1, {"run": "r"})
    assert held(path) == {("s1", 1): ("first", 2)}


def test_a_row_without_a_key_is_told_with_the_rule(tmp_path: Path) -> None:
    sink = table(tmp_path / "t")
    with pytest.raises(SinkError, match="t/1 offset 7 has no value in a column of its key") as told:
        write(sink, [row(1, 5), row(1, 7, id=None)], 0)
    assert "has_key" in told.value.next_step
    assert not (tmp_path / "t/_delta_log").exists()


def test_keys_of_each_type_are_the_same_whoever_wrote_the_file(tmp_path: Path) -> None:
    kinds: list[tuple[T.DataType, Any, list[Any]]] = [
        (T.StringType(), pa.string(), ["é", "", "x" * 600]),
        (T.BinaryType(), pa.binary(), [b"\xff", b""]),
        (T.BooleanType(), pa.bool_(), [True, False]),
        (T.ByteType(), pa.int8(), [-1, 1]),
        (T.DecimalType(12, 2), pa.decimal128(12, 2), [Decimal("1.50"), Decimal("-3.00")]),
        (T.DateType(), pa.date32(), [date(1, 1, 1), date(2026, 1, 1)]),
        (T.TimestampType(), pa.timestamp("us", "UTC"), [NOON, datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
    ]
    for number, (kind, of_arrow, values) in enumerate(kinds):
        path = tmp_path / str(number)
        sink = table(path, key=("k",))
        schema = T.StructType([T.StructField("k", kind), *SCHEMA.fields])
        arrow = pa.schema([("k", of_arrow), *ARROW.remove(4)])
        sink.check(schema)
        for batch in range(3):
            folder = new_folder(f"p-e1-{batch:06d}")
            (path / folder).mkdir(parents=True)
            rows = [row(0, batch * 10 + n, k=value) for n, value in enumerate([*values, *values])]
            pq.write_table(
                pa.Table.from_pylist([{n: r[n] for n in arrow.names} for r in rows], arrow),
                path / folder / "part.parquet", use_deprecated_int96_timestamps=isinstance(kind, T.TimestampType),
            )  # fmt: skip
            assert sink.commit(read_back(str(path), folder, offsets=True), schema, batch, {"run": "r"})
            files = [
                pq.read_schema(path / file) for file in DeltaTable(str(path)).get_add_actions()["path"].to_pylist()
            ]
            assert {f.field(n).type for f in files for n in f.names if pa.types.is_timestamp(f.field(n).type)} == {
                pa.timestamp("us", "UTC")
            }, "Spark reads no nanoseconds"
            DeltaTable(str(path)).optimize.compact()
        found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
        assert sorted(r["_offset"] for r in found) == [20 + len(values) + n for n in range(len(values))], kind
        assert {r["k"] for r in found} == set(values), kind


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with pytest.raises(ConfigError, match="x is DOUBLE, which cannot be compared exactly"):
        table(path, key=("x",)).check(T.StructType([T.StructField("x", T.DoubleType())]))
    with pytest.raises(ConfigError, match="nothing of the key is no column"):
        table(path, key=("nothing",)).check(SCHEMA)
    write(table(path), [row(1, 1)], 0)
    table(path).check(DELETING)
    with pytest.raises(ConfigError, match=r"has one row for each of \[\"shop\", \"id\"\]; the pipeline says mode: app"):
        opened(Config(path=str(path)), str(path), "sluice:p:1").check(SCHEMA)
    with pytest.raises(ConfigError, match=r"mode: upsert by .*id"):
        table(path, key=("id",)).check(SCHEMA)
    appended = tmp_path / "a"
    plain = opened(Config(path=str(appended)), str(appended), "sluice:p:1")
    appended.mkdir()
    assert plain.commit(stage(plain, [row(1, 1)], 0, flags=False), SCHEMA, 0, {"run": "r"})
    with pytest.raises(ConfigError, match="appends rows, and may have several of a key"):
        table(appended).check(SCHEMA)
    DeltaTable(str(appended)).delete()
    table(appended).check(SCHEMA)  # an empty one becomes one with a key
    assert write(table(appended), [row(1, 2)], 1)
    assert len(held(appended)) == 1


def test_columns_are_added_with_the_rows_that_have_them(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(table(path), [row(1, 1), row(2, 2)], 0)
    config = Config(path=str(path), mode="upsert", key=("shop", "id"), evolve="add")
    sink: Any = opened(config, str(path), "sluice:p:1")
    wider = T.StructType([*OWN, T.StructField("new", T.LongType()), *META])
    sink.check(wider)
    folder = new_folder("p-e1-000001")
    (path / folder).mkdir()
    arrow = ARROW.remove(4).insert(4, pa.field("new", pa.int64()))
    pq.write_table(pa.Table.from_pylist([row(1, 5, new=7)], arrow), path / folder / "part.parquet")
    assert sink.commit(read_back(str(path), folder, offsets=True), wider, 1, {"run": "r"})
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert sorted((r["id"], r["new"], r["_offset"]) for r in found) == [(1, 7, 5), (2, None, 2)]
    assert sink.evolved(1) == [{"column": "new", "type": "bigint"}]


def test_rows_that_are_older_than_the_sequence_column_have_the_lowest_one(tmp_path: Path) -> None:
    """The file orders by a column that earlier rows do not have: their files lack it."""
    path = tmp_path / "t"
    write(table(path), [row(1, 50), row(2, 60), row(3, 70)], 0)
    config = Config(path=str(path), mode="upsert", key=("shop", "id"), sequence="new", evolve="add")
    sink: Any = opened(config, str(path), "sluice:p:1")
    wider = T.StructType([*OWN, T.StructField("new", T.LongType()), *META])
    sink.check(wider)
    folder = new_folder("p-e1-000001")
    (path / folder).mkdir()
    arrow = ARROW.remove(4).insert(4, pa.field("new", pa.int64()))
    rows = [row(1, 5, new=7), row(2, 6, new=None), row(4, 8, new=1)]
    pq.write_table(pa.Table.from_pylist(rows, arrow), path / folder / "part.parquet")
    assert sink.commit(read_back(str(path), folder, offsets=True), wider, 1, {"run": "r"})
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert sorted((r["id"], r["new"], r["_offset"]) for r in found) == [
        (1, 7, 5), (2, None, 60), (3, None, 70), (4, 1, 8),
    ]  # fmt: skip


def test_a_table_that_somebody_fills_as_it_is_made_is_merged_with(tmp_path: Path, monkeypatch: Any) -> None:
    real = DeltaSink._made

    def made(self: DeltaSink, schema: T.StructType) -> Any:
        found = real(self, schema)
        theirs = row(1, 0, _offset=None, _timestamp=None, _topic=None, _partition=None, name="inserted")
        write_deltalake(self.path, pa.Table.from_pylist([theirs], ARROW.remove(4)), mode="append")
        return found

    monkeypatch.setattr(DeltaSink, "_made", made)
    assert write(table(tmp_path / "t"), [row(1, 3, name="ours"), row(2, 4)], 0)
    assert held(tmp_path / "t") == {("s1", 1): ("ours", 3), ("s0", 2): ("", 4)}
