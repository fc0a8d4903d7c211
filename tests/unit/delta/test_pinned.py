"""Which version of a joined table is read, and what is said if it cannot be."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice.delta.pinned import PinnedTable, pin
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
def test_the_files_version_counts_before_the_recorded_one_and_that_before_the_newest(
    path: str, how: dict[str, Any], version: int
) -> None:
    found = pinned(path, **how)
    assert found.version == version
    assert found.as_dict() == {"path": "carriers", "version": version, "files_hash": found.files_hash}
    assert found.files is not None
    assert found.table.to_pyarrow_table().column("id").to_pylist() == [version]
    assert DeltaTable(path, version=version).file_uris() == found.files


def test_a_time_names_the_version_of_then(path: str) -> None:
    first = DeltaTable(path).history()[-1]["timestamp"]
    with pytest.raises(ConfigError, match="no version that was committed by 2020-01-01"):
        pinned(path, timestamp=datetime(2020, 1, 1, tzinfo=UTC))
    assert pinned(path, timestamp=datetime.fromtimestamp(first / 1000 + 3600, UTC)).version == 2


def test_only_deltas_own_reader_makes_rows_of_a_partitioned_table(tmp_path: Path) -> None:
    where = str(tmp_path / "parts")
    write_deltalake(where, pa.table({"id": [1], "day": ["x"]}), partition_by=["day"])
    assert pinned(where).files is None


def test_a_version_whose_files_are_gone_is_refused_with_a_way_out(path: str) -> None:
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    newest = pinned(path).version  # a vacuum writes versions of its own
    with pytest.raises(ConfigError, match=r"version 0 of the Delta table .* 1 of its files were removed") as caught:
        pinned(path, recorded=recorded(0))
    assert f"version: {newest} (the newest) below tables.carriers.delta" in caught.value.next_step


@pytest.mark.parametrize("version", [0, 2])
def test_a_version_of_a_table_that_was_made_anew_is_not_the_recorded_one(path: str, version: int) -> None:
    began = pinned(path, recorded=recorded(version))
    assert pinned(path, recorded=began.as_dict()) == began
    shutil.rmtree(path)
    for number in range(3):
        write_deltalake(path, pa.table({"id": [number]}), mode="overwrite")
    with pytest.raises(ConfigError, match=f"version {version} of .* has other files than when the batch was begun"):
        pinned(path, recorded=began.as_dict())
    assert pinned(path, recorded=began.as_dict(), version=version).files != began.files
    with pytest.raises(ConfigError, match="1 of its files were removed"):
        began.refuse_gone()


@pytest.mark.parametrize("version", [0, 7])
def test_a_version_that_the_log_does_not_have_is_refused(path: str, version: int) -> None:
    table = DeltaTable(path)
    table.create_checkpoint()
    (Path(path) / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(ConfigError, match=f"version {version} of .* its log does not have it"):
        pinned(path, version=version)
    assert pinned(path).version == 2


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tables\.carriers: there is no Delta table at .*/nowhere") as caught:
        pinned(str(tmp_path / "nowhere"))
    assert "nothing was read or written" in caught.value.state
    assert "tables.carriers.delta.path" in caught.value.next_step


def test_a_table_that_cannot_be_read_now_is_tried_again_later(path: str) -> None:
    (Path(path) / "_delta_log" / f"{2:020}.json").write_text("{")
    with pytest.raises(SourceUnreachableError, match=r"tables\.carriers: the Delta table .* cannot be read"):
        pinned(path)
