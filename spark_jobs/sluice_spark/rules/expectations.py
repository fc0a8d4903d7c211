"""Expectations of Great Expectations that judge one row at a time, as Spark columns.

A column here is true for exactly those rows that Great Expectations calls unexpected: it is built of the same Spark
expressions, with arguments read as Great Expectations reads them. What it would judge in another way, and what could
fail on the data (so that a bad record would fail a run), is left to it, with a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.rules.config import impure
from sluice_spark.columns import column
from sluice_spark.paths import ESCAPED, NO_VALUE
from sluice_spark.rules.conditions import NotARowRuleError, condition_of

__all__ = [
    "ESCAPED_PATTERN",
    "PARTITION_VALUE",
    "Judged",
    "NotARowRuleError",
    "RowRule",
    "bound_of",
    "compiled",
    "judged_by",
]

_NUMBERS = "a number"
_TEXT = "text"
_TIMES = "a date or a time"
_BOOLEANS = "a boolean"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?")
_LARGEST = 1 << 63


@dataclass(frozen=True)
class RowRule:
    """One expectation as a row rule.

    Attributes
    ----------
    name
        The expectation's type.
    column
        The column that it is about; of a pair both, separated by a comma.
    condition
        Which rows it judges; None means all.
    unexpected
        Whether a row that it judges breaks it; null counts as no.
    item
        The expectation, as the suite has it.
    """

    name: str
    column: str
    condition: Column | None
    unexpected: Column
    item: Mapping[str, Any]

    @property
    def broken(self) -> Column:
        """Whether a row breaks it; never null."""
        judged = self.unexpected if self.condition is None else F.when(self.condition, self.unexpected)
        return F.coalesce(judged, F.lit(False))


@dataclass(frozen=True)
class Judged:
    """Who can judge an expectation of a suite.

    Attributes
    ----------
    number
        Its position in the suite's file, from 1.
    item
        What the file says.
    rule
        The row rule that it is; None if only Great Expectations can judge it.
    why
        The reason then.
    """

    number: int
    item: Mapping[str, Any]
    rule: RowRule | None
    why: str | None = None


def judged_by(spark: SparkSession, expectations: Sequence[Mapping[str, Any]], schema: T.StructType) -> list[Judged]:
    """Say of each expectation whether it is a row rule on rows with these columns, and why not.

    Spark analyses every rule, and evaluates all of them on one made-up row: a pattern or a date that it cannot read
    would otherwise fail the first batch.
    """
    found = []
    for number, item in enumerate(expectations, start=1):
        try:
            found.append(Judged(number, item, compiled(item, schema)))
        except NotARowRuleError as error:
            found.append(Judged(number, item, None, str(error)))
        except (PySparkException, OverflowError, ValueError) as error:  # a date of the first years, for one
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            found.append(Judged(number, item, None, f"Spark cannot evaluate it: {why}"))
    return _tried(spark, schema, found)


def compiled(item: Mapping[str, Any], schema: T.StructType) -> RowRule:
    """Return the row rule that an expectation is on rows with these columns; pure.

    Raises
    ------
    NotARowRuleError
        If Great Expectations must judge it, with the reason.
    """
    kind, kwargs = item["type"], dict(item["kwargs"])
    made = _KINDS.get(kind)
    if made is None:
        raise NotARowRuleError("it is not about single rows, or no expression of Spark")
    if (item.get("meta") or {}).get("scope") == "table":
        raise NotARowRuleError("it is about the whole table (meta.scope)")
    arguments, build = made
    unknown = [name for name in kwargs if name not in (*arguments, *_COMMON)]
    if unknown:
        raise NotARowRuleError(f"its argument {unknown[0]} is not known here")
    for name, value in kwargs.items():
        if isinstance(value, Mapping) and name != "row_condition":
            raise NotARowRuleError(f"its argument {name} is a parameter")
    mostly = kwargs.get("mostly")
    if mostly is not None and (isinstance(mostly, bool) or mostly != 1):
        raise NotARowRuleError(f"mostly is {mostly}: a share of the rows may break it")
    if said := impure(str(kwargs.get("row_condition") or "")):
        raise NotARowRuleError(f"row_condition: {said!r} has another answer each time")
    condition = condition_of(kwargs)
    fields = [
        _Field.of(kwargs.get(name), schema, ours=kind == PARTITION_VALUE)
        for name in arguments
        if name.startswith("column")
    ]
    column, unexpected = build(kwargs, *fields)
    ignored = _ignored(kwargs, *fields) if len(fields) == len(_PAIR) else None
    if ignored is not None:
        condition = ~ignored if condition is None else condition & ~ignored
    return RowRule(kind, column, condition, unexpected, item)


# --- the columns --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Field:
    """A column that an expectation names, or a field of a struct."""

    name: str
    type: T.DataType
    column: Column

    @classmethod
    def of(cls, name: Any, schema: T.StructType, *, ours: bool = False) -> _Field:
        if not isinstance(name, str):
            raise NotARowRuleError("it names no column")
        if name in schema.names:
            if "." in name and not ours:
                raise NotARowRuleError(f"the name {name!r} has a dot, and Great Expectations reads a path in it")
            return cls(name, schema[name].dataType, column(name))
        found: T.DataType = schema
        for part in name.split("."):
            if not isinstance(found, T.StructType) or part not in found.names:
                raise NotARowRuleError(f"there is no column {name!r}")
            found = found[part].dataType
        return cls(name, found, F.col(name))

    @property
    def family(self) -> str | None:
        """What its values can be compared with, without a cast that might fail."""
        if isinstance(self.type, T.NumericType):
            return _NUMBERS
        if isinstance(self.type, T.StringType):
            return _TEXT
        if isinstance(self.type, T.DateType | T.TimestampType | T.TimestampNTZType):
            return _TIMES
        return _BOOLEANS if isinstance(self.type, T.BooleanType) else None

    def must_be(self, *families: str) -> None:
        if self.family not in families:
            raise NotARowRuleError(
                f"column {self.name} is {self.type.simpleString()}, and it is compared with {' or '.join(families)}"
            )

    def comparable(self, value: Any) -> None:
        """Refuse a value that Spark would compare only by casting the column, which fails for some rows."""
        if value is not None:
            self.must_be(_family_of(value) if not (self.family == _TIMES and isinstance(value, str)) else _TIMES)


def _family_of(value: Any) -> str:
    if isinstance(value, bool):
        return _BOOLEANS
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise NotARowRuleError(f"{value} is larger than a BIGINT")
    if isinstance(value, int | float):
        if not math.isfinite(value):
            raise NotARowRuleError(f"{value} is not a number")
        return _NUMBERS
    if isinstance(value, str):
        return _TEXT
    raise NotARowRuleError(f"{value!r} is neither a number, text nor a boolean")


# --- the expectations ---------------------------------------------------------------------------------------------

_Built = tuple[str, Column]


def _of_values(field: _Field, expected: Column) -> _Built:
    """A null is never unexpected, unless the expectation is about nulls."""
    return field.name, field.column.isNotNull() & ~expected


def _not_null(_: Mapping[str, Any], field: _Field) -> _Built:
    return field.name, ~field.column.isNotNull()


def _null(_: Mapping[str, Any], field: _Field) -> _Built:
    return field.name, ~field.column.isNull()


def _in_set(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    return _of_values(field, field.column.isin(_values(kwargs, field)))


def _not_in_set(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    return _of_values(field, ~field.column.isin(_values(kwargs, field)))


def _values(kwargs: Mapping[str, Any], field: _Field) -> list[Any]:
    values = kwargs.get("value_set")
    if not isinstance(values, list):
        raise NotARowRuleError("value_set is not a list")
    for value in values:
        field.comparable(value)
    return values


def _between(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    low, high = (bound_of(kwargs.get(name), name) for name in ("min_value", "max_value"))
    given = [bound for bound in (low, high) if bound is not None]
    if not given:
        raise NotARowRuleError("it has neither min_value nor max_value")
    for bound in given:
        field.must_be(_NUMBERS if isinstance(bound, float) else _TIMES)
    if len({type(bound) for bound in given}) > 1 or len({getattr(b, "tzinfo", None) is None for b in given}) > 1:
        raise NotARowRuleError("min_value and max_value cannot be compared with each other")
    if len(given) > 1 and low > high:
        raise NotARowRuleError("min_value is greater than max_value")
    return _of_values(field, _bounded(field.column, kwargs, low, high, F.lit))


def bound_of(value: Any, name: str) -> Any:
    """Read a bound as Great Expectations does: any number is a float, also a large integer."""
    if value is None:
        return None
    if isinstance(value, str) and _DATE.fullmatch(value):
        made: Callable[[str], Any] = date.fromisoformat
    elif isinstance(value, str) and _TIME.fullmatch(value):
        made = datetime.fromisoformat
    elif not isinstance(value, str) and _family_of(value) == _NUMBERS:
        return float(value)
    else:
        raise NotARowRuleError(f"{name} {value!r} is neither a number, a date nor a time")
    try:
        return made(value)
    except ValueError as error:
        raise NotARowRuleError(f"{name} {value!r}: {error}") from None


def _bounded(column: Column, kwargs: Mapping[str, Any], low: Any, high: Any, lit: Callable[[Any], Any]) -> Column:
    strict_min, strict_max = _flag(kwargs, "strict_min"), _flag(kwargs, "strict_max")
    sides = []
    if low is not None:
        sides.append(column > lit(low) if strict_min else column >= lit(low))
    if high is not None:
        sides.append(column < lit(high) if strict_max else column <= lit(high))
    return reduce(Column.__and__, sides)


def _flag(kwargs: Mapping[str, Any], name: str) -> bool:
    value = kwargs.get(name, False)
    if not isinstance(value, bool):
        raise NotARowRuleError(f"{name} is neither true nor false")
    return value


def _lengths_between(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    low, high = (kwargs.get(name) for name in ("min_value", "max_value"))
    if low is None and high is None:
        raise NotARowRuleError("it has neither min_value nor max_value")
    for bound in (low, high):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int) or abs(bound) >= _LARGEST):
            raise NotARowRuleError(f"{bound!r} is not a length")
    return _of_values(field, _bounded(_length(field), kwargs, low, high, lambda bound: bound))


def _lengths_equal(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    value = kwargs.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NotARowRuleError(f"{value!r} is not a length")
    return _of_values(field, _length(field) == float(value))


def _length(field: _Field) -> Column:
    if not isinstance(field.type, T.BinaryType):
        field.must_be(_TEXT)
    return F.length(field.column)


def _matches(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    (pattern,) = _patterns(field, [kwargs.get("regex")])
    return _of_values(field, field.column.rlike(pattern))


def _matches_not(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    (pattern,) = _patterns(field, [kwargs.get("regex")])
    return _of_values(field, ~field.column.rlike(pattern))


def _matches_of_list(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    patterns, on = _patterns(field, kwargs.get("regex_list")), kwargs.get("match_on", "any")
    if on == "any":
        return _of_values(field, field.column.rlike("|".join(patterns)))
    if on != "all":
        raise NotARowRuleError("match_on is neither any nor all")
    return _of_values(field, reduce(Column.__and__, [field.column.rlike(pattern) for pattern in patterns]))


def _matches_none_of_list(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    patterns = _patterns(field, kwargs.get("regex_list"))
    return _of_values(field, reduce(Column.__and__, [~field.column.rlike(pattern) for pattern in patterns]))


def _patterns(field: _Field, patterns: Any) -> list[str]:
    field.must_be(_TEXT)
    if not isinstance(patterns, list) or not patterns or not all(isinstance(p, str) for p in patterns):
        raise NotARowRuleError("it has no pattern")
    return patterns


def _pair_equal(_: Mapping[str, Any], a: _Field, b: _Field) -> _Built:
    _both(a, b)
    return f"{a.name}, {b.name}", ~a.column.eqNullSafe(b.column)


def _pair_greater(kwargs: Mapping[str, Any], a: _Field, b: _Field) -> _Built:
    _both(a, b)
    if _flag({"or_equal": kwargs.get("or_equal") or False}, "or_equal"):
        return f"{a.name}, {b.name}", ~((a.column >= b.column) | a.column.eqNullSafe(b.column))
    return f"{a.name}, {b.name}", ~(a.column > b.column)


def _pair_in_set(kwargs: Mapping[str, Any], a: _Field, b: _Field) -> _Built:
    pairs = kwargs.get("value_pairs_set")
    if not isinstance(pairs, list) or not pairs or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        raise NotARowRuleError("value_pairs_set is not a list of pairs")
    for left, right in pairs:
        a.comparable(left)
        b.comparable(right)
    found = [a.column.eqNullSafe(F.lit(x)) & b.column.eqNullSafe(F.lit(y)) for x, y in pairs]
    return f"{a.name}, {b.name}", ~reduce(Column.__or__, found)


def _both(a: _Field, b: _Field) -> None:
    if a.family is None or a.family != b.family:
        raise NotARowRuleError(
            f"{a.name} is {a.type.simpleString()} and {b.name} is {b.type.simpleString()}: they are compared by a cast"
        )


def _ignored(kwargs: Mapping[str, Any], a: _Field, b: _Field) -> Column | None:
    """Return which rows a pair ignores; None means none."""
    ignored = kwargs.get(_IGNORE, "both_values_are_missing")
    if ignored == "both_values_are_missing":
        return a.column.isNull() & b.column.isNull()
    if ignored == "either_value_is_missing":
        return a.column.isNull() | b.column.isNull()
    if ignored != "neither":
        raise NotARowRuleError(f"ignore_row_if {ignored!r} is unknown")
    return None


def _names_a_folder(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    """Return which texts cannot be the name of a partition's folder, or name that of another value: null."""
    field.must_be(_TEXT)
    broken = field.column.isin("", NO_VALUE) | F.contains(field.column, F.lit("\0"))
    if kwargs.get("longest") is None:
        return field.name, broken
    pattern, escaped = F.lit(ESCAPED_PATTERN), F.lit("%00")
    name, text = (F.regexp_replace(each, pattern, escaped) for each in (F.lit(field.name), field.column))
    return field.name, broken | (F.octet_length(name) + F.octet_length(text) + 1 > F.lit(kwargs["longest"]))


