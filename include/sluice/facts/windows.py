"""Windows that a batch wrote, or rows that a processor yielded, and which records came too late for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from sluice.facts.base import BatchFact
from sluice.text import moment

__all__ = ["Counted", "Windows", "total"]

Counted = Sequence[Sequence[Any]]
"""Counts of ranges: ``[topic, partition, start, end, count]`` of each that is not zero."""


def total(counts: Counted) -> int:
    """Return the sum of the counts of ranges."""
    return sum(item[-1] for item in counts)


@dataclass(frozen=True)
class Windows(BatchFact):
    """Windows of event time, or a processor's state. Times are in milliseconds since 1970.

    Parameters
    ----------
    rows
        The windows written, or the rows that the processor yielded.
    late
        Records that were late for all of their windows; they are among the filtered ones.
    partly_late
        Records that were late for some of their windows.
    latest
        The latest event time of a record; None if there was none.
    late_by
        The watermark by which records were late; of several batches that of the latest in which any was, or None.
    closed_to
        All windows up to there are closed, or all timers have fired.
    absorption, aggregation, timing
        Fingerprints of the definition in the pipeline file; see :class:`sluice.pipeline.Pipeline`.
    times
        First and last event time of each range, for intervals.
    partitions
        The latest event time of each partition.
    absorbed
        First and last event time of the records of which a batch that reads none was made again.
    former, former_to
        Records that were filtered because an earlier epoch began their windows, and the last end of these windows.
    replaced
        For an interval: the windows that it removed.
    partly, reach, ranges
        For an interval: refused records that are in some of its windows, the last end of its sessions, and its ranges.
    operator
        The key of another operator, ``processor`` for example; None of windows.
    """

    name: ClassVar[str] = "windows"
    event: ClassVar[str] = "WindowsMoved"

    rows: int
    late: Counted
    partly_late: int
    latest: int | None
    late_by: int | None
    closed_to: int
    absorption: str | None = None
    aggregation: str | None = None
    timing: str | None = None
    times: Sequence[Any] | None = None
    partitions: Mapping[str, Any] | None = None
    absorbed: Sequence[int] | None = None
    former: Counted | None = None
    former_to: int | None = None
    replaced: int | None = None
    partly: Sequence[Any] | None = None
    reach: int | None = None
    ranges: Sequence[Any] | None = None
    operator: str | None = None

    def __or__(self, later: Self) -> Self:
        """Return the sums; of single ranges only the counts are kept."""
        watermarks = [each.late_by or 0 for each in (self, later) if each.late or each.partly_late]
        former = [*(self.former or ()), *(later.former or ())]
        return type(self)(
            rows=self.rows + later.rows,
            late=[*self.late, *later.late],
            partly_late=self.partly_late + later.partly_late,
            latest=max((t for t in (self.latest, later.latest) if t is not None), default=None),
            late_by=max(watermarks, default=None),
            closed_to=max(self.closed_to, later.closed_to),
            former=former or None,
            former_to=later.former_to if later.former else self.former_to,
            replaced=later.replaced,
            operator=later.operator,
        )

    def account(self) -> dict[str, Any]:
        """Return ``windows``, or the key of the operator."""
        late = total(self.late)
        told: dict[str, Any] = {
            "rows": self.rows,
            "late": late,
            "late_by": self.late_by if late or self.partly_late else None,
        }
        if self.former:
            told |= {"former": total(self.former), "former_to": self.former_to}
        if self.operator is not None:
            return {self.operator: {**told, "fired_to": self.closed_to}}
        told |= {"partly_late": self.partly_late, "closed_to": self.closed_to}
        return {"windows": told | ({} if self.replaced is None else {"replaced": self.replaced})}

    @classmethod
    def lines(cls, account: Mapping[str, Any]) -> Iterator[str]:
        """Yield a line of windows, and one of another operator."""
        for key, told in account.items():
            if key == "windows" and told:
                yield f"windows: {_of_windows(told)}"
            elif isinstance(told, Mapping) and "fired_to" in told:
                yield f"{key}: {_of_processor(told)}"


def _of_windows(told: Mapping[str, Any]) -> str:
    instead = f" in place of {told['replaced']:,}" if "replaced" in told else ""
    line = f"{told['rows']:,} windows written{instead}"
    if told["closed_to"]:
        line += f"; those up to {moment(told['closed_to'])} are closed"
    if told["late"] or told["partly_late"]:
        line += f"; {told['late']:,} records were late"
        line += f", {told['partly_late']:,} more for some of their windows" if told["partly_late"] else ""
        # a record may have windows of before a reset, and none that the watermark has passed
        line += f" (watermark {moment(told['late_by'])})" if told["late"] or told["late_by"] else ""
    if "former" in told:
        line += (
            f"; {told['former']:,} records were filtered, because their windows, up to {moment(told['former_to'])}, "
            "were begun before the reset"
        )
    return line


def _of_processor(told: Mapping[str, Any]) -> str:
    line = f"{told['rows']:,} rows written"
    if told["fired_to"]:
        line += f"; timers up to {moment(told['fired_to'])} have fired"
    if told["late"]:
        line += f"; {told['late']:,} records were late (watermark {moment(told['late_by'])})"
    if "former" in told:
        line += (
            f"; {told['former']:,} records were filtered, because they were late by the watermark before the reset, "
            f"{moment(told['former_to'])}"
        )
    return line
