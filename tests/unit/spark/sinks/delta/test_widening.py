"""Wider types of a Delta table's columns: the same rows, once, whoever commits or dies meanwhile; without a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from pyspark.sql.pandas.types import from_arrow_schema
from tests.fixtures.parquet import stage
from tests.unit.spark.sinks.delta.conftest import replace, rows, set_properties, sink

from sluice.errors import ConfigError, SinkError
from sluice.sinks.delta import DeltaSink as Config
from sluice_spark.sinks.base import NOTHING, Staged, TakenBackError
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.delta.upsert import DeltaUpsert

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


def values(first: int, last: int, kinds: Mapping[str, Any] = NARROW) -> pa.Table:
    """Return rows of these offsets; each tenth has nothing but nulls."""
    big = 2**40 if kinds is WIDE else 0
    made: dict[str, Callable[[int], Any]] = {
        "n": lambda n: n + big,
        "b": lambda n: n % 100,
        "f": lambda n: float("nan") if n % 5 == 1 else n / 4,
        "d": lambda n: Decimal(n) / 4,
        "s": lambda n: {"x": n, "t": f"t{n}"},
        "l": lambda n: [{"p": n}, None],
        "m": lambda n: [("k", n)],
    }
    filled = {
        name: pa.array([make(n) if n % 10 else None for n in range(first, last)], kinds[name])
        for name, make in made.items()
    }
    return rows(first, last, **filled).drop_columns(["id"])


NARROW_COLUMNS, WIDE_COLUMNS = (from_arrow_schema(values(0, 0, kinds).schema) for kinds in (NARROW, WIDE))


def staged(path: Path, batch: int, first: int, last: int, kinds: Mapping[str, Any] = NARROW) -> Staged:
    """Stage a file of several row groups, as Spark writes them."""
    about = {"org.apache.spark.sql.parquet.row.metadata": "the types", "org.apache.spark.version": "4.2.0"}
    return stage(path, batch, values(first, last, kinds).replace_schema_metadata(about), row_group_size=4)


def widening(path: Path, evolve: str = "widen", limit: int = 10**9, **keys: Any) -> DeltaSink:
    return sink(path, evolve=evolve, widen_up_to=limit, **keys)


def put(table: DeltaSink, batch: int, kinds: Mapping[str, Any] = NARROW) -> bool:
    made, columns = staged(Path(table.path), batch, 10 * batch, 10 * batch + 10, kinds), WIDE_COLUMNS
    return table.commit(made, columns if kinds is WIDE else NARROW_COLUMNS, batch, {"run": f"r{batch}"})


def plain(found: list[dict[str, Any]]) -> list[str]:
    """Return rows as texts, in which a NaN is a NaN and a decimal has no scale."""
    return [repr({k: row[k] if k != "d" or row[k] is None else float(row[k]) for k in sorted(row)}) for row in found]


def read(path: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table().to_pylist(), key=lambda row: row["_offset"])


def holds(path: Path, *tables: pa.Table) -> bool:
    """Say whether the table has these rows, in the order of their offsets."""
    return plain(read(path)) == plain([row for table in tables for row in table.to_pylist()])


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a commit of wider rows die at a point."""

    def commit(table: DeltaSink, made: Staged, at: str) -> None:
        def point(name: str) -> None:
            if name == at:
                raise KeyboardInterrupt

        with monkeypatch.context() as dying:
            dying.setattr("sluice_spark.sinks.delta.table.point", point)
            with pytest.raises(KeyboardInterrupt):
                table.commit(made, WIDE_COLUMNS, 1, {"run": "r1"})

    return commit


def test_delta_batch_widens_the_columns_of_all_files_once(tmp_path: Path) -> None:
    table = widening(tmp_path)
    put(table, 0)
    put(table, 1)
    before = set(DeltaTable(str(tmp_path)).file_uris())
    table.check(WIDE_COLUMNS)
    assert put(table, 2, WIDE)
    assert holds(tmp_path, values(0, 20), values(20, 30, WIDE))
    kinds = {f.name: f.type for f in pa.schema(DeltaTable(str(tmp_path)).schema().to_arrow())}
    assert {name: kinds[name] for name in "nbfd"} == {name: WIDE[name] for name in "nbfd"}
    uris = DeltaTable(str(tmp_path)).file_uris()
    for uri in uris:
        there = {f.name: f.type for f in pq.read_schema(uri)}
        assert {name: there[name] for name in "nbfd"} == {name: WIDE[name] for name in "nbfd"}
    assert not before & set(uris)
    about = [pq.read_schema(uri).metadata for uri in uris]
    assert all(metadata[b"org.apache.spark.version"] == b"4.2.0" for metadata in about)
    assert sum(b"org.apache.spark.sql.parquet.row.metadata" in metadata for metadata in about) == 1, "of the new rows"
    assert table.evolved(2)[0] == {"column": "n", "type": "bigint", "was": "int"}
    assert [c["column"] for c in table.evolved(2)] == ["n", "b", "f", "d", "s.x", "l.element.p", "m.value"]
    assert [table.evolved(n) for n in (0, 1)] == [[], []]
    assert DeltaTable(str(tmp_path)).history(2)[1]["sluice"]["app_id"] == "sluice:p:1:columns"
    version = table.table_version()
    assert put(table, 3, WIDE)
    assert table.table_version() == version + 1
    assert table.examine() == [], "both commits are the pipeline's own"