_COMMON = ("mostly", "row_condition", "condition_parser")
_BOUNDS = ("min_value", "max_value", "strict_min", "strict_max")
_PAIR = ("column_A", "column_B")
_IGNORE = "ignore_row_if"
_KINDS: dict[str, tuple[tuple[str, ...], Callable[..., _Built]]] = {
    "expect_column_values_to_not_be_null": (("column",), _not_null),
    "expect_column_values_to_be_null": (("column",), _null),
    "expect_column_values_to_be_in_set": (("column", "value_set"), _in_set),
    "expect_column_values_to_not_be_in_set": (("column", "value_set"), _not_in_set),
    "expect_column_values_to_be_between": (("column", *_BOUNDS), _between),
    "expect_column_value_lengths_to_be_between": (("column", *_BOUNDS), _lengths_between),
    "expect_column_value_lengths_to_equal": (("column", "value"), _lengths_equal),
    "expect_column_values_to_match_regex": (("column", "regex"), _matches),
    "expect_column_values_to_not_match_regex": (("column", "regex"), _matches_not),
    "expect_column_values_to_match_regex_list": (("column", "regex_list", "match_on"), _matches_of_list),
    "expect_column_values_to_not_match_regex_list": (("column", "regex_list"), _matches_none_of_list),
    "expect_column_pair_values_to_be_equal": ((*_PAIR, _IGNORE), _pair_equal),
    "expect_column_pair_values_a_to_be_greater_than_b": ((*_PAIR, _IGNORE, "or_equal"), _pair_greater),
    "expect_column_pair_values_to_be_in_set": ((*_PAIR, _IGNORE, "value_pairs_set"), _pair_in_set),
    "partition_value": (("column", "longest"), _names_a_folder),
}
"""By type: the arguments, those that name columns first, and what builds the rule."""

