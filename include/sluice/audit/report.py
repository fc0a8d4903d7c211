"""What an audit found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["AuditReport", "shortened"]

_MOST = 1000


def shortened(problems: Sequence[str], what: str, most: int = _MOST) -> list[str]:
    """Return problems of one kind; of very many the first, and how many more there are."""
    rest = len(problems) - most
    return [*problems[:most], f"{what}: {rest:,} more"] if rest > 0 else list(problems)


@dataclass(frozen=True)
class AuditReport:
    """Per partition the span that runs covered and its split; what is open; and whatever does not add up.

    Attributes
    ----------
    partitions
        The split after redriving: what was redriven counts as what it became.
    lost
        Open lost ranges, as :meth:`sluice.ledger.LostRow.as_dict` has them.
    problems
        In words, each naming its range, segment or table. Of very many of one kind the first, and their number.
    unproved
        In words, what cannot be proved of a pipeline of this kind.
    tables
        What was read, by a deep audit: of ``sink``, ``quarantine`` and ``log`` the path and how much it holds.
    """

    pipeline: str
    partitions: list[dict[str, Any]]
    lost: list[dict[str, Any]]
    problems: list[str]
    unproved: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def balanced(self) -> bool:
        """Whether every offset is accounted for, once."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        deep = {"unproved": self.unproved, "tables": self.tables} if self.tables else {}
        return {
            "pipeline": self.pipeline,
            "balanced": self.balanced,
            "partitions": self.partitions,
            "lost": self.lost,
            "problems": self.problems,
            **deep,
        }
