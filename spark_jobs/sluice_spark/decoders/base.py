"""What a decoder is: a record's value becomes typed columns, or a reason why it does not.

``docs/decoding.md`` holds the contract of those built in, value by value. In short: a record decodes to exactly the
values that it states, or it is refused; no value is rounded, completed, cut or replaced on the way.
"""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.kinds import kind_of
from sluice.pipeline.model import Decode

__all__ = ["COLUMN", "DATA", "RULE", "Decoder", "decode", "source_columns"]

DATA = "__sluice_data"
"""Struct of the decoded columns."""
RULE = "__sluice_rule"
"""Name of the rule that the record broke; null when it decoded."""
COLUMN = "__sluice_column"
"""Name of the column that broke the rule; null where the rule is about the record, and when it decoded."""


class Decoder(Protocol):
    """Decodes records; made from what the pipeline file says."""

    def decode(self, records: DataFrame) -> DataFrame:
        """Add :data:`DATA`, :data:`RULE` and :data:`COLUMN` to records.

        A pure function of the frame. It keeps all other columns, and each row; it must not raise for what a record
        holds.

        Parameters
        ----------
        records
            Columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp.
        """


def decode(records: DataFrame, spec: Decode) -> DataFrame:
    """Decode records as a pipeline file says: see :meth:`Decoder.decode`."""
    decoder: Decoder = kind_of("decoders", spec.key).made(spec.config)
    return decoder.decode(records)


def source_columns(decoded: DataFrame) -> DataFrame:
    """Return what a transform sees as ``source``: the decoded columns and the metadata columns."""
    return decoded.select(
        *(F.col(DATA).getField(f.name).alias(f.name) for f in decoded.schema[DATA].dataType.fields),
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
    )
