"""Columns that a commit added to the sink, or widened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from sluice.facts.base import BatchFact

__all__ = ["ChangedColumns"]


@dataclass(frozen=True)
class ChangedColumns(BatchFact):
    """Columns that a commit added or widened.

    Parameters
    ----------
    added
        ``column`` and ``type`` of each; of a widened one also the type that it ``was``.
    """

    name: ClassVar[str] = "evolved"
    event: ClassVar[str] = "SchemaEvolved"
    accounted: ClassVar[bool] = False

    added: Sequence[Mapping[str, str]] = ()

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.added)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | Sequence[Mapping[str, str]]) -> Self:
        """Read :meth:`as_dict`, or the list that the sink writes into the metadata of its commit."""
        return cls(data["added"] if isinstance(data, Mapping) else data)

    def __or__(self, later: Self) -> Self:
        """Return the columns of both; of a column, the later entry counts."""
        return type(self)(list({column["column"]: column for column in (*self.added, *later.added)}.values()))
