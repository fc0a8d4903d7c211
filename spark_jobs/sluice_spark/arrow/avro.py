"""Avro records on the Arrow path, read by the same code as on the Spark path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from sluice.decoders.avro import AvroDecode
from sluice_spark.arrow.base import Decoded
from sluice_spark.arrow.columns import arrow_type
from sluice_spark.decoders.avro import reader_of
from sluice_spark.decoders.avro_types import SINCE_1901
from sluice_spark.decoders.avro_values import rows

__all__ = ["AvroChunks"]


class AvroChunks:
    """Decodes chunks of Avro records. What is refused is left out, and so are times before 1901.

    Parameters
    ----------
    columns
        The declared columns, of types that the Arrow path knows.
    """

    keyed = False

    def __init__(self, config: AvroDecode, columns: T.StructType) -> None:
        self.columns = pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in columns.fields])
        self._reader = reader_of(config, columns, SINCE_1901)

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        """Decode a chunk; see :class:`~sluice_spark.arrow.base.ChunkDecoder`."""
        found = list(rows(self._reader, values))
        good = [row for row in found if isinstance(row, tuple)]
        kept = None if len(good) == len(found) else np.array([n for n, r in enumerate(found) if isinstance(r, tuple)])
        columns = list(zip(*good, strict=True)) if good else [()] * len(self.columns)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.columns, strict=True)]
        return Decoded(
            pa.Table.from_arrays(arrays, schema=self.columns), kept if kept is None else kept.astype(np.int64)
        )