PARTITION_VALUE = "partition_value"
"""The rule of a partition column: no expectation, but judged as one."""
ESCAPED_PATTERN = "[" + "".join(f"\\x{ord(each):02x}" for each in ESCAPED) + "]"
"""Matches what becomes longer in the name of a folder; the same in Java and in RE2."""


# --- tried by Spark -----------------------------------------------------------------------------------------------


def _tried(spark: SparkSession, schema: T.StructType, judged: Sequence[Judged]) -> list[Judged]:
    """Leave to Great Expectations what Spark cannot evaluate; all at once, and one by one only if that fails."""
    mine = [each for each in judged if each.rule is not None]
    if not mine or _failure(spark, schema, mine) is None:
        return list(judged)
    found = []
    for each in judged:
        why = None if each.rule is None else _failure(spark, schema, [each])
        found.append(each if why is None else Judged(each.number, each.item, None, f"Spark cannot evaluate it: {why}"))
    return found


def _failure(spark: SparkSession, schema: T.StructType, judged: Sequence[Judged]) -> str | None:
    rules = [each.rule for each in judged if each.rule is not None]
    parts = [part for rule in rules for part in (rule.unexpected, rule.condition) if part is not None]
    try:
        row = spark.sql("SELECT 1 AS one").select(*(_made_up(field) for field in schema.fields))
        # a filter takes a row's condition only, no aggregate
        row.where(reduce(Column.__or__, [rule.broken for rule in rules])).schema  # noqa: B018 - Spark analyses it
        row.select(*(part.alias(f"p{n}") for n, part in enumerate(parts))).collect()
    except PySparkException as error:
        return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")[:200]
    return None


def _made_up(field: T.StructField) -> Column:
    """Return a value of the column's type: nothing is compared with a null."""
    kind = field.dataType
    value: Any = None
    if isinstance(kind, T.NumericType):
        value = 0
    elif isinstance(kind, T.StringType):
        value = ""
    elif isinstance(kind, T.BooleanType):
        value = False
    elif isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType):
        value = "2000-01-01"
    return F.lit(value).cast(kind).alias(field.name)
