"""Decodes records by Python workers on the Spark path."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from sluice.errors import SluiceError
from sluice_spark.decoders.base import COLUMN, DATA, RULE
from sluice_spark.decoders.conversions import Broken
from sluice_spark.decoders.wire_format import RegisteredReader, rows
from sluice_spark.decoders.worker_errors import MARK, told

__all__ = ["decoded"]

_FOUND = "__sluice_registered"


def decoded(reader: RegisteredReader, columns: T.StructType, records: DataFrame) -> DataFrame:
    """Decode records by Python workers, strictly; see :class:`sluice_spark.decoders.base.Decoder`.

    A worker that cannot ask the registry fails, and with it the batch: nothing is refused for that. The error is one of
    :func:`sluice_spark.decoders.worker_errors.found_in`.
    """
    free = columns.toNullable()
    shape = T.StructType().add("data", free).add("rule", "string").add("column", "string")
    kinds = to_arrow_schema(free, timezone="UTC")

    mark = MARK

    def decode(values: pa.Array) -> pa.Array:
        try:
            found = list(rows(reader, values.to_pylist()))
        except SluiceError as error:
            raise told(error, mark) from error
        names = [f.name for f in kinds]
        good = [dict(zip(names, row, strict=True)) if isinstance(row, tuple) else {} for row in found]
        broken = [row if isinstance(row, Broken) else None for row in found]
        return pa.StructArray.from_arrays(
            [
                pa.array(good, pa.struct(list(kinds))),
                pa.array([b and b.rule for b in broken], pa.string()),
                pa.array([b and b.column for b in broken], pa.string()),
            ],
            names=["data", "rule", "column"],
        )

    # marked so that Spark evaluates it once, and not again in each filter on its result
    udf: Any = F.arrow_udf(decode, returnType=shape).asNondeterministic()
    frame = records.withColumn(_FOUND, udf(F.col("value")))
    found = {DATA: F.col(_FOUND)["data"], RULE: F.col(_FOUND)["rule"], COLUMN: F.col(_FOUND)["column"]}
    return frame.withColumns(found).drop(_FOUND)
