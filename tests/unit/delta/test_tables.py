"""Delta tables: versions of a joined table and of transactions, records of a quarantine, and paths to remove."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction, RemoveAction
from tests.fixtures.deltas import committed
from tests.fixtures.showcase import quarantine

from sluice.decoders.explain import explained
from sluice.delta.notes import note_of
from sluice.delta.paths import check_gone, check_removable, logged
from sluice.delta.pinned_table import PinnedTable, pin
from sluice.delta.quarantine import Refused, refused
from sluice.delta.samples import look
from sluice.delta.table import opened
from sluice.delta.transactions import transaction_versions
from sluice.errors import ConfigError, SinkError, SourceUnreachableError


def write(path: str) -> str:
    """Write a table of three versions, each of which replaced the one before."""
    for version in range(3):
        write_deltalake(path, pa.table({"id": [version]}), mode="overwrite")
    return path


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write(str(tmp_path / "carriers"))


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
def test_joined_table_has_the_version_of_file_then_record_then_newest(path: str, how: Any, version: int) -> None:
    found = pinned(path, **how)
    assert found.version == version
    assert found.as_dict() == {"path": "carriers", "version": version, "files_hash": found.files_hash}
    assert found.table.to_pyarrow_table().column("id").to_pylist() == [version]
    assert DeltaTable(path, version=version).file_uris() == found.files


def test_joined_table_at_a_time_has_the_version_of_then(path: str, tmp_path: Path) -> None:
    first = DeltaTable(path).history()[-1]["timestamp"]
    with pytest.raises(ConfigError, match="2020-01-01"):
        pinned(path, timestamp=datetime(2020, 1, 1, tzinfo=UTC))
    assert pinned(path, timestamp=datetime.fromtimestamp(first / 1000 + 3600, UTC)).version == 2
    parts = str(tmp_path / "parts")
    write_deltalake(parts, pa.table({"id": [1], "day": ["x"]}), partition_by=["day"])
    assert pinned(parts).files is None, "Delta's own reader must read it"


def test_joined_table_refuses_a_version_whose_files_are_gone(path: str) -> None:
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    newest = pinned(path).version  # a vacuum writes versions of its own
    with pytest.raises(ConfigError, match=r"version 0 .* 1 of its files") as caught:
        pinned(path, recorded=recorded(0))
    assert f"version: {newest} (the newest) below tables.carriers.delta" in caught.value.next_step


@pytest.mark.parametrize("version", [0, 2])
def test_joined_table_refuses_a_version_of_before_it_was_recreated(path: str, version: int) -> None:
    began = pinned(path, recorded=recorded(version))
    assert pinned(path, recorded=began.as_dict()) == began
    shutil.rmtree(path)
    write(path)
    with pytest.raises(ConfigError, match=f"version {version} .* other files"):
        pinned(path, recorded=began.as_dict())
    assert pinned(path, recorded=began.as_dict(), version=version).files != began.files
    with pytest.raises(ConfigError, match="1 of its files"):
        began.refuse_gone()


@pytest.mark.parametrize("version", [0, 7])
def test_joined_table_refuses_a_version_that_the_log_does_not_have(path: str, version: int) -> None:
    DeltaTable(path).create_checkpoint()
    (Path(path) / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(ConfigError, match=f"version {version} "):
        pinned(path, version=version)
    assert pinned(path).version == 2


def test_joined_table_that_is_missing_is_a_mistake_and_a_broken_one_is_not(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tables\.carriers: .*/nowhere") as caught:
        pinned(str(tmp_path / "nowhere"))
    assert "tables.carriers.delta.path" in caught.value.next_step
    (Path(path) / "_delta_log" / f"{2:020}.json").write_text("{")
    with pytest.raises(SourceUnreachableError, match=r"tables\.carriers"):
        pinned(path)


def test_delta_transactions_are_found_on_both_sides_of_a_checkpoint(tmp_path: Path) -> None:
    wanted = [(f"app {n % 7}", n) for n in range(23)]
    table = committed(tmp_path / "t", *wanted, settings={"delta.checkpointInterval": "10"})
    assert {app: table.transaction_version(app) for app in dict(wanted)} == dict(wanted)
    assert transaction_versions(str(tmp_path / "t"), table.version()) == dict(wanted)
    for file in (tmp_path / "t" / "_delta_log").glob("*0000.json"):
        file.unlink()  # the checkpoint holds these
    assert transaction_versions(str(tmp_path / "t"), table.version()) == dict(wanted)


def test_delta_transactions_are_found_without_a_checkpoint(tmp_path: Path) -> None:
    table = committed(tmp_path / "t", ("a", 0), ("b", 3), ("a", 1))
    found = [transaction_versions(str(tmp_path / "t"), version) for version in (2, table.version())]
    assert found == [{"a": 0, "b": 3}, {"a": 1, "b": 3}]


@pytest.mark.parametrize("what", ["a commit is missing", "the checkpoint has parts", "the checkpoint is garbled"])
def test_delta_transactions_of_a_log_of_another_form_are_left_to_delta_rs(tmp_path: Path, what: str) -> None:
    table = committed(tmp_path / "t", *(("a", n) for n in range(12)), settings={"delta.checkpointInterval": "10"})
    log = tmp_path / "t" / "_delta_log"
    if what == "a commit is missing":
        (log / f"{table.version():020}.json").unlink()
    elif what == "the checkpoint has parts":
        (log / "_last_checkpoint").write_text('{"version": 10, "size": 3, "parts": 2}')
    else:
        next(log.glob("*.checkpoint.parquet")).write_bytes(b"no table")
    assert transaction_versions(str(tmp_path / "t"), table.version()) is None


ZERO = datetime(2026, 1, 1, tzinfo=UTC)


def entry(offset: int, rule: str, value: bytes | None, column: str | None = None, run: str = "a") -> dict[str, Any]:
    return {
        "key": b"k%d" % offset, "value": value, "_topic": "t", "_partition": 0, "_offset": offset, "_run": run,
        "_timestamp": ZERO + timedelta(hours=offset), "headers": [{"key": "h", "value": b"v"}],
        "_errors": [{"rule": rule, "severity": "critical", "column": column}],
    }  # fmt: skip


@pytest.fixture
def refusals(tmp_path: Path) -> str:
    rows = [
        entry(0, "json", b"{"),
        entry(1, "type", b'{"id": "x", "o": {"p": [1]}}', "id"),
        entry(2, "type", b'{"id": "y"}', "id", run="b"),
        entry(3, "type", b'{"o": {"p": "q"}}', "o.p", run="b"),
        entry(4, "utf8", b"\xff\x00"),
        entry(5, "null_value", None),
        entry(6, "type", b'{"id": "' + b"z" * 1000 + b'"}', "missing"),
    ]
    target = str(tmp_path / "quarantine")
    for part in (rows[:4], rows[4:]):
        write_deltalake(target, pa.Table.from_pylist(part), mode="append")
    return target


def test_quarantine_shows_a_record_with_a_time_that_python_does_not_have(refusals: str) -> None:
    far = pa.Table.from_pylist([entry(7, "type", b"{", "id", run="far")])
    times = pa.array([1_795_590_000_000_000_000]).cast(pa.timestamp("us", "UTC"))
    write_deltalake(refusals, far.set_column(far.column_names.index("_timestamp"), "_timestamp", times), mode="append")
    found = look(refusals, run="far", show=1)
    assert found.groups[0].as_dict()["last"] == found.samples[0].timestamp == "the year 58869"
    assert look(refusals, since=ZERO + timedelta(days=1)).records == 1


def test_quarantine_counts_records_by_rule_and_column(refusals: str) -> None:
    found = look(refusals)
    assert (found.records, found.samples) == (7, [])
    first, *others = [list(group.as_dict().values()) for group in found.groups]
    assert first == ["type", "id", 2, 2, "2026-01-01T01:00:00+00:00", "2026-01-01T02:00:00+00:00"]
    columns = [("json", None), ("null_value", None), ("type", "missing"), ("type", "o.p"), ("utf8", None)]
    assert [tuple(group[:4]) for group in others] == [(*names, 1, 1) for names in columns]


def test_quarantine_shows_the_newest_samples_with_their_detail(refusals: str) -> None:
    found = look(refusals, show=5)
    assert [(s.offset, s.rule, s.column, s.key) for s in found.samples] == [
        (6, "type", "missing", "k6"), (5, "null_value", None, "k5"), (4, "utf8", None, "k4"),
        (3, "type", "o.p", "k3"), (2, "type", "id", "k2"),
    ]  # fmt: skip
    first, *texts = (str(s.text) for s in found.samples)
    assert (texts[:2], first[:10], first[-20:]) == (["None", "0xff00"], '{"id": "zz', "… (1,010 characters)")
    assert [s.detail for s in found.samples] == [None] * 5, "as an earlier version wrote them"
    now = look(refusals, show=5, explain=explained("json", None))
    assert [s.detail for s in now.samples] == [
        "is missing", None, "byte 0xff at 0 is not UTF-8", '"q"', '"y"',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "offsets"),
    [
        ({"rule": "type"}, [6, 3, 2, 1]),
        ({"run": "b"}, [3, 2]),
        ({"since": ZERO + timedelta(hours=5)}, [6, 5]),
        ({"before": ZERO + timedelta(hours=3)}, [2, 1, 0]),
        ({"rule": "type", "run": "a"}, [6, 1]),
        ({"rule": "nope"}, []),
    ],
)
def test_quarantine_has_samples_by_rule_run_and_time(refusals: str, asked: dict[str, Any], offsets: list[int]) -> None:
    found = look(refusals, show=100, **asked)
    assert [s.offset for s in found.samples] == offsets
    assert found.records == len(offsets)


def test_quarantine_that_is_missing_is_empty_and_a_broken_one_is_an_error(refusals: str, tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    assert look(none, show=3).as_dict() == {"path": none, "records": 0, "groups": [], "samples": []}
    assert refused(none) == []
    next(Path(refusals).glob("*.parquet")).unlink()
    with pytest.raises(SinkError, match="quarantine"):
        look(refusals)


def test_quarantine_counts_refused_records_for_the_page(tmp_path: Path) -> None:
    quarantine(tmp_path / "q", [("not_null", "id", 2), ("decode", None, 5), ("not_null", "amount", 3)])
    assert refused(str(tmp_path / "q")) == [
        Refused("decode", None, 5), Refused("not_null", "amount", 3), Refused("not_null", "id", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("commit", "note"),
    [
        ({"sluice": {"app_id": "a"}}, {"app_id": "a"}),
        ({"sluice": '{"app_id": "a"}'}, {"app_id": "a"}),
        ({}, None),
        ({"sluice": "a gate for water"}, None),  # another program's metadata under the same key
        ({"sluice": "7"}, None),
    ],
)
def test_delta_note_of_a_commit_is_read_as_each_library_returns_it(commit: dict[str, Any], note: Any) -> None:
    assert note_of(commit) == note


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
    with pytest.raises(ConfigError, match=re.escape(raw)):
        check_removable("t", paths(table))
    table.create_write_transaction([RemoveAction(raw, True, 1)], "append", table.schema(), partition_by=["city"])
    assert paths(DeltaTable(str(tmp_path))) == [raw], "delta-rs removes it now: the check is needed no more"


def test_delta_file_that_was_to_go_and_is_there_is_an_error() -> None:
    check_gone("t", ["b", "c"], ["a"], 7)
    with pytest.raises(SinkError, match=r"2 files .* such as a") as found:
        check_gone("t", ["a", "b", "c"], ["b", "a"], 7)
    assert "version 7" in found.value.next_step


def test_delta_table_that_may_not_be_read_is_no_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: str) -> Any:  # the tests may run as root, who may read everything
        raise PermissionError(13, "Permission denied", folder)

    asked = str(tmp_path / "none"), lambda error: SinkError(f"unreadable: {error}")
    assert opened(*asked) is None
    monkeypatch.setattr("sluice.delta.table.os.listdir", refuse)
    with pytest.raises(SinkError, match="Permission denied"):
        opened(*asked)
