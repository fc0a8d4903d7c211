"""A subset of SQL on Arrow tables: what a transform may consist of on the Arrow path.

``SELECT`` of columns, ``*`` and expressions from ``source``, with ``WHERE``. Expressions are null tests, comparisons,
``AND``, ``OR``, ``NOT``, ``IN``, ``BETWEEN``, ``CASE``, ``COALESCE`` and those of :mod:`sluice_spark.arrow.functions`,
on types for which Arrow's kernels compute what Spark computes. Everything else is refused with a reason, and takes the
Spark path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import InvalidOperation
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import Token, exp

from sluice_spark.arrow.functions import NotInSubsetError, Value, arithmetic, called, constant, given, number

__all__ = ["Condition", "NotInSubsetError", "Select", "broken", "comparable", "judged_rows", "missing", "parse"]

_Compare = Callable[[Any, Any], Any]

_COMPARISONS: dict[type[exp.Expression], _Compare] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
}
_OF_NAN: dict[_Compare, _Compare] = {
    pc.equal: lambda one, other: pc.and_(one, other),
    pc.not_equal: lambda one, other: pc.invert(pc.and_(one, other)),
    pc.less: lambda one, other: pc.and_(pc.invert(one), other),
    pc.less_equal: lambda one, other: other,
    pc.greater: lambda one, other: pc.and_(one, pc.invert(other)),
    pc.greater_equal: lambda one, other: one,
}
"""What a comparison is if a side is NaN, by which of them are: to Spark, NaN equals itself and exceeds all others."""


Condition = Callable[[pa.Table], Any]
"""Computes a mask of a table's rows."""
_PREDICATES = (exp.Predicate, exp.Connector, exp.Not)


