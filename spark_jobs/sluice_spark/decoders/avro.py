"""One Avro record per record, in the wire format of schema registries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from sluice.decoders.avro import AvroDecode
from sluice.decoders.registry import Registry
from sluice.errors import SluiceError
from sluice_spark.decoders.avro_types import EVER, Broken
from sluice_spark.decoders.avro_values import AvroReader, rows
from sluice_spark.decoders.base import COLUMN, DATA, RULE
from sluice_spark.decoders.told import MARK, told

__all__ = ["Avro", "reader_of"]

_FOUND = "__sluice_avro"


def reader_of(config: AvroDecode, columns: T.StructType, days: tuple[int, int]) -> AvroReader:
    """Return what reads the records of a pipeline, in any process."""
    return AvroReader(Registry.named(config.registry), columns, days, tombstones=config.tombstone)


@dataclass(frozen=True)
class Avro:
    """The decoder of ``decode: {avro: ...}``; records are read by Python workers."""

    config: AvroDecode

    def decode(self, records: DataFrame) -> DataFrame:
        """Decode records, strictly.

        A worker that cannot ask the registry fails, and with it the batch: nothing is refused for that. The error is
        one of :func:`sluice_spark.decoders.told.found_in`.
        """
        columns = T.StructType.fromDDL(self.config.ddl)
        free = columns.toNullable()
        reader = reader_of(self.config, columns, EVER)
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
