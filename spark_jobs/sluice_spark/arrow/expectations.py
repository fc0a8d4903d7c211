"""Row rules of a suite on Arrow tables: which rows might break one.

A row that is not marked breaks none: the masks are those of :mod:`sluice_spark.rules.expectations`, computed by
kernels that agree with Spark's expressions on the types that are let in. A row on which they might not agree is marked,
too, and Spark decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice_spark.arrow.functions import NotInSubsetError, Value
from sluice_spark.arrow.patterns import LINE_ENDS, translated
from sluice_spark.arrow.select import Condition, comparable, judged_rows
from sluice_spark.paths import NO_VALUE
from sluice_spark.rules.conditions import condition_text
from sluice_spark.rules.expectations import ESCAPED_PATTERN, bound_of
from sluice_spark.sources.inputs import UTC as UTC_TIME

__all__ = ["RowRules"]

_EXACT = 1 << 53
_DIGITS = 15
"""Numbers of so many digits are told apart by the doubles next to them, of which each has one shortest form."""
_WIDEST_SCALE = 18
"""With more digits behind the point, Spark compares with an integer after rounding."""
_FIRST_DAY, _FIRST_TIME = date(1700, 1, 1), datetime(1901, 1, 1, tzinfo=UTC)
"""Earlier ones pass through another calendar on their way to Spark."""
_MANY = Context(prec=400)

_Side = tuple[Callable[[Any, Any], Any], Any]


@dataclass(frozen=True)
class _Doubt:
    """Rows whose value Spark must judge.

    Parameters
    ----------
    about
        Equal for doubts that are the same.
    """

    about: tuple[str, ...]
    of: Condition


@dataclass(frozen=True)
class _Built:
    broken: Condition
    doubts: tuple[_Doubt, ...] = ()


@dataclass(frozen=True)
class RowRules:
    """The row rules of a suite."""

    broken: tuple[Condition, ...]
    doubtful: tuple[Condition, ...]

    @classmethod
    def of(cls, items: Sequence[Mapping[str, Any]], schema: pa.Schema) -> RowRules:
        """Return the rules that these expectations are on rows with these columns.

        Parameters
        ----------
        items
            Expectations that :func:`sluice_spark.rules.expectations.compiled` takes.

        Raises
        ------
        NotInSubsetError
            If Spark alone can judge one of them, with the reason.
        """
        built = []
        for item in items:
            try:
                built.append(_rule(item, schema))
            except NotInSubsetError as error:
                raise NotInSubsetError(f"{item['type']}: {error}") from error
        doubts = {doubt.about: doubt.of for each in built for doubt in each.doubts}
        return cls(tuple(each.broken for each in built), tuple(doubts.values()))

    def marked(self, table: pa.Table) -> Any | None:
        """Return a mask of the rows that break a rule or might break one; None if there are none."""
        masks = [
            np.asarray(mask, dtype=bool) for of in (*self.broken, *self.doubtful) if pc.any(mask := of(table)).as_py()
        ]
        return reduce(np.logical_or, masks) if masks else None


def _rule(item: Mapping[str, Any], schema: pa.Schema) -> _Built:
    kwargs = item["kwargs"]
    names = [name for name in ("column", "column_A", "column_B") if name in kwargs]
    fields = [_Field.named(kwargs[name], schema) for name in names]
    built = _KINDS[item["type"]](kwargs, *fields)
    judged, doubts = [], list(built.doubts)
    if len(fields) > 1:
        judged += _not_ignored(kwargs, *fields)
    text = condition_text(kwargs)
    if text is not None:
        value, columns = judged_rows(text, schema)
        judged.append(lambda table: pc.fill_null(value.of(table), False))
        doubts += [doubt for name in columns for doubt in _Field.named(name, schema).odd()]

    def broken(table: pa.Table) -> Any:
        found = built.broken(table)
        for of in judged:
            found = pc.and_(found, of(table))
        return found

    return _Built(broken if judged else built.broken, tuple(doubts))


# --- the columns --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Field(Value):
    name: str = ""

    @classmethod
    def named(cls, name: str, schema: pa.Schema) -> _Field:
        first, *path = [name] if name in schema.names else name.split(".")
        found = cls(schema.field(first).type, lambda table: table.column(first), name)
        for part in path:
            found = _inner(found, part)
        return found

    def odd(self) -> Iterator[_Doubt]:
        """Doubt doubles that are no number, or a negative zero: Spark has an order of its own for them."""
        if pa.types.is_float64(self.type):
            yield _Doubt((self.name, "odd"), lambda table: _odd(self.of(table)))

    def long(self) -> Iterator[_Doubt]:
        """Doubt decimals of more digits than a double tells apart: Spark compares them as doubles."""
        kind = self.type
        if pa.types.is_decimal(kind) and kind.precision > _DIGITS:
            wide = pa.decimal128(38, kind.scale)
            limit = pa.scalar(Decimal(10) ** (_DIGITS - kind.scale), wide)
            yield _Doubt(
                (self.name, "long"),
                lambda table: _true(pc.greater_equal(pc.abs(pc.cast(self.of(table), wide)), limit)),
            )

    def lines(self) -> _Doubt:
        """Doubt texts with the end of a line."""
        return _Doubt((self.name, "lines"), lambda table: _true(pc.match_substring_regex(self.of(table), LINE_ENDS)))


def _inner(parent: _Field, part: str) -> _Field:
    number = parent.type.get_field_index(part)
    if number < 0:
        raise NotInSubsetError(f"column {parent.name} has no single field {part}")
    kind = parent.type.field(number).type
    return _Field(kind, lambda table: pc.struct_field(parent.of(table), number), parent.name + "." + part)


def _odd(column: Any) -> Any:
    numbers = np.asarray(pc.fill_null(column, 1.0))
    return pa.array(np.isnan(numbers) | ((numbers == 0) & np.signbit(numbers)))


def _true(mask: Any) -> Any:
    return pc.fill_null(mask, False)


def _false(mask: Any) -> Any:
    return pc.fill_null(pc.invert(mask), False)


def _never(table: pa.Table) -> Any:
    return pa.repeat(pa.scalar(False), table.num_rows)


# --- the expectations ---------------------------------------------------------------------------------------------


def _not_null(_: Mapping[str, Any], field: _Field) -> _Built:
    return _Built(lambda table: pc.is_null(field.of(table)))


def _null(_: Mapping[str, Any], field: _Field) -> _Built:
    return _Built(lambda table: pc.is_valid(field.of(table)))


def _in_set(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    found, values = _among(field, kwargs["value_set"]), kwargs["value_set"]
    if None in values:  # null equals nothing
        return _Built(_never)
    return _Built(
        lambda table: pc.and_(pc.is_valid(field.of(table)), pc.invert(found.broken(table))), found.doubts
    )  # fmt: skip


def _not_in_set(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    return _among(field, kwargs["value_set"])


def _among(field: _Field, values: Sequence[Any]) -> _Built:
    """Return which rows have one of the values."""
    constants = [_constant(field, value) for value in values if value is not None]
    known = pa.array([value for value in constants if value is not None], field.type)
    whole = all(value is None or isinstance(value, int) for value in values)
    doubts = (*field.odd(), *(() if whole else field.long()))
    return _Built(lambda table: pc.is_in(field.of(table), value_set=known), doubts)


def _constant(field: _Field, value: Any) -> Any | None:
    """Return a value as one of the column's type; None if no row has it."""
    kind = field.type
    found: Any = None
    if (pa.types.is_boolean(kind) and isinstance(value, bool)) or (kind == pa.string() and isinstance(value, str)):
        found = value
    elif isinstance(value, bool) or not isinstance(value, int | float) or (value == 0 and math.copysign(1, value) < 0):
        pass
    elif pa.types.is_signed_integer(kind) and isinstance(value, int):
        limit = 1 << (kind.bit_width - 1)
        return value if -limit <= value < limit else None
    elif abs(value) <= _EXACT and pa.types.is_float64(kind):
        found = float(value)
    elif abs(value) <= _EXACT and pa.types.is_decimal(kind) and kind.scale <= _WIDEST_SCALE:
        try:
            return pa.scalar(_decimal(value), kind).as_py()
        except (pa.ArrowInvalid, InvalidOperation):
            return None
    if found is None:
        raise NotInSubsetError(f"{value!r} is compared with column {field.name}, which is {kind}")
    try:
        return pa.scalar(found, kind).as_py()
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise NotInSubsetError(f"{value!r} is no text") from error


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))