@dataclass(frozen=True)
class Select:
    """A parsed statement.

    Parameters
    ----------
    columns
        The result's columns: name, type and computation.
    where
        The condition; rows for which it is false or null are left out.
    whole
        Whether the result is the source as it is: its columns, in their order, under whatever names.
    """

    columns: tuple[tuple[str, Value], ...]
    where: Value | None
    whole: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The result's columns."""
        return pa.schema([pa.field(name, value.type) for name, value in self.columns])

    def apply(self, source: pa.Table) -> pa.Table:
        """Return the rows of the statement, in the order of ``source``."""
        if self.where is not None:
            source = source.filter(_column(self.where.of(source), source.num_rows), null_selection_behavior="drop")
        arrays = [_column(value.of(source), source.num_rows) for _, value in self.columns]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def parse(sql: str, source: pa.Schema) -> Select:
    """Parse a statement over the columns of ``source``.

    Raises
    ------
    NotInSubsetError
        If it is outside of the subset.
    """
    if "${" in sql:
        raise NotInSubsetError("it has ${, which Spark may replace")
    if "/*+" in sql or "{#" in sql:  # comments to sqlglot alone
        raise NotInSubsetError("it has /*+ or {#")
    if "\\\n" in sql or "\\\r" in sql:  # a comment goes on there
        raise NotInSubsetError("it has a backslash at the end of a line")
    try:
        _refuse_joined(sqlglot.tokenize(sql, dialect="spark"))
        statements = sqlglot.parse(sql, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        raise NotInSubsetError("it cannot be parsed") from error
    tree = statements[0] if len(statements) == 1 else None
    if not isinstance(tree, exp.Select):
        raise NotInSubsetError("it is not a single SELECT")
    used = {name for name, value in tree.args.items() if value} - {"expressions", "from", "from_", "where", "kind"}
    if used or tree.args.get("kind"):
        raise NotInSubsetError(f"it has {sorted(used)[0].rstrip('_').upper() if used else 'AS STRUCT'}")
    origin = tree.args.get("from_") or tree.args.get("from")
    table = origin.this if origin is not None else None
    if not isinstance(table, exp.Table) or table.name.lower() != "source" or given(table) - {"this"}:
        raise NotInSubsetError("it selects from something else than source")
    scope = _Scope(source)
    columns: list[tuple[str, Value]] = []
    origins: list[str] = []
    for item in tree.expressions:
        if isinstance(item, exp.Star):
            if given(item):
                raise NotInSubsetError("it has a * with EXCEPT")
            columns += [(name, scope.column(name)) for name in source.names]
            origins += source.names
        else:
            made = item.unalias()
            columns.append((item.alias_or_name, scope.value(made)))
            origins.append(made.name.lower() if isinstance(made, exp.Column) else "")
    where = tree.args.get("where")
    whole = where is None and [name.lower() for name in origins] == [name.lower() for name in source.names]
    return Select(tuple(columns), scope.condition(where.this) if where is not None else None, whole)


def broken(passes: str, source: pa.Schema) -> Condition:
    """Return where a condition is false; where it is null, it passes.

    Raises
    ------
    NotInSubsetError
        If it is outside of the subset.
    """
    found = parse(f"SELECT * FROM source WHERE {passes}\n", source).where
    if found is None:
        raise NotInSubsetError("it has no condition")
    return lambda table: _column(pc.fill_null(pc.invert(found.of(table)), False), table.num_rows)


def judged_rows(condition: str, source: pa.Schema) -> tuple[Value, list[str]]:
    """Return a condition, and the columns that it refers to.

    Raises
    ------
    NotInSubsetError
        If it is outside of the subset, has arithmetic, whose results are never looked at, or a backslash.
    """
    text = f"SELECT * FROM source WHERE {condition}"
    found = parse(text, source).where
    tree = sqlglot.parse_one(text, dialect="spark")
    if found is None or "\\" in text or tree.find(exp.Add, exp.Sub, exp.Mul) is not None:
        raise NotInSubsetError("row_condition: it has arithmetic or a backslash")
    named = {name.lower(): name for name in source.names}
    return found, [named[column.name.lower()] for column in tree.find_all(exp.Column)]


def missing(column: str, source: pa.Schema) -> Condition:
    """Return where a column is null.

    Raises
    ------
    NotInSubsetError
        If there is no such column.
    """
    found = _Scope(source).column(column)
    return lambda table: pc.is_null(found.of(table))


def _refuse_joined(tokens: Sequence[Token]) -> None:
    """Refuse texts side by side: to Spark, ``'it''s'`` has an apostrophe; to sqlglot, they are two, which it joins."""
    for one, other in pairwise(tokens):
        if one.token_type.name.endswith("STRING") and other.token_type.name.endswith("STRING"):
            raise NotInSubsetError("it has texts side by side, or a quotation mark that is written twice")


class _Scope:
    """Translates expressions over the columns of one table."""

    def __init__(self, source: pa.Schema) -> None:
        self._types = {field.name.lower(): (field.name, field.type) for field in source}

    def column(self, name: str) -> Value:
        """Return a column; names are compared without regard to case, as Spark does."""
        if name.lower() not in self._types:
            raise NotInSubsetError(f"{name} is not a column of source")
        own, kind = self._types[name.lower()]
        return Value(kind, lambda table: table.column(own))

    def condition(self, node: exp.Expression) -> Value:
        """Return a boolean expression."""
        found = self.value(node)
        if not pa.types.is_boolean(found.type):
            raise NotInSubsetError(f"{node.sql('spark')} is not a condition")
        return found

    def value(self, node: exp.Expression) -> Value:
        """Return an expression."""
        if isinstance(node, exp.Paren):
            return self.value(node.this)
        if isinstance(node, exp.Column):
            if len(node.parts) != 1 or not isinstance(node.this, exp.Identifier):
                raise NotInSubsetError(f"it has {node.sql('spark')}")
            return self.column(node.name)
        if isinstance(node, exp.Boolean):
            return constant(node.this, pa.bool_())
        if isinstance(node, exp.Literal) and node.is_string:
            return constant(node.name, pa.string())
        if isinstance(node, exp.And | exp.Or):
            one, other = self.condition(node.this), self.condition(node.expression)
            joined = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
            return Value(pa.bool_(), lambda table: joined(one.of(table), other.of(table)))
        if isinstance(node, exp.Not):
            inner = self.condition(node.this)
            return Value(pa.bool_(), lambda table: pc.invert(inner.of(table)))
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            tested = self._operand(node.this)
            return Value(pa.bool_(), lambda table: pc.is_null(tested.of(table)))
        if type(node) in _COMPARISONS:
            return self._compared(node.this, node.expression, _COMPARISONS[type(node)])
        if isinstance(node, exp.Between) and not node.args.get("symmetric"):
            low = self._compared(node.this, node.args["low"], pc.greater_equal)
            high = self._compared(node.this, node.args["high"], pc.less_equal)
            return Value(pa.bool_(), lambda table: pc.and_kleene(low.of(table), high.of(table)))
        if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
            tests = [self._compared(node.this, item, pc.equal) for item in node.expressions]
            return Value(pa.bool_(), lambda table: _any_of([test.of(table) for test in tests]))
        if isinstance(node, exp.Coalesce):
            return self._coalesced([node.this, *node.expressions])
        if isinstance(node, exp.Case) and node.this is None:
            return self._case(node)
        found = arithmetic(node, self.value) or called(node, self.value)
        if found is None:
            raise NotInSubsetError(f"it has {node.sql('spark')[:60]}")
        return found

    def _operand(self, node: exp.Expression) -> Value:
        # sqlglot binds = less tightly than < and BETWEEN; to Spark, all comparisons are alike
        if isinstance(node, _PREDICATES):
            raise NotInSubsetError(f"it compares {node.sql('spark')[:60]}, which is not in parentheses")
        return self.value(node)

    def _compared(self, one: exp.Expression, other: exp.Expression, compare: _Compare) -> Value:
        if number(one) is not None and number(other) is None:
            right = self._operand(other)
            left = _fitting(one, right.type)
        else:
            left = self._operand(one)
            right = _fitting(other, left.type) if number(other) is not None else self._operand(other)
        if left.type != right.type or not comparable(left.type):
            raise NotInSubsetError(f"it compares {left.type} and {right.type}")
        made = partial(_doubles_compared, compare) if pa.types.is_float64(left.type) else compare
        return Value(pa.bool_(), lambda table: made(left.of(table), right.of(table)))

    def _coalesced(self, nodes: list[exp.Expression]) -> Value:
        values = self._alike(nodes)
        return Value(values[0].type, lambda table: pc.coalesce(*(value.of(table) for value in values)))

    def _case(self, node: exp.Case) -> Value:
        branches = node.args["ifs"]
        tests = [self.condition(branch.this) for branch in branches]
        default = node.args.get("default")
        outcomes = self._alike([*(b.args["true"] for b in branches), *([default] if default is not None else [])])

        def chosen(table: pa.Table) -> Any:
            found = outcomes[-1].of(table) if default is not None else pa.scalar(None, outcomes[0].type)
            for test, outcome in reversed(list(zip(tests, outcomes, strict=False))):
                found = pc.if_else(pc.fill_null(test.of(table), False), outcome.of(table), found)
            return found

        return Value(outcomes[0].type, chosen)

    def _alike(self, nodes: list[exp.Expression]) -> list[Value]:
        """Return expressions of one type; an integer literal alone is an INT, as in Spark."""
        typed = [self.value(node) for node in nodes if number(node) is None]
        kind = typed[0].type if typed else pa.int32()
        values = [self.value(node) if number(node) is None else _fitting(node, kind, exact=True) for node in nodes]
        if any(value.type != kind for value in values):
            raise NotInSubsetError("it mixes types in CASE or COALESCE")
        return values


def _fitting(node: exp.Expression, kind: pa.DataType, *, exact: bool = False) -> Value:
    """Return a number in the type of the column beside it, if that changes no comparison.

    Parameters
    ----------
    exact
        Whether the number must have that type in Spark as well.
    """
    found = number(node)
    assert found is not None
    whole = found == found.to_integral_value() and "." not in node.sql("spark")
    if pa.types.is_signed_integer(kind) and whole:
        low = -(2 ** (kind.bit_width - 1))
        if low <= found < -low and (not exact or kind == pa.int32()):
            return constant(int(found), kind)
    if pa.types.is_decimal(kind) and not exact:
        try:
            return constant(found, kind)
        except (pa.ArrowInvalid, InvalidOperation):
            pass
    if pa.types.is_float64(kind) and not exact and abs(found) < 2**53:
        return constant(float(found), kind)
    raise NotInSubsetError(f"it has {node.sql('spark')} beside {kind}")


def comparable(kind: pa.DataType) -> bool:
    """Return whether values of a type are compared by Arrow as by Spark, but for NaN."""
    tests = (
        pa.types.is_signed_integer,
        pa.types.is_string,
        pa.types.is_boolean,
        pa.types.is_decimal,
        pa.types.is_float64,
        pa.types.is_date32,
        pa.types.is_timestamp,
    )
    return any(test(kind) for test in tests)


def _doubles_compared(compare: _Compare, left: Any, right: Any) -> Any:
    one, other = pc.is_nan(left), pc.is_nan(right)
    either = pc.or_(one, other)  # null where a side is
    found = compare(left, right)
    return pc.if_else(either, _OF_NAN[compare](one, other), found) if pc.any(either).as_py() else found


def _any_of(masks: list[Any]) -> Any:
    found = masks[0]
    for mask in masks[1:]:
        found = pc.or_kleene(found, mask)
    return found


def _column(value: Any, rows: int) -> Any:
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value
