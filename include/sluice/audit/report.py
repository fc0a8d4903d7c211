"""What an audit found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["AuditReport", "shortened"]

_MOST = 1000


def shortened(problems: Sequence[str], what: str, more: int = 0) -> list[str]:
    """Return problems of one kind; of very many the first, and how many more there are, ``more`` included."""
    rest = more + max(0, len(problems) - _MOST)
    return [*problems[:_MOST], *([f"{what}: {rest:,} more"] if rest else [])]


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
        What a deep audit read: of ``sink``, ``quarantine`` and ``log``, where they are there, the path and how much
        they hold. None for an audit of the ledger alone.
    """

    pipeline: str
    partitions: list[dict[str, Any]]
    lost: list[dict[str, Any]]
    problems: list[str]
    unproved: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] | None = None

    @property
    def balanced(self) -> bool:
        """Whether every offset is accounted for, once."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        deep = {} if self.tables is None else {"unproved": self.unproved, "tables": self.tables}
        return {
            "pipeline": self.pipeline,
            "balanced": self.balanced,
            "partitions": self.partitions,
            "lost": self.lost,
            "problems": self.problems,
            **deep,
        }
