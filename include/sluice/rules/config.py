"""The kinds of row rules that are built in."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sluice.fields import Strict
from sluice.rules.base import RuleKind

__all__ = ["NOT_NULL", "SQL", "NotNullRule", "SqlRule"]


class SqlRule(Strict):
    """A condition on one record."""

    passes: Annotated[str, Field(min_length=1)]
    """A SQL condition over the decoded and the metadata columns. A record is refused where it is false; null passes."""
    column: str | None = None
    """The column that `_errors` names; by default none."""


class NotNullRule(Strict):
    """Columns that must not be null."""

    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    """A record in which any of them is null is refused; `_errors` names the first."""


SQL = RuleKind(SqlRule, "sluice_spark.rules.sql:Sql")
NOT_NULL = RuleKind(NotNullRule, "sluice_spark.rules.not_null:NotNull")
