"""Columns on the Arrow path: how a declared type is parsed, and how the parsed values become the sink's.

Rows whose value may differ from what the Spark path gives are marked, never changed.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from sluice_spark.arrow.maps import map_type, unsupported_map
from sluice_spark.decoders.fields import FIRST_MICRO, LAST_MICRO
from sluice_spark.sources.inputs import UTC

__all__ = ["Finished", "arrow_type", "finish", "parsed_type", "read_text", "unsupported"]

_DIGITS = 28
"""A DECIMAL with more digits is parsed in another way on the Spark path."""
_WIDEST = 38
"""Arrow scales a number before it looks whether it fits. More digits than this overflow without an error."""
_EXACT = 2.0**53
_BINARY = "UTF8_BINARY"
"""The only collation with which Arrow compares text."""
_NO_TEXT = pa.scalar(None, pa.string())

# From 1901: files with earlier times are rebased by some readers.
_DAY = r"(?:19(?:0[1-9]|[1-9][0-9])|[2-9][0-9]{3})-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_CLOCK = r"[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_ZONE = r"[+-](?:0[0-9]|1[0-7]):[0-5][0-9]"
_DATE = rf"^{_DAY}$"
_AT_Z = rf"^{_DAY}{_CLOCK}Z$"
_AT_OFFSET = rf"^{_DAY}{_CLOCK}{_ZONE}$"
_AT_NOWHERE = rf"^{_DAY}{_CLOCK}$"
_FINER = len("2026-01-01T00:00:00.0000000")
"""The shortest text with a digit finer than microseconds."""
_LATE_DAY = r"^[0-9]{4}-[0-9]{2}-(?:29|3[01])"
"""A day that not every month has."""

_SIMPLE = {
    T.LongType: pa.int64(),
    T.IntegerType: pa.int32(),
    T.ShortType: pa.int16(),
    T.ByteType: pa.int8(),
    T.BooleanType: pa.bool_(),
    T.StringType: pa.string(),
    T.DoubleType: pa.float64(),
}


class Finished(NamedTuple):
    """A column in the sink's type.

    Attributes
    ----------
    doubtful
        A mask of the rows whose value may differ from the Spark path's; None if there are none.
    """

    array: pa.Array
    doubtful: Any | None


def unsupported(kind: T.DataType, *, nested: bool = False) -> str | None:
    """Return the first type in a column's type that the Arrow path does not decode; None if it decodes all of it."""
    if isinstance(kind, T.StructType):
        return next((found for f in kind.fields if (found := unsupported(f.dataType, nested=True))), None)
    if isinstance(kind, T.ArrayType):
        return unsupported(kind.elementType, nested=True)
    if isinstance(kind, T.MapType) and not nested and not unsupported_map(kind):
        return None
    if isinstance(kind, T.DecimalType):
        name = str(kind.simpleString()).upper()
        if nested:
            return f"{name} within a struct, an array or a map"
        return None if kind.precision <= _DIGITS and kind.precision + kind.scale <= _WIDEST else name
    if isinstance(kind, T.StringType) and kind.collation != _BINARY:
        return str(kind.simpleString()).upper()
    if type(kind) in _SIMPLE or type(kind) in (T.TimestampType, T.DateType):
        return None
    return str(kind.simpleString()).upper()


