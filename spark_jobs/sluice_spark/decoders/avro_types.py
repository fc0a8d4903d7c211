"""Which column of a table can have a type of Avro, and how a written value becomes the column's; without Spark's JVM.

See `Avro's specification <https://avro.apache.org/docs/1.12.0/specification/>`_; ``docs/decoding.md`` has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from sluice_spark.decoders.conversions import (
    DAY,
    SAME,
    WHOLE,
    Broken,
    Convert,
    Each,
    Entries,
    Exact,
    Fields,
    Scaled,
    Unscaled,
    Whole,
    Within,
)

__all__ = ["Types"]

_SCALES = {"millis": 1000, "micros": 1}
_LONGEST = 10_000
"""Digits of a decimal: more take long to convert, and no column has them."""


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
            return Each(element)
        if isinstance(kind, T.MapType) and name == "map" and isinstance(kind.keyType, T.StringType):
            value = self.convert(avro["values"], kind.valueType, column)
            return Entries(value)
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
        return Fields(tuple(fields))

    def _simple(self, name: str, logic: str | None, avro: Any, kind: T.DataType, column: str) -> Convert | None:
        bits = 32 if name == "int" else 64
        if isinstance(kind, T.StringType):
            return SAME if name in ("string", "enum") else None
        if isinstance(kind, T.BinaryType):
            return SAME if name in ("bytes", "fixed") else None
        if isinstance(kind, T.BooleanType):
            return SAME if name == "boolean" else None
        if isinstance(kind, T.DateType):
            return Within(1, *self.days, column) if (name, logic) == ("int", "date") else None
        if isinstance(kind, T.TimestampType | T.TimestampNTZType):
            family, _, unit = (logic or "").rpartition("-")
            wanted = "timestamp" if isinstance(kind, T.TimestampType) else "local-timestamp"
            if name != "long" or family != wanted or unit not in _SCALES:
                return None
            return Within(_SCALES[unit], self.days[0] * DAY, (self.days[1] + 1) * DAY - 1, column)
        if isinstance(kind, T.DecimalType):
            if logic == "decimal" and name in ("bytes", "fixed"):
                scale, precision = avro.get("scale", 0), avro.get("precision")
                if type(scale) is not int or type(precision) is not int or not 0 <= scale <= precision <= _LONGEST:
                    return None
                return Unscaled(scale, kind.precision, kind.scale, column)
            return Scaled(1 << (bits - 1), kind.precision, kind.scale, column) if name in ("int", "long") else None
        if name in ("int", "long"):
            if type(kind) in WHOLE:
                width = WHOLE[type(kind)]
                return SAME if width == bits == 64 else Whole(1 << (width - 1), 1 << (bits - 1), column)
            if isinstance(kind, T.DoubleType | T.FloatType):
                return Exact(1 << (bits - 1), isinstance(kind, T.FloatType), column)
        if isinstance(kind, T.DoubleType):
            return SAME if name in ("float", "double") else None
        return SAME if isinstance(kind, T.FloatType) and name == "float" else None


def _type_of(avro: Any) -> str:
    return str(avro["type"] if isinstance(avro, dict) else avro)