def test_delta_batch_that_died_in_a_widening_is_committed_later(tmp_path: Path, dies: Callable[..., None]) -> None:
    put(widening(tmp_path), 0)
    made = staged(tmp_path, 1, 10, 20, WIDE)
    for point in ("columns-rewritten", "columns-widened"):
        dies(widening(tmp_path), made, point)
        assert holds(tmp_path, values(0, 10))
    for n in range(10):
        set_properties(tmp_path, others=str(n))
    again = widening(tmp_path)
    assert again.examine() == []
    assert again.commit(made, WIDE_COLUMNS, 1, {"run": "r1"})
    assert again.evolved(1)[0] == {"column": "n", "type": "bigint", "was": "int"}, "the attempt that died widened it"
    assert holds(tmp_path, values(0, 10), values(10, 20, WIDE))
    again.sweep("p-e1-000001")
    folders = {p.name for p in (tmp_path / "batches").iterdir()}
    # the rows of the first batch as they were, for older versions of the table, and as they are; those of the second
    assert len(folders) == 3, folders


@pytest.mark.parametrize("others", ["append", "delete"])
def test_delta_widens_files_committed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str) -> None:
    table = widening(tmp_path)
    put(table, 0)
    done: list[str] = []

    def meanwhile(name: str) -> None:
        if name == "columns-rewritten" and not done:
            done.append(others)
            if others == "append":
                write_deltalake(str(tmp_path), values(100, 103), mode="append")
            else:
                DeltaTable(str(tmp_path)).delete("_offset < 5")

    monkeypatch.setattr("sluice_spark.sinks.delta.table.point", meanwhile)
    assert put(table, 1, WIDE)
    assert done
    more = {"append": [values(0, 10), values(10, 20, WIDE), values(100, 103)]}
    assert holds(tmp_path, *more.get(others, [values(5, 10), values(10, 20, WIDE)]))
    # the file that others left alone was written once, although the commit was tried twice
    assert len(list(tmp_path.rglob("kept.parquet"))) == 2


def test_delta_refuses_narrower_rows_of_a_slower_run(tmp_path: Path) -> None:
    put(widening(tmp_path), 0)
    slower = sink(tmp_path, "p:interval")
    slower.check(NARROW_COLUMNS)
    made = staged(tmp_path, 5, 50, 60)
    put(widening(tmp_path), 1, WIDE)
    attempts: list[Callable[[], object]] = [
        lambda: widening(tmp_path).check(NARROW_COLUMNS),
        lambda: slower.commit(made, NARROW_COLUMNS, 5, {"run": "slow"}),
        lambda: replace(slower, 0, 5, made, NARROW_COLUMNS, batch=5),
    ]
    for attempt in attempts:
        with pytest.raises(ConfigError, match="n: bigint in the table, int in the pipeline"):
            attempt()
    assert holds(tmp_path, values(0, 10), values(10, 20, WIDE))


def test_delta_replacement_widens_the_table(tmp_path: Path) -> None:
    table = widening(tmp_path)
    put(table, 0)
    assert replace(table, 2, 5, staged(tmp_path, 1, 2, 5, WIDE), WIDE_COLUMNS) == {("t", 0): 3}
    assert holds(tmp_path, values(0, 2), values(2, 5, WIDE), values(5, 10))


def test_delta_upsert_widens_its_key(tmp_path: Path) -> None:
    config = Config(path=str(tmp_path), mode="upsert", key=["n"], evolve="widen")
    table = DeltaUpsert(config, str(tmp_path), "sluice:p:1")
    for batch, kinds in enumerate((NARROW, WIDE)):
        own = {"n": pa.array(range(10), kinds["n"]), "b": pa.array([batch] * 10, kinds["b"])}
        made = rows(10 * batch, 10 * batch + 10, **own).drop_columns(["id"])
        schema = from_arrow_schema(made.schema)
        table.check(schema)
        assert table.commit(stage(tmp_path, batch, made), schema, batch, {"run": f"r{batch}"})
    assert sorted((row["n"], row["b"]) for row in read(tmp_path)) == [(n, 1) for n in range(10)]
    assert [c["column"] for c in table.evolved(1)] == ["n", "b"]


@pytest.mark.parametrize(
    ("keys", "says", "way_out"),
    [
        ({"limit": 100}, "to widen n from int to bigint.*all files .* GB", "sink.delta.widen_up_to"),
        ({"evolve": "add"}, "n: int in the table, bigint in the pipeline", "sink.delta.evolve: widen"),
        ({"partition_by": ["n"]}, "n is a partition column", "cast n in the transform"),
    ],
)
def test_delta_refuses_to_widen_a_table(tmp_path: Path, keys: dict[str, Any], says: str, way_out: str) -> None:
    table = widening(tmp_path, **keys)
    if "partition_by" in keys:
        table.commit(NOTHING, NARROW_COLUMNS, 0, {"run": "r"})
    else:
        put(table, 0)
    with pytest.raises(ConfigError, match=says) as caught:
        table.check(WIDE_COLUMNS)
    assert way_out in caught.value.next_step


