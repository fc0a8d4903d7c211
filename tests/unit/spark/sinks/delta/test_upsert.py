"""A Delta table with one row for each key: which rows win, whatever the batches are and whatever others commit."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema
from tests.fixtures.parquet import stage

from sluice.errors import ConfigError, LeaseHeldError
from sluice.sinks.delta import DeltaSink as Config
from sluice_spark.sinks.base import Fence, Staged, TakenBackError
from sluice_spark.sinks.delta.table import DeltaSink, opened

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FLAGGED = pa.schema([
    ("shop", pa.string()), ("id", pa.int64()), ("at", pa.int32()), ("name", pa.string()),
    ("__sluice_deleted", pa.bool_()), ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()),
    ("_timestamp", pa.timestamp("us", "UTC")), ("_run", pa.string()),
])  # fmt: skip
ARROW = FLAGGED.remove(4)
SCHEMA, DELETING = from_arrow_schema(ARROW), from_arrow_schema(FLAGGED)
NOWHERE = dict.fromkeys(["_topic", "_partition", "_offset", "_timestamp"])
"""The metadata of a row of others."""


def table(path: Path, writer: int = 1, **keys: Any) -> Any:
    """Return a sink of the pipeline ``p`` with some other keys of its file."""
    path.mkdir(exist_ok=True)
    config = Config.model_validate({"path": str(path), "mode": "upsert", "key": ["shop", "id"], **keys})
    return opened(config, str(path), f"sluice:p:{writer}")


def row(key: int, offset: int, *, at: int | None = None, time: int = 0, name: str | None = "", **more: Any) -> Any:
    """Return a row of a key, whose partition follows from it; without a name it deletes."""
    return {
        "shop": f"s{key % 2}", "id": key, "at": at, "name": name, "__sluice_deleted": name is None, "_topic": "t",
        "_partition": key % 3, "_offset": offset, "_timestamp": NOON + timedelta(seconds=time), "_run": "r",
    } | more  # fmt: skip


def made(rows: list[dict[str, Any]], schema: pa.Schema = ARROW) -> pa.Table:
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)


def staged(path: Path, batch: int, rows: list[dict[str, Any]], schema: pa.Schema = FLAGGED, **options: Any) -> Staged:
    """Stage rows in two files, one of them with several row groups."""
    return stage(path, batch, *(made(part, schema) for part in (rows[::2], rows[1::2])), row_group_size=3, **options)


def write(
    sink: Any, rows: list[dict[str, Any]], batch: int, schema: pa.Schema = FLAGGED, fence: Fence | None = None
) -> bool:
    note = {"pipeline": "p", "run": "r", "accounts": []}
    files = staged(Path(sink.path), batch, rows, schema)
    return bool(sink.commit(files, from_arrow_schema(schema), batch, note, fence=fence))


def read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return found


def held(path: Path) -> dict[tuple[str, int], tuple[str, int]]:
    found = read(path)
    rows = {(r["shop"], r["id"]): (r["name"], r["_offset"]) for r in found}
    assert len(rows) == len(found), "a key has two rows"
    return rows


@pytest.mark.parametrize("sequence", [None, "_timestamp", "at"])
def test_delta_upsert_does_not_depend_on_the_order_of_rows(tmp_path: Path, sequence: str | None) -> None:
    chance = random.Random(5)
    for turn in range(6):
        sent = [row(chance.randrange(9), n // 3, at=chance.choice([None, *range(4)]), time=chance.randrange(5),
                    name=f"{n}", _partition=n % 3) for n in range(40)]  # fmt: skip
        last = itemgetter("_timestamp", "_partition", "_offset")
        first: dict[str | None, Callable[[dict[str, Any]], Any]] = {
            None: itemgetter("_offset"), "_timestamp": last, "at": lambda r: -1 if r["at"] is None else r["at"],
        }  # fmt: skip
        wanted: dict[tuple[str, int], Any] = {}
        for each in sorted(sent, key=lambda r: (first[sequence](r), last(r))):
            wanted[each["shop"], each["id"]] = (each["name"], each["_offset"])
        path = tmp_path / str(turn)
        sink, came = table(path, sequence=sequence), chance.sample(sent, 40) + chance.sample(sent, 8)
        for batch in range(6):
            assert write(sink, came[batch * 8 : batch * 8 + 8], batch)
            if chance.random() < 0.3:
                DeltaTable(str(path)).optimize.compact()
        assert held(path) == wanted


def test_delta_upsert_deletes_by_tombstones_and_takes_keys_again(tmp_path: Path) -> None:
    chance, sink, wanted = random.Random(6), table(tmp_path), dict[tuple[str, int], Any]()
    assert write(sink, [row(1, 0, name=None)], 0), "the first one makes the table"
    assert held(tmp_path) == {}
    for batch in range(1, 9):
        rows = [row(chance.randrange(7), 10 * batch + n, name=chance.choice([None, f"{batch}-{n}"])) for n in range(10)]
        for each in rows:
            wanted.pop((each["shop"], each["id"]), None)
            wanted |= {} if each["name"] is None else {(each["shop"], each["id"]): (each["name"], each["_offset"])}
        assert write(sink, rows, batch)
        assert held(tmp_path) == wanted
        named = {file.split("/")[1] for file in DeltaTable(str(tmp_path)).get_add_actions()["path"].to_pylist()}
        assert {f.name for f in (tmp_path / "batches").glob(f"p-e1-{batch:06d}-*")} <= named, "nothing is left behind"
        assert not write(table(tmp_path), rows, batch), "a batch is committed once"
    assert "__sluice_deleted" not in DeltaTable(str(tmp_path)).to_pyarrow_table().column_names
    assert write(sink, [row(key, 99, name=None) for key in range(7)], 9)
    assert held(tmp_path) == {}
    assert write(sink, [row(1, 100, name=None)], 10), "deleting a key that is not there is a commit, too"
    assert sink.version() == 10


def test_delta_upsert_looks_again_when_others_commit(tmp_path: Path, before_commits: Callable[..., None]) -> None:
    sink = table(tmp_path)
    write(sink, [row(key, key) for key in range(8)], 0)
    write(sink, [row(key, 10 + key) for key in range(4)], 1)
    path = str(tmp_path)
    before_commits(
        lambda: DeltaTable(path).optimize.compact(),
        lambda: DeltaTable(path).update(updates={"name": "'theirs'"}, predicate="id IN (1, 7)"),
        lambda: write_deltalake(path, made([row(40, 0, name="inserted", **NOWHERE)]), mode="append"),
        lambda: DeltaTable(path).delete("id = 6"),
    )
    assert write(sink, [row(1, 30, name="new"), row(2, 31, name=None), row(40, 32, name="ours"), row(3, 2)], 2)
    assert held(tmp_path) == {
        ("s0", 0): ("", 10), ("s1", 1): ("new", 30), ("s1", 3): ("", 13), ("s0", 4): ("", 4), ("s1", 5): ("", 5),
        ("s1", 7): ("theirs", 7), ("s0", 40): ("ours", 32),
    }, "a row of others is older than any record, and an older record changes nothing"  # fmt: skip


def test_delta_upsert_is_kept_out_behind_a_rival(tmp_path: Path) -> None:
    write(table(tmp_path), [row(1, 1)], 0)
    fence = Fence(DeltaTable(str(tmp_path)).version(), lambda note: True)
    write(table(tmp_path, writer=2), [row(1, 2)], 0)
    with pytest.raises(LeaseHeldError):
        write(table(tmp_path), [row(1, 3)], 1, fence=fence)
    assert held(tmp_path) == {("s1", 1): ("", 2)}


def test_delta_upsert_that_was_rolled_back_names_a_way_out_that_is_not_refused(tmp_path: Path) -> None:
    for batch in (0, 1):
        write(table(tmp_path), [row(1, batch)], batch)
    DeltaTable(str(tmp_path)).restore(DeltaTable(str(tmp_path)).version() - 1)
    with pytest.raises(TakenBackError, match="was rolled back or replaced") as caught:
        table(tmp_path).examine()
    assert "sluice reset" not in caught.value.next_step, "its rows cannot be taken out"
    assert "another name" in caught.value.next_step


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["é", "", "x" * 600]),
        (pa.binary(), [b"\xff", b""]),
        (pa.bool_(), [True, False]),
        (pa.int8(), [-1, 1]),
        (pa.decimal128(12, 2), [Decimal("1.50"), Decimal("-3.00")]),
        (pa.date32(), [date(1, 1, 1), date(2026, 1, 1)]),
        (pa.timestamp("us", "UTC"), [NOON, datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
    ],
    ids=str,
)
def test_delta_upsert_compares_keys_of_any_type_and_file(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    sink, arrow = table(tmp_path, key=["k"]), pa.schema([("k", kind), *ARROW])
    schema = from_arrow_schema(arrow)
    sink.check(schema)
    for batch in range(3):
        rows = [row(0, batch * 10 + n, k=value) for n, value in enumerate([*values, *values])]
        int96 = {"use_deprecated_int96_timestamps": pa.types.is_timestamp(kind)}
        files = stage(tmp_path, batch, made(rows, arrow), **int96)
        assert sink.commit(files, schema, batch, {"run": "r"})
        written = [pq.read_schema(uri) for uri in DeltaTable(str(tmp_path)).file_uris()]
        times = {field.type for columns in written for field in columns if pa.types.is_timestamp(field.type)}
        assert times == {pa.timestamp("us", "UTC")}, "Spark reads no nanoseconds"
        DeltaTable(str(tmp_path)).optimize.compact()
    assert sorted((r["_offset"], r["k"]) for r in read(tmp_path)) == [
        (20 + len(values) + n, value) for n, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("keys", "schema", "says"),
    [
        ({"key": ["x"]}, T.StructType().add("x", T.DoubleType()), "x is DOUBLE, which cannot be compared exactly"),
        ({"key": ["nothing"]}, SCHEMA, "nothing of the key is no column"),
        (
            {"mode": "append", "key": []},
            SCHEMA,
            r"one row for each of \[\"shop\", \"id\"\]; the pipeline says mode: app",
        ),
        ({"key": ["id"]}, SCHEMA, r"mode: upsert by .*id"),
    ],
)
def test_delta_upsert_refuses_other_keys(tmp_path: Path, keys: dict[str, Any], schema: T.StructType, says: str) -> None:
    write(table(tmp_path), [row(1, 1)], 0)
    table(tmp_path).check(DELETING)
    with pytest.raises(ConfigError, match=says):
        table(tmp_path, **keys).check(schema)


def test_delta_upsert_takes_a_table_of_appended_rows_only_when_it_is_empty(tmp_path: Path) -> None:
    assert write(table(tmp_path, mode="append", key=[]), [row(1, 1)], 0, ARROW)
    with pytest.raises(ConfigError, match="appends rows, and may have several of a key"):
        table(tmp_path).check(SCHEMA)
    DeltaTable(str(tmp_path)).delete()
    table(tmp_path).check(SCHEMA)
    assert write(table(tmp_path), [row(1, 2)], 1)
    assert len(held(tmp_path)) == 1


@pytest.mark.parametrize(("sequence", "offset"), [(None, 90), ("new", 5)])
def test_delta_upsert_adds_columns_and_ranks_null_lowest(tmp_path: Path, sequence: str | None, offset: int) -> None:
    """The file may order by a column that earlier rows do not have: their files lack it."""
    write(table(tmp_path), [row(1, 50), row(2, 60), row(3, 70)], 0)
    sink = table(tmp_path, sequence=sequence, evolve="add")
    wider = ARROW.insert(4, pa.field("new", pa.int64()))
    sink.check(from_arrow_schema(wider))
    assert write(sink, [row(1, offset, new=7), row(2, 6, new=None), row(4, 8, new=1)], 1, wider)
    found = [(r["id"], r["new"], r["_offset"]) for r in read(tmp_path)]
    assert sorted(found) == [(1, 7, offset), (2, None, 60), (3, None, 70), (4, 1, 8)]
    assert sink.evolved(1) == [{"column": "new", "type": "bigint"}]


def test_delta_upsert_merges_with_others_in_a_new_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = DeltaSink._made

    def created(self: DeltaSink, schema: T.StructType) -> Any:
        found = real(self, schema)
        write_deltalake(self.path, made([row(1, 0, name="inserted", **NOWHERE)]), mode="append")
        return found

    monkeypatch.setattr(DeltaSink, "_made", created)
    assert write(table(tmp_path), [row(1, 3, name="ours"), row(2, 4)], 0)
    assert held(tmp_path) == {("s1", 1): ("ours", 3), ("s0", 2): ("", 4)}
