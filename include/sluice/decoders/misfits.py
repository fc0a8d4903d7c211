"""Finds in a JSON record the value within a nested column that its type does not take; pure.

It looks where the decoder found that something does not fit, and is no second decoder: of a value that it does not
understand it says nothing.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Number", "misfit", "nested"]

_WHOLE = re.compile(r"-?[0-9]+")
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_TEXTS = ("TEXT", "VARCHAR", "CHAR")
_TIMES = ("DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ")


class Number(str):
    """A number as it was written."""


@cache
def _columns(ddl: str) -> Mapping[str, exp.DataType]:
    from sqlglot import exp, parse_one

    tree = parse_one(f"CREATE TABLE t ({ddl})", dialect="spark").this
    return {c.name: c.args["kind"] for c in tree.expressions if isinstance(c, exp.ColumnDef)}


def nested(ddl: str, column: str) -> bool:
    """Return whether a column is a struct, an array or a map."""
    kind = _columns(ddl).get(column)
    return kind is not None and kind.this.name in ("STRUCT", "ARRAY", "MAP")


def misfit(record: Mapping[str, Any], ddl: str, rule: str, column: str | None) -> tuple[str, Any, str] | None:
    """Return the path, the value and the type of the first value that breaks a rule; None if there is none to be seen.

    Parameters
    ----------
    record
        An object as :mod:`json` reads it, with :class:`Number` for all numbers.
    ddl
        The declared columns.
    column
        Where to look; None for all columns.
    """
    wrong = _BREAKS.get(rule)
    if wrong is None:
        return None
    for name, kind in _columns(ddl).items():
        if column in (None, name):
            for path, value, part in _walk(name, record.get(name), kind):
                if value is not None and wrong(value, part):
                    return path, value, "STRUCT" if part.this.name == "STRUCT" else part.sql("spark")
    return None


def _walk(path: str, value: Any, kind: exp.DataType) -> Iterator[tuple[str, Any, exp.DataType]]:
    """Yield each value with its path and type, from the outside to the inside."""
    yield path, value, kind
    name, parts = kind.this.name, kind.expressions
    if name == "STRUCT" and isinstance(value, dict):
        for part in parts:
            yield from _walk(f"{path}.{part.name}", value.get(part.name), part.args["kind"])
    elif name == "ARRAY" and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk(f"{path}[{number}]", item, parts[0])
    elif name == "MAP" and isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(f"{path}.{key}", item, parts[1])


def _no_type(value: Any, kind: exp.DataType) -> bool:
    name = kind.this.name
    if name in ("STRUCT", "MAP"):
        return not isinstance(value, dict)
    if name == "ARRAY":
        return not isinstance(value, list)
    if name == "BOOLEAN":
        return not isinstance(value, bool)
    if name in _BITS:
        half = 1 << (_BITS[name] - 1)
        return not (isinstance(value, Number) and _WHOLE.fullmatch(value) and -half <= int(value) < half)
    if name in ("FLOAT", "DOUBLE"):
        return not isinstance(value, Number) or math.isinf(float(value))
    if name in _TEXTS:
        return not (isinstance(value, str | bool) and not (isinstance(value, Number) and not _WHOLE.fullmatch(value)))
    if name == "DECIMAL":
        return isinstance(value, bool | dict | list)
    return name in ("BINARY", "VARBINARY") and not _base64(value)


def _base64(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(base64.b64decode(value, validate=True) or not value)
    except ValueError:
        return False


def _no_time(value: Any, kind: exp.DataType) -> bool:
    if kind.this.name not in _TIMES:
        return False
    if isinstance(value, Number) or not isinstance(value, str) or len(value) < 10:
        return True
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return True
    return (kind.this.name == "DATE" and len(value) > 10) or (
        kind.this.name == "TIMESTAMPNTZ" and moment.tzinfo is not None
    )


def _no_digits(value: Any, kind: exp.DataType) -> bool:
    if kind.this.name == "DECIMAL" and isinstance(value, str):  # a decimal may be written as text
        digits = [int(part.name) for part in kind.expressions] or [10]
        return not _holds(value, digits[0], digits[1] if len(digits) > 1 else 0)
    return kind.this.name == "DOUBLE" and isinstance(value, Number) and _is_rounded(value)


def _is_rounded(value: Number) -> bool:
    return bool(_WHOLE.fullmatch(value)) and int(float(value)) != int(value)


def _holds(text: str, precision: int, scale: int) -> bool:
    """Return whether a decimal of this precision and scale holds all digits of a number."""
    try:
        _, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:
        return False
    if not isinstance(exponent, int):  # infinite, or no number
        return False
    written = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(written)
    return not written or (-exponent <= scale and len(written) + exponent <= precision - scale)


_BREAKS: Mapping[str, Callable[[Any, exp.DataType], bool]] = {
    "type": _no_type,
    "time": _no_time,
    "digits": _no_digits,
}
