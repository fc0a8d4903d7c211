"""Records in the wire format of schema registries on the Arrow path, read by the same code as on the Spark path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from sluice_spark.arrow.base import Decoded
from sluice_spark.arrow.columns import arrow_type
from sluice_spark.decoders.wire_format import RegisteredReader, rows

__all__ = ["RegisteredChunks"]


class RegisteredChunks:
    """Decodes chunks of Avro or Protobuf records. What is refused is left out.

    Parameters
    ----------
    reader
        Reads a record. It refuses times before 1901.
    columns
        The declared columns, of types that the Arrow path knows.
    """

    keyed = False

    def __init__(self, reader: RegisteredReader, columns: T.StructType) -> None:
        self.columns = pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in columns.fields])
        self._reader = reader

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
