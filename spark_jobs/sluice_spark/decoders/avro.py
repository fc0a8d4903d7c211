"""One Avro record per record, in the wire format of schema registries."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from sluice.decoders.avro import AvroDecode
from sluice.decoders.registry import Registry
from sluice_spark.decoders.avro_values import AvroReader
from sluice_spark.decoders.conversions import EVER
from sluice_spark.decoders.workers import decoded

__all__ = ["Avro", "reader_of"]


def reader_of(config: AvroDecode, columns: T.StructType, days: tuple[int, int]) -> AvroReader:
    """Return what reads the records of a pipeline, in any process."""
    return AvroReader(Registry.named(config.registry), columns, days, tombstones=config.tombstone)


@dataclass(frozen=True)
class Avro:
    """The decoder of ``decode: {avro: ...}``; records are read by Python workers."""

    config: AvroDecode

    def decode(self, records: DataFrame) -> DataFrame:
        """Decode records, strictly; see :func:`sluice_spark.decoders.workers.decoded`."""
        columns = T.StructType.fromDDL(self.config.ddl)
        return decoded(reader_of(self.config, columns, EVER), columns, records)
