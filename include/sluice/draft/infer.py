"""Infers the type of JSON fields from their values, by what the decoder takes; pure.

Types are conservative: whole numbers are BIGINT, text that is not always a time is STRING, and a field that has values
of several kinds has the type of most of them. Each such choice is a doubt, in words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sluice.fields import METADATA_COLUMNS

__all__ = ["Number", "Seen", "problem", "quoted"]

_TIME = re.compile(
    r"(?!0000)\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(?P<zone>Z|[+-]\d{2}(:?\d{2})?)?", re.ASCII
)
_DATE = re.compile(r"(?!0000)\d{4}-\d{2}-\d{2}", re.ASCII)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CLOCK = re.compile(r"(^|_)(at|on|ts|time|date|timestamp)$|(Time|Date|At|Timestamp)$")
_MONEY = re.compile(
    r"price|amount|cost|total|fee|tax|balance|revenue|pay|fare|tip|paid|charge|salary|wage|discount|money|eur|usd",
    re.IGNORECASE,
)
_DEEPEST = 12
_MANY = 50
"""With more names than this, of which each is rare, an object is a map."""
_REMEMBERED = 100_000
_UNITS = (("seconds", 10, "seconds"), ("milliseconds", 13, "millis"), ("microseconds", 16, "micros"))
"""Times since 1970: the digits that such a number has between 2001 and 2286, and the end of the function's name."""
_EXACT = 2**53


class Number(str):
    """A number with a fraction or an exponent, as it was written."""


