"""Decides whether sliding windows can be made of panes: what each aggregate comes to for a slide's records alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import sqlglot
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from sluice.pipeline.window import Window
from sluice_spark.windows.merge_panes import Aggregate

__all__ = ["Decomposed", "NotDecomposedError", "Part", "decompose", "told"]

_KINDS: dict[type[exp.Expression], str] = {
    exp.Count: "count",
    exp.CountIf: "count_if",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.LogicalAnd: "min",
    exp.LogicalOr: "max",
}
_CALL = re.compile(r"\s*\w+\s*\((.*)\)\s*", re.DOTALL)
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_NUMBERS = (*_INTEGERS, T.FloatType, T.DoubleType)
_ORDERED = (*_NUMBERS, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType, T.DecimalType, T.BinaryType)
_ARGUMENT, _VALUE = "__sluice_a", "__sluice_v"


class NotDecomposedError(Exception):
    """Why windows are not made of panes."""


@dataclass(frozen=True)
class Part:
    """One column of a pane.

    Parameters
    ----------
    function
        Spark's aggregate: ``count``, ``count_if``, ``sum``, ``min`` or ``max``.
    argument
        Its argument, as the pipeline file has it; None for all records.
    kind
        The type of its result, as Spark writes it.
    """

    function: str
    argument: str | None
    kind: str

    def of(self, number: int) -> Column:
        """Return the aggregate of the rows that :meth:`Decomposed.arguments` returns."""
        value = F.lit(1) if self.argument is None else F.col(f"{_ARGUMENT}{number}")
        found: Column = getattr(F, self.function)(value)
        return found.alias(f"{_VALUE}{number}")

    @property
    def kept(self) -> list[str]:
        """The types of what Spark's state has of it."""
        return [self.kind, "boolean"] if self.function == "sum" and self.kind.startswith("decimal") else [self.kind]


@dataclass(frozen=True)
class Decomposed:
    """How windows are made of panes.

    Parameters
    ----------
    parts
        The columns of a pane.
    aggregates
        How each aggregate of the window comes from them.
    """

    parts: tuple[Part, ...]
    aggregates: tuple[Aggregate, ...]

    def arguments(self) -> list[Column]:
        """Return the arguments of the parts, each under a name of its own.

        Spark computes aggregates once that it can show to be alike, such as the counts of two columns without nulls.
        Its state would have fewer columns than there are parts then. So it must not see what these columns are.
        """
        always = F.spark_partition_id() >= 0
        # with metadata of their own, or an argument would have those of the event time, and pass for another one
        return [
            F.when(always, F.expr(part.argument)).alias(f"{_ARGUMENT}{n}", metadata={"sluice": "argument"})
            for n, part in enumerate(self.parts)
            if part.argument is not None
        ]

    def columns(self) -> list[Column]:
        """Return the aggregates of the parts."""
        return [part.of(number) for number, part in enumerate(self.parts)]

    @property
    def values(self) -> list[str]:
        """The names of a pane's columns."""
        return [f"{_VALUE}{number}" for number in range(len(self.parts))]

    def as_dict(self) -> dict[str, Any]:
        """Return what may not change while Spark keeps state of it; ready for JSON."""
        return {"parts": [[part.function, part.kind] for part in self.parts]}


def decompose(spark: SparkSession, window: Window, taken: T.StructType) -> Decomposed:
    """Return how a window's aggregates are made of panes.

    Parameters
    ----------
    taken
        The columns of the transform's rows.

    Raises
    ------
    NotDecomposedError
        If they are not, with the reason.
    """
    if window.panes == "off":
        raise NotDecomposedError("window.panes is off")
    if window.gap is not None or window.step == window.length:
        raise NotDecomposedError("they do not overlap")
    if window.length % window.step:
        raise NotDecomposedError("size is no multiple of slide")
    if spark.conf.get("spark.sql.ansi.enabled") != "true":
        raise NotDecomposedError("spark.sql.ansi.enabled is false: a sum that does not fit would be another value")
    names = {f.name.lower(): f.dataType for f in taken.fields}
    for name in window.by:
        if name.lower() == window.time.lower() or not _plain(names[name.lower()]):
            raise NotDecomposedError(f"by: {name} is {names[name.lower()].simpleString().upper()}")
    rows = spark.createDataFrame([], taken)
    parts: list[Part] = []
    aggregates = []
    for name, text in window.aggregates.items():
        try:
            aggregates.append(_aggregate(rows, text, parts))
        except (NotDecomposedError, PySparkException) as why:
            raise NotDecomposedError(f"aggregates.{name}: {why}") from why
    return Decomposed(tuple(parts), tuple(aggregates))


