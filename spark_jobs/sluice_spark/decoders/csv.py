"""One CSV record (RFC 4180) per record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.decoders.config import CsvDecode
from sluice_spark.decoders.fields import RAW, Read, finish, is_text, text_problems, text_value

__all__ = ["Csv"]


@dataclass(frozen=True)
class Csv:
    """The decoder of ``decode: {csv: ...}``."""

    config: CsvDecode

    def decode(self, records: DataFrame) -> DataFrame:
        """Decode one line of fields per record, strictly."""
        return _csv(records, self.config)


def _csv(records: DataFrame, spec: CsvDecode) -> DataFrame:
    fields = T.StructType.fromDDL(spec.ddl).fields
    raw, value = F.col(RAW), F.col("value")
    whole = value.cast("string")
    # like the last line of a file, a record may end with a line break
    line = F.regexp_replace(whole, r"(?:\r\n|\n|\r)\z", "")
    text = F.when(whole.endswith("\n") | whole.endswith("\r"), line).otherwise(whole)
    quote, escape, sep = (re.escape(c) for c in (spec.quote, spec.escape or spec.quote, spec.separator))
    own = spec.escape not in (None, spec.quote)
    inside = rf"(?:[^{quote}{escape}]|{escape}.)*+" if own else rf"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+"
    null = f"{re.escape(spec.null_text)}(?={sep})|" if spec.null_text else ""
    one = rf"(?:{null}{quote}{inside}{quote}|[^{quote}{escape}{sep}\r\n]*+)"
    special = text.contains(spec.quote) | text.contains(spec.escape) if own else text.contains(spec.quote)
    breaks = text.contains("\n") | text.contains("\r")
    sound = F.when(special, F.concat(text, F.lit(spec.separator)).rlike(rf"(?s)^(?:{one}{sep})++\z")).otherwise(~breaks)
    cells = F.when(
        special,
        F.regexp_extract_all(F.concat(text, F.lit(spec.separator)), F.lit(rf"(?s)\G({one}){sep}"), F.lit(1)),
    ).otherwise(F.split(text, sep, -1))
    reads = [_csv_field(f, F.get(raw, n), spec) for n, f in enumerate(fields)]
    rule = (
        F.when(value.isNull(), "null_value")
        .when(~F.is_valid_utf8(whole), "utf8")
        .when(F.octet_length(text) == 0, "empty")
        .when(~sound, "csv")
        .when(F.size(raw) != len(fields), "fields")
    )
    if spec.header:
        names = [_bare(F.get(raw, n), spec) == f.name for n, f in enumerate(fields)]
        rule = rule.when(F.coalesce(reduce(lambda a, b: a & b, names), F.lit(False)), "header")
    frame = records.withColumn(RAW, F.when(F.is_valid_utf8(whole), cells))
    return finish(frame, reads, rule, F.lit(None).cast("string")).drop(RAW)


def _bare(cell: Column, spec: CsvDecode) -> Column:
    """Return a cell without its quotes."""
    inner = F.substring(cell, F.lit(2), F.char_length(cell) - 2)
    if spec.escape in (None, spec.quote):
        plain = F.replace(inner, F.lit(spec.quote * 2), F.lit(spec.quote))
    else:
        plain = F.regexp_replace(inner, rf"(?s){re.escape(spec.escape)}(.)", "$1")
    return F.when(cell.startswith(spec.quote), plain).otherwise(cell)


def _csv_field(f: T.StructField, cell: Column, spec: CsvDecode) -> Read:
    bare, kind = _bare(cell, spec), f.dataType
    null = (cell if is_text(kind) else bare) == spec.null_text
    text = F.when(~null, bare)
    value, problems = text_value(text, kind), text_problems(text, kind)
    if not f.nullable:
        problems.append(("not_null", value.isNull()))
    return Read(f.name, "STRING", value, problems)
