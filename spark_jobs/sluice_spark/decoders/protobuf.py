"""One Protobuf message per record, in the wire format of schema registries."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from sluice.decoders.protobuf import ProtobufDecode
from sluice.decoders.registry import Registry
from sluice_spark.decoders.conversions import EVER
from sluice_spark.decoders.protobuf_values import ProtobufReader
from sluice_spark.decoders.workers import decoded

__all__ = ["Protobuf", "reader_of"]


def reader_of(config: ProtobufDecode, columns: T.StructType, days: tuple[int, int]) -> ProtobufReader:
    """Return what reads the records of a pipeline, in any process."""
    return ProtobufReader(
        Registry.named(config.registry), columns, days, tombstones=config.tombstone, message=config.message
    )


@dataclass(frozen=True)
class Protobuf:
    """The decoder of ``decode: {protobuf: ...}``; records are read by Python workers."""

    config: ProtobufDecode

    def decode(self, records: DataFrame) -> DataFrame:
        """Decode records, strictly; see :func:`sluice_spark.decoders.workers.decoded`."""
        columns = T.StructType.fromDDL(self.config.ddl)
        return decoded(reader_of(self.config, columns, EVER), columns, records)