def arrow_type(kind: T.DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type."""
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType)) for f in kind.fields])
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType)))
    if isinstance(kind, T.MapType):
        return map_type(kind)
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.TimestampType):
        return UTC
    if isinstance(kind, T.DateType):
        return pa.date32()
    return _SIMPLE[type(kind)]


def parsed_type(kind: T.DataType) -> pa.DataType:
    """Return the type with which a JSON value is parsed: times and dates as text."""
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(f.name, parsed_type(f.dataType)) for f in kind.fields])
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", parsed_type(kind.elementType)))
    if isinstance(kind, T.TimestampType | T.DateType):
        return pa.string()
    return arrow_type(kind)


def finish(array: pa.Array, kind: T.DataType, *, nullable: bool = True) -> Finished:
    """Convert parsed values to the column's type, and mark the doubtful rows.

    Parameters
    ----------
    array
        In the type of :func:`parsed_type`.
    nullable
        Whether the column may be null; otherwise nulls are doubtful.
    """
    found = _convert(array, kind)
    return found if nullable else Finished(found.array, _either(found.doubtful, _mask(array.is_null())))


def read_text(text: pa.Array, kind: T.DataType) -> pa.Array:
    """Parse text to the type of :func:`parsed_type`, for :func:`finish`; null where Spark might read it otherwise.

    Parameters
    ----------
    kind
        No nested type.
    """
    made = parsed_type(kind)
    if pa.types.is_string(made):
        return text
    if pa.types.is_boolean(made):
        return pc.equal(_only(text, r"^(?:true|false)$"), "true")
    if pa.types.is_integer(made):
        numbers = _only(text, r"^-?[0-9]{1,18}$").cast(pa.int64())
        limit = 1 << (made.bit_width - 1)
        fits = pc.and_(pc.greater_equal(numbers, -limit), pc.less(numbers, limit)) if made.bit_width < 64 else None
        return numbers if fits is None else pc.if_else(fits, numbers, pa.scalar(None, pa.int64())).cast(made)
    if pa.types.is_decimal(made):
        whole = f"[0-9]{{1,{made.precision - made.scale}}}" if made.precision > made.scale else "0"
        return _only(text, rf"^-?{whole}(?:\.[0-9]{{1,{made.scale}}})?$" if made.scale else f"^-?{whole}$").cast(made)
    return _only(text, r"^-?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,2})?$").cast(made)


def _only(text: pa.Array, pattern: str) -> pa.Array:
    fits = pc.match_substring_regex(text, pattern)
    return text if _all(fits) else pc.if_else(fits, text, _NO_TEXT)


def _convert(array: pa.Array, kind: T.DataType) -> Finished:
    if isinstance(kind, T.StructType):
        return _struct(array, kind)
    if isinstance(kind, T.ArrayType):
        return _list(array, kind)
    if isinstance(kind, T.DoubleType):
        return Finished(array, _doubtful_doubles(array))
    if isinstance(kind, T.DecimalType):
        # Arrow's parser lets numbers of too many digits pass
        wide = pa.decimal128(_WIDEST, kind.scale)
        limit = pa.scalar(Decimal(10) ** (kind.precision - kind.scale), wide)
        large = pc.greater_equal(pc.abs(array.cast(wide)), limit)
        return Finished(array, _mask(large) if _any(large) else None)
    if isinstance(kind, T.TimestampType):
        return _timestamps(array)
    if isinstance(kind, T.DateType):
        return _cast(array, pc.if_else(pc.match_substring_regex(array, _DATE), array, _NO_TEXT), pa.date32())
    return Finished(array, None)


def _struct(array: pa.Array, kind: T.StructType) -> Finished:
    there = array.is_valid()
    doubtful, children = None, []
    for number, f in enumerate(kind.fields):
        child = pc.struct_field(array, number)
        found = _convert(child, f.dataType)
        children.append(found.array)
        doubtful = _either(doubtful, found.doubtful)
        if not f.nullable:
            doubtful = _either(doubtful, _mask(pc.and_(there, child.is_null())))
    fields = list(arrow_type(kind))
    return Finished(pa.StructArray.from_arrays(children, fields=fields, mask=pc.invert(there)), doubtful)


def _list(array: pa.Array, kind: T.ArrayType) -> Finished:
    elements = array.flatten()  # of the lists that are not null
    found = _convert(elements, kind.elementType)
    doubtful = None
    if found.doubtful is not None:
        doubtful = np.zeros(len(array), dtype=bool)
        doubtful[pc.list_parent_indices(array).to_numpy()[found.doubtful]] = True
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
    made = pa.ListArray.from_arrays(
        pa.array(offsets), found.array, type=arrow_type(kind), mask=array.is_null()
    )  # fmt: skip
    return Finished(made, doubtful)


def _doubtful_doubles(array: pa.Array) -> Any | None:
    numbers = np.nan_to_num(array.fill_null(0.0).to_numpy(zero_copy_only=False), nan=np.inf)
    # beyond 2^53 the digits decide, and they are gone; a negative zero depends on how it was written
    marked = (np.abs(numbers) >= _EXACT) | ((numbers == 0) & np.signbit(numbers))
    return marked if marked.any() else None


def _timestamps(array: pa.Array) -> Finished:
    zulu = pc.match_substring_regex(array, _AT_Z)
    if _all(zulu):  # none is beyond the years that can be written
        return _cast(array, _micros(array), UTC)
    nowhere = pc.match_substring_regex(array, _AT_NOWHERE)
    fits = pc.or_(pc.or_(zulu, nowhere), pc.match_substring_regex(array, _AT_OFFSET))
    # a time without a zone is UTC
    text = pc.if_else(nowhere, pc.binary_join_element_wise(array, "Z", ""), array)
    found = _cast(array, _micros(pc.if_else(fits, text, _NO_TEXT)), UTC)
    micros = pc.fill_null(found.array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    beyond = (micros < FIRST_MICRO) | (micros > LAST_MICRO)
    return Finished(found.array, _either(found.doubtful, beyond if beyond.any() else None))


def _micros(array: pa.Array) -> pa.Array:
    """Cut digits finer than microseconds."""
    longest = pc.max(pc.binary_length(array)).as_py() or 0
    if longest < _FINER or not _any(pc.match_substring_regex(array, r"\.[0-9]{7}")):
        return array
    return pc.replace_substring_regex(array, r"(\.[0-9]{6})[0-9]{1,3}", r"\1")


def _cast(given: pa.Array, text: pa.Array, kind: pa.DataType) -> Finished:
    """Cast text of a known form. Where it is null and was given, the row is doubtful.

    If one of the days 29 to 31 does not exist in its month, all of these days are doubtful.
    """
    try:
        made = text.cast(kind)
    except pa.ArrowInvalid:
        made = pc.if_else(pc.match_substring_regex(text, _LATE_DAY), _NO_TEXT, text).cast(kind)
    lost = pc.and_(given.is_valid(), made.is_null())
    return Finished(made, _mask(lost) if _any(lost) else None)


def _all(mask: pa.Array) -> bool:
    return bool(pc.all(mask, min_count=0).as_py())


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask, min_count=0).as_py())


def _mask(values: pa.Array) -> Any:
    return np.asarray(pc.fill_null(values, False), dtype=bool)


def _either(one: Any | None, other: Any | None) -> Any | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other
