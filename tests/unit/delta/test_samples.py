"""Records of a quarantine: counts, and samples."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.fixtures.showcase import quarantine

from sluice.decoders.explain import explained
from sluice.delta.notes import note_of
from sluice.delta.refused import Refused, refused
from sluice.delta.samples import look
from sluice.errors import SinkError

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ERRORS = pa.list_(pa.struct([("rule", pa.string()), ("severity", pa.string()), ("column", pa.string())]))


def entry(offset: int, rule: str, value: bytes | None, column: str | None = None, run: str = "a") -> dict[str, Any]:
    return {
        "key": b"k%d" % offset, "value": value, "headers": None, "_topic": "t", "_partition": 0, "_offset": offset,
        "_timestamp": ZERO + timedelta(hours=offset), "_run": run,
        "_errors": [{"rule": rule, "severity": "critical", "column": column}],
    }  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    rows = [
        entry(0, "json", b"{"),
        entry(1, "type", b'{"id": "x", "o": {"p": [1]}}', "id"),
        entry(2, "type", b'{"id": "y"}', "id", run="b"),
        entry(3, "type", b'{"o": {"p": "q"}}', "o.p", run="b"),
        entry(4, "utf8", b"\xff\x00"),
        entry(5, "null_value", None),
        entry(6, "type", b'{"id": "' + b"z" * 1000 + b'"}', "missing"),
    ]
    schema = pa.schema(
        [
            ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("_topic", pa.string()),
            ("_partition", pa.int32()), ("_offset", pa.int64()), ("_timestamp", pa.timestamp("us", "UTC")),
            ("_run", pa.string()), ("_errors", ERRORS),
        ]
    )  # fmt: skip
    target = str(tmp_path / "quarantine")
    write_deltalake(target, pa.Table.from_pylist(rows[:4], schema=schema))
    write_deltalake(target, pa.Table.from_pylist(rows[4:], schema=schema), mode="append")
    return target


def test_record_with_a_time_that_python_does_not_have_is_shown(path: str) -> None:
    far = pa.table(
        {
            "key": [b"k"], "value": [b"{"], "headers": pa.nulls(1, HEADERS), "_topic": ["t"],
            "_partition": pa.array([0], pa.int32()), "_offset": [7],
            "_timestamp": pa.array([1_795_590_000_000_000_000]).cast(pa.timestamp("us", "UTC")), "_run": ["far"],
            "_errors": pa.array([[{"rule": "json", "severity": "critical", "column": None}]], ERRORS),
        }
    )  # fmt: skip
    write_deltalake(path, far, mode="append")
    found = look(path, rule="json", show=1)
    assert found.groups[0].as_dict()["last"] == found.samples[0].timestamp == "the year 58869"
    assert look(path, since=ZERO + timedelta(days=1)).records == 1


def test_samples_are_counted_by_rule_and_column(path: str) -> None:
    found = look(path)
    assert (found.records, found.samples) == (7, [])
    assert [(g.rule, g.column, g.records, g.runs) for g in found.groups] == [
        ("type", "id", 2, 2), ("json", None, 1, 1), ("null_value", None, 1, 1), ("type", "missing", 1, 1),
        ("type", "o.p", 1, 1), ("utf8", None, 1, 1),
    ]  # fmt: skip
    first = found.groups[0].as_dict()
    assert (first["first"], first["last"]) == ("2026-01-01T01:00:00+00:00", "2026-01-01T02:00:00+00:00")


def test_newest_samples_are_shown_with_their_detail(path: str) -> None:
    found = look(path, show=5)
    assert [(s.offset, s.rule, s.column, s.key) for s in found.samples] == [
        (6, "type", "missing", "k6"), (5, "null_value", None, "k5"), (4, "utf8", None, "k4"),
        (3, "type", "o.p", "k3"), (2, "type", "id", "k2"),
    ]  # fmt: skip
    texts = [s.text for s in found.samples]
    assert texts[1:3] == [None, "0xff00"]
    assert texts[0] is not None
    assert texts[0].startswith('{"id": "zzz')
    assert texts[0].endswith("… (1,010 characters)")
    assert [s.detail for s in found.samples] == [None] * 5, "as an earlier version wrote them"
    now = look(path, show=5, explain=explained("json", None))
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
def test_samples_by_rule_run_and_time(path: str, asked: dict[str, Any], offsets: list[int]) -> None:
    found = look(path, show=100, **asked)
    assert [s.offset for s in found.samples] == offsets
    assert found.records == len(offsets)


def test_missing_table_is_empty_and_a_broken_one_is_an_error(path: str, tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    assert look(none, show=3).as_dict() == {"path": none, "records": 0, "groups": [], "samples": []}
    assert refused(none) == []
    next(Path(path).glob("*.parquet")).unlink()
    with pytest.raises(SinkError, match="quarantine"):
        look(path)


def test_refused_records_are_counted_by_rule_and_column(tmp_path: Path) -> None:
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
def test_note_of_a_commit_is_read_as_each_library_returns_it(commit: dict[str, Any], note: dict[str, Any]) -> None:
    assert note_of(commit) == note
