"""Rows for Delta sinks, and what a table holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from sluice.ranges import OffsetRange
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.slice import Slice

NOTE = {"pipeline": "p", "run": "r", "accounts": []}
START = 1_356_998_400


def rows(spark: SparkSession, first: int, last: int, run: str = "r", columns: int = 1, **extra: str) -> DataFrame:
    more = [f"id + {n} AS c{n:02d}" for n in range(columns - 1)] + [f"{sql} AS {name}" for name, sql in extra.items()]
    return spark.sql(
        f"SELECT {', '.join(['id', *more])}, 't' AS _topic, 0 AS _partition, id AS _offset, "
        f"timestamp_seconds({START} + id) AS _timestamp, '{run}' AS _run FROM range({first}, {last}, 1, 2)"
    )


def put(sink: DeltaSink, frame: DataFrame, version: int) -> None:
    staged = sink.stage(frame, f"p-e1-{version:06d}")
    assert sink.commit(staged, frame.schema, version, {**NOTE, "batch": version})


def march(first: int, last: int) -> Slice:
    return Slice([OffsetRange("t", 0, first, last)], START * 1000, (START + 1_000_000) * 1000)


def replaced(sink: DeltaSink, gone: Slice, frame: DataFrame, version: int = 0) -> Any:
    name = f"i1-{version:06d}"
    return sink.replace(gone, sink.stage(frame, name), frame.schema, version, NOTE, name=name)


def ids(of: Path | DataFrame) -> Counter[int]:
    """Return the ids of rows, or of a table's as delta-rs reads them."""
    table = DeltaTable(str(of)).to_pyarrow_table() if isinstance(of, Path) else of.toArrow()
    return Counter(table.column("id").to_pylist())


def by_spark(spark: SparkSession, sink: DeltaSink) -> DataFrame:
    return spark.read.format("delta").load(sink.path)


def folders(path: Path) -> set[str]:
    return {p.name for p in (path / "batches").iterdir()}
