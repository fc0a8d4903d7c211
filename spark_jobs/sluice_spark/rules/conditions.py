"""The ``row_condition`` of an expectation as a Spark column: which rows the expectation judges."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["NotARowRuleError", "condition_of", "condition_text"]

_LEGACY = re.compile(
    r"""\s*col\("(?P<column>[^"\\]+)"\)\s*(?:(?P<notnull>\.notnull\(\))|(?P<op>>=|<=|==|!=|>|<)\s*"""
    r"""(?:(?P<number>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|"(?P<double>[\w .:+-]+)"|'(?P<single>[\w .:+-]+)'))\s*"""
)
_PARSERS = ("great_expectations", "great_expectations__experimental__")
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=")
_SETS = {"IN": "IN", "NOT_IN": "NOT IN"}


class NotARowRuleError(ValueError):
    """An expectation that Great Expectations must judge; the text is the reason."""


def condition_of(kwargs: Mapping[str, Any]) -> Column | None:
    """Return which rows an expectation judges; None means all.

    Raises
    ------
    NotARowRuleError
        If the condition is of no form that is known here.
    """
    text = condition_text(kwargs)
    return None if text is None else F.expr(text)


def condition_text(kwargs: Mapping[str, Any]) -> str | None:
    """Return the same in SQL; see :func:`condition_of`."""
    told = kwargs.get("row_condition")
    if told is None or told == "":
        return None
    if isinstance(told, str):
        parsed = _legacy(told) if kwargs.get("condition_parser") in _PARSERS else told
        return f"({parsed}\n)"
    if isinstance(told, Mapping):
        return _clause(told)
    raise NotARowRuleError("row_condition is of an unknown form")


def _legacy(text: str) -> str:
    found = _LEGACY.fullmatch(text)
    if found is None:
        raise NotARowRuleError('row_condition: only col("x").notnull() and comparisons with a value are known here')
    column = _quoted(found["column"])
    if found["notnull"]:
        return f"{column} IS NOT NULL"
    number = found["number"]
    if number is None:
        return f"{column} {found['op']} {found['double'] or found['single']!r}"
    try:
        return f"{column} {found['op']} {int(number)!r}"
    except ValueError:
        return f"{column} {found['op']} {float(number)!r}"


def _clause(told: Mapping[str, Any]) -> str:
    """Return the text that Great Expectations makes of a condition."""
    kind = told.get("type")
    if kind == "pass_through" and isinstance(told.get("pass_through_filter"), str):
        return f"({told['pass_through_filter']}\n)"
    if kind in ("and", "or") and isinstance(told.get("conditions"), list) and told["conditions"]:
        return "(" + f" {kind.upper()} ".join(_clause(part) for part in told["conditions"]) + ")"
    column = told.get("column")
    name = column.get("name") if isinstance(column, Mapping) else None
    if isinstance(name, str):
        if kind == "nullity" and isinstance(told.get("is_null"), bool):
            return f"{_quoted(name)} IS {'' if told['is_null'] else 'NOT '}NULL"
        operator, value = told.get("operator"), told.get("parameter")
        if kind == "comparison" and operator in _OPERATORS and isinstance(value, int | float | str):
            return f"{_quoted(name)} {operator} {value!r}"
        if kind == "comparison" and operator in _SETS and isinstance(value, list) and value:
            return f"{_quoted(name)} {_SETS[operator]} ({', '.join(map(repr, value))})"
    raise NotARowRuleError("row_condition is of an unknown form")


def _quoted(name: str) -> str:
    if "`" in name:
        raise NotARowRuleError("row_condition: a name with a backtick is not known here")
    return ".".join(f"`{part}`" for part in name.split("."))