def told(spark: SparkSession, window: Window, taken: T.StructType) -> str:
    """Return in words which way windows take."""
    try:
        decompose(spark, window, taken)
    except NotDecomposedError as why:
        return f"Spark's own windows: {why}"
    return f"windows made of {window.length // window.step} panes each"


def _aggregate(rows: DataFrame, text: str, parts: list[Part]) -> Aggregate:
    """Return an aggregate, and add what it needs to the parts."""
    kind, argument = _parsed(text)

    def part(function: str) -> int:
        value = F.lit(1) if argument is None else F.expr(argument)
        result = rows.agg(getattr(F, function)(value)).schema.fields[0].dataType.simpleString()
        made = Part(function, argument, result)
        if argument is None and made in parts:
            return parts.index(made)
        parts.append(made)
        return len(parts) - 1

    if kind in ("count", "count_if"):
        return Aggregate("count", (part(kind),))
    of = rows.select(F.expr(argument or "1")).schema.fields[0].dataType
    if kind == "avg":
        if isinstance(of, T.LongType):
            argument = f"CAST(({argument}) AS DOUBLE)"  # as Spark adds them
        elif not isinstance(of, _NUMBERS):
            raise NotDecomposedError(f"avg of {of.simpleString().upper()}")
        return Aggregate("avg", (part("sum"), part("count")))
    if kind == "sum" and not isinstance(of, (*_NUMBERS, T.DecimalType)):
        raise NotDecomposedError(f"sum of {of.simpleString().upper()}")
    if not _plain(of):
        raise NotDecomposedError(f"{kind} of {of.simpleString().upper()}")
    return Aggregate(kind, (part(kind),))


def _parsed(text: str) -> tuple[str, str | None]:
    """Return the function and its argument; None if that is the same for all records and not null."""
    call = _CALL.fullmatch(text)
    if call is None or any(mark in text for mark in ("--", "/*", "${", "\\")):
        raise NotDecomposedError(_unknown(text))
    try:
        (node,) = sqlglot.parse_one(f"SELECT {text}", dialect="spark").expressions
        kind = _KINDS.get(type(node))
        inner = node.this if kind is not None else None
        if kind is None or not isinstance(inner, exp.Expression) or _given(node) - {"this", "big_int"}:
            raise NotDecomposedError(_unknown(text))
        if kind == "count" and (isinstance(inner, exp.Star) or _is_number(inner)):
            return kind, None
        (same,) = sqlglot.parse_one(f"SELECT {call[1]}", dialect="spark").expressions
    except (ValueError, sqlglot.errors.SqlglotError):
        raise NotDecomposedError(_unknown(text)) from None
    strange = (exp.AggFunc, exp.Window, exp.Query, exp.Distinct, exp.Star, exp.Lambda)
    if same != inner or inner.find(exp.Column) is None or inner.find(*strange) is not None:
        raise NotDecomposedError(_unknown(text))
    return kind, call[1].strip()


def _given(node: exp.Expression) -> set[str]:
    return {name for name, value in node.args.items() if value}


def _is_number(node: exp.Expression) -> bool:
    return isinstance(node, exp.Literal) and not node.is_string


def _unknown(text: str) -> str:
    shown = " ".join(text.split())
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return f"{shown} is none of count, count_if, sum, avg, min, max, bool_and, bool_or of one expression"


def _plain(kind: T.DataType) -> bool:
    return isinstance(kind, _ORDERED) or (isinstance(kind, T.StringType) and kind.simpleString() == "string")
