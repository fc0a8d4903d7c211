"""Rows for Delta sinks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

NOTE = {"pipeline": "p", "run": "r", "accounts": []}


def rows(spark: SparkSession, first: int, last: int, **extra: str) -> DataFrame:
    more = "".join(f", {sql} AS {name}" for name, sql in extra.items())
    return spark.sql(
        f"SELECT id, 't' AS _topic, 0 AS _partition, id AS _offset, timestamp_seconds(1356998400 + id) AS _timestamp, "
        f"'r' AS _run{more} FROM range({first}, {last}, 1, 2)"
    )


def ids(path: Path) -> Counter[int]:
    return Counter(DeltaTable(str(path)).to_pyarrow_table().column("id").to_pylist())


def folders(path: Path) -> set[str]:
    return {p.name for p in (path / "batches").iterdir()}
