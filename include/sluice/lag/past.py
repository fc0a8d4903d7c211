"""What the ledger tells of a pipeline's earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.errors import ExitCode
from sluice.ranges import OffsetRange
from sluice.sources.state import Key

__all__ = ["PastRun"]


@dataclass(frozen=True)
class PastRun:
    """A closed run, as the ledger knows it.

    Parameters
    ----------
    state
        ``done``, ``failed`` or ``abandoned``.
    planned, committed
        What it found to read, and what of it was committed.
    code
        The exit code of its error.
    """

    state: str
    planned: Sequence[OffsetRange] = ()
    committed: Sequence[OffsetRange] = ()
    code: int | None = None

    @property
    def tells(self) -> bool:
        """Whether its end says something about the pipeline: not when the broker or another driver was in its way."""
        return self.code not in (ExitCode.SOURCE_UNREACHABLE, ExitCode.LEASE_HELD)

    def found(self, key: Key | None = None) -> int:
        """Return how many offsets it found, in one partition or in all."""
        return sum(len(r) for r in self.planned if key in (None, (r.topic, r.partition)))

    def failed_at(self, key: Key) -> bool:
        """Tell whether it failed without moving this partition's position."""
        if self.state not in ("failed", "abandoned") or any((r.topic, r.partition) == key for r in self.committed):
            return False
        return not self.planned or any((r.topic, r.partition) == key for r in self.planned)
