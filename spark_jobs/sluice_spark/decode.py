"""Decoding: a record's value becomes typed columns, or a reason why it does not.

The JSON contract, whichever code does the work, is that of Spark's ``from_json`` in ``PERMISSIVE`` mode under the UTC
session time zone, with one addition (invalid UTF-8 is refused):

- The value must be one JSON object. Null and empty values, other JSON values, malformed text and invalid UTF-8 do not
  decode. Text behind the object's end is ignored; single-quoted strings are taken.
- A missing field and a JSON null are null. An unknown field is ignored. Names are case-sensitive. Of a field that
  stands twice the last one counts.
- A value of another type does not decode: no number from a string, no integer from a fraction or an exponent, no
  integer or decimal out of its type's range. A STRING field takes any JSON value as compact JSON text (``1.50`` as
  ``1.5``). DOUBLE and FLOAT take ``NaN`` and ``Infinity``, bare or quoted, and make infinity of what is too large.
  DECIMAL takes a number in a string too, and rounds to its scale. Half of a surrogate pair becomes ``?``.
- TIMESTAMP takes ISO 8601 text (UTC where it names no zone), or seconds since 1970 as an integer (so milliseconds
  decode as well, to a year beyond 9999: let the suite catch it).
- One field that does not decode refuses the whole record, nested fields included. No record is half-decoded.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.spec.model import Decode

__all__ = ["DATA", "RULE", "decode", "source_columns"]

DATA = "__sluice_data"
"""Struct of the decoded columns."""
RULE = "__sluice_rule"
"""Name of the rule that the record broke; null when it decoded."""

_CORRUPT = "__sluice_corrupt"


def decode(records: DataFrame, spec: Decode) -> DataFrame:
    """Add :data:`DATA` and :data:`RULE` to Kafka records.

    Parameters
    ----------
    records
        Columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp.
    """
    if spec.bytes is not None:
        return records.withColumn(RULE, F.lit(None).cast("string")).withColumn(DATA, F.struct("key", "value"))
    text = F.col("value").cast("string")
    null, utf8 = F.col("value").isNull(), F.is_valid_utf8(text)
    if spec.text is not None:
        rule = F.when(null, "null_value").when(~utf8, "utf8")
        return records.withColumn(RULE, rule).withColumn(DATA, F.struct(text.alias("value")))
    if spec.csv is not None:
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "sep": spec.csv.separator}
        parsed = F.from_csv(text, f"{spec.csv.ddl}, {_CORRUPT} STRING", options)
        name = "csv"
    else:
        assert spec.json_ is not None
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        parsed = F.from_json(text, f"{spec.json_.ddl}, {_CORRUPT} STRING", options)
        name = "json"
    data = F.col(DATA)
    broken: Column = data.isNull() | data.getField(_CORRUPT).isNotNull()
    rule = F.when(null, "null_value").when(~utf8, "utf8").when(broken, name)
    return records.withColumn(DATA, parsed).withColumn(RULE, rule)


def source_columns(decoded: DataFrame) -> DataFrame:
    """Return what a transform sees as ``source``: the decoded columns and the metadata columns."""
    fields = [f.name for f in decoded.schema[DATA].dataType.fields if f.name != _CORRUPT]
    return decoded.select(
        *(F.col(DATA).getField(name).alias(name) for name in fields),
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
    )
