"""Profiles of staged files, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.profile import ColumnProfile, Profile
from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.parquet.profiled import nulls_of, profile_of
from sluice_spark.sinks.parquet.staged import read_back

CEST = timezone(timedelta(hours=2))


def staged(root: Path, *tables: pa.Table, below: str = "", group: int = 2) -> Staged:
    folder = root / "batches" / "b" / below
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=group)
    return read_back(str(root), "batches/b", offsets=False)


ROWS: dict[str, Any] = {
    "id": pa.array([3, 1, None], pa.int64()),
    "amount": pa.array([Decimal("9.50"), Decimal("10.00"), None], pa.decimal128(12, 2)),
    "day": pa.array([date(2026, 1, 2), date(2026, 1, 1), None]),
    "at": pa.array([datetime(2026, 1, 1, 12, tzinfo=CEST), None, datetime(2026, 1, 1, 11, tzinfo=CEST)],
                   pa.timestamp("us", "UTC")),
    "local": pa.array([datetime(2026, 1, 1), None, None], pa.timestamp("us")),
    "name": pa.array(["Ann", None, "Zoe"]),
    "yes": pa.array([True, None, False]),
    "gone": pa.array([None, None, None], pa.int32()),
    "place": pa.array([{"city": "Bonn", "at": {"x": 1}}, {"city": None, "at": {"x": 7}}, None]),
    "tags": pa.array([["a"], [], None]),
    "_topic": pa.array(["t"] * 3),
    "_timestamp": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
}  # fmt: skip


def test_footers_tell_nulls_and_ends_and_no_text(tmp_path: Path) -> None:
    found = profile_of(str(tmp_path), staged(tmp_path, pa.table(ROWS), pa.table(ROWS).slice(0, 2)))
    assert found.rows == 5
    assert found.columns["id"] == ColumnProfile(5, 1, "number", 1, 3)
    assert found.columns["amount"] == ColumnProfile(5, 1, "decimal", "9.50", "10.00")
    assert found.columns["day"] == ColumnProfile(5, 1, "date", "2026-01-01", "2026-01-02")
    at = found.columns["at"]
    assert (at.kind, at.low, at.high) == ("time", "2026-01-01T09:00:00.000000Z", "2026-01-01T10:00:00.000000Z")
    assert found.columns["local"] == ColumnProfile(5, 3, "local", *["2026-01-01T00:00:00.000000"] * 2)
    assert found.columns["name"] == ColumnProfile(5, 2)
    assert found.columns["yes"] == ColumnProfile(5, 2)
    assert found.columns["gone"] == ColumnProfile(5, 5)
    assert found.columns["place.city"] == ColumnProfile(5, 3)
    assert found.columns["place.at.x"] == ColumnProfile(5, 1, "number", 1, 7)
    assert not {"tags", "tags.list.element", "_topic"} & set(found.columns)
    assert "_timestamp" in found.columns
    assert Profile.from_dict(json.loads(json.dumps(found.as_dict(), allow_nan=False))) == found


def test_columns_that_are_read_back_have_mean_and_distinct_values(tmp_path: Path) -> None:
    names = ["id", "amount", "name", "yes", "place.at.x", "tags", "at", "nowhere"]
    found = profile_of(str(tmp_path), staged(tmp_path, pa.table(ROWS), pa.table(ROWS)), names).columns
    assert (found["id"].mean, found["id"].distinct) == (2.0, 2)
    assert (found["amount"].mean, found["amount"].distinct) == (9.75, 2)
    assert (found["name"].mean, found["name"].distinct, found["name"].low) == (None, 2, None)
    assert (found["yes"].mean, found["yes"].distinct) == (0.5, 2)
    assert (found["place.at.x"].mean, found["place.at.x"].distinct) == (4.0, 2)
    assert (found["at"].mean, found["at"].distinct) == (None, 2)
    assert found["day"].distinct is None
    assert "nowhere" not in found


def test_nan_and_infinity_do_not_reach_the_ledger(tmp_path: Path) -> None:
    wild = pa.table({"x": [1.0, float("nan"), float("inf"), None, 3.0, float("-inf"), -0.0, 0.0]})
    files = staged(tmp_path, wild)
    for names in ([], ["x"]):
        found = profile_of(str(tmp_path), files, names)
        json.dumps(found.as_dict(), allow_nan=False)
    x = found.columns["x"]
    assert (x.nulls, x.low, x.high, x.mean, x.values) == (1, 0.0, 3.0, 1.0, 4)
    assert x.distinct == 6  # 1, NaN, inf, 3, -inf, and zero once


def test_of_masked_columns_only_nulls_are_told_whatever_the_case_and_below_them(tmp_path: Path) -> None:
    found = profile_of(str(tmp_path), staged(tmp_path, pa.table(ROWS)), ["id", "place.at.x"], masked=["ID", "place"])
    assert found.columns["id"] == ColumnProfile(3, 1)
    assert found.columns["place.at.x"] == ColumnProfile(3, 1)


def test_the_estimate_of_many_values_is_near_and_the_same_in_any_cut(tmp_path: Path) -> None:
    values = np.random.default_rng(3).integers(0, 40_000, 100_000)
    texts = pa.table({"n": values, "s": [f"user-{v}" for v in values]})
    parts = profile_of(
        str(tmp_path), staged(tmp_path, texts.slice(0, 30_000), texts.slice(30_000), group=20_000), ["n", "s"]
    )
    true = len(np.unique(values))
    for name in ("n", "s"):
        assert parts.columns[name].distinct == pytest.approx(true, rel=0.15)
    whole = staged(tmp_path / "other", texts, group=50_000)
    assert profile_of(str(tmp_path / "other"), whole, ["n", "s"]).columns["n"].sketch == parts.columns["n"].sketch


def test_partition_columns_are_in_no_file_and_have_nulls_and_distinct_values(tmp_path: Path) -> None:
    files = staged(tmp_path, pa.table({"id": [1, 2]}), below="country=de")
    assert profile_of(str(tmp_path), files, ["country"]).columns["country"].distinct == 1
    none = staged(tmp_path / "none", pa.table({"id": [1, 2]}), below="country=__HIVE_DEFAULT_PARTITION__")
    assert profile_of(str(tmp_path / "none"), none, ["country"]).columns["country"].nulls == 2


def test_a_file_that_cannot_be_read_back_costs_the_mean_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = staged(tmp_path, pa.table(ROWS))
    (tmp_path / files.files[0].path).unlink()
    found = profile_of(str(tmp_path), files, ["id"])
    assert found.columns["id"] == ColumnProfile(3, 1, "number", 1, 3)


@pytest.mark.parametrize("told", [True, False, ["b"]])
def test_nulls_are_counted_if_the_footer_does_not_say(tmp_path: Path, told: bool | list[str]) -> None:
    rows = pa.table({"a": [1, None, None], "b": [b"x", b"", None], "c": [True, False, True]})
    pq.write_table(rows, tmp_path / "f.parquet", row_group_size=2, write_statistics=told)
    assert [nulls_of(str(tmp_path), "f.parquet", name) for name in "abcd"] == [2, 1, 0, 3]
