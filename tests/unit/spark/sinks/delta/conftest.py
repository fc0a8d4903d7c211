"""Small tables of Delta sinks, staged without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.staged import read_back

SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("_topic", StringType()),
        StructField("_partition", LongType()),
        StructField("_offset", LongType()),
        StructField("_timestamp", TimestampType()),
        StructField("_run", StringType()),
    ]
)


def sink(path: Path, pipeline: str = "p", suffix: str = "") -> DeltaSink:
    return DeltaSink(str(path), f"sluice:{pipeline}:1{suffix}")


def rows(first: int, last: int) -> pa.Table:
    count = last - first
    return pa.table(
        {
            "id": list(range(first, last)),
            "_topic": ["t"] * count,
            "_partition": [0] * count,
            "_offset": list(range(first, last)),
            "_timestamp": pa.array([1_356_998_400_000_000 + n for n in range(count)], pa.timestamp("us", "UTC")),
            "_run": ["r"] * count,
        }
    )


def staged(path: Path, batch: int, first: int, last: int) -> Staged:
    folder = f"batches/p-e1-{batch:06d}-0123456{batch}"
    (path / folder).mkdir(parents=True)
    pq.write_table(rows(first, last), path / folder / "part.parquet")
    return read_back(str(path), folder, offsets=True)


def put(table: DeltaSink, batch: int, **more: Any) -> bool:
    path = Path(table.path)
    return table.commit(
        staged(path, batch, 10 * batch, 10 * batch + 10), SCHEMA, batch, {"run": f"r{batch}"}, **more
    )  # fmt: skip
