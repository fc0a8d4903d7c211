"""Which paths of a Delta table's log delta-rs can remove."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction

from sluice.delta.paths import check_gone, check_removable, logged
from sluice.errors import ConfigError, SinkError

CITY = pa.schema([("id", pa.int64()), ("city", pa.string())])


def paths(table: DeltaTable) -> list[str]:
    return list(pa.table(table.get_add_actions(flatten=True))["path"].to_pylist())


def test_delta_rs_logs_each_character_as_expected_and_takes_it_away_again(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), Schema.from_arrow(CITY), partition_by=["city"])
    letters = [chr(n) for n in range(1, 256) if chr(n) != "/"] + ["日", "\U0001f600"]
    files = [f"city=x{letter}y/f.parquet" for letter in letters]
    added = [AddAction(file, 1, {"city": "x"}, 1, True, '{"numRecords": 1}') for file in files]
    table.create_write_transaction(added, "append", table.schema(), partition_by=["city"])
    table.update_incremental()
    assert sorted(paths(table)) == sorted(map(logged, files))
    check_removable("t", paths(table))
    removed = [RemoveAction(unquote(path), True, 1) for path in paths(table)]
    table.create_write_transaction(removed, "append", table.schema(), partition_by=["city"])
    assert paths(DeltaTable(str(tmp_path))) == []


@pytest.mark.parametrize("name", ["München", "a*b", "[x]", "a b"])
def test_delta_path_that_another_program_logged_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    DeltaTable.create(str(tmp_path), Schema.from_arrow(CITY), partition_by=["city"])
    raw = f"city={name}/f.parquet"  # Spark logs letters beyond ASCII so
    add = {"path": raw, "partitionValues": {"city": name}, "size": 1, "modificationTime": 1, "dataChange": True}
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"add": add}))
    table = DeltaTable(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot remove") as refused:
        check_removable("t", paths(table))
    assert raw in str(refused.value)
    table.create_write_transaction([RemoveAction(raw, True, 1)], "append", table.schema(), partition_by=["city"])
    assert paths(DeltaTable(str(tmp_path))) == [raw], "delta-rs removes it now: the check is needed no more"


def test_delta_file_that_was_to_go_and_is_there_is_an_error() -> None:
    check_gone("t", ["b", "c"], ["a"], 7)
    with pytest.raises(SinkError, match=r"2 files .* such as a") as found:
        check_gone("t", ["a", "b", "c"], ["b", "a"], 7)
    assert "version 7" in found.value.next_step
