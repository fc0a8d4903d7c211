"""Records that ``dedupe`` dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from sluice.facts.base import BatchFact
from sluice.facts.windows import Counted, total
from sluice.text import moment

__all__ = ["Duplicates"]


@dataclass(frozen=True)
class Duplicates(BatchFact):
    """Duplicates, and records that are too old to know whether they are; both are among the filtered ones.

    Parameters
    ----------
    late_by
        The watermark by which records were late, in milliseconds since 1970.
    absorption, timing, partitions
        As of :class:`~sluice.facts.windows.Windows`.
    """

    name: ClassVar[str] = "dedupe"
    event: ClassVar[str] = "DuplicatesDropped"

    duplicates: Counted
    late: Counted
    late_by: int | None
    absorption: str | None = None
    timing: str | None = None
    partitions: Mapping[str, Any] | None = None

    def __or__(self, later: Self) -> Self:
        """Return the counts of both."""
        watermarks = [each.late_by or 0 for each in (self, later) if each.late]
        return type(self)(
            [*self.duplicates, *later.duplicates], [*self.late, *later.late], max(watermarks, default=None)
        )

    def account(self) -> dict[str, Any]:
        """Return ``dedupe``; nothing if no record was dropped."""
        late, doubled = total(self.late), total(self.duplicates)
        if not late and not doubled:
            return {}
        return {"dedupe": {"duplicate": doubled, "late": late, "late_by": self.late_by if late else None}}

    @classmethod
    def lines(cls, account: Mapping[str, Any]) -> Iterator[str]:
        """Yield how many duplicates and late records there were."""
        if told := account.get("dedupe"):
            line = f"dedupe: {told['duplicate']:,} duplicates were filtered"
            if told["late"]:
                line += f", {told['late']:,} records because they were late (watermark {moment(told['late_by'])})"
            yield line
