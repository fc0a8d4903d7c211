"""Rows are found by their keys, whatever these are, and only they are left out."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice_spark.sinks.parquet.keyed import Keyed
from sluice_spark.sinks.parquet.staged import read_back

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SCHEMA = pa.schema(
    [("start", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.float64()), ("m", pa.decimal128(5, 2)),
     ("n", pa.int64())]
)  # fmt: skip


VIEWS = SCHEMA.set(1, pa.field("k", pa.string_view()))
"""As delta-rs writes a file anew for a DELETE or an UPDATE."""


def put(root: Path, folder: str, rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> None:
    (root / folder).mkdir(parents=True)
    columns = list(zip(*rows, strict=True))
    pq.write_table(
        pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema),
        root / folder / "a.parquet",
    )


@pytest.mark.parametrize("schema", [SCHEMA, VIEWS], ids=["plain", "views"])
@pytest.mark.parametrize("keys", [("start", "k", "v", "m"), ("start",)])
def test_rows_with_the_keys_of_staged_ones_are_left_out(
    tmp_path: Path, keys: tuple[str, ...], schema: pa.Schema
) -> None:
    put(tmp_path, "batches/p-e1-000001-0badcafe",
        [(NOON, None, math.nan, Decimal("1.00"), 9), (NOON, "a", 0.5, None, 9)])  # fmt: skip
    table = [
        (NOON, None, math.nan, Decimal("1.00"), 1), (NOON, "a", 0.5, None, 2), (NOON, "None", 0.5, None, 3),
        (NOON, "a", None, None, 4), (NOON + HOUR, "a", 0.5, None, 5),
        (NOON + timedelta(microseconds=1), "a", 0.5, None, 6),
    ]  # fmt: skip
    put(tmp_path, "batches/p-e1-000000-0badcafe", table, schema)
    put(tmp_path, "batches/p-e1-000000-1badcafe", [(NOON + HOUR, "b", 1.0, None, 7)])
    gone = Keyed.of(str(tmp_path), read_back(str(tmp_path), "batches/p-e1-000001-0badcafe", offsets=False), keys)
    paths = [f"batches/p-e1-000000-{token}badcafe/a.parquet" for token in (0, 1)]
    found = gone.find(str(tmp_path), pa.table({"path": paths}))
    assert list(found) == paths[:1]
    kept = gone.keep(str(tmp_path), "p-e1-000001", found)
    (file,) = kept.files
    assert file.path.startswith("batches/p-e1-000001-")
    left = pq.read_table(tmp_path / file.path).column("n").to_pylist()
    assert left == ([3, 4, 5, 6] if len(keys) > 1 else [5, 6])


def test_nothing_is_found_for_no_rows(tmp_path: Path) -> None:
    put(tmp_path, "batches/p-e1-000000-0badcafe", [(NOON, "a", 1.0, None, 1)])
    gone = Keyed((), keys=("start",))
    assert gone.find(str(tmp_path), pa.table({"path": ["batches/p-e1-000000-0badcafe/a.parquet"]})) == {}
