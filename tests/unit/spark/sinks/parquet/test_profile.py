"""Profiles of staged Parquet files, without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fixtures.parquet import stage

from sluice.facts.profile import ColumnProfile, Profile
from sluice_spark.sinks.parquet.profile import nulls_of, profile_of

CEST = timezone(timedelta(hours=2))

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


def profiled(
    root: Path, *tables: pa.Table, columns: Sequence[str] = (), masked: Sequence[str] = (), group: int = 2, **more: Any
) -> Profile:
    """Stage files of several row groups, and profile them."""
    files = stage(root, 0, *tables, offsets=False, row_group_size=group, **more)
    return profile_of(str(root), files, columns, masked=masked)


def test_profile_of_footers_has_nulls_and_ends_and_no_text(tmp_path: Path) -> None:
    found = profiled(tmp_path, pa.table(ROWS), pa.table(ROWS).slice(0, 2))
    assert found.rows == 5
    columns = dict(found.columns)
    assert columns.pop("_timestamp").kind == "time"
    assert columns == {
        "id": ColumnProfile(5, 1, "number", 1, 3),
        "amount": ColumnProfile(5, 1, "decimal", "9.50", "10.00"),
        "day": ColumnProfile(5, 1, "date", "2026-01-01", "2026-01-02"),
        "at": ColumnProfile(5, 2, "time", "2026-01-01T09:00:00.000000Z", "2026-01-01T10:00:00.000000Z"),
        "local": ColumnProfile(5, 3, "local", *["2026-01-01T00:00:00.000000"] * 2),
        "name": ColumnProfile(5, 2),
        "yes": ColumnProfile(5, 2),
        "gone": ColumnProfile(5, 5),
        "place.city": ColumnProfile(5, 3),
        "place.at.x": ColumnProfile(5, 1, "number", 1, 7),
    }
    assert Profile.from_dict(json.loads(json.dumps(found.as_dict(), allow_nan=False))) == found


def test_profile_of_columns_that_are_read_back_has_mean_and_distinct_values(tmp_path: Path) -> None:
    names = ["id", "amount", "name", "yes", "place.at.x", "tags", "at", "nowhere"]
    found = profiled(tmp_path, pa.table(ROWS), pa.table(ROWS), columns=names).columns
    assert {name: (found[name].mean, found[name].distinct) for name in names if name in found} == {
        "id": (2.0, 2), "amount": (9.75, 2), "name": (None, 2), "yes": (0.5, 2), "place.at.x": (4.0, 2),
        "at": (None, 2),
    }  # fmt: skip
    assert (found["name"].low, found["day"].distinct) == (None, None)


def test_profile_has_no_nan_and_no_infinity_for_the_ledger(tmp_path: Path) -> None:
    wild = pa.table({"x": [1.0, float("nan"), float("inf"), None, 3.0, float("-inf"), -0.0, 0.0]})
    for columns in ([], ["x"]):
        found = profiled(tmp_path, wild, columns=columns)
        json.dumps(found.as_dict(), allow_nan=False)
    x = found.columns["x"]
    assert (x.nulls, x.low, x.high, x.mean, x.values) == (1, 0.0, 3.0, 1.0, 4)
    assert x.distinct == 6  # 1, NaN, inf, 3, -inf, and zero once


def test_profile_of_masked_columns_and_those_below_them_has_only_nulls_in_any_case(tmp_path: Path) -> None:
    found = profiled(tmp_path, pa.table(ROWS), columns=["id", "place.at.x"], masked=["ID", "place"]).columns
    assert found["id"] == found["place.at.x"] == ColumnProfile(3, 1)


def test_profile_estimates_many_values_nearly_and_the_same_in_any_cut(tmp_path: Path) -> None:
    values, names = np.random.default_rng(3).integers(0, 40_000, 100_000), ["n", "s"]
    texts = pa.table({"n": values, "s": [f"user-{v}" for v in values]})
    parts = profiled(tmp_path, texts.slice(0, 30_000), texts.slice(30_000), columns=names, group=20_000).columns
    for name in names:
        assert parts[name].distinct == pytest.approx(len(np.unique(values)), rel=0.15)
    whole = profiled(tmp_path / "other", texts, columns=names, group=50_000).columns
    assert whole["n"].sketch == parts["n"].sketch


def test_profile_of_partition_columns_which_are_in_no_file_has_nulls_and_distinct_values(tmp_path: Path) -> None:
    def country(value: str) -> ColumnProfile:
        below = [f"country={value}"]
        return profiled(tmp_path / value, pa.table({"id": [1, 2]}), columns=["country"], below=below).columns["country"]

    assert (country("de").distinct, country("__HIVE_DEFAULT_PARTITION__").nulls) == (1, 2)


def test_profile_of_a_file_that_cannot_be_read_back_has_no_mean(tmp_path: Path) -> None:
    files = stage(tmp_path, 0, pa.table(ROWS), offsets=False)
    (tmp_path / files.files[0].path).unlink()
    assert profile_of(str(tmp_path), files, ["id"]).columns["id"] == ColumnProfile(3, 1, "number", 1, 3)


@pytest.mark.parametrize("statistics", [True, False, ["b"]])
def test_profile_counts_nulls_that_the_footer_does_not_have(tmp_path: Path, statistics: bool | list[str]) -> None:
    rows = pa.table({"a": [1, None, None], "b": [b"x", b"", None], "c": [True, False, True]})
    pq.write_table(rows, tmp_path / "f.parquet", row_group_size=2, write_statistics=statistics)
    assert [nulls_of(str(tmp_path), "f.parquet", name) for name in "abcd"] == [2, 1, 0, 3]
