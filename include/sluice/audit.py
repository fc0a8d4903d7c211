"""Proves the one law from the ledger: ranges tile, and every range is split without remainder."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sluice.ledger import Ledger
from sluice.ranges import Counts, RangeAccount

__all__ = ["AuditReport", "audit"]


@dataclass(frozen=True)
class AuditReport:
    """Per partition the span that runs covered and its split; and whatever does not add up."""

    pipeline: str
    partitions: list[dict[str, Any]]
    problems: list[str]

    @property
    def balanced(self) -> bool:
        """Whether every offset is accounted for, once."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "pipeline": self.pipeline,
            "balanced": self.balanced,
            "partitions": self.partitions,
            "problems": self.problems,
        }


def audit(ledger: Ledger, pipeline: str) -> AuditReport:
    """Check that the committed ranges of a pipeline follow one another with no gap and no overlap.

    A range whose parts do not add up cannot be read from the ledger at all and is reported as well.
    """
    problems: list[str] = []
    try:
        accounts = ledger.accounts(pipeline)
    except ValueError as error:
        return AuditReport(pipeline, [], [str(error)])
    by_partition: dict[tuple[str, int], list[RangeAccount]] = defaultdict(list)
    for account in accounts:
        by_partition[account.range.topic, account.range.partition].append(account)
    rows = []
    for (topic, partition), parts in sorted(by_partition.items()):
        for before, after in pairwise(parts):
            if after.range.start != before.range.end:
                kind = "a gap" if after.range.start > before.range.end else "an overlap"
                problems.append(f"{kind} between {before.range} and {after.range}")
        counts = sum((p.counts for p in parts), Counts())
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "start": parts[0].range.start,
                "end": parts[-1].range.end,
                **counts.as_dict(),
            }
        )
    return AuditReport(pipeline, rows, problems)
