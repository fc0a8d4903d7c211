"""The transaction versions of a table, in one reading of its log."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.deltas import committed

from sluice.delta.transactions import transaction_versions


def test_the_newest_version_of_each_application_is_found_on_both_sides_of_a_checkpoint(tmp_path: Path) -> None:
    wanted = [(f"app {n % 7}", n) for n in range(23)]
    table = committed(tmp_path / "t", *wanted, settings={"delta.checkpointInterval": "10"})
    assert (tmp_path / "t" / "_delta_log" / "_last_checkpoint").exists()
    assert transaction_versions(str(tmp_path / "t"), table.version()) == dict(wanted)
    assert {app: table.transaction_version(app) for app in dict(wanted)} == dict(wanted)
    for file in (tmp_path / "t" / "_delta_log").glob("*0000.json"):
        file.unlink()  # the checkpoint holds these
    assert transaction_versions(str(tmp_path / "t"), table.version()) == dict(wanted)


def test_a_log_without_a_checkpoint_is_read_from_its_beginning(tmp_path: Path) -> None:
    table = committed(tmp_path / "t", ("a", 0), ("b", 3), ("a", 1))
    assert transaction_versions(str(tmp_path / "t"), table.version()) == {"a": 1, "b": 3}
    assert transaction_versions(str(tmp_path / "t"), 2) == {"a": 0, "b": 3}


@pytest.mark.parametrize("what", ["a commit is missing", "the checkpoint has parts", "the checkpoint is garbled"])
def test_a_log_of_another_form_is_left_to_delta_rs(tmp_path: Path, what: str) -> None:
    table = committed(tmp_path / "t", *(("a", n) for n in range(12)), settings={"delta.checkpointInterval": "10"})
    log = tmp_path / "t" / "_delta_log"
    if what == "a commit is missing":
        (log / f"{table.version():020}.json").unlink()
    elif what == "the checkpoint has parts":
        (log / "_last_checkpoint").write_text('{"version": 10, "size": 3, "parts": 2}')
    else:
        next(log.glob("*.checkpoint.parquet")).write_bytes(b"no table")
    assert transaction_versions(str(tmp_path / "t"), table.version()) is None