@dataclass
class Seen:
    """What was seen of a field's values.

    Attributes
    ----------
    kinds
        How many values are of each kind: null, boolean, whole, fraction, text, object, array.
    values
        The distinct values, as text, of whole numbers and texts; not all of them if there are very many.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    values: set[str] = field(default_factory=set)
    largest: int = 0
    digits: int = 0
    """The most significant digits of a number with a fraction."""
    decimals: int = 0
    exponent: bool = False
    times: int = 0
    zoned: int = 0
    dates: int = 0
    fields: dict[str, Seen] = field(default_factory=dict)
    element: Seen | None = None

    @property
    def count(self) -> int:
        """How many values there were, null or not."""
        return self.kinds.total()

    @property
    def always(self) -> bool:
        """Whether no value was null; of an object's field it is not known here whether it was always there."""
        return bool(self.count) and not self.kinds["null"]

    def add(self, value: Any) -> None:
        """Take in one value, as :mod:`json` reads it, with :class:`Number` for numbers with a fraction."""
        if value is None:
            self.kinds["null"] += 1
        elif isinstance(value, bool):
            self.kinds["boolean"] += 1
        elif isinstance(value, int):
            self.kinds["whole"] += 1
            self.largest = max(self.largest, abs(value))
            self._remember(str(value))
        elif isinstance(value, Number):
            self.kinds["fraction"] += 1
            mantissa, _, exponent = value.lower().lstrip("-").partition("e")
            self.exponent |= bool(exponent)
            self.decimals = max(self.decimals, len(mantissa.partition(".")[2]))
            self.digits = max(self.digits, len(mantissa.replace(".", "").strip("0")))
        elif isinstance(value, str):
            self.kinds["text"] += 1
            self._text(value)
        elif isinstance(value, dict):
            self.kinds["object"] += 1
            for name, part in value.items():
                self.fields.setdefault(name, Seen()).add(part)
        else:
            self.kinds["array"] += 1
            self.element = self.element or Seen()
            for part in value:
                self.element.add(part)

    def _text(self, value: str) -> None:
        self._remember(value)
        time, date = _TIME.fullmatch(value), _DATE.fullmatch(value)
        if (time or date) and _there_is(value[:10]):
            self.times += bool(time)
            self.zoned += bool(time and time["zone"])
            self.dates += bool(date)

    def _remember(self, value: str) -> None:
        if len(self.values) < _REMEMBERED:
            self.values.add(value)

    def type(self, name: str, doubts: list[str], depth: int = 0) -> str | None:
        """Return the type, as DDL; None if there is none. Add to ``doubts`` what is not certain, in words.

        Parameters
        ----------
        name
            The field's path, for the doubts.
        """
        kinds = {kind: n for kind, n in self.kinds.items() if kind != "null"}
        if not kinds:
            doubts.append(f"{name}: is null in the whole sample; STRING takes text, whole numbers and booleans")
            return "STRING"
        if depth > _DEEPEST:
            doubts.append(f"{name}: lies deeper than {_DEEPEST} objects, and is left out")
            return None
        if len(kinds) > 1 and set(kinds) <= {"text", "whole", "boolean"}:
            doubts.append(f"{name}: has values of several kinds ({_told(kinds)}); STRING takes them all")
            return "STRING"
        texts = sum(kinds.get(kind, 0) for kind in ("text", "whole", "boolean"))  # what STRING takes
        if numbers := kinds.pop("whole", 0) + kinds.pop("fraction", 0):
            kinds["number"] = numbers
        most = max(kinds, key=lambda kind: kinds[kind])
        more: list[str] = []
        declared = self._of_kind(most, name, more, depth)
        if len(kinds) > 1:
            others = sum(kinds.values()) - (texts if declared == "STRING" else kinds[most])
            doubts.append(
                f"{name}: has values of several kinds ({_told(kinds)}); as it is declared, {others:,} of "
                f"{sum(kinds.values()):,} would be refused"
            )
        doubts += more
        return declared

    def _of_kind(self, kind: str, name: str, doubts: list[str], depth: int) -> str | None:
        if kind == "boolean":
            return "BOOLEAN"
        if kind == "number":
            return self._number(name, doubts)
        if kind == "text":
            return self._time_or_text(name, doubts)
        if kind == "object":
            return self._object(name, doubts, depth)
        if self.element is None or not self.element.count:
            doubts.append(f"{name}: is an empty array in the whole sample; its elements are taken for text")
            return "ARRAY<STRING>"
        element = self.element.type(f"{name}[]", doubts, depth + 1)
        return None if element is None else f"ARRAY<{element}>"

    def _number(self, name: str, doubts: list[str]) -> str:
        if not self.kinds["fraction"]:
            if self.largest < 2**63:
                if _CLOCK.search(name):
                    doubts += [
                        f"{name}: may be {unit} since 1970; timestamp_{function}({name}) in the transform makes a time"
                        for unit, digits, function in _UNITS
                        if len(str(self.largest)) == digits
                    ]
                return "BIGINT"
            wide = len(str(self.largest)) > 38
            doubts.append(f"{name}: has whole numbers beyond BIGINT{', and beyond 38 digits' if wide else ''}")
            return "STRING" if wide else "DECIMAL(38,0)"
        if (self.digits > 15 or self.largest >= _EXACT) and not self.exponent:
            scale = min(self.decimals, 18)
            doubts.append(f"{name}: has more digits than DOUBLE keeps; check scale and size of DECIMAL(38,{scale})")
            return f"DECIMAL(38,{scale})"
        # a temperature has as few decimals: ask where the name says money, or where cents are the smallest part
        if not self.exponent and (self.decimals == 2 or (self.decimals <= 4 and _MONEY.search(name))):
            doubts.append(
                f"{name}: if it is an amount of money, declare DECIMAL(18,{max(self.decimals, 2)}), not DOUBLE"
            )
        return "DOUBLE"

    def _time_or_text(self, name: str, doubts: list[str]) -> str:
        texts = self.kinds["text"]
        if self.dates == texts:
            return "DATE"
        if self.times + self.dates == texts:
            if self.zoned < self.times:
                doubts.append(f"{name}: has times without a zone, which are taken for UTC")
            return "TIMESTAMP"
        if self.times + self.dates > texts // 2:
            doubts.append(
                f"{name}: {texts - self.times - self.dates:,} of {texts:,} texts are no time; it stays STRING"
            )
        return "STRING"

    def _object(self, name: str, doubts: list[str], depth: int) -> str | None:
        objects = self.kinds["object"]
        if not self.fields:
            doubts.append(f"{name}: is an empty object in the whole sample; its values are taken for text")
            return "MAP<STRING, STRING>"
        parts = sum(part.count for part in self.fields.values())
        if len(self.fields) > _MANY and parts < len(self.fields) * objects / 5:
            value = Seen()
            for part in self.fields.values():
                value.merge(part)
            kind = value.type(f"{name}.*", doubts, depth + 1)
            doubts.append(f"{name}: has {len(self.fields):,} names, of which each is rare: a MAP, not a STRUCT")
            return None if kind is None else f"MAP<STRING, {kind}>"
        columns = list(self.columns(name, doubts, depth))
        return f"STRUCT<{', '.join(f'{quoted(n)}: {kind}' for n, kind in columns)}>" if columns else None

    def columns(self, above: str, doubts: list[str], depth: int = 0) -> Iterator[tuple[str, str]]:
        """Yield the names and types of an object's fields, as far as there can be columns of these names."""
        taken: dict[str, str] = {}
        # of two names that differ in case only, the one that is there more often
        for name in sorted(self.fields, key=lambda name: -self.fields[name].count):
            path = f"{above}.{name}" if above else name
            wrong = problem(name, top=not above, taken=taken)
            if wrong is None:
                taken[name.lower()] = name
            else:
                doubts.append(f"{path[:80]!r}: {wrong}, and is left out")
        for name, part in self.fields.items():
            if taken.get(name.lower()) == name:
                kind = part.type(f"{above}.{name}" if above else name, doubts, depth + 1)
                if kind is not None:
                    yield name, kind

    def merge(self, other: Seen) -> None:
        """Take in what was seen of another field."""
        self.kinds += other.kinds
        self.values |= other.values if len(self.values) < _REMEMBERED else set()
        for name in ("largest", "digits", "decimals"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        self.exponent |= other.exponent
        self.times, self.zoned, self.dates = (
            self.times + other.times,
            self.zoned + other.zoned,
            self.dates + other.dates,
        )
        for name, part in other.fields.items():
            self.fields.setdefault(name, Seen()).merge(part)
        if other.element is not None:
            self.element = self.element or Seen()
            self.element.merge(other.element)


def quoted(name: str) -> str:
    """Return a name as DDL and SQL write it."""
    plain = _WORD.fullmatch(name) and name.upper() not in _keywords()
    return name if plain else f"`{name.replace('`', '``')}`"


@cache
def _keywords() -> frozenset[str]:
    from sqlglot.dialects import Spark

    return frozenset(word for words in Spark.Tokenizer.KEYWORDS for word in words.split())


def problem(name: str, *, top: bool, taken: Mapping[str, str]) -> str | None:
    """Return why there can be no column of this name, in words; None if there can.

    Parameters
    ----------
    top
        Whether it is a column of the table, not of a struct.
    taken
        The names beside it, by their lower case.
    """
    if not name or not name.isprintable() or len(name) > 128:
        return "is no name of a column"
    if top and (name.lower() in METADATA_COLUMNS or name.lower().startswith("__sluice")):
        return "is a name that Sluice adds itself"
    if name.lower() in taken:
        return f"differs from {taken[name.lower()]!r} in case only"
    return None


def _there_is(day: str) -> bool:
    with suppress(ValueError):
        return bool(datetime.fromisoformat(day))
    return False


def _told(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {kind}" for kind, n in sorted(kinds.items(), key=lambda item: -item[1]))
