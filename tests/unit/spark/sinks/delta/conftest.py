"""Small Delta tables, staged without a JVM, and commits of others to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from tests.fixtures.parquet import stage

from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import NOTHING, Staged
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.slice import Slice


def rows(first: int, last: int, **columns: Any) -> pa.Table:
    """Return rows of these offsets, with some columns more, or other ones."""
    count = last - first
    times = [1_356_998_400_000_000 + n for n in range(first, last)]
    usual = {
        "id": pa.array(range(first, last), pa.int64()),
        "_topic": pa.array(["t"] * count, pa.string()),
        "_partition": pa.array([0] * count, pa.int64()),
        "_offset": pa.array(range(first, last), pa.int64()),
        "_timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        "_run": pa.array(["r"] * count, pa.string()),
    }
    return pa.table({**usual, **columns})


SCHEMA = from_arrow_schema(rows(0, 0).schema)


def sink(path: Path, writer: str = "p:1", **keys: Any) -> DeltaSink:
    return DeltaSink(str(path), f"sluice:{writer}", **keys)


def put(table: DeltaSink, batch: int, made: pa.Table | None = None, **more: Any) -> bool:
    """Commit a batch of these rows, or of ten."""
    made = rows(10 * batch, 10 * batch + 10) if made is None else made
    staged, schema = stage(table.path, batch, made), from_arrow_schema(made.schema)
    return table.commit(staged, schema, batch, {"run": f"r{batch}"}, **more)


def replace(
    table: DeltaSink, first: int, last: int, staged: Staged = NOTHING, schema: StructType = SCHEMA, batch: int = 1
) -> dict[tuple[str, int], int] | None:
    """Commit a batch that replaces the rows of these offsets."""
    gone, name = Slice([OffsetRange("t", 0, first, last)]), f"p-e1-{batch:06d}"
    return table.replace(gone, staged, schema, batch, {"run": f"r{batch}"}, name=name)


def set_properties(path: Path, **properties: str) -> None:
    """Set table properties, as others do."""
    names = {name.replace("_", "."): value for name, value in properties.items()}
    DeltaTable(str(path)).alter.set_table_properties(names, raise_if_not_exists=False)


@pytest.fixture
def before_commits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let others do something directly before the next commits of a sink, one before each."""

    def act(*others: Callable[[], Any]) -> None:
        real, left = DeltaTable.create_write_transaction, iter(others)

        def commit(self: DeltaTable, *args: Any, **keys: Any) -> None:
            next(left, lambda: None)()
            real(self, *args, **keys)

        monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)

    return act
