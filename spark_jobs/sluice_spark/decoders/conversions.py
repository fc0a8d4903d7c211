"""How a value of a binary format becomes that of a column, or which rule it breaks; without Spark's JVM."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

__all__ = [
    "DAY",
    "EVER",
    "SAME",
    "SINCE_1901",
    "WHOLE",
    "Broken",
    "Convert",
    "Each",
    "Entries",
    "Exact",
    "Fields",
    "Scaled",
    "Unscaled",
    "Whole",
    "Within",
]

_EPOCH = date(1970, 1, 1).toordinal()
DAY = 86_400_000_000
EVER = (1 - _EPOCH, date(9999, 12, 31).toordinal() - _EPOCH)
"""The days of years that a date can have, counted from 1970."""
SINCE_1901 = (date(1901, 1, 1).toordinal() - _EPOCH, EVER[1])


WHOLE: Mapping[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
"""The bits of whole numbers."""
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
class _Same:
    def __call__(self, value: Any) -> Any:
        return value


SAME: Convert = _Same()
"""The conversion of values that are the column's already."""


@dataclass(frozen=True)
class Whole:
    """Whole numbers.

    Parameters
    ----------
    limit
        Those from there on are out of the column's range, and so are those below its negative.
    written
        The same of the schema's type: what is beyond is no Avro. A format whose parser sees to it gives a larger one.
    column
        The column's name.
    """

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
class Exact:
    """Whole numbers as floating-point ones that are as large; ``written`` as in :class:`Whole`."""

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
class Within:
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
class Scaled:
    """Whole numbers as decimals; ``written`` as in :class:`Whole`."""

    written: int
    precision: int
    scale: int
    column: str

    def __call__(self, value: int) -> Decimal:
        if not -self.written <= value < self.written:
            raise Broken("avro")
        return _decimal(value, 0, self.precision, self.scale, self.column)


@dataclass(frozen=True)
class Unscaled:
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
class Each:
    element: Convert

    def __call__(self, value: Sequence[Any]) -> list[Any]:
        return [self.element(item) for item in value]


@dataclass(frozen=True)
class Entries:
    value: Convert

    def __call__(self, value: Mapping[str, Any]) -> list[tuple[str, Any]]:
        return [(key, self.value(item)) for key, item in value.items()]


@dataclass(frozen=True)
class Fields:
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
