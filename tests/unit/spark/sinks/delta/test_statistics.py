"""Statistics of a Delta table's files in its log, and the setting that makes them enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from pyspark.sql import types as T

from sluice.ranges import OffsetRange
from sluice_spark.sinks.delta.statistics import NEEDED, files_of, hidden, settings_for
from sluice_spark.sinks.parquet.slice import Slice

KINDS = (T.StringType(), T.IntegerType(), T.LongType(), T.TimestampType(), T.StringType())

LIST, FIRST = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"


def schema_of(users: int, **more: Any) -> T.StructType:
    own = {f"c{n:02d}": T.LongType() for n in range(users)}
    schema = T.StructType()
    for name, kind in {**own, **more, **dict(zip(NEEDED, KINDS, strict=True))}.items():
        schema.add(name, kind)
    return schema


def made(path: Path, schema: T.StructType, settings: dict[str, str], by: list[str] | None = None) -> DeltaTable:
    """Make a table of one file, whose log holds statistics of our columns and of a few others."""
    kind = Schema.from_json(schema.json())
    table = DeltaTable.create(str(path), kind, partition_by=by, configuration=settings)
    values = {"_topic": "t", "_partition": 0, "_offset": 7, "_timestamp": "2026-01-01T00:00:00.000Z", "_run": "r"}
    values |= {f.name: 1 for f in schema.fields if f.name.startswith("c") and f.dataType == T.LongType()}
    values = {k: v for k, v in values.items() if k not in (by or [])}
    stats = {"numRecords": 1, "minValues": values, "maxValues": values, "nullCount": dict.fromkeys(values, 0)}
    action = AddAction("f.parquet", 10, dict.fromkeys(by or [], "0"), 1, True, json.dumps(stats))
    table.create_write_transaction([action], "append", kind, by or [])
    return DeltaTable(str(path))


STRUCT = T.StructType().add("u", T.LongType()).add("v", T.StringType())

DARK = T.StructType().add("list", T.ArrayType(T.LongType())).add("flag", T.BooleanType())


@pytest.mark.parametrize("users", [0, 20, 27, 28, 30, 32, 40, 60, 300])
def test_delta_log_shows_metadata_columns_behind_any_number_of_others(tmp_path: Path, users: int) -> None:
    schema = schema_of(users)
    settings = settings_for(schema, [], {})
    assert (settings == {}) == (users <= 27), "a narrow table needs no setting"
    plain, table = made(tmp_path / "plain", schema, {}), made(tmp_path / "t", schema, settings)
    assert (hidden(plain) == []) == (users <= 27)
    assert hidden(table) == []
    files = files_of(table)
    for n in range(min(users, 32)):
        assert files.column(f"min.c{n:02d}").to_pylist() == [1], "what users look for is found as before"
    assert settings_for(schema, [], settings).items() <= settings.items(), "doing it twice changes nothing"


@pytest.mark.parametrize(
    "more",
    [
        dict.fromkeys(["a b", "x.y", "a,b", "c`d", "ä", "q'\""], T.LongType()),
        {"s": STRUCT},
        {"s": STRUCT, "t": T.StructType().add("inner", STRUCT).add("flag", T.BooleanType())},
        {"dark": DARK},
        {"deep": T.StructType().add("dark", DARK).add("u", T.LongType())},
        {"list": T.ArrayType(T.LongType()), "map": T.MapType(T.StringType(), T.LongType()), "bin": T.BinaryType()},
        {"structs": T.ArrayType(STRUCT)},
    ],
    ids=["awkward-names", "struct", "structs-in-structs", "struct-without-statistics", "one-in-another", "lists",
         "list-of-structs"],
)  # fmt: skip
@pytest.mark.parametrize("users", [0, 29, 40])
def test_delta_log_shows_metadata_columns_behind_awkward_ones(tmp_path: Path, more: dict[str, Any], users: int) -> None:
    schema = schema_of(users, **more)
    table = made(tmp_path / "t", schema, settings_for(schema, [], {}))
    assert hidden(table) == []
    assert files_of(table).column("max._run").to_pylist() == ["r"]


def test_delta_statistics_setting_leaves_partition_columns_out(tmp_path: Path) -> None:
    schema, by = schema_of(40), ["c00", "_partition"]
    settings = settings_for(schema, by, {})
    assert all(name not in settings[LIST] for name in by)
    table = made(tmp_path / "t", schema, settings, by)
    assert hidden(table) == []
    where = Slice([OffsetRange("t", 1, 0, 9)], 0, 1 << 50)
    assert where.find(str(tmp_path / "t"), files_of(table)) == {}, "not opened: it is another partition's"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({LIST: "_run, `_topic`,_partition,_offset,_timestamp,c39"}, {}),
        ({FIRST: "-1"}, {}),
        ({FIRST: "64"}, {}),
        ({LIST: "c39,_run"}, {LIST: "c39,_run,`_topic`,`_partition`,`_offset`,`_timestamp`"}),
        ({LIST: ""}, {LIST: "`_topic`,`_partition`,`_offset`,`_timestamp`,`_run`"}),
        ({FIRST: "0"}, {LIST: "`_topic`,`_partition`,`_offset`,`_timestamp`,`_run`"}),
        ({FIRST: "2"}, {LIST: "`c00`,`c01`,`_topic`,`_partition`,`_offset`,`_timestamp`,`_run`"}),
        ({FIRST: "64", LIST: "c01"}, {LIST: "c01,`_topic`,`_partition`,`_offset`,`_timestamp`,`_run`"}),
    ],
)
def test_delta_statistics_set_by_users_are_kept(tmp_path: Path, theirs: dict[str, str], ours: dict[str, str]) -> None:
    schema = schema_of(40)
    found = settings_for(schema, [], theirs)
    assert {k: v for k, v in found.items() if theirs.get(k) != v} == ours
    assert hidden(made(tmp_path / "t", schema, {**theirs, **found})) == []
