"""Rows of a sink as a DataFrame, by way of a file that lives as long as this process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice_spark.paths import literal

__all__ = ["spilled"]

_OLD = 3 * 86_400
"""Seconds after which no process reads such a file any more."""


def spilled(
    spark: SparkSession, rows: Iterable[pa.RecordBatch], columns: pa.Schema, schema: StructType, folder: str
) -> tuple[DataFrame, int]:
    """Return rows as a DataFrame, and their number.

    Parameters
    ----------
    columns, schema
        The rows' columns, for Arrow and for Spark.
    folder
        A path that all machines share; what killed processes left in it is removed after some days.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    for left in Path(folder).glob("read-*"):
        if time.time() - left.stat().st_mtime > _OLD:
            shutil.rmtree(left, ignore_errors=True)
    mine = tempfile.mkdtemp(prefix="read-", dir=folder)
    atexit.register(shutil.rmtree, mine, ignore_errors=True)
    count = 0
    with pq.ParquetWriter(f"{mine}/rows.parquet", columns, store_schema=False) as writer:
        for batch in rows:
            writer.write_table(pa.Table.from_batches([batch]).cast(columns))
            count += batch.num_rows
    return spark.read.schema(schema).parquet(literal(f"{mine}/rows.parquet")), count
