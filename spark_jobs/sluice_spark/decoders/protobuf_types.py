"""Which column of a table can have a type of Protobuf, and how a field becomes the column's; without Spark's JVM.

See `Protobuf's encoding <https://protobuf.dev/programming-guides/encoding/>`_; ``docs/decoding.md`` has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.unknown_fields import UnknownFieldSet
from pyspark.sql import types as T

from sluice_spark.decoders.conversions import DAY, SAME, WHOLE, Broken, Convert, Exact, Scaled, Whole, Within

__all__ = ["Types"]

_ANY = 1 << 64
"""Whole numbers of Protobuf are smaller; what parsed a message has seen to it."""
_BITS = {
    **dict.fromkeys((FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32), 32),
    **dict.fromkeys((FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64), 64),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32), 33),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64), 65),
}
"""The bits that a signed number needs to hold each value of a type."""
_MESSAGES = (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP)
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
Get = Callable[[Any], Any]
"""Returns the value of a column, of a message."""


@dataclass(frozen=True)
class Types:
    """Finds how fields become columns.

    Parameters
    ----------
    days
        The first and the last day that a time may have, counted from 1970.
    """

    days: tuple[int, int]

    def columns(self, message: Descriptor, fields: Sequence[T.StructField], within: str = "") -> list[tuple[str, Get]]:
        """Return how each column is taken from a message of a type, by name.

        Raises
        ------
        Broken
            If a column cannot hold its field's type.
        """
        known, found = message.fields_by_name, []
        for column in fields:
            field, place = known.get(column.name), f"{within}{column.name}"
            get = self._get(field, column, place)
            found.append((column.name, get if field is None or not _is_closed(field) else _Known(field, get, place)))
        return found

    def _get(self, field: FieldDescriptor | None, column: T.StructField, place: str) -> Get:
        def none(_: Any = None) -> None:
            if not column.nullable:
                raise Broken("not_null", place)

        if field is None:
            return none
        name, kind = field.name, column.dataType
        if _is_map(field):
            entry = self._entry(field, kind, place)
            return lambda message: [(key, entry(value)) for key, value in getattr(message, name).items()]
        if field.is_repeated:
            if not isinstance(kind, T.ArrayType):
                raise Broken("type", place)
            each = self._convert(field, kind.elementType, place)
            return lambda message: [each(item) for item in getattr(message, name)]
        convert = self._convert(field, kind, place)
        if not field.has_presence:  # what is not written has the type's zero
            return lambda message: convert(getattr(message, name))
        # a message may have a field that is called HasField
        return lambda message: convert(getattr(message, name)) if type(message).HasField(message, name) else none()

    def _entry(self, field: FieldDescriptor, kind: T.DataType, place: str) -> Convert:
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        if (
            not isinstance(kind, T.MapType)
            or not isinstance(kind.keyType, T.StringType)
            or key.type != FieldDescriptor.TYPE_STRING
        ):
            raise Broken("type", place)
        return self._convert(value, kind.valueType, place)

    def _convert(self, field: FieldDescriptor, kind: T.DataType, place: str) -> Convert:
        if field.type in _MESSAGES:
            return self._message(field.message_type, kind, place)
        found = self._simple(field, kind, place)
        if found is None:
            raise Broken("type", place)
        return found

    def _message(self, message: Descriptor, kind: T.DataType, place: str) -> Convert:
        if isinstance(kind, T.StructType):
            parts = self.columns(message, kind.fields, f"{place}.")
            return lambda value: {name: get(value) for name, get in parts}
        if message.full_name == _TIMESTAMP and isinstance(kind, T.TimestampType):
            return _Moment(Within(1, self.days[0] * DAY, (self.days[1] + 1) * DAY - 1, place), place)
        if message.full_name in _WRAPPERS:
            convert = self._convert(message.fields_by_name["value"], kind, place)
            return lambda value: convert(value.value)
        raise Broken("type", place)

    def _simple(self, field: FieldDescriptor, kind: T.DataType, place: str) -> Convert | None:
        if field.type == FieldDescriptor.TYPE_ENUM and isinstance(kind, T.StringType):
            return _Name(field.enum_type, place)
        if field.type == FieldDescriptor.TYPE_STRING and isinstance(kind, T.StringType):
            return _Text(place)
        bits = 32 if field.type == FieldDescriptor.TYPE_ENUM else _BITS.get(field.type)
        if bits is not None:
            return _whole(bits, kind, place)
        same: dict[int, tuple[type[T.DataType], ...]] = {
            FieldDescriptor.TYPE_BYTES: (T.BinaryType,),
            FieldDescriptor.TYPE_BOOL: (T.BooleanType,),
            FieldDescriptor.TYPE_DOUBLE: (T.DoubleType,),
            FieldDescriptor.TYPE_FLOAT: (T.DoubleType, T.FloatType),
        }
        return SAME if isinstance(kind, same.get(field.type, ())) else None


def _is_map(field: FieldDescriptor) -> bool:
    return field.type == FieldDescriptor.TYPE_MESSAGE and bool(field.message_type.GetOptions().map_entry)


def _is_closed(field: FieldDescriptor) -> bool:
    """Return whether a field, or the value of a map, is an enum that has no other numbers than those it names."""
    if _is_map(field):
        field = field.message_type.fields_by_name["value"]
    return field.type == FieldDescriptor.TYPE_ENUM and bool(field.enum_type.is_closed)


class _Known:
    """Takes a column from a message, unless an enum has a number that it does not name: the parser put that aside."""

    def __init__(self, field: FieldDescriptor, get: Get, place: str) -> None:
        self._number, self._get, self._place = field.number, get, place

    def __call__(self, message: Any) -> Any:
        if any(unknown.field_number == self._number for unknown in UnknownFieldSet(message)):
            raise Broken("type", self._place)
        return self._get(message)


def _whole(bits: int, kind: T.DataType, place: str) -> Convert | None:
    width = WHOLE.get(type(kind))
    if width is not None:
        return SAME if bits <= width else Whole(1 << (width - 1), _ANY, place)
    if isinstance(kind, T.DoubleType | T.FloatType):
        return Exact(_ANY, isinstance(kind, T.FloatType), place)
    return Scaled(_ANY, kind.precision, kind.scale, place) if isinstance(kind, T.DecimalType) else None


@dataclass(frozen=True)
class _Text:
    """Text; of a file in proto2 it is not looked at before, and comes as bytes if it is none."""

    column: str

    def __call__(self, value: str | bytes) -> str:
        if isinstance(value, bytes):
            raise Broken("utf8", self.column)
        return value


@dataclass(frozen=True)
class _Name:
    """Names of an enum; a number that it has no name for is of a later schema."""

    enum: EnumDescriptor
    column: str

    def __call__(self, value: int) -> str:
        found = self.enum.values_by_number.get(value)
        if found is None:
            raise Broken("type", self.column)
        return str(found.name)


@dataclass(frozen=True)
class _Moment:
    """Times, in microseconds."""

    within: Within
    column: str

    def __call__(self, value: Any) -> int:
        if not 0 <= value.nanos < 1_000_000_000:
            raise Broken("time", self.column)
        if value.nanos % 1000:
            raise Broken("digits", self.column)
        return int(self.within(value.seconds * 1_000_000 + value.nanos // 1000))
