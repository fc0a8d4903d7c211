"""Versions of Delta tables: of a joined table that a batch reads, and of transactions."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.fixtures.deltas import committed

from sluice.delta.pinned import PinnedTable, pin
from sluice.delta.transactions import transaction_versions
from sluice.errors import ConfigError, SourceUnreachableError


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of three versions, each of which replaced the one before."""
    where = str(tmp_path / "carriers")
    for version in range(3):
        write_deltalake(where, pa.table({"id": [version]}), mode="overwrite")
    return where


def pinned(path: str, **how: Any) -> PinnedTable:
    return pin("carriers", "carriers", path, **how)


def recorded(version: int, path: str = "carriers") -> dict[str, Any]:
    return {"path": path, "version": version}


@pytest.mark.parametrize(
    ("how", "version"),
    [
        ({}, 2),
        ({"version": 1}, 1),
        ({"recorded": recorded(0)}, 0),
        ({"recorded": recorded(0, "another")}, 2),
        ({"recorded": recorded(0), "version": 1}, 1),
        ({"recorded": recorded(0), "timestamp": datetime.now(UTC) + timedelta(days=1)}, 0),
        ({"timestamp": datetime.now(UTC) + timedelta(days=1)}, 2),
    ],
)
def test_version_of_the_file_then_the_recorded_one_then_the_newest(
    path: str, how: dict[str, Any], version: int
) -> None:
    found = pinned(path, **how)
    assert found.version == version
    assert found.as_dict() == {"path": "carriers", "version": version, "files_hash": found.files_hash}
    assert found.files is not None
    assert found.table.to_pyarrow_table().column("id").to_pylist() == [version]
    assert DeltaTable(path, version=version).file_uris() == found.files


def test_time_names_the_version_of_then(path: str, tmp_path: Path) -> None:
    first = DeltaTable(path).history()[-1]["timestamp"]
    with pytest.raises(ConfigError, match="2020-01-01"):
        pinned(path, timestamp=datetime(2020, 1, 1, tzinfo=UTC))
    assert pinned(path, timestamp=datetime.fromtimestamp(first / 1000 + 3600, UTC)).version == 2
    parts = str(tmp_path / "parts")
    write_deltalake(parts, pa.table({"id": [1], "day": ["x"]}), partition_by=["day"])
    assert pinned(parts).files is None, "Delta's own reader must read it"


def test_version_whose_files_are_gone_is_refused(path: str) -> None:
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    newest = pinned(path).version  # a vacuum writes versions of its own
    with pytest.raises(ConfigError, match=r"version 0 .* 1 of its files") as caught:
        pinned(path, recorded=recorded(0))
    assert f"version: {newest} (the newest) below tables.carriers.delta" in caught.value.next_step


@pytest.mark.parametrize("version", [0, 2])
def test_version_of_a_recreated_table_is_refused(path: str, version: int) -> None:
    began = pinned(path, recorded=recorded(version))
    assert pinned(path, recorded=began.as_dict()) == began
    shutil.rmtree(path)
    for number in range(3):
        write_deltalake(path, pa.table({"id": [number]}), mode="overwrite")
    with pytest.raises(ConfigError, match=f"version {version} .* other files"):
        pinned(path, recorded=began.as_dict())
    assert pinned(path, recorded=began.as_dict(), version=version).files != began.files
    with pytest.raises(ConfigError, match="1 of its files"):
        began.refuse_gone()


@pytest.mark.parametrize("version", [0, 7])
def test_version_that_the_log_does_not_have_is_refused(path: str, version: int) -> None:
    table = DeltaTable(path)
    table.create_checkpoint()
    (Path(path) / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(ConfigError, match=f"version {version} "):
        pinned(path, version=version)
    assert pinned(path).version == 2


def test_missing_table_is_a_mistake_and_a_broken_one_is_tried_again_later(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tables\.carriers: .*/nowhere") as caught:
        pinned(str(tmp_path / "nowhere"))
    assert "tables.carriers.delta.path" in caught.value.next_step
    (Path(path) / "_delta_log" / f"{2:020}.json").write_text("{")
    with pytest.raises(SourceUnreachableError, match=r"tables\.carriers"):
        pinned(path)


def test_newest_transaction_version_is_found_on_both_sides_of_a_checkpoint(tmp_path: Path) -> None:
    wanted = [(f"app {n % 7}", n) for n in range(23)]
    table = committed(tmp_path / "t", *wanted, settings={"delta.checkpointInterval": "10"})
    assert (tmp_path / "t" / "_delta_log" / "_last_checkpoint").exists()
    assert transaction_versions(str(tmp_path / "t"), table.version()) == dict(wanted)
    assert {app: table.transaction_version(app) for app in dict(wanted)} == dict(wanted)
    for file in (tmp_path / "t" / "_delta_log").glob("*0000.json"):
        file.unlink()  # the checkpoint holds these
    assert transaction_versions(str(tmp_path / "t"), table.version()) == dict(wanted)


def test_log_without_a_checkpoint_is_read_from_its_beginning(tmp_path: Path) -> None:
    table = committed(tmp_path / "t", ("a", 0), ("b", 3), ("a", 1))
    assert transaction_versions(str(tmp_path / "t"), table.version()) == {"a": 1, "b": 3}
    assert transaction_versions(str(tmp_path / "t"), 2) == {"a": 0, "b": 3}


@pytest.mark.parametrize("what", ["a commit is missing", "the checkpoint has parts", "the checkpoint is garbled"])
def test_log_of_another_form_is_left_to_delta_rs(tmp_path: Path, what: str) -> None:
    table = committed(tmp_path / "t", *(("a", n) for n in range(12)), settings={"delta.checkpointInterval": "10"})
    log = tmp_path / "t" / "_delta_log"
    if what == "a commit is missing":
        (log / f"{table.version():020}.json").unlink()
    elif what == "the checkpoint has parts":
        (log / "_last_checkpoint").write_text('{"version": 10, "size": 3, "parts": 2}')
    else:
        next(log.glob("*.checkpoint.parquet")).write_bytes(b"no table")
    assert transaction_versions(str(tmp_path / "t"), table.version()) is None