def test_delta_table_that_is_append_only_is_neither_widened_nor_replaced(tmp_path: Path) -> None:
    put(widening(tmp_path), 0)
    set_properties(tmp_path, delta_appendOnly="true")
    table = widening(tmp_path)
    table.check(NARROW_COLUMNS)
    made = staged(tmp_path, 1, 2, 5)
    for attempt in (lambda: table.check(WIDE_COLUMNS), lambda: replace(table, 2, 5, made, NARROW_COLUMNS)):
        with pytest.raises(ConfigError, match="append-only") as caught:
            attempt()
        assert "'delta.appendOnly' = false" in caught.value.next_step
    assert holds(tmp_path, values(0, 10))


def test_delta_widens_lists_of_other_writers(tmp_path: Path) -> None:
    """Polars writes large ones; fixed ones are of other writers."""
    put(widening(tmp_path), 0)
    item = pa.struct([("p", pa.int32())])
    for n, kind in enumerate([pa.large_list(item), pa.list_(item, 1)]):
        file, made = tmp_path / f"theirs-{n}.parquet", values(100 + n, 101 + n)
        pq.write_table(made.set_column(made.column_names.index("l"), "l", pa.array([[{"p": n}]], kind)), file)
        there = DeltaTable(str(tmp_path))
        entry = AddAction(file.name, file.stat().st_size, {}, 1, True, "{}")
        there.create_write_transaction([entry], "append", there.schema())
    assert put(widening(tmp_path), 1, WIDE)
    for uri in DeltaTable(str(tmp_path)).file_uris():
        assert pq.read_schema(uri).field("l").type.value_type == WIDE["l"].value_type
    assert [row["l"] for row in read(tmp_path)[-2:]] == [[{"p": 0}], [{"p": 1}]]


def test_delta_keeps_partition_values_when_it_widens(tmp_path: Path) -> None:
    cities = ("Köln", "a b/c%2F", None)
    folders = [f"_topic={'__HIVE_DEFAULT_PARTITION__' if city is None else quote(city, safe=' ')}" for city in cities]
    for batch, kind in enumerate((pa.int32(), pa.int64())):
        made = rows(10 * batch, 10 * batch + 3)
        made = made.append_column("n", made["id"].cast(kind)).drop_columns(["id"])
        schema = from_arrow_schema(made.schema)
        table = widening(tmp_path, partition_by=["_topic"])
        table.check(schema)
        files = stage(tmp_path, batch, *[made.drop_columns(["_topic"])] * 3, below=folders, offsets=False)
        assert table.commit(files, schema, batch, {"run": f"r{batch}"})
    found = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert found.schema.field("n").type == pa.int64()
    counted = Counter(zip(found["_topic"].to_pylist(), found["n"].to_pylist(), strict=True))
    assert counted == Counter((city, n) for city in cities for n in (0, 1, 2, 10, 11, 12))


@pytest.mark.parametrize("nth", [0, 1])
def test_delta_widening_cleans_up_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    for batch in (0, 1):
        put(widening(tmp_path), batch)
    made = staged(tmp_path, 2, 20, 30, WIDE)
    before = sorted(tmp_path.rglob("*"))
    real, done = pq.ParquetWriter.write_batch, [0]

    def full(self: pq.ParquetWriter, *given: Any) -> None:
        real(self, *given)
        done[0] += 1
        if done[0] > 3 * nth:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(pq.ParquetWriter, "write_batch", full)
        with pytest.raises(SinkError, match="No space left"):
            widening(tmp_path).commit(made, WIDE_COLUMNS, 2, {"run": "r"})
    assert sorted(tmp_path.rglob("*")) == before
    assert widening(tmp_path).commit(made, WIDE_COLUMNS, 2, {"run": "r"})
    assert holds(tmp_path, values(0, 20), values(20, 30, WIDE))


@pytest.mark.parametrize(
    ("died", "says"),
    [(True, r"version \d+, which changed its columns, is no longer part"), (False, "rolled back")],
    ids=["before-its-batch", "with-its-batch"],
)
def test_delta_table_that_was_restored_to_before_a_widening_is_refused(
    tmp_path: Path, dies: Callable[..., None], died: bool, says: str
) -> None:
    put(widening(tmp_path), 0)
    before = DeltaTable(str(tmp_path)).version()
    if died:
        dies(widening(tmp_path), staged(tmp_path, 1, 10, 20, WIDE), "columns-widened")
    else:
        put(widening(tmp_path), 1, WIDE)
    DeltaTable(str(tmp_path)).restore(before)
    with pytest.raises(TakenBackError, match=says):
        widening(tmp_path).examine()
