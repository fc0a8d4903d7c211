"""Delta tables that are kept open: always as they are now, and lent to one at a time."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from sluice_spark.sinks.delta import open_tables
from sluice_spark.sinks.delta.open_tables import OpenTables
from sluice_spark.sinks.delta.statistics import files_of

SCHEMA = Schema([Field(name, PrimitiveType("long")) for name in ("a", "b")])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Count how often a log is read from its beginning."""
    counted = mock.Mock(side_effect=DeltaTable)
    monkeypatch.setattr(open_tables, "DeltaTable", counted)
    return counted


def make(path: Path, **settings: str) -> str:
    DeltaTable.create(str(path), SCHEMA, configuration=settings)
    return str(path)


def add(table: DeltaTable, name: str, *gone: str, version: int | None = None) -> None:
    stats = {"numRecords": 1, "minValues": {"a": 1, "b": 2}, "maxValues": {"a": 1, "b": 2}, "nullCount": {}}
    removed: list[AddAction | RemoveAction] = [RemoveAction(path, True, 1) for path in gone]
    actions = [*removed, AddAction(name, 10, {}, 1, True, json.dumps(stats))]
    marks = [Transaction("app", version, None)] if version is not None else None
    properties = CommitProperties(app_transactions=marks, max_commit_retries=0)
    table.create_write_transaction(actions, "append", SCHEMA, [], commit_properties=properties)


def names(table: DeltaTable) -> list[str]:
    return sorted(files_of(table).column("path").to_pylist())


def test_open_delta_table_is_read_once_and_the_same_as_one_opened_now(tmp_path: Path, counted: mock.Mock) -> None:
    """Others add, remove, change properties, write checkpoints and clean up in between."""
    chance = random.Random(3)
    path, tables = make(tmp_path / "t", **{"delta.checkpointInterval": "7"}), OpenTables()

    def state(table: DeltaTable) -> Any:
        files = sorted(map(str, files_of(table).to_pylist()))
        return table.version(), files, table.metadata().configuration, table.transaction_version("app")

    for step in range(150):
        other = DeltaTable(path)
        if chance.random() < 0.1:
            columns = chance.choice(["a", "b", "a,b"])
            other.alter.set_table_properties({"delta.dataSkippingStatsColumns": columns})
        elif chance.random() < 0.1:
            other.create_checkpoint()
        else:
            present = names(other)
            gone = [chance.choice(present)] if present and chance.random() < 0.4 else []
            add(other, f"f{step}", *gone, version=step)
        if chance.random() < 0.7:
            assert state(tables.look(path)) == state(DeltaTable(path))
    assert counted.call_count == 1


def test_open_delta_table_does_not_move_while_a_caller_holds_it(tmp_path: Path, counted: mock.Mock) -> None:
    path, tables = make(tmp_path / "t"), OpenTables()
    add(tables.look(path), "one")
    deciding = tables.look(path)
    add(tables.look(path), "two")
    assert (tables.look(path).version(), deciding.version()) == (2, 1)
    with pytest.raises(CommitFailedError):
        add(deciding, "three")
    assert counted.call_count == 2
    del deciding
    assert (tables.look(path).version(), counted.call_count) == (2, 2)


def test_open_delta_table_is_lent_to_one_thread_at_a_time(tmp_path: Path) -> None:
    path, tables, lock = make(tmp_path / "t"), OpenTables(), threading.Lock()
    held, twice = set[int](), list[int]()

    def look(_: int) -> None:
        for _ in range(30):
            table = tables.look(path)
            with lock:
                twice.extend({id(table._table)} & held)
                held.add(id(table._table))
            table.transaction_version("app")
            with lock:
                held.discard(id(table._table))
            del table

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(look, range(4)))
    assert twice == []


def test_open_delta_table_that_is_gone_replaced_or_restored_is_opened_again(tmp_path: Path, counted: mock.Mock) -> None:
    path, tables = make(tmp_path / "t"), OpenTables()
    for name in ("one", "two"):
        add(tables.look(path), name)
    assert names(tables.look(path)) == ["one", "two"]
    (tmp_path / "t/_delta_log" / f"{2:020}.json").unlink()
    assert names(tables.look(path)) == ["one"], "rolled back"
    shutil.rmtree(path)
    with pytest.raises(TableNotFoundError):
        tables.look(path)
    make(tmp_path / "t")
    add(DeltaTable(path), "another")
    assert names(tables.look(path)) == ["another"]
    shutil.copytree(path, tmp_path / "copy")
    add(DeltaTable(tmp_path / "copy"), "there")
    assert names(tables.look(path)) == ["another"]
    os.rename(path, tmp_path / "aside")
    os.rename(tmp_path / "copy", path)
    assert names(tables.look(path)) == ["another", "there"], "swapped"


def test_open_delta_table_whose_commits_were_cleaned_up_is_opened_again(tmp_path: Path, counted: mock.Mock) -> None:
    path, tables = make(tmp_path / "t"), OpenTables()
    add(tables.look(path), "one")
    assert tables.look(path).version() == 1
    add(DeltaTable(path), "two")
    DeltaTable(path).create_checkpoint()
    for version in range(2):
        (tmp_path / "t/_delta_log" / f"{version:020}.json").unlink()
    assert names(tables.look(path)) == ["one", "two"]
    assert counted.call_count == 2


def test_open_delta_tables_are_limited_in_number(tmp_path: Path, counted: mock.Mock) -> None:
    tables = OpenTables(most=2)
    paths = [make(tmp_path / f"t{n}") for n in range(3)]
    for path in [*paths, *paths[1:]]:
        tables.look(path)
    assert counted.call_count == 3
    tables.look(paths[0])
    assert counted.call_count == 4
