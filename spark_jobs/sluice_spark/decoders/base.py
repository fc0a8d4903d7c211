"""The interface of a decoder, which turns a record's value into typed columns or names the rule that it breaks.

``docs/decoding.md`` has the contract of the built-in decoders, value by value. In short: a record decodes to exactly
the values that it contains, or it is refused. No value is rounded, completed, truncated or replaced.
"""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.decoders.config import Keyed
from sluice.decoders.format import Format
from sluice.fields import DELETED
from sluice.kinds import kind_of

__all__ = ["COLUMN", "DATA", "RULE", "Decoder", "decode", "last_header", "source_columns"]

DATA = "__sluice_data"
"""Struct of the decoded columns."""
RULE = "__sluice_rule"
"""Name of the rule that the record broke; null if it decoded."""
COLUMN = "__sluice_column"
"""Name of the column that broke the rule; null if the rule is about the whole record, or if it decoded."""


class Decoder(Protocol):
    """Decodes records, as configured in the pipeline file."""

    def decode(self, records: DataFrame) -> DataFrame:
        """Add :data:`DATA`, :data:`RULE` and :data:`COLUMN` to records.

        A pure function of the frame. It keeps all other columns and every row, and must not raise for any content of a
        record. What fails for another reason in a Python worker raises
        :func:`sluice_spark.decoders.worker_errors.told`: a strategy that gives records up would else take it for the
        fault of these.

        Parameters
        ----------
        records
            Columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp; and headers, if the
            pipeline file names some.
        """


def decode(records: DataFrame, spec: Format) -> DataFrame:
    """Decode records as configured in a pipeline file: see :meth:`Decoder.decode`."""
    decoder: Decoder = kind_of("decoders", spec.key).made(spec.config)
    found = decoder.decode(records)
    if not isinstance(spec.config, Keyed):
        return found
    if spec.config.key is not None:
        found = _with_text(found, spec.config.key, F.col("key"))
    for name, header in spec.config.headers.items():
        found = _with_text(found, name, last_header(header))
    return _deleting(found) if spec.config.deletes else found


def _deleting(decoded: DataFrame) -> DataFrame:
    """Say which records delete the row of their key; one that has no key, either, breaks the rule ``null_key``."""
    gone = F.col("value").isNull()
    nothing = F.col(RULE).isNull() & gone & F.col("key").isNull()
    return decoded.withColumns(
        {DATA: F.col(DATA).withField(DELETED, gone), RULE: F.when(nothing, "null_key").otherwise(F.col(RULE))}
    )


def last_header(name: str) -> Column:
    """Return the value of the last header of a name, as Kafka's ``lastHeader``; null if there is none."""
    own = F.filter(F.col("headers"), lambda h: h["key"] == name)
    return F.try_element_at(own, F.lit(-1))["value"]


def _with_text(decoded: DataFrame, name: str, value: Column) -> DataFrame:
    """Add the record's key or a header to the decoded columns; one that is no text breaks the rule ``utf8``."""
    text = value.cast("string")
    sound = F.col(RULE).isNull() & ~F.coalesce(F.is_valid_utf8(text), F.lit(True))
    return decoded.withColumns(
        {
            DATA: F.col(DATA).withField(name, text),
            RULE: F.when(sound, "utf8").otherwise(F.col(RULE)),
            COLUMN: F.when(sound, name).otherwise(F.col(COLUMN)),
        }
    )


def source_columns(decoded: DataFrame) -> DataFrame:
    """Return the transform's input ``source``: the decoded columns and the metadata columns."""
    return decoded.select(
        *(F.col(DATA).getField(f.name).alias(f.name) for f in decoded.schema[DATA].dataType.fields),
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
    )
