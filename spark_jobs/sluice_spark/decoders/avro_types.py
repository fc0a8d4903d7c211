"""Which column of a table can have a type of Avro, and how a written value becomes the column's; without Spark's JVM.

See `Avro's specification <https://avro.apache.org/docs/1.12.0/specification/>`_; ``docs/decoding.md`` has the table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

__all__ = ["EVER", "SAME", "SINCE_1901", "Broken", "Convert", "Types"]

_EPOCH = date(1970, 1, 1).toordinal()
_DAY = 86_400_000_000
EVER = (1 - _EPOCH, date(9999, 12, 31).toordinal() - _EPOCH)
"""The days of years that a date can have, counted from 1970."""
SINCE_1901 = (date(1901, 1, 1).toordinal() - _EPOCH, EVER[1])

_WHOLE: Mapping[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_SCALES = {"millis": 1000, "micros": 1}
_LONGEST = 10_000
"""Digits of a decimal: more take long to convert, and no column has them."""
Convert = Callable[[Any], Any]


class Broken(Exception):
    """A record that is refused.

    Parameters
    ----------
    rule
        What it breaks; see ``docs/decoding.md``.
    column
        The column at fault; None if the rule is about the whole record.
    """

    def __init__(self, rule: str, column: str | None = None) -> None:
        super().__init__(rule, column)
        self.rule, self.column = rule, column


@dataclass(frozen=True)
class Types:
    """Finds how written values become those of a column.

    Parameters
    ----------
    names
        The named types of a schema, as fastavro parses it.
    days
        The first and the last day that a date or time may have, counted from 1970.
    """

    names: Mapping[str, Any]
    days: tuple[int, int]

    def convert(self, avro: Any, kind: T.DataType, column: str, *, nullable: bool = True) -> Convert:
        """Return the conversion of values that may be null.

        Raises
        ------
        Broken
            If the column cannot hold the schema's type.
        """
        branches = [self._resolved(part) for part in (avro if isinstance(avro, list) else [avro])]
        kept = [part for part in branches if part != "null" and _type_of(part) != "null"]
        found = [self._convert(part, kind, column) for part in kept]
        if any(each != found[0] for each in found):
            raise Broken("type", column)  # which of them a value is, fastavro does not say

        if found and (len(kept) == len(branches) or (nullable and found[0] == SAME)):
            return found[0]  # there is no null, or it stays one

        def values(value: Any) -> Any:
            if value is None:
                if nullable:
                    return None
                raise Broken("not_null", column)
            return found[0](value)

        return values

    def _resolved(self, avro: Any) -> Any:
        return self.names.get(avro, avro) if isinstance(avro, str) else avro

    def _convert(self, avro: Any, kind: T.DataType, column: str) -> Convert:
        name = _type_of(avro)
        logic = avro.get("logicalType") if isinstance(avro, dict) else None
        if not isinstance(logic, str):
            logic = None  # the specification: what is no logical type is ignored
        if isinstance(kind, T.StructType) and name == "record":
            return self._struct(avro, kind, column)
        if isinstance(kind, T.ArrayType) and name == "array":
            element = self.convert(avro["items"], kind.elementType, column)
            return _Each(element)
        if isinstance(kind, T.MapType) and name == "map" and isinstance(kind.keyType, T.StringType):
            value = self.convert(avro["values"], kind.valueType, column)
            return _Entries(value)
        made = self._simple(name, logic, avro, kind, column)
        if made is None:
            raise Broken("type", column)
        return made

    def _struct(self, avro: Any, kind: T.StructType, column: str) -> Convert:
        written = {f["name"]: f["type"] for f in avro["fields"]}
        fields = [
            (f.name, self.convert(written.get(f.name, "null"), f.dataType, f"{column}.{f.name}", nullable=f.nullable))
            for f in kind.fields
        ]
        return _Fields(tuple(fields))

    def _simple(self, name: str, logic: str | None, avro: Any, kind: T.DataType, column: str) -> Convert | None:
        bits = 32 if name == "int" else 64
        if isinstance(kind, T.StringType):
            return SAME if name in ("string", "enum") else None
        if isinstance(kind, T.BinaryType):
            return SAME if name in ("bytes", "fixed") else None
        if isinstance(kind, T.BooleanType):
            return SAME if name == "boolean" else None
        if isinstance(kind, T.DateType):
            return _Within(1, *self.days, column) if (name, logic) == ("int", "date") else None
        if isinstance(kind, T.TimestampType | T.TimestampNTZType):
            family, _, unit = (logic or "").rpartition("-")
            wanted = "timestamp" if isinstance(kind, T.TimestampType) else "local-timestamp"
            if name != "long" or family != wanted or unit not in _SCALES:
                return None
            return _Within(_SCALES[unit], self.days[0] * _DAY, (self.days[1] + 1) * _DAY - 1, column)
        if isinstance(kind, T.DecimalType):
            if logic == "decimal" and name in ("bytes", "fixed"):
                scale, precision = avro.get("scale", 0), avro.get("precision")
                if type(scale) is not int or type(precision) is not int or not 0 <= scale <= precision <= _LONGEST:
                    return None
                return _Unscaled(scale, kind.precision, kind.scale, column)
            return _Scaled(1 << (bits - 1), kind.precision, kind.scale, column) if name in ("int", "long") else None
        if name in ("int", "long"):
            if type(kind) in _WHOLE:
                width = _WHOLE[type(kind)]
                return SAME if width == bits == 64 else _Whole(1 << (width - 1), 1 << (bits - 1), column)
            if isinstance(kind, T.DoubleType | T.FloatType):
                return _Exact(1 << (bits - 1), isinstance(kind, T.FloatType), column)
        if isinstance(kind, T.DoubleType):
            return SAME if name in ("float", "double") else None
        return SAME if isinstance(kind, T.FloatType) and name == "float" else None


def _type_of(avro: Any) -> str:
    return str(avro["type"] if isinstance(avro, dict) else avro)


@dataclass(frozen=True)
class _Same:
    def __call__(self, value: Any) -> Any:
        return value


SAME: Convert = _Same()
"""The conversion of values that are the column's already."""


