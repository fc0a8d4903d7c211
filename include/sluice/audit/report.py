"""The result of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["AuditReport", "shortened"]

_MOST = 1000


def shortened(problems: Sequence[str], what: str, more: int = 0) -> list[str]:
    """Return problems of one kind; beyond a limit, only how many more there are (including ``more``)."""
    rest = more + max(0, len(problems) - _MOST)
    return [*problems[:_MOST], *([f"{what}: {rest:,} more"] if rest else [])]


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit: the split per partition, open lost ranges and problems.

    Attributes
    ----------
    partitions
        The covered range of each partition and its split, after all redrives.
    lost
        Open lost ranges, as :meth:`sluice.ledger.LostRow.as_dict` returns them.
    problems
        Messages, each with its range, segment or table. If there are very many of one kind, the first and their number.
    unproved
        Messages about what cannot be proved for this kind of pipeline.
    tables
        What a deep audit read: path and size of ``sink``, ``quarantine`` and ``log``, if they exist. None for an audit
        of the ledger alone.
    """

    pipeline: str
    partitions: list[dict[str, Any]]
    lost: list[dict[str, Any]]
    problems: list[str]
    unproved: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] | None = None

    @property
    def balanced(self) -> bool:
        """Whether every offset is accounted for exactly once."""
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