def _between(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    low, high = (bound_of(kwargs.get(name), name) for name in ("min_value", "max_value"))
    kind = field.type
    if pa.types.is_decimal(kind):
        return _decimals_between(kwargs, field, low, high)
    if pa.types.is_signed_integer(kind):
        return _sides(lambda table: pc.cast(field.of(table), pa.float64(), safe=False), kwargs, low, high)
    if pa.types.is_float64(kind):
        return _sides(field.of, kwargs, low, high, tuple(field.odd()))
    return _sides(
        lambda table: pc.cast(field.of(table), UTC_TIME), kwargs, _time(low, field), _time(high, field)
    )  # fmt: skip


def _time(bound: Any, field: _Field) -> Any:
    if bound is None:
        return None
    if not pa.types.is_date32(field.type) and field.type != UTC_TIME:
        raise NotInSubsetError(f"column {field.name} is {field.type}, and it is compared with a time")
    if isinstance(bound, datetime):
        if bound.tzinfo is None:
            raise NotInSubsetError(f"{bound} has no zone")
        first: Any = _FIRST_TIME
    else:
        first = _FIRST_DAY
    if bound < first:
        raise NotInSubsetError(f"{bound} is before {first.year}")
    if not isinstance(bound, datetime):
        bound = datetime(bound.year, bound.month, bound.day, tzinfo=UTC)
    return pa.scalar(bound, UTC_TIME)


def _sides(
    column: Callable[[pa.Table], Any], kwargs: Mapping[str, Any], low: Any, high: Any, doubts: tuple[_Doubt, ...] = ()
) -> _Built:
    sides: list[_Side] = []
    if low is not None:
        sides.append((pc.greater if kwargs.get("strict_min") else pc.greater_equal, low))
    if high is not None:
        sides.append((pc.less if kwargs.get("strict_max") else pc.less_equal, high))

    def broken(table: pa.Table) -> Any:
        values = column(table)
        return _false(reduce(pc.and_, (compare(values, bound) for compare, bound in sides)))

    return _Built(broken, doubts)


def _decimals_between(kwargs: Mapping[str, Any], field: _Field, low: float | None, high: float | None) -> _Built:
    """Compare exactly with the shortest form of a double: for up to 15 digits, that says what the double says.

    The bound is rounded to the column's scale, towards the side on which nothing changes.
    """
    strict_min, strict_max = bool(kwargs.get("strict_min")), bool(kwargs.get("strict_max"))
    wide = pa.decimal128(38, field.type.scale)

    def rounded(bound: float | None, how: str) -> Any:
        if bound is None:
            return None
        found = _decimal(bound).quantize(Decimal(1).scaleb(-field.type.scale), rounding=how, context=_MANY)
        limit = Decimal(10) ** (field.type.precision - field.type.scale)  # no value reaches it
        try:
            return pa.scalar(max(-limit, min(limit, found)), wide)
        except pa.ArrowInvalid as error:  # neither the bound nor the limit has a form with so many digits
            raise NotInSubsetError(f"{bound} is compared with column {field.name}, which is {field.type}") from error

    lowest = rounded(low, ROUND_FLOOR if strict_min else ROUND_CEILING)
    highest = rounded(high, ROUND_CEILING if strict_max else ROUND_FLOOR)
    return _sides(lambda table: pc.cast(field.of(table), wide), kwargs, lowest, highest, tuple(field.long()))


def _lengths_between(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    low, high = (kwargs.get(name) for name in ("min_value", "max_value"))
    low, high = (None if bound is None else pa.scalar(bound, pa.int64()) for bound in (low, high))
    return _sides(lambda table: pc.cast(_length(field, table), pa.int64()), kwargs, low, high)


def _lengths_equal(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    value = pa.scalar(float(kwargs["value"]))
    return _Built(lambda table: _false(pc.equal(pc.cast(_length(field, table), pa.float64()), value)))


def _length(field: _Field, table: pa.Table) -> Any:
    return (pc.binary_length if pa.types.is_binary(field.type) else pc.utf8_length)(field.of(table))


def _matches(field: _Field, patterns: Sequence[str], verdict: Callable[[Any], Any]) -> _Built:
    """Return which rows break it because one of several patterns does, by what is made of where it is found."""
    made = [translated(pattern) for pattern in patterns]
    doubts = (field.lines(),) if any(pattern.lines for pattern in made) else ()

    def broken(table: pa.Table) -> Any:
        text = field.of(table)
        return reduce(pc.or_, (verdict(pc.match_substring_regex(text, pattern.text)) for pattern in made))

    return _Built(broken, doubts)


def _regex(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    return _matches(field, [kwargs["regex"]], _false)


def _no_regex(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    return _matches(field, [kwargs["regex"]], _true)


def _regexes(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    patterns = kwargs["regex_list"]
    return _matches(field, patterns if kwargs.get("match_on", "any") == "all" else ["|".join(patterns)], _false)


def _no_regexes(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    return _matches(field, kwargs["regex_list"], _true)


def _alike(a: _Field, b: _Field) -> tuple[Callable[[pa.Table], tuple[Any, Any]], tuple[_Doubt, ...]]:
    """Return two columns in one type."""
    if pa.types.is_signed_integer(a.type) and pa.types.is_signed_integer(b.type):
        kind = pa.int64()
    elif a.type != b.type or not comparable(a.type):
        raise NotInSubsetError(f"column {a.name} is {a.type} and column {b.name} is {b.type}")
    else:
        kind = a.type
    return lambda table: (pc.cast(a.of(table), kind), pc.cast(b.of(table), kind)), (*a.odd(), *b.odd())


def _same(one: Any, other: Any) -> Any:
    """Compare as ``<=>`` does: two nulls are equal."""
    return pc.or_(_true(pc.equal(one, other)), pc.and_(pc.is_null(one), pc.is_null(other)))


def _pair_equal(_: Mapping[str, Any], a: _Field, b: _Field) -> _Built:
    both, doubts = _alike(a, b)
    return _Built(lambda table: pc.invert(_same(*both(table))), doubts)


def _pair_greater(kwargs: Mapping[str, Any], a: _Field, b: _Field) -> _Built:
    both, doubts = _alike(a, b)
    compare = pc.less if kwargs.get("or_equal") else pc.less_equal  # null beside a null, and then nothing is broken
    return _Built(lambda table: _true(compare(*both(table))), doubts)


def _pair_in_set(kwargs: Mapping[str, Any], a: _Field, b: _Field) -> _Built:
    pairs = [(_equal(a, left), _equal(b, right)) for left, right in kwargs["value_pairs_set"]]

    def broken(table: pa.Table) -> Any:
        found = [pc.and_(left.broken(table), right.broken(table)) for left, right in pairs]
        return pc.invert(reduce(pc.or_, found))

    return _Built(broken, tuple(doubt for pair in pairs for side in pair for doubt in side.doubts))


def _equal(field: _Field, value: Any) -> _Built:
    return _null_only(field) if value is None else _among(field, [value])


def _null_only(field: _Field) -> _Built:
    return _Built(lambda table: pc.is_null(field.of(table)))


def _not_ignored(kwargs: Mapping[str, Any], a: _Field, b: _Field) -> list[Condition]:
    ignored = kwargs.get("ignore_row_if", "both_values_are_missing")
    if ignored == "neither":
        return []
    joined = pc.or_ if ignored == "both_values_are_missing" else pc.and_
    return [lambda table: joined(pc.is_valid(a.of(table)), pc.is_valid(b.of(table)))]


def _names_a_folder(kwargs: Mapping[str, Any], field: _Field) -> _Built:
    reserved, longest = pa.array(["", NO_VALUE], pa.string()), kwargs.get("longest")

    def broken(table: pa.Table) -> Any:
        text = field.of(table)
        odd = pc.or_(pc.is_in(text, value_set=reserved), _true(pc.match_substring(text, "\0")))
        if longest is None:
            return odd
        # the column's name is not counted as exactly as Spark does it: a row that is near the limit is Spark's to judge
        room = longest - 1 - 3 * len(field.name.encode())
        escaped = pc.replace_substring_regex(text, ESCAPED_PATTERN, "%00")
        return pc.or_(odd, _true(pc.greater(pc.cast(pc.binary_length(escaped), pa.int64()), room)))

    return _Built(broken)


_KINDS: dict[str, Callable[..., _Built]] = {
    "expect_column_values_to_not_be_null": _not_null,
    "expect_column_values_to_be_null": _null,
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_not_be_in_set": _not_in_set,
    "expect_column_values_to_be_between": _between,
    "expect_column_value_lengths_to_be_between": _lengths_between,
    "expect_column_value_lengths_to_equal": _lengths_equal,
    "expect_column_values_to_match_regex": _regex,
    "expect_column_values_to_not_match_regex": _no_regex,
    "expect_column_values_to_match_regex_list": _regexes,
    "expect_column_values_to_not_match_regex_list": _no_regexes,
    "expect_column_pair_values_to_be_equal": _pair_equal,
    "expect_column_pair_values_a_to_be_greater_than_b": _pair_greater,
    "expect_column_pair_values_to_be_in_set": _pair_in_set,
    "partition_value": _names_a_folder,
}
