"""One JSON object per record.

Spark's ``from_json`` does most of the work. Cheap conditions on its result find what it would wrongly accept. Only if
they cannot decide, the record is parsed a second time, with the types that its fields have in the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.decoders.config import RESCUED, JsonDecode
from sluice_spark.columns import holds
from sluice_spark.decoders.base import DATA, RULE
from sluice_spark.decoders.fields import (
    NUMBER,
    RAW,
    SHAPES,
    Read,
    finish,
    float_problems,
    is_beyond,
    is_large,
    is_text,
    lossless,
    quoted,
)
from sluice_spark.decoders.rescued import rescued

__all__ = ["Json"]

_CORRUPT = "__sluice_corrupt"
_END = "__sluice_end"
_PRINTED_DOUBLE = r"^-?[0-9]+\.[0-9]+(?:E-?[0-9]+)?\z"
_LONG_WHOLE = r"(?:^|[\[,:])-?[0-9]{16,}(?:\z|[\],}])"
_HUGE_WHOLE = r"(?:^|[\[,:])-?[0-9]{39,}(?:\z|[\],}])"
_LONG_NUMBER = r"[0-9.]{39}|[0-9.]{18}[eE]|[0-9][eE][+-]?0*[0-9]{3}"
_ROUNDED = (
    r"(?<![0-9.])(?:0\.[0-9]{39,}|[1-9][0-9.]{39,})(?![0-9.eE])"  # more than a DECIMAL holds
    r"|[1-9](?:[0-9]{17,}|[0-9.]{18,})[eE]"  # more than a DOUBLE holds
    r"|[1-9][0-9.]*[eE]-0*(?:32[5-9]|3[3-9][0-9]|[4-9][0-9]{2}|[1-9][0-9]{3,})"  # it would become zero
)
"""Numbers outside of strings that a VARIANT does not hold: Spark makes a DOUBLE of all that are no DECIMAL(38, s)."""
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = r"\\u[dD][89a-fA-F]"

_JSON = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    # Spark removes the grouping separators of the locale before it parses a DECIMAL: "1,234" and "1,2" would lose their
    # commas in English. The separator of Swiss German is checked for (_GROUPING).
    "locale": "de-CH",
}
_GROUPING = "\N{RIGHT SINGLE QUOTATION MARK}"
_MANY = 100
"""More conditions in one expression are too deep for Spark: it takes each by recursion."""
_WIDE = 38
_ROOMY = 28  # with more digits, 38 are too few to see what a DECIMAL would round


@dataclass(frozen=True)
class Json:
    """The decoder of ``decode: {json: ...}``."""

    config: JsonDecode

    def decode(self, records: DataFrame) -> DataFrame:
        """Decode one object per record, strictly."""
        return _json(records, self.config)


def _json(records: DataFrame, spec: JsonDecode) -> DataFrame:
    fields = T.StructType.fromDDL(spec.ddl).fields
    raw, value = F.col(RAW), F.col("value")
    text = value.cast("string")
    if spec.tombstone != "quarantine":
        # as an object without fields, so that a column that is declared NOT NULL refuses it, too; a row that is
        # deleted is not asked for it
        value = F.coalesce(value, F.lit("{}").cast("binary"))
        text = value.cast("string")
    # Spark does not parse what follows the object. If the only closing brace is the last character, nothing follows.
    # Otherwise a last field is added, which is found only if the object reaches to the end.
    trimmed = F.when(text.endswith("}"), text).otherwise(F.rtrim(text, F.lit(" \t\r\n")))
    start = F.substring(trimmed.cast("binary"), F.lit(1), F.octet_length(trimmed) - 1).cast("string")
    ends = trimmed.endswith("}")
    only = ends & ~start.contains("}")
    marked = F.when(ends, F.concat(start, F.lit(f',"{_END}":0}}')))
    reads = [_json_field(f, text) for f in fields]
    if spec.deletes:
        there = F.col("value").isNotNull()
        for read in reads:
            read.problems = [(name, there & broken) for name, broken in read.problems]
    schema = ", ".join(f"{quoted(r.name)} {r.parsed}" for r in reads)
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
    found = finish(records.withColumn(RAW, parsed), reads, rule, column).drop(RAW)
    if not spec.rescue:
        return found
    kept = F.when(F.col(RULE).isNull(), rescued(text, fields))
    return found.withColumn(DATA, F.col(DATA).withField(RESCUED, kept))


def _again(text: Column, name: str, kind: str, wanted: str | None = None) -> Column:
    """Return one column of the record, parsed again as another type; or what else such a parser finds."""
    return F.from_json(text, f"{quoted(name)} {kind}, {_CORRUPT} STRING", _JSON).getField(wanted or name)


def _halves(text: Column) -> Column:
    """Whether the text has an escaped lone surrogate: it is not a character, and would become a question mark."""
    unescaped = F.regexp_replace(F.replace(text, F.lit("\\\\"), F.lit("__")), _PAIR, "_")
    return unescaped.rlike(_HALF)


def _hides_halves(fields: list[T.StructField], raw: Column, text: Column) -> Column:
    """Whether to search for lone surrogates: a cheap condition that is true if a decoded value may contain one."""
    nested = any(isinstance(f.dataType, (T.StructType, T.ArrayType, T.MapType, T.VariantType)) for f in fields)
    texts = [f.name for f in fields if is_text(f.dataType)]
    if nested or len(texts) > _MANY:
        return text.contains("\\u")
    marks = [raw.getField(name).contains("?") for name in texts]
    return reduce(or_, [F.coalesce(mark, F.lit(False)) for mark in marks], F.lit(False))


def _mistyped(raw: Column, text: Column, fields: list[T.StructField]) -> Column:
    """Return the first column that has a value in the text, but none in the parsed result."""
    which = F.when(F.lit(False), "")
    for f in fields:
        if isinstance(f.dataType, (T.StructType, T.ArrayType, T.MapType)):
            # a part that does not fit leaves the rest, so the column is not null; alone, it is still corrupt
            which = which.when(_again(text, f.name, _parsed(f.dataType), _CORRUPT).isNotNull(), f.name)
            continue
        given = F.schema_of_variant(_again(text, f.name, "VARIANT"))
        which = which.when(raw.getField(f.name).isNull() & (given != "VOID"), f.name)
    return which


def _json_field(f: T.StructField, text: Column) -> Read:
    column, kind = F.col(RAW).getField(f.name), f.dataType
    variant = _again(text, f.name, "VARIANT")
    if is_text(kind):
        # A number with a fraction is converted through a double (which may become "Infinity", with quotes), and the
        # text of an object is rewritten.
        doubted = (
            column.startswith("{") | column.startswith("[") | column.startswith('"Inf') | column.startswith('"-Inf')
        )
        doubted = doubted | ((column >= "-") & (column < ":") & column.rlike(_PRINTED_DOUBLE))
        given = F.coalesce(F.schema_of_variant(variant), F.lit(""))
        read = Read(f.name, "STRING", column, [("type", doubted & (given != "STRING"))])
    elif isinstance(kind, T.ByteType):
        # Jackson accepts up to 255 for a byte
        read = Read(f.name, "SMALLINT", column.try_cast("tinyint"))
        read.problems = [("type", column.isNotNull() & read.value.isNull())]
    elif isinstance(kind, (T.FloatType, T.DoubleType)):
        digits = _again(text, f.name, "STRING")
        read = Read(f.name, kind.simpleString(), column, float_problems(column, kind, digits))
    elif isinstance(kind, T.DecimalType) and kind.precision <= _ROOMY:
        wide = f"DECIMAL({_WIDE},{_WIDE - kind.precision + kind.scale})"
        grouped = text.contains(_GROUPING) & (F.schema_of_variant(variant) == "STRING")
        odd = ~F.try_variant_get(variant, "$", "string").rlike(NUMBER)
        narrow = column.try_cast(kind)
        read = Read(f.name, wide, narrow)
        read.problems = [
            ("digits", column.isNotNull() & (narrow.isNull() | (narrow.cast(wide) != column))),
            ("type", grouped & odd),
        ]
    else:
        read = Read(f.name, _parsed(kind), _value(column, kind), _problems(column, kind))
    if holds(kind, lambda part: isinstance(part, T.VariantType)):
        kept = F.to_json(F.struct(column.alias("v")))
        bare = F.regexp_replace(F.regexp_replace(text, r"\\.", ""), '"[^"]*"', '""')
        rounded = bare.rlike(_ROUNDED) & _any(column, kind, _is_double)
        huge = _again(text, f.name, "STRING").rlike(_HUGE_WHOLE)
        infinite = kept.rlike('"-?Infinity"') & _any(column, kind, _is_double)
        read.problems.append(("digits", bare.rlike(_LONG_NUMBER) & (huge | infinite | rounded)))
    if holds(kind, _is_floating) and not _is_floating(kind):
        large = _any(column, kind, is_large)
        long = _again(text, f.name, "STRING").rlike(_LONG_WHOLE)
        if holds(kind, lambda part: isinstance(part, T.FloatType)):  # 2^24 + 1 has eight digits
            long = long | _any(_again(text, f.name, _parsed(kind, doubles=True)), kind, _is_between_floats)
        read.problems.append(("digits", large & long))
    if isinstance(kind, (T.VarcharType, T.CharType)):
        read.problems.append(("type", F.char_length(column) > kind.length))
    if not f.nullable:
        read.problems.append(("not_null", _is_missing(column, kind)))
    return read


def _is_missing(column: Column, kind: T.DataType) -> Column:
    """Return whether a field has no value. Spark's ``isNull`` is false for a VARIANT that holds JSON's null."""
    return column.isNull() | F.is_variant_null(column) if isinstance(kind, T.VariantType) else column.isNull()


def _is_floating(kind: T.DataType) -> bool:
    return isinstance(kind, (T.FloatType, T.DoubleType))


def _parsed(kind: T.DataType, *, doubles: bool = False) -> str:
    """Return the type to parse a field with; it keeps what the declared type would change.

    Parameters
    ----------
    doubles
        Whether each FLOAT is parsed as DOUBLE.
    """
    if isinstance(kind, T.StructType):
        return f"STRUCT<{', '.join(f'{quoted(f.name)}: {_parsed(f.dataType, doubles=doubles)}' for f in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"ARRAY<{_parsed(kind.elementType, doubles=doubles)}>"
    if isinstance(kind, T.MapType):
        return f"MAP<{kind.keyType.simpleString()}, {_parsed(kind.valueType, doubles=doubles)}>"
    if is_text(kind) or isinstance(kind, T.DecimalType):
        return "VARIANT"
    if type(kind) in SHAPES:
        return "STRING"
    if doubles and isinstance(kind, T.FloatType):
        return "DOUBLE"
    return "SMALLINT" if isinstance(kind, T.ByteType) else kind.simpleString()


def _value(column: Column, kind: T.DataType) -> Column:
    """Convert a field from the type of :func:`_parsed` to the declared type."""
    if isinstance(kind, T.StructType):
        members = [_value(column.getField(f.name), f.dataType).alias(f.name) for f in kind.fields]
        return F.when(column.isNotNull(), F.struct(*members))
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(column, lambda x: _value(x, element))
    if isinstance(kind, T.MapType):
        held = kind.valueType
        return F.transform_values(column, lambda _, v: _value(v, held))
    if is_text(kind):
        return F.try_variant_get(column, "$", "string")
    if isinstance(kind, T.DecimalType):
        return F.try_variant_get(column, "$", kind.simpleString())
    if isinstance(kind, T.VariantType):
        return F.when(~F.is_variant_null(column), column)
    return column.try_cast(kind) if isinstance(kind, T.ByteType) or type(kind) in SHAPES else column


def _problems(column: Column, kind: T.DataType) -> list[tuple[str, Column]]:
    """Return the rules for a field of the type of :func:`_parsed`, including its parts."""
    if isinstance(kind, T.StructType):
        found = [p for f in kind.fields for p in _problems(column.getField(f.name), f.dataType)]
        missing = [_is_missing(column.getField(f.name), f.dataType) for f in kind.fields if not f.nullable]
        return found + [("not_null", column.isNotNull() & m) for m in missing]
    if isinstance(kind, T.ArrayType):
        return _of_elements(column, kind.elementType)
    if isinstance(kind, T.MapType):
        keys = F.map_keys(column)
        twice = F.size(F.array_distinct(keys)) != F.size(keys)
        return [("duplicate", column.isNotNull() & twice), *_of_elements(F.map_values(column), kind.valueType)]
    value = _value(column, kind)
    if type(kind) in SHAPES:
        broken = ~column.rlike(SHAPES[type(kind)]) | value.isNull() | is_beyond(value, kind)
        return [("time", column.isNotNull() & broken)]
    if isinstance(kind, T.ByteType):
        return [("type", column.isNotNull() & value.isNull())]
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return [("type", F.abs(column) == float("inf"))]
    if isinstance(kind, T.DecimalType):
        fits = F.try_variant_get(column, "$", "string").rlike(lossless(kind)) & value.isNotNull()
        through_double = F.schema_of_variant(column).isin("DOUBLE", "FLOAT")
        given = column.isNotNull() & (F.schema_of_variant(column) != "VOID")
        return [("digits", given & (through_double | ~F.coalesce(fits, F.lit(False))))]
    if is_text(kind):
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


def _any(column: Column, kind: T.DataType, says: Callable[[Column, T.DataType], Column | None]) -> Column:
    """Return whether a value, or one of those in it, is one of which ``says`` is true; None says nothing of a type."""
    if isinstance(kind, T.StructType):
        parts = [_any(column.getField(f.name), f.dataType, says) for f in kind.fields]
        return reduce(or_, [F.coalesce(p, F.lit(False)) for p in parts], F.lit(False))
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.exists(column, lambda x: F.coalesce(_any(x, element, says), F.lit(False)))
    if isinstance(kind, T.MapType):
        held = kind.valueType
        return F.exists(F.map_values(column), lambda x: F.coalesce(_any(x, held, says), F.lit(False)))
    said = says(column, kind)
    return F.lit(False) if said is None else said


def _is_double(column: Column, kind: T.DataType) -> Column | None:
    return F.schema_of_variant(column).contains("DOUBLE") if isinstance(kind, T.VariantType) else None


def _is_between_floats(column: Column, kind: T.DataType) -> Column | None:
    """Whether a DOUBLE, in place of a FLOAT, is an integer that no FLOAT is."""
    whole = (F.floor(column).cast("double") == column) & (column.cast("float").cast("double") != column)
    return (F.abs(column) < 2.0**53) & whole if isinstance(kind, T.FloatType) else None
