"""Copies of records that another cluster had, and the origins that a batch settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from sluice.facts.base import BatchFact

__all__ = ["Origins"]


@dataclass(frozen=True)
class Origins(BatchFact):
    """Where a batch's records came from, in a pipeline with several clusters.

    Parameters
    ----------
    copies
        Records that were left out because they, or their originals, are settled; they are among the filtered ones.
    ranges
        The origins of the other records that a mirror brought, as ``[topic, partition, start, end]``.
    """

    name: ClassVar[str] = "origins"
    event: ClassVar[str] = "OriginsSettled"

    copies: int = 0
    ranges: Sequence[Sequence[Any]] = ()

    def __bool__(self) -> bool:
        """Return whether a mirror brought any record."""
        return bool(self.copies or self.ranges)

    def __or__(self, later: Self) -> Self:
        """Return the origins of both."""
        return type(self)(self.copies + later.copies, [*self.ranges, *later.ranges])

    def account(self) -> dict[str, Any]:
        """Return ``copies``, if there are any."""
        return {"copies": self.copies} if self.copies else {}
