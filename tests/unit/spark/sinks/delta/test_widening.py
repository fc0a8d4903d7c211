"""Wider types of a table's columns: the same rows, once, whoever commits or dies meanwhile; without a JVM."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from pyspark.sql import types as T
from tests.unit.spark.sinks.delta.conftest import SCHEMA, rows

from sluice.errors import ConfigError, SinkError
from sluice.ranges import OffsetRange
from sluice.sinks.delta import DeltaSink as Config
from sluice_spark.sinks.base import Staged, TakenBackError
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.delta.upsert import DeltaUpsert
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sinks.parquet.staged import read_back

NARROW: dict[str, Any] = {
    "n": pa.int32(), "b": pa.int8(), "f": pa.float32(), "d": pa.decimal128(5, 2),
    "s": pa.struct([("x", pa.int16()), ("t", pa.string())]), "l": pa.list_(pa.struct([("p", pa.int32())])),
    "m": pa.map_(pa.string(), pa.int32()),
}  # fmt: skip
WIDE: dict[str, Any] = {
    "n": pa.int64(), "b": pa.int16(), "f": pa.float64(), "d": pa.decimal128(20, 4),
    "s": pa.struct([("x", pa.int64()), ("t", pa.string())]), "l": pa.list_(pa.struct([("p", pa.int64())])),
    "m": pa.map_(pa.string(), pa.int64()),
}  # fmt: skip


def _columns(*, wide: bool) -> T.StructType:
    kinds = {
        False: [T.IntegerType(), T.ByteType(), T.FloatType(), T.DecimalType(5, 2)],
        True: [T.LongType(), T.ShortType(), T.DoubleType(), T.DecimalType(20, 4)],
    }[wide]
    small, middle = (T.LongType(), T.LongType()) if wide else (T.ShortType(), T.IntegerType())
    nested = [
        T.StructType([T.StructField("x", small), T.StructField("t", T.StringType())]),
        T.ArrayType(T.StructType([T.StructField("p", middle)])),
        T.MapType(T.StringType(), middle),
    ]
    own = [T.StructField(name, kind) for name, kind in zip(NARROW, [*kinds, *nested], strict=True)]
    return T.StructType([*own, *SCHEMA.fields[1:]])


def _values(first: int, last: int, *, wide: bool) -> pa.Table:
    kinds = WIDE if wide else NARROW
    none = first  # one row of each batch has nothing but nulls
    big = 2**40 if wide else 0
    made = {
        "n": [None if n == none else n + big for n in range(first, last)],
        "b": [None if n == none else n % 100 for n in range(first, last)],
        "f": [None if n == none else float("nan") if n % 5 == 1 else n / 4 for n in range(first, last)],
        "d": [None if n == none else Decimal(n) / 4 for n in range(first, last)],
        "s": [None if n == none else {"x": n, "t": f"t{n}"} for n in range(first, last)],
        "l": [None if n == none else [{"p": n}, None] for n in range(first, last)],
        "m": [None if n == none else [("k", n)] for n in range(first, last)],
    }
    own = pa.table({name: pa.array(values, kinds[name]) for name, values in made.items()})
    for name in rows(first, last).column_names[1:]:
        own = own.append_column(name, rows(first, last)[name])
    return own


def _staged(path: Path, batch: int, first: int, last: int, *, wide: bool) -> Staged:
    folder = f"batches/p-e1-{batch:06d}-0123456{batch}"
    (path / folder).mkdir(parents=True)
    said = {"org.apache.spark.sql.parquet.row.metadata": "the types", "org.apache.spark.version": "4.2.0"}
    made = _values(first, last, wide=wide).replace_schema_metadata(said)
    pq.write_table(made, path / folder / "part.parquet", row_group_size=4)
    return read_back(str(path), folder, offsets=True)


def _sink(path: Path, evolve: str = "widen", limit: int = 10**9) -> DeltaSink:
    return DeltaSink(str(path), "sluice:p:1", evolve=evolve, widen_up_to=limit)


def _put(table: DeltaSink, batch: int, *, wide: bool) -> bool:
    staged = _staged(Path(table.path), batch, 10 * batch, 10 * batch + 10, wide=wide)
    return table.commit(staged, _columns(wide=wide), batch, {"run": f"r{batch}"})


def _read(path: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table().to_pylist(), key=lambda row: row["_offset"])


def _expected(*spans: tuple[int, int, bool]) -> list[dict[str, Any]]:
    return [row for first, last, wide in spans for row in _values(first, last, wide=wide).to_pylist()]


def _same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    return [repr(row) for row in _plain(found)] == [repr(row) for row in _plain(expected)]


def _plain(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: row[k] if k != "d" or row[k] is None else float(row[k]) for k in sorted(row)} for row in found]


def test_a_batch_widens_what_the_table_has(tmp_path: Path) -> None:
    table = _sink(tmp_path)
    _put(table, 0, wide=False)
    _put(table, 1, wide=False)
    before = set(DeltaTable(str(tmp_path)).file_uris())
    table.check(_columns(wide=True))
    assert _put(table, 2, wide=True)
    assert _same(_read(tmp_path), _expected((0, 10, False), (10, 20, False), (20, 30, True)))
    kinds = {f.name: f.type for f in pa.schema(DeltaTable(str(tmp_path)).schema().to_arrow())}
    assert (kinds["n"], kinds["b"], kinds["f"], kinds["d"]) == (pa.int64(), pa.int16(), pa.float64(), WIDE["d"])
    for uri in DeltaTable(str(tmp_path)).file_uris():
        there = {f.name: f.type for f in pq.read_schema(uri)}
        assert {name: there[name] for name in ("n", "b", "f", "d")} == {name: WIDE[name] for name in "nbfd"}
    assert not before & set(DeltaTable(str(tmp_path)).file_uris())
    told = [pq.read_schema(uri).metadata for uri in DeltaTable(str(tmp_path)).file_uris()]
    assert all(metadata[b"org.apache.spark.version"] == b"4.2.0" for metadata in told)
    assert sum(b"org.apache.spark.sql.parquet.row.metadata" in metadata for metadata in told) == 1, "of the new rows"
    assert table.evolved(2)[0] == {"column": "n", "type": "bigint", "was": "int"}
    assert [c["column"] for c in table.evolved(2)] == ["n", "b", "f", "d", "s.x", "l.element.p", "m.value"]
    assert [table.evolved(n) for n in (0, 1)] == [[], []]
    # and never again
    version = table.table_version()
    assert _put(table, 3, wide=True)
    assert table.table_version() == version + 1
    assert table.examine() == [], "nobody else changed the table"


def test_what_died_before_its_batch_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _sink(tmp_path)
    _put(table, 0, wide=False)
    staged = _staged(tmp_path, 1, 10, 20, wide=True)
    for dies in ("columns-rewritten", "columns-widened"):
        monkeypatch.setattr("sluice_spark.sinks.delta.table.point", lambda name, at=dies: _die(name, at))
        with pytest.raises(KeyboardInterrupt):
            _sink(tmp_path).commit(staged, _columns(wide=True), 1, {"run": "r1"})
        monkeypatch.undo()
        assert _same(_read(tmp_path), _expected((0, 10, False)))
    for n in range(10):
        DeltaTable(str(tmp_path)).alter.set_table_properties({"others": str(n)}, raise_if_not_exists=False)
    again = _sink(tmp_path)
    assert again.examine() == []
    assert again.commit(staged, _columns(wide=True), 1, {"run": "r1"})
    assert again.evolved(1)[0] == {"column": "n", "type": "bigint", "was": "int"}, "the attempt that died widened it"
    assert _same(_read(tmp_path), _expected((0, 10, False), (10, 20, True)))
    again.sweep("p-e1-000001")
    folders = {p.name for p in (tmp_path / "batches").iterdir()}
    # the rows of the first batch as they were, for older versions of the table, and as they are; those of the second
    assert len(folders) == 3, folders


def _die(name: str, at: str) -> None:
    if name == at:
        raise KeyboardInterrupt


@pytest.mark.parametrize("others", ["append", "delete"])
def test_what_others_commit_meanwhile_is_widened_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    table = _sink(tmp_path)
    _put(table, 0, wide=False)
    done: list[str] = []

    def meanwhile(name: str) -> None:
        if name == "columns-rewritten" and not done:
            done.append(others)
            if others == "append":
                write_deltalake(str(tmp_path), _values(100, 103, wide=False), mode="append")
            else:
                DeltaTable(str(tmp_path)).delete("_offset < 5")

    monkeypatch.setattr("sluice_spark.sinks.delta.table.point", meanwhile)
    assert _put(table, 1, wide=True)
    assert done
    expected = _expected((0, 10, False), (10, 20, True))
    more = {"append": expected + _expected((100, 103, False)), "delete": expected[5:]}
    assert _same(_read(tmp_path), more[others])
    # the file that others left alone was written once, although the commit was tried twice
    assert len(list(tmp_path.rglob("kept.parquet"))) == 2


def test_a_slower_run_of_the_older_file_is_refused(tmp_path: Path) -> None:
    _put(_sink(tmp_path), 0, wide=False)
    slower = DeltaSink(str(tmp_path), "sluice:p:interval", evolve="refuse")
    slower.check(_columns(wide=False))
    staged = _staged(tmp_path, 5, 50, 60, wide=False)
    _put(_sink(tmp_path), 1, wide=True)
    with pytest.raises(ConfigError, match="n: bigint in the table, int in the pipeline"):
        slower.commit(staged, _columns(wide=False), 5, {"run": "slow"})
    gone = Slice([OffsetRange("t", 0, 0, 5)])
    with pytest.raises(ConfigError, match="n: bigint in the table, int in the pipeline"):
        slower.replace(gone, staged, _columns(wide=False), 5, {"run": "slow"}, name="p-e1-000005")
    assert _same(_read(tmp_path), _expected((0, 10, False), (10, 20, True)))


def test_an_interval_widens_too(tmp_path: Path) -> None:
    table = _sink(tmp_path)
    _put(table, 0, wide=False)
    staged = _staged(tmp_path, 1, 2, 5, wide=True)
    gone = Slice([OffsetRange("t", 0, 2, 5)])
    assert table.replace(gone, staged, _columns(wide=True), 1, {"run": "again"}, name="p-e1-000001") == {("t", 0): 3}
    assert _same(
        _read(tmp_path), _expected((0, 10, False))[:2] + _expected((2, 5, True)) + _expected((0, 10, False))[5:]
    )  # fmt: skip


def test_an_upsert_widens_its_key(tmp_path: Path) -> None:
    config = Config(path=str(tmp_path), mode="upsert", key=["n"], evolve="widen")
    sink = DeltaUpsert(config, str(tmp_path), "sluice:p:1")
    for batch, wide in ((0, False), (1, True)):
        schema = T.StructType([f for f in _columns(wide=wide).fields if f.name in ("n", "b", *SCHEMA.names[1:])])
        folder = tmp_path / f"batches/p-e1-{batch:06d}-0123456{batch}"
        folder.mkdir(parents=True)
        kinds = WIDE if wide else NARROW
        made = rows(10 * batch, 10 * batch + 10).drop_columns(["id"])
        made = made.append_column("n", pa.array([n % 10 for n in range(10)], kinds["n"]))
        made = made.append_column("b", pa.array([batch] * 10, kinds["b"]))
        pq.write_table(made.select(schema.names), folder / "part.parquet")
        sink.check(schema)
        staged = read_back(str(tmp_path), f"batches/{folder.name}", offsets=True)
        assert sink.commit(staged, schema, batch, {"run": f"r{batch}"})
    found = _read(tmp_path)
    assert sorted((row["n"], row["b"]) for row in found) == [(n, 1) for n in range(10)]
    assert [c["column"] for c in sink.evolved(1)] == ["n", "b"]


def test_a_table_that_is_too_large_or_cannot_be_rewritten_is_refused(tmp_path: Path) -> None:
    _put(_sink(tmp_path), 0, wide=False)
    with pytest.raises(ConfigError, match=r"to widen n from int to bigint.*all files .* GB") as caught:
        _sink(tmp_path, limit=100).check(_columns(wide=True))
    assert "sink.delta.widen_up_to" in caught.value.next_step
    with pytest.raises(ConfigError, match="n: int in the table, bigint in the pipeline") as caught:
        _sink(tmp_path, "add").check(_columns(wide=True))
    assert "sink.delta.evolve: widen" in caught.value.next_step


def test_lists_of_others_are_widened_too(tmp_path: Path) -> None:
    """Polars writes large ones, and nobody else fixed ones."""
    _put(_sink(tmp_path), 0, wide=False)
    for n, kind in enumerate(
        [pa.large_list(pa.struct([("p", pa.int32())])), pa.list_(pa.struct([("p", pa.int32())]), 1)]
    ):
        file, made = tmp_path / f"theirs-{n}.parquet", _values(100 + n, 101 + n, wide=False)
        made = made.set_column(made.column_names.index("l"), "l", pa.array([[{"p": n}]], kind))
        pq.write_table(made, file)
        entry = AddAction(file.name, file.stat().st_size, {}, 1, True, "{}")
        there = DeltaTable(str(tmp_path))
        there.create_write_transaction([entry], "append", there.schema())
    assert _put(_sink(tmp_path), 1, wide=True)
    for uri in DeltaTable(str(tmp_path)).file_uris():
        assert pq.read_schema(uri).field("l").type.value_type == WIDE["l"].value_type
    assert [row["l"] for row in _read(tmp_path)[-2:]] == [[{"p": 0}], [{"p": 1}]]


def test_partitions_stay_what_they_are(tmp_path: Path) -> None:
    def schema(number: T.DataType) -> T.StructType:
        rest = [field for field in SCHEMA.fields if field.name not in ("id", "_topic")]
        return T.StructType([T.StructField("n", number), T.StructField("_topic", T.StringType()), *rest])

    cities = ("Köln", "a b/c%2F", None)
    for batch, (number, kind) in enumerate([(T.IntegerType(), pa.int32()), (T.LongType(), pa.int64())]):
        table = DeltaSink(str(tmp_path), "sluice:p:1", ["_topic"], evolve="widen", widen_up_to=10**9)
        folder = tmp_path / f"batches/p-e1-{batch:06d}-0123456{batch}"
        for city in cities:
            below = folder / f"_topic={'__HIVE_DEFAULT_PARTITION__' if city is None else quote(city, safe=' ')}"
            below.mkdir(parents=True)
            made = rows(10 * batch, 10 * batch + 3).drop_columns(["id", "_topic"])
            made = made.add_column(0, "n", pa.array([10 * batch + n for n in range(3)], kind))
            pq.write_table(made, below / "part.parquet")
        table.check(schema(number))
        staged = read_back(str(tmp_path), f"batches/{folder.name}", offsets=False)
        assert table.commit(staged, schema(number), batch, {"run": f"r{batch}"})
    found = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert found.schema.field("n").type == pa.int64()
    counted = Counter(zip(found["_topic"].to_pylist(), found["n"].to_pylist(), strict=True))
    assert counted == Counter((city, n) for city in cities for n in (0, 1, 2, 10, 11, 12))


def test_a_table_that_only_takes_more_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    _put(_sink(tmp_path), 0, wide=False)
    DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(ConfigError, match="append-only") as caught:
        _sink(tmp_path).check(_columns(wide=True))
    assert "'delta.appendOnly' = false" in caught.value.next_step
    _sink(tmp_path).check(_columns(wide=False))
    staged = _staged(tmp_path, 1, 2, 5, wide=False)
    gone = Slice([OffsetRange("t", 0, 2, 5)])
    with pytest.raises(ConfigError, match="append-only"):
        _sink(tmp_path).replace(gone, staged, _columns(wide=False), 1, {"run": "again"}, name="p-e1-000001")
    assert _same(_read(tmp_path), _expected((0, 10, False)))


@pytest.mark.parametrize("nth", [0, 1])
def test_a_disk_that_is_full_is_not_filled_by_each_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    for batch in (0, 1):
        _put(_sink(tmp_path), batch, wide=False)
    staged = _staged(tmp_path, 2, 20, 30, wide=True)
    before = sorted(tmp_path.rglob("*"))
    real, done = pq.ParquetWriter.write_batch, [0]

    def full(self: pq.ParquetWriter, *given: Any) -> None:
        real(self, *given)
        done[0] += 1
        if done[0] > 3 * nth:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_batch", full)
    with pytest.raises(SinkError, match="No space left"):
        _sink(tmp_path).commit(staged, _columns(wide=True), 2, {"run": "r"})
    monkeypatch.undo()
    assert sorted(tmp_path.rglob("*")) == before
    assert _sink(tmp_path).commit(staged, _columns(wide=True), 2, {"run": "r"})
    assert _same(_read(tmp_path), _expected((0, 10, False), (10, 20, False), (20, 30, True)))


def test_a_restore_to_before_what_died_widened_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _put(_sink(tmp_path), 0, wide=False)
    before = DeltaTable(str(tmp_path)).version()
    staged = _staged(tmp_path, 1, 10, 20, wide=True)
    monkeypatch.setattr("sluice_spark.sinks.delta.table.point", lambda name: _die(name, "columns-widened"))
    with pytest.raises(KeyboardInterrupt):
        _sink(tmp_path).commit(staged, _columns(wide=True), 1, {"run": "r1"})
    DeltaTable(str(tmp_path)).restore(before)
    with pytest.raises(TakenBackError, match=r"version \d+, which changed its columns, is no longer part"):
        _sink(tmp_path).examine()


def test_a_restore_to_before_is_told(tmp_path: Path) -> None:
    _put(_sink(tmp_path), 0, wide=False)
    before = DeltaTable(str(tmp_path)).version()
    _put(_sink(tmp_path), 1, wide=True)
    DeltaTable(str(tmp_path)).restore(before)
    with pytest.raises(TakenBackError, match="rolled back"):
        _sink(tmp_path).examine()


def test_a_partition_column_is_not_widened(tmp_path: Path) -> None:
    def made(*, wide: bool) -> tuple[DeltaSink, T.StructType]:
        return DeltaSink(str(tmp_path), "sluice:p:1", ["n"], evolve="widen", widen_up_to=10**9), _columns(wide=wide)

    table, schema = made(wide=False)
    table._made(schema)
    table, schema = made(wide=True)
    with pytest.raises(ConfigError, match="n is a partition column"):
        table.check(schema)


def test_narrower_and_other_types_are_refused(tmp_path: Path) -> None:
    _put(_sink(tmp_path), 0, wide=False)
    _put(_sink(tmp_path), 1, wide=True)
    with pytest.raises(ConfigError, match="n: bigint in the table, int in the pipeline"):
        _sink(tmp_path).check(_columns(wide=False))
    note = DeltaTable(str(tmp_path)).history(2)[1]["sluice"]
    assert note["app_id"] == "sluice:p:1:columns"
