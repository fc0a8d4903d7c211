"""Reads a table's rows with Spark, from the files that its log names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from operator import or_
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.storage import is_url
from sluice_spark.paths import literal, located
from sluice_spark.sinks.delta.handle import Handle
from sluice_spark.sinks.delta.statistics import bounds, files_of, mask, may_be

__all__ = ["rows", "rows_of"]


def rows_of(held: Handle, spark: SparkSession, runs: Sequence[str]) -> tuple[DataFrame, int]:
    """Return the rows that these runs wrote, and their number.

    Only files whose statistics may include one of the runs are read. If possible, the number comes from the log.
    """
    table = held.existing()
    actions = files_of(table)
    keep = np.zeros(actions.num_rows, dtype=bool)
    for run in runs:
        keep |= may_be(actions, "_run", run, run)
    chosen = actions.filter(pa.array(keep))
    frame = _read(held, spark, table, chosen).where(_any_of(runs))
    if _has_vectors(table) or not _of_one_run_each(chosen):
        return frame, frame.count()  # another program rewrote files: the log does not have the number
    return frame, sum(chosen.column("num_records").to_pylist())


def rows(held: Handle, spark: SparkSession) -> DataFrame:
    """Return all rows of the table."""
    table = held.existing()
    return _read(held, spark, table, files_of(table))


def _read(held: Handle, spark: SparkSession, table: DeltaTable, actions: pa.Table) -> DataFrame:
    if table.metadata().partition_columns or _has_vectors(table):
        return spark.read.format("delta").option("versionAsOf", table.version()).load(located(held.path))
    # Spark's Delta reader reconstructs the table's state in a job of its own, which takes seconds even for a small
    # table; the log was read here already.
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    files = [p if is_url(p) else f"{held.path}/{unquote(p)}" for p in actions.column("path").to_pylist()]
    return spark.read.schema(schema).parquet(*map(literal, files)) if files else spark.createDataFrame([], schema)


def _has_vectors(table: DeltaTable) -> bool:
    """Return whether deletion vectors may have deleted rows of the table's files, even if they are disabled now."""
    return "deletionVectors" in (table.protocol().reader_features or [])


def _any_of(runs: Sequence[str]) -> Column:
    # for a list (IN), Spark's Delta reader would use minimum and maximum, and open all files in between
    return reduce(or_, (F.col("_run") == run for run in runs), F.lit(False))


def _of_one_run_each(files: pa.Table) -> bool:
    """Return whether the log shows for each file that all of its rows belong to one run, and their number."""
    runs, numbers = bounds(files, "_run"), files.column("num_records")
    if runs is None or numbers.null_count:
        return False
    one = mask(pc.equal(*runs), unknown=False)
    if "null_count._run" in files.column_names:
        one &= mask(pc.equal(files.column("null_count._run"), 0), unknown=False)
    return bool(one.all())
