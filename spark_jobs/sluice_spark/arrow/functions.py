"""Functions, casts and arithmetic of the subset of SQL: those that Arrow's kernels compute as Spark does.

An overflow, or a year of other than four digits, raises :class:`pyarrow.ArrowInvalid`; Spark then decides what that
means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from sluice_spark.sources.inputs import UTC as UTC_TIME

__all__ = ["NotInSubsetError", "Value", "arithmetic", "called", "constant", "given", "number"]

_KINDS = {
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMPTZ: UTC_TIME,  # Spark's TIMESTAMP
}
_ARITHMETIC: dict[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.Add: pc.add_checked,
    exp.Sub: pc.subtract_checked,
    exp.Mul: pc.multiply_checked,
}
_CLOCK: dict[type[exp.Expression], Callable[[Any], Any]] = {
    exp.Hour: pc.hour,
    exp.Minute: pc.minute,
    exp.Second: pc.second,
}
_CALENDAR: dict[type[exp.Expression], Callable[[Any], Any]] = {
    exp.Year: pc.year,
    exp.Month: pc.month,
    exp.Day: pc.day,
    exp.DayOfMonth: pc.day,
}
_LONGEST = 60
"""Characters of an expression that are shown."""
_FIRST, _END = (day - date(1970, 1, 1).toordinal() for day in (date.min.toordinal(), date.max.toordinal() + 1))
"""In days since 1970. Beyond them Arrow writes years in another way than Spark, and far beyond it takes wrong ones."""
_UNITS = ("YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND")


class NotInSubsetError(ValueError):
    """A statement that the Arrow path does not compute; the text is the reason."""


@dataclass(frozen=True)
class Value:
    """An expression: its type, and how it is computed."""

    type: pa.DataType
    of: Callable[[pa.Table], Any]


def constant(value: Any, kind: pa.DataType) -> Value:
    """Return a literal."""
    scalar = pa.scalar(value, kind)
    return Value(kind, lambda table: scalar)


def given(node: exp.Expression) -> set[str]:
    """Return the names of a node's arguments that are set."""
    return {name for name, value in node.args.items() if value}


def number(node: exp.Expression) -> Decimal | None:
    """Return the value of a number without an exponent; None for anything else."""
    if isinstance(node, exp.Paren):
        return number(node.this)
    if isinstance(node, exp.Neg):
        inner = number(node.this)
        return None if inner is None else -inner
    if not isinstance(node, exp.Literal) or node.is_string or "e" in node.name.lower():
        return None
    try:
        return Decimal(node.name)
    except InvalidOperation:
        return None


def arithmetic(node: exp.Expression, value: Callable[[exp.Expression], Value]) -> Value | None:
    """Return the sum, difference or product of two numbers, or a negative number; None if the node is none of these.

    Parameters
    ----------
    value
        Translates an operand.

    Raises
    ------
    NotInSubsetError
        If Spark computes it in another type.
    """
    if isinstance(node, exp.Neg):
        inner = value(node.this)
        if not _is_number(inner.type):
            raise NotInSubsetError(f"it has {_shown(node)}")
        return Value(inner.type, lambda table: pc.negate_checked(inner.of(table)))
    compute = _ARITHMETIC.get(type(node))
    if compute is None:
        return None
    sides = (node.this, node.expression)
    operands = [_operand(side, value) for side in sides]
    kinds = [operand.type for operand in operands]
    typed = [kind for side, kind in zip(sides, kinds, strict=True) if number(side) is None]
    fractions = [side for side in sides if number(side) is not None and "." in side.sql("spark")]
    if not typed or not all(map(_is_number, kinds)) or (fractions and typed != [pa.float64()]):
        raise NotInSubsetError(f"it has {_shown(node)}")
    kind = pa.float64() if pa.float64() in kinds else max(kinds, key=lambda one: one.bit_width)
    one, other = (_cast(operand, kind) for operand in operands)
    return Value(kind, lambda table: compute(one.of(table), other.of(table)))


def _operand(node: exp.Expression, value: Callable[[exp.Expression], Value]) -> Value:
    literal = number(node)
    if literal is None:
        return value(node)
    if "." in node.sql("spark"):  # a decimal to Spark; beside a double it becomes one
        return constant(float(literal), pa.float64()) if abs(literal) < 2**53 else value(node)
    if -(2**31) <= literal < 2**31:
        return constant(int(literal), pa.int32())
    return constant(int(literal), pa.int64()) if -(2**63) <= literal < 2**63 else value(node)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_float64(kind))


def called(node: exp.Expression, value: Callable[[exp.Expression], Value]) -> Value | None:
    """Return a cast, a part of a time or a function of text; None if the node is none of these.

    Parameters
    ----------
    value
        Translates an argument.

    Raises
    ------
    NotInSubsetError
        If the cast may fail, or the argument has another type.
    """
    if isinstance(node, exp.Cast):  # TRY_CAST is one, too; sqlglot takes Spark's CAST for it
        return _converted(node, value)
    if isinstance(node, exp.TsOrDsToDate) and given(node) <= {"this", "safe"}:
        return _to_date(value(node.this), node)
    if type(node) in _CLOCK and given(node) == {"this"}:
        return _part(_CLOCK[type(node)], _naive(value(node.this), node))
    if type(node) in _CALENDAR and given(node) == {"this"}:
        return _part(_CALENDAR[type(node)], _of_four_digits(_to_date(_inside(node.this, value), node)))
    if isinstance(node, exp.TimestampTrunc) and given(node) == {"this", "unit"}:
        return _truncated(node, value)
    if isinstance(node, exp.Length) and given(node) == {"this"}:
        text = _text(value(node.this), node)
        return Value(pa.int32(), lambda table: pc.cast(pc.utf8_length(text.of(table)), pa.int32()))
    if isinstance(node, exp.Trim) and given(node) == {"this"}:
        text = _text(value(node.this), node)
        return Value(pa.string(), lambda table: pc.utf8_trim(text.of(table), " "))
    if isinstance(node, exp.Concat) and node.expressions and not node.args.get("coalesce"):
        texts = [_text(value(item), node) for item in node.expressions]
        return Value(pa.string(), lambda table: _joined([text.of(table) for text in texts], table.num_rows))
    return None


