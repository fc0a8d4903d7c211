"""A pipeline's past runs, for the lag's status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.errors import ExitCode
from sluice.ranges import OffsetRange
from sluice.sources.state import Key

__all__ = ["PastRun"]


@dataclass(frozen=True)
class PastRun:
    """A closed run, as recorded in the ledger.

    Parameters
    ----------
    state
        ``done``, ``failed`` or ``abandoned``.
    planned, committed
        The ranges that it planned, and those that were committed.
    code
        The exit code of its error, or None.
    settled
        Whether a user decided since how to go on: accepted its verdict, gave its batch up, or reset the pipeline.
    """

    state: str
    planned: Sequence[OffsetRange] = ()
    committed: Sequence[OffsetRange] = ()
    code: int | None = None
    settled: bool = False

    @property
    def tells(self) -> bool:
        """Whether its outcome says something about the pipeline: not if the broker or another driver stopped it."""
        return self.code not in (ExitCode.SOURCE_UNREACHABLE, ExitCode.LEASE_HELD)

    def found(self, key: Key | None = None) -> int:
        """Return the number of offsets that it planned, in one partition or in all."""
        return sum(len(r) for r in self.planned if key in (None, (r.topic, r.partition)))

    def failed_at(self, key: Key) -> bool:
        """Return whether it failed without moving this partition's position."""
        if self.state not in ("failed", "abandoned") or any((r.topic, r.partition) == key for r in self.committed):
            return False
        return not self.planned or any((r.topic, r.partition) == key for r in self.planned)
