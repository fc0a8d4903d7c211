"""Decoding: a record's value becomes typed columns, or a reason why it does not.

``docs/decoding.md`` holds the contract, value by value. In short: a record decodes to exactly the values that it
states, or it is refused; no value is rounded, completed, cut or replaced on the way.

Spark's ``from_json`` does most of it. What it would let through is caught by conditions on its result that cost little;
only where one of them is in doubt is a record read a second time, with the types that its fields have in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.pipeline.model import CsvDecode, Decode, JsonDecode

__all__ = ["COLUMN", "DATA", "RULE", "decode", "source_columns"]

DATA = "__sluice_data"
"""Struct of the decoded columns."""
RULE = "__sluice_rule"
"""Name of the rule that the record broke; null when it decoded."""
COLUMN = "__sluice_column"
"""Name of the column that broke the rule; null where the rule is about the record, and when it decoded."""

_RAW = "__sluice_raw"
_CORRUPT = "__sluice_corrupt"
_END = "__sluice_end"

# Possessive quantifiers (*+) throughout: a group that may backtrack takes a stack frame each time round.
_DATE = r"^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?"
_TIMESTAMP = rf"^(?!0000)[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:{_CLOCK}(?:Z|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?)?\z"
_TIMESTAMP_NTZ = rf"^(?!0000)[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:{_CLOCK})?\z"
_SHAPES = {T.DateType: _DATE, T.TimestampType: _TIMESTAMP, T.TimestampNTZType: _TIMESTAMP_NTZ}
_WHOLE = r"^[-+]?[0-9]+\z"
_NUMBER = r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\z"
_PRINTED_DOUBLE = r"^-?[0-9]+\.[0-9]+(?:E-?[0-9]+)?\z"
_LONG_WHOLE = r"(?:^|[\[,:])-?[0-9]{16,}(?:\z|[\],}])"
_HUGE_WHOLE = r"(?:^|[\[,:])-?[0-9]{39,}(?:\z|[\],}])"
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = r"\\u[dD][89a-fA-F]"

_JSON = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    # In "1,234" and "1,2" Spark drops the commas before it reads a DECIMAL, but not for a language that does not group
    # by commas. What Swiss German groups by is looked for (_GROUPING).
    "locale": "de-CH",
}
_GROUPING = "\N{RIGHT SINGLE QUOTATION MARK}"
_WIDE = 38
_ROOMY = 28  # from more digits on, a DECIMAL leaves too little room to see what it rounds


@dataclass
class _Read:
    """How one column is taken from what was parsed."""

    name: str
    parsed: str
    """The type to parse it with."""
    value: Column
    problems: list[tuple[str, Column]] = field(default_factory=list)
    """Rule and condition; a condition that is null is not met."""


def decode(records: DataFrame, spec: Decode) -> DataFrame:
    """Add :data:`DATA`, :data:`RULE` and :data:`COLUMN` to Kafka records.

    Parameters
    ----------
    records
        Columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp.
    """
    nothing = F.lit(None).cast("string")
    if spec.bytes is not None:
        return records.withColumns({RULE: nothing, COLUMN: nothing}).withColumn(DATA, F.struct("key", "value"))
    text = F.col("value").cast("string")
    if spec.text is not None:
        rule = F.when(F.col("value").isNull(), "null_value").when(~F.is_valid_utf8(text), "utf8")
        return records.withColumns({RULE: rule, COLUMN: nothing, DATA: F.struct(text.alias("value"))})
    if spec.csv is not None:
        return _csv(records, spec.csv)
    assert spec.json_ is not None
    return _json(records, spec.json_)


def source_columns(decoded: DataFrame) -> DataFrame:
    """Return what a transform sees as ``source``: the decoded columns and the metadata columns."""
    return decoded.select(
        *(F.col(DATA).getField(f.name).alias(f.name) for f in decoded.schema[DATA].dataType.fields),
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
    )


# --- JSON ----------------------------------------------------------------------------------------------------------


def _json(records: DataFrame, spec: JsonDecode) -> DataFrame:
    fields = T.StructType.fromDDL(spec.ddl).fields
    raw, value = F.col(_RAW), F.col("value")
    text = value.cast("string")
    # Whatever stands behind the object is not parsed at all. Where its only closing brace is the last character there
    # is nothing behind it; elsewhere a last field is added, which is seen only if the object goes on to the end.
    trimmed = F.when(text.endswith("}"), text).otherwise(F.rtrim(text, F.lit(" \t\r\n")))
    start = F.substring(trimmed.cast("binary"), F.lit(1), F.octet_length(trimmed) - 1).cast("string")
    ends = trimmed.endswith("}")
    only = ends & ~start.contains("}")
    marked = F.when(ends, F.concat(start, F.lit(f',"{_END}":0}}')))
    reads = [_json_field(f, text) for f in fields]
    schema = ", ".join(f"{_quoted(r.name)} {r.parsed}" for r in reads)
    parsed = F.from_json(F.when(only, trimmed).otherwise(marked), f"{schema}, {_END} INT, {_CORRUPT} STRING", _JSON)

    broken = raw.isNull() | raw.getField(_CORRUPT).isNotNull()
    cut = ~only & (raw.getField(_END).isNull() | text.contains(_END))
    malformed = F.try_parse_json(text).isNull()
    rule = (
        F.when(value.isNull(), "null_value")
        .when(~F.is_valid_utf8(text), "utf8")
        .when(cut, "json")
        .when(broken, F.when(_halves(text), "surrogate").when(malformed, "json").otherwise("type"))
        .when(_hides_halves(fields, raw, text) & _halves(text), "surrogate")
    )
    column = F.when(F.col(RULE) == "type", _mistyped(raw, text, fields))
    return _finish(records.withColumn(_RAW, parsed), reads, rule, column).drop(_RAW)


def _again(text: Column, name: str, kind: str) -> Column:
    """Return one column of the record, read a second time as another type."""
    return F.from_json(text, f"{_quoted(name)} {kind}, {_CORRUPT} STRING", _JSON).getField(name)


def _halves(text: Column) -> Column:
    """Whether half of a surrogate pair is written somewhere: it is no character, and would become a question mark."""
    unescaped = F.regexp_replace(F.replace(text, F.lit("\\\\"), F.lit("__")), _PAIR, "_")
    return unescaped.rlike(_HALF)


def _hides_halves(fields: list[T.StructField], raw: Column, text: Column) -> Column:
    """Whether it is worth looking for halves: cheap, and true wherever there is one in a value that is kept."""
    if any(isinstance(f.dataType, (T.StructType, T.ArrayType, T.MapType, T.VariantType)) for f in fields):
        return text.contains("\\u")
    marks = [raw.getField(f.name).contains("?") for f in fields if _is_text(f.dataType)]
    return reduce(or_, [F.coalesce(mark, F.lit(False)) for mark in marks], F.lit(False))


def _mistyped(raw: Column, text: Column, fields: list[T.StructField]) -> Column:
    """Return the first column that holds a value in the text, and none in what was parsed."""
    which = F.when(F.lit(False), "")
    for f in fields:
        given = F.schema_of_variant(_again(text, f.name, "VARIANT"))
        which = which.when(raw.getField(f.name).isNull() & (given != "VOID"), f.name)
    return which


def _is_text(kind: T.DataType) -> bool:
    return isinstance(kind, (T.StringType, T.VarcharType, T.CharType))


def _json_field(f: T.StructField, text: Column) -> _Read:
    column, kind = F.col(_RAW).getField(f.name), f.dataType
    variant = _again(text, f.name, "VARIANT")
    if _is_text(kind):
        # A number with a fraction goes through a double (which may write "Infinity", with its quotes), and the text of
        # an object is written anew.
        doubted = (
            column.startswith("{") | column.startswith("[") | column.startswith('"Inf') | column.startswith('"-Inf')
        )
        doubted = doubted | ((column >= "-") & (column < ":") & column.rlike(_PRINTED_DOUBLE))
        given = F.coalesce(F.schema_of_variant(variant), F.lit(""))
        read = _Read(f.name, "STRING", column, [("type", doubted & (given != "STRING"))])
    elif isinstance(kind, T.ByteType):
        # Jackson takes up to 255 for a byte
        read = _Read(f.name, "SMALLINT", column.try_cast("tinyint"))
        read.problems = [("type", column.isNotNull() & read.value.isNull())]
    elif isinstance(kind, (T.FloatType, T.DoubleType)):
        digits = _again(text, f.name, "STRING")
        read = _Read(f.name, kind.simpleString(), column, _float_problems(column, kind, digits))
    elif isinstance(kind, T.DecimalType) and kind.precision <= _ROOMY:
        wide = f"DECIMAL({_WIDE},{_WIDE - kind.precision + kind.scale})"
        grouped = text.contains(_GROUPING) & (F.schema_of_variant(variant) == "STRING")
        odd = ~F.try_variant_get(variant, "$", "string").rlike(_NUMBER)
        narrow = column.try_cast(kind)
        read = _Read(f.name, wide, narrow)
        read.problems = [
            ("digits", column.isNotNull() & (narrow.isNull() | (narrow.cast(wide) != column))),
            ("type", grouped & odd),
        ]
    else:
        read = _Read(f.name, _parsed(kind), _value(column, kind), _problems(column, kind))
    if isinstance(kind, T.VariantType):
        long = text.rlike(r"[0-9.]{39}|[0-9][eE]\+?[0-9]{3}")
        kept = F.to_json(F.struct(column.alias("v")))
        read.problems = [
            ("digits", long & (_again(text, f.name, "STRING").rlike(_HUGE_WHOLE) | kept.contains("Infinity")))
        ]
    elif _has(kind, (T.FloatType, T.DoubleType)) and not isinstance(kind, (T.FloatType, T.DoubleType)):
        large = _any_large(column, kind)
        read.problems.append(("digits", large & _again(text, f.name, "STRING").rlike(_LONG_WHOLE)))
    if isinstance(kind, (T.VarcharType, T.CharType)):
        read.problems.append(("type", F.char_length(column) > kind.length))
    if not f.nullable:
        read.problems.append(("not_null", column.isNull()))
    return read


def _finish(frame: DataFrame, reads: list[_Read], rule: Column, column: Column) -> DataFrame:
    """Add what was read, and what is wrong with it: first of the record, then column by column."""
    found = [(broken, name, read.name) for read in reads for name, broken in read.problems]
    why, which = rule, F.when(~F.col(RULE).isin(*sorted({name for _, name, _ in found})), F.lit(None).cast("string"))
    for broken, name, where in found:
        why, which = why.when(broken, name), which.when(broken, where)
    data = F.struct(*(r.value.alias(r.name) for r in reads))
    frame = frame.withColumns({DATA: data, RULE: why})
    return frame.withColumn(COLUMN, F.when(F.col(RULE).isNotNull(), F.coalesce(column, which)))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _has(kind: T.DataType, wanted: tuple[type[T.DataType], ...]) -> bool:
    if isinstance(kind, T.StructType):
        return any(_has(f.dataType, wanted) for f in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _has(kind.elementType, wanted)
    if isinstance(kind, T.MapType):
        return _has(kind.valueType, wanted)
    return isinstance(kind, wanted)


def _parsed(kind: T.DataType) -> str:
    """Return the type to parse a field with: one that keeps what the declared type would change."""
    if isinstance(kind, T.StructType):
        return f"STRUCT<{', '.join(f'{_quoted(f.name)}: {_parsed(f.dataType)}' for f in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"ARRAY<{_parsed(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"MAP<{kind.keyType.simpleString()}, {_parsed(kind.valueType)}>"
    if _is_text(kind) or isinstance(kind, T.DecimalType):
        return "VARIANT"
    if type(kind) in _SHAPES:
        return "STRING"
    return "SMALLINT" if isinstance(kind, T.ByteType) else kind.simpleString()


def _value(column: Column, kind: T.DataType) -> Column:
    """Return a field of the declared type, from one of the type that :func:`_parsed` names."""
    if isinstance(kind, T.StructType):
        members = [_value(column.getField(f.name), f.dataType).alias(f.name) for f in kind.fields]
        return F.when(column.isNotNull(), F.struct(*members))
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(column, lambda x: _value(x, element))
    if isinstance(kind, T.MapType):
        held = kind.valueType
        return F.transform_values(column, lambda _, v: _value(v, held))
    if _is_text(kind):
        return F.try_variant_get(column, "$", "string")
    if isinstance(kind, T.DecimalType):
        return F.try_variant_get(column, "$", kind.simpleString())
    return column.try_cast(kind) if isinstance(kind, T.ByteType) or type(kind) in _SHAPES else column


def _problems(column: Column, kind: T.DataType) -> list[tuple[str, Column]]:
    """Return what may be wrong with a field of the type that :func:`_parsed` names, parts included."""
    if isinstance(kind, T.StructType):
        found = [p for f in kind.fields for p in _problems(column.getField(f.name), f.dataType)]
        missing = [column.getField(f.name).isNull() for f in kind.fields if not f.nullable]
        return found + [("not_null", column.isNotNull() & m) for m in missing]
    if isinstance(kind, T.ArrayType):
        return _of_elements(column, kind.elementType)
    if isinstance(kind, T.MapType):
        keys = F.map_keys(column)
        twice = F.size(F.array_distinct(keys)) != F.size(keys)
        return [("duplicate", column.isNotNull() & twice), *_of_elements(F.map_values(column), kind.valueType)]
    value = _value(column, kind)
    if type(kind) in _SHAPES:
        return [("time", column.isNotNull() & (~column.rlike(_SHAPES[type(kind)]) | value.isNull()))]
    if isinstance(kind, T.ByteType):
        return [("type", column.isNotNull() & value.isNull())]
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return [("type", F.abs(column) == float("inf"))]
    if isinstance(kind, T.DecimalType):
        fits = F.try_variant_get(column, "$", "string").rlike(_lossless(kind)) & value.isNotNull()
        through_double = F.schema_of_variant(column).isin("DOUBLE", "FLOAT")
        given = column.isNotNull() & (F.schema_of_variant(column) != "VOID")
        return [("digits", given & (through_double | ~F.coalesce(fits, F.lit(False))))]
    if _is_text(kind):
        given = F.schema_of_variant(column)
        problems = [
            ("type", column.isNotNull() & ~given.rlike(r"^(?:STRING|BIGINT|BOOLEAN|VOID|DECIMAL\([0-9]+,0\))\z"))
        ]
        longest = getattr(kind, "length", None)
        return problems if longest is None else [*problems, ("type", F.char_length(value) > longest)]
    return []


def _of_elements(column: Column, kind: T.DataType) -> list[tuple[str, Column]]:
    def one(rule: str) -> Column:
        def broken(x: Column) -> Column:
            return reduce(or_, [F.coalesce(c, F.lit(False)) for r, c in _problems(x, kind) if r == rule])

        return F.exists(column, broken)

    return [(rule, one(rule)) for rule in dict.fromkeys(r for r, _ in _problems(column, kind))]


def _any_large(column: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.StructType):
        parts = [_any_large(column.getField(f.name), f.dataType) for f in kind.fields]
        return reduce(or_, [F.coalesce(p, F.lit(False)) for p in parts], F.lit(False))
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.exists(column, lambda x: F.coalesce(_any_large(x, element), F.lit(False)))
    if isinstance(kind, T.MapType):
        held = kind.valueType
        return F.exists(F.map_values(column), lambda x: F.coalesce(_any_large(x, held), F.lit(False)))
    large = _is_large(column, kind)
    return F.lit(False) if large is None else large


def _lossless(kind: T.DecimalType) -> str:
    """Return the pattern of plain numbers that have no digits behind the scale but noughts."""
    return rf"^[-+]?[0-9]+(?:\.[0-9]{{0,{kind.scale}}}0*+)?\z"


# --- CSV -----------------------------------------------------------------------------------------------------------


def _csv(records: DataFrame, spec: CsvDecode) -> DataFrame:
    fields = T.StructType.fromDDL(spec.ddl).fields
    raw, value = F.col(_RAW), F.col("value")
    whole = value.cast("string")
    # the last line of a file may end with a line break, so may a record
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
    frame = records.withColumn(_RAW, F.when(F.is_valid_utf8(whole), cells))
    return _finish(frame, reads, rule, F.lit(None).cast("string")).drop(_RAW)


def _bare(cell: Column, spec: CsvDecode) -> Column:
    """Return a cell without its quotes."""
    inner = F.substring(cell, F.lit(2), F.char_length(cell) - 2)
    if spec.escape in (None, spec.quote):
        plain = F.replace(inner, F.lit(spec.quote * 2), F.lit(spec.quote))
    else:
        plain = F.regexp_replace(inner, rf"(?s){re.escape(spec.escape)}(.)", "$1")
    return F.when(cell.startswith(spec.quote), plain).otherwise(cell)


def _csv_field(f: T.StructField, cell: Column, spec: CsvDecode) -> _Read:
    bare, kind = _bare(cell, spec), f.dataType
    null = (cell if _is_text(kind) else bare) == spec.null_text
    text = F.when(~null, bare)
    problems: list[tuple[str, Column]] = []
    if _is_text(kind):
        value = text
        if isinstance(kind, (T.VarcharType, T.CharType)):
            problems = [("type", F.char_length(text) > kind.length)]
    else:
        value = text.cast(kind) if isinstance(kind, T.BinaryType) else text.try_cast(kind)
        shape = _shape(kind)
        fits = value.isNotNull() if shape is None else value.isNotNull() & text.rlike(shape)
        name = "time" if type(kind) in _SHAPES else "type"
        problems = [(name, text.isNotNull() & ~fits)]
        if isinstance(kind, T.DecimalType):
            problems = [
                ("type", text.isNotNull() & ~text.rlike(r"^[-+]?[0-9]+(?:\.[0-9]*+)?\z")),
                ("digits", text.isNotNull() & (~text.rlike(_lossless(kind)) | value.isNull())),
            ]
        elif isinstance(kind, (T.FloatType, T.DoubleType)):
            problems += _float_problems(value, kind, text)
    if not f.nullable:
        problems.append(("not_null", value.isNull()))
    return _Read(f.name, "STRING", value, problems)


def _shape(kind: T.DataType) -> str | None:
    if type(kind) in _SHAPES:
        return _SHAPES[type(kind)]
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return _NUMBER
    if isinstance(kind, T.BooleanType):
        return r"^(?i:true|false)\z"
    return None


def _float_problems(column: Column, kind: T.DataType, digits: Column) -> list[tuple[str, Column]]:
    """Too large; or a whole number, given by its digits, that the type does not hold."""
    whole = digits.rlike(_WHOLE)
    kept = digits.try_cast("decimal(38,0)") == column.cast("double").try_cast("decimal(38,0)")
    return [
        ("type", F.abs(column) == float("inf")),
        ("digits", _is_large(column, kind) & whole & ~F.coalesce(kept, F.lit(False))),
    ]


def _is_large(column: Column, kind: T.DataType) -> Column | None:
    """Whether whole numbers of this size may fall between two values of the type."""
    if isinstance(kind, T.DoubleType):
        return F.abs(column) >= 2.0**53
    if isinstance(kind, T.FloatType):
        return F.abs(column) >= 2.0**24
    return None