def _converted(node: exp.Cast, value: Callable[[exp.Expression], Value]) -> Value:
    kind = _KINDS.get(node.to.this)
    if kind is None or given(node) - {"this", "to", "safe"} or given(node.to) - {"this", "nested"}:
        raise NotInSubsetError(f"it has {_shown(node)}")
    if isinstance(node.this, exp.Literal) and node.this.is_string:
        return _written(node, kind)
    inner = value(node.this)
    if kind == pa.date32():
        return _to_date(inner, node)
    widened = pa.types.is_signed_integer(inner.type) and (
        kind == pa.float64() or (pa.types.is_signed_integer(kind) and kind.bit_width >= inner.type.bit_width)
    )
    texts = (pa.bool_(), pa.date32(), pa.string())
    to_text = kind == pa.string() and (pa.types.is_signed_integer(inner.type) or inner.type in texts)
    if inner.type != kind and not widened and not to_text:
        raise NotInSubsetError(f"it has {_shown(node)}, which may fail or differ")
    return _cast(_of_four_digits(inner) if inner.type == pa.date32() else inner, kind)


def _written(node: exp.Cast, kind: pa.DataType) -> Value:
    """Return a literal such as ``DATE '2026-01-31'``."""
    form = {pa.date32(): "%Y-%m-%d", UTC_TIME: "%Y-%m-%d %H:%M:%S"}.get(kind)
    text = node.this.name
    try:
        when = datetime.strptime(text, form or "").replace(tzinfo=UTC)
    except ValueError:
        when = None
    if form is None or when is None or when.strftime(form) != text or when.year < 1901:
        raise NotInSubsetError(f"it has {_shown(node)}")
    found: date = when if kind == UTC_TIME else when.date()
    return constant(found, kind)


def _cast(value: Value, kind: pa.DataType) -> Value:
    if value.type == kind:
        return value
    return Value(kind, lambda table: pc.cast(value.of(table), kind, safe=False))  # a double takes the nearest value


def _inside(node: exp.Expression, value: Callable[[exp.Expression], Value]) -> Value:
    # sqlglot writes year(x) as that of a date
    plain = isinstance(node, exp.TsOrDsToDate) and given(node) == {"this"}
    return value(node.this if plain else node)


def _to_date(inner: Value, node: exp.Expression) -> Value:
    if inner.type == pa.date32():
        return inner
    time = _naive(inner, node)
    return Value(pa.date32(), lambda table: pc.cast(pc.floor_temporal(time.of(table), unit="day"), pa.date32()))


def _naive(inner: Value, node: exp.Expression) -> Value:
    """Return a timestamp without its zone, UTC, so that Arrow needs no database of zones."""
    if inner.type != UTC_TIME:
        raise NotInSubsetError(f"it has {_shown(node)} of {inner.type}")
    kind = pa.timestamp("us")
    return _of_four_digits(Value(kind, lambda table: pc.cast(inner.of(table), kind)))


def _of_four_digits(inner: Value) -> Value:
    """Return days or times, whose computation fails if one of them is in a year of other than four digits."""
    kind, scale = (pa.int32(), 1) if inner.type == pa.date32() else (pa.int64(), 86_400_000_000)

    def checked(table: pa.Table) -> Any:
        found = inner.of(table)
        low, high = (bound.as_py() for bound in pc.min_max(pc.cast(found, kind)).values())
        if low is not None and not _FIRST * scale <= low <= high < _END * scale:
            raise pa.ArrowInvalid("a year has other than four digits")
        return found

    return Value(inner.type, checked)


def _part(kernel: Callable[[Any], Any], inner: Value) -> Value:
    return Value(pa.int32(), lambda table: pc.cast(kernel(inner.of(table)), pa.int32()))


def _truncated(node: exp.TimestampTrunc, value: Callable[[exp.Expression], Value]) -> Value:
    unit = node.args["unit"].name.upper()
    if unit not in _UNITS or not isinstance(node.args["unit"], exp.Var | exp.Literal):
        raise NotInSubsetError(f"it has {_shown(node)}")
    time = _naive(value(node.this), node)
    return Value(
        UTC_TIME, lambda table: pc.cast(pc.floor_temporal(time.of(table), unit=unit.lower()), UTC_TIME)
    )  # fmt: skip


def _text(inner: Value, node: exp.Expression) -> Value:
    if inner.type != pa.string():
        raise NotInSubsetError(f"it has {_shown(node)} of {inner.type}")
    return inner


def _joined(texts: list[Any], rows: int) -> Any:
    if all(isinstance(text, pa.Scalar) for text in texts):
        texts[0] = pa.repeat(texts[0], rows)
    return pc.binary_join_element_wise(*texts, "", null_handling="emit_null")


def _shown(node: exp.Expression) -> str:
    text = node.sql("spark")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
