"""The kinds of row rules that are built in."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator

from sluice.fields import Strict
from sluice.rules.base import RuleKind

__all__ = ["NOT_NULL", "SQL", "NotNullRule", "SqlRule", "impure"]


_TEXT = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_IMPURE = re.compile(
    r"\b(?:(?:rand|random|randn|randstr|uniform|uuid|shuffle|now|curdate|monotonically_increasing_id"
    r"|spark_partition_id|input_file_\w+|java_method|reflect|try_reflect|over)\s*\("
    r"|unix_timestamp\s*\(\s*\)|(?:current_timestamp|current_date|current_time|localtimestamp)\b|select\s+[\w*(`'])",
    re.IGNORECASE,
)
"""Functions by their call: a column may have the name of one."""


def impure(condition: str) -> str | None:
    """Return what in a SQL condition gives one record two answers, such as a clock; None if there is nothing."""
    found = _IMPURE.search(_TEXT.sub("''", condition))
    return found[0].strip() if found else None


class SqlRule(Strict):
    """A condition on one record."""

    passes: Annotated[str, Field(min_length=1)]
    """A SQL condition over the decoded and the metadata columns. A record is refused where it is false; null passes."""
    column: str | None = None
    """The column that `_errors` names; by default none."""

    @field_validator("passes")
    @classmethod
    def _pure(cls, passes: str) -> str:
        """Refuse what gives one record two answers: a refused record is read a second time, for the quarantine."""
        found = impure(passes)
        if found:
            raise ValueError(
                f"{found!r}: a condition must be a function of one record, with the same answer each time: "
                "no random values, clocks, windows, or queries"
            )
        return passes


class NotNullRule(Strict):
    """Columns that must not be null."""

    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    """A record in which any of them is null is refused; `_errors` names the first."""


SQL = RuleKind(SqlRule, "sluice_spark.rules.sql:Sql")
NOT_NULL = RuleKind(NotNullRule, "sluice_spark.rules.not_null:NotNull")
