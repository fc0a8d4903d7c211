"""Rows that leave Parquet files by their keys."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fixtures.parquet import stage

from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.parquet.keyed import Keyed

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SCHEMA = pa.schema(
    [("start", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.float64()), ("m", pa.decimal128(5, 2)),
     ("n", pa.int64())]
)  # fmt: skip


VIEWS = SCHEMA.set(1, pa.field("k", pa.string_view()))
"""As delta-rs rewrites a file for a DELETE or an UPDATE."""


def put(root: Path, batch: int, *rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> Staged:
    columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)]
    return stage(root, batch, pa.table(columns, schema), offsets=False)


@pytest.mark.parametrize("schema", [SCHEMA, VIEWS], ids=["plain", "views"])
@pytest.mark.parametrize("keys", [("start", "k", "v", "m"), ("start",)])
def test_keyed_rows_leave_and_those_with_other_keys_stay(
    tmp_path: Path, keys: tuple[str, ...], schema: pa.Schema
) -> None:
    one = Decimal("1.00")
    staged = put(tmp_path, 1, (NOON, None, math.nan, one, 9), (NOON, "a", 0.5, None, 9))
    table = [
        (NOON, None, math.nan, one, 1), (NOON, "a", 0.5, None, 2), (NOON, "None", 0.5, None, 3),
        (NOON, "a", None, None, 4), (NOON + HOUR, "a", 0.5, None, 5),
        (NOON + timedelta(microseconds=1), "a", 0.5, None, 6),
    ]  # fmt: skip
    paths = [
        put(tmp_path, 0, *rows, schema=kinds).files[0].path
        for rows, kinds in ((table, schema), ([(NOON + HOUR, "b", 1.0, None, 7)], SCHEMA))
    ]
    gone = Keyed.of(str(tmp_path), staged, keys)
    found = gone.find(str(tmp_path), pa.table({"path": paths}))
    assert list(found) == paths[:1]
    (file,) = gone.keep(str(tmp_path), "p-e1-000001", found).files
    assert file.path.startswith("batches/p-e1-000001-")
    left = pq.read_table(tmp_path / file.path).column("n").to_pylist()
    assert left == ([3, 4, 5, 6] if len(keys) > 1 else [5, 6])
    assert Keyed((), keys=("start",)).find(str(tmp_path), pa.table({"path": paths})) == {}, "no key, no row"
