"""Limits on the refused and lost records of a run, and their effect on the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.pipeline.quality import Quality, exceeds
from sluice.ranges import Counts

__all__ = ["Excess", "excesses"]


@dataclass(frozen=True)
class Excess:
    """A limit of the pipeline file that was exceeded: the resulting verdict, and the reason in words."""

    limit: str
    verdict: str
    why: str
    count: int | None = None
    """How many records exceed the limit; None if it counts something else."""

    def __str__(self) -> str:
        return f"{self.limit}: {self.why}"


def excesses(quality: Quality, counts: Counts) -> Iterator[Excess]:
    """Yield the limits that these counts exceed.

    A share is relative to the readable records: the planned offsets without the absent ones. A run that wrote nothing
    although it read records is reported whatever the limits are.
    """
    read = counts.planned - counts.absent
    if exceeds(quality.max_quarantined, counts.quarantined, read):
        yield Excess(
            "max_quarantined",
            "failed",
            f"{_of(counts.quarantined, read)} are in quarantine, and {quality.max_quarantined} may be",
            counts.quarantined,
        )
    if quality.max_lost is not None:
        if exceeds(quality.max_lost, counts.lost, read):
            why = f"{_of(counts.lost, read)} are lost, and {quality.max_lost} may be"
            yield Excess("max_lost", "failed", why, counts.lost)
    elif counts.lost:
        yield Excess("max_lost", "warned", f"{_of(counts.lost, read)} are lost, and the file sets no max_lost")
    if not counts.written and counts.quarantined + counts.lost:
        yield Excess(
            "nothing_written",
            "warned",
            f"of {read:,} records none was written: {counts.quarantined:,} are in quarantine, {counts.lost:,} are lost",
        )


def _of(count: int, of: int) -> str:
    # truncated, not rounded: 1.004 % must not be shown as 1 %, which it exceeds
    return f"{count:,} of {of:,} records ({count * 100_000 // max(of, 1) / 1000:g} %)"