@dataclass(frozen=True)
class _Whole:
    """Whole numbers: those that the schema's type does not have are no Avro."""

    limit: int
    written: int
    column: str

    def __call__(self, value: int) -> int:
        if not -self.written <= value < self.written:
            raise Broken("avro")
        if not -self.limit <= value < self.limit:
            raise Broken("type", self.column)
        return value


@dataclass(frozen=True)
class _Exact:
    """Whole numbers as floating-point ones that are as large."""

    written: int
    single: bool
    column: str

    def __call__(self, value: int) -> float:
        if not -self.written <= value < self.written:
            raise Broken("avro")
        made = float(value)
        if self.single:
            made = struct.unpack("f", struct.pack("f", made))[0]
        if int(made) != value:
            raise Broken("digits", self.column)
        return made


@dataclass(frozen=True)
class _Within:
    """Dates and times, in the unit of the column."""

    factor: int
    first: int
    last: int
    column: str

    def __call__(self, value: int) -> int:
        made = value * self.factor
        if self.first <= made <= self.last:
            return made
        raise Broken("time", self.column)


@dataclass(frozen=True)
class _Scaled:
    """Whole numbers as decimals."""

    written: int
    precision: int
    scale: int
    column: str

    def __call__(self, value: int) -> Decimal:
        if not -self.written <= value < self.written:
            raise Broken("avro")
        return _decimal(value, 0, self.precision, self.scale, self.column)


@dataclass(frozen=True)
class _Unscaled:
    """Decimals from their digits."""

    written: int
    precision: int
    scale: int
    column: str

    def __call__(self, value: bytes) -> Decimal:
        return _decimal(
            int.from_bytes(value, "big", signed=True), self.written, self.precision, self.scale, self.column
        )


@dataclass(frozen=True)
class _Each:
    element: Convert

    def __call__(self, value: Sequence[Any]) -> list[Any]:
        return [self.element(item) for item in value]


@dataclass(frozen=True)
class _Entries:
    value: Convert

    def __call__(self, value: Mapping[str, Any]) -> list[tuple[str, Any]]:
        return [(key, self.value(item)) for key, item in value.items()]


@dataclass(frozen=True)
class _Fields:
    fields: tuple[tuple[str, Convert], ...]

    def __call__(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {name: convert(value.get(name)) for name, convert in self.fields}


def _decimal(digits: int, scale: int, precision: int, wanted: int, column: str) -> Decimal:
    if wanted >= scale:
        digits *= 10 ** (wanted - scale)
    else:
        digits, rest = divmod(digits, 10 ** (scale - wanted))
        if rest:
            raise Broken("digits", column)
    if abs(digits) >= 10**precision:
        raise Broken("digits", column)
    return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -wanted))
