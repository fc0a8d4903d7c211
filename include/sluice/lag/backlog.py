"""The lag of one pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sluice.errors import SluiceError
from sluice.lag.limits import Limits
from sluice.lag.partition import PartitionLag, rounded
from sluice.lag.past import PastRun
from sluice.lag.status import Status, signs_of

__all__ = ["Backlog"]


@dataclass(frozen=True)
class Backlog:
    """The lag of one pipeline.

    Parameters
    ----------
    error
        The most serious of the errors that left something unknown.
    running
        The id of the run that holds the pipeline's lease; what it has planned still counts as lag.
    at
        The time of the measurement, with a time zone.
    last
        The newest live run that has ended.
    held
        The id of the run whose verdict holds the pipeline, so that no run would read anything; see
        :mod:`sluice.run.circuit_breaker`.
    """

    pipeline: str
    partitions: tuple[PartitionLag, ...]
    limits: Limits = field(default_factory=Limits)
    error: SluiceError | None = None
    running: str | None = None
    at: datetime | None = None
    last: PastRun | None = None
    held: str | None = None

    @property
    def verdict(self) -> Status:
        """The worst status of the partitions and of ``error``."""
        return Status.worst([*(p.status for p in self.partitions), *signs_of(self.error)])

    @property
    def incomplete(self) -> bool:
        """Whether the lag of a partition is unknown; sums and maxima are then those of the others."""
        return self.error is not None or any(p.records is None and not p.recreated for p in self.partitions)

    @property
    def records(self) -> int | None:
        """Readable offsets that no run has read, as far as known; None if nothing is known."""
        return self._sum(p.records for p in self.partitions)

    @property
    def lost(self) -> int | None:
        """Offsets that the broker removed before any run read them, as far as known; None if nothing is known."""
        return self._sum(p.lost for p in self.partitions)

    @property
    def age(self) -> float | None:
        """Age in seconds of the oldest unread record, as far as known."""
        return max((p.age for p in self.partitions if p.age is not None), default=None)

    @property
    def share(self) -> float | None:
        """The largest share of the retention time that is used up, as far as known."""
        return max((p.share for p in self.partitions if p.share is not None), default=None)

    @property
    def over(self) -> bool:
        """Whether the limits are exceeded, as far as known."""
        limits, passed = self.limits, []
        if limits.max_records is not None:
            passed.append((self.records or 0) > limits.max_records)
        if limits.max_age is not None:
            too_old = (self.age or 0.0) > limits.max_age.total_seconds()
            passed.append(too_old or any(p.late for p in self.partitions))
        if limits.max_retention_share is not None:
            passed.append((self.share or 0.0) > limits.max_retention_share)
        return bool(passed) and (all(passed) if limits.match == "all" else any(passed))

    @property
    def needs_a_run(self) -> bool:
        """Whether there is a problem that only a run can report with its typed error, or record in the ledger."""
        return any(p.status in (Status.LOST, Status.RECREATED) for p in self.partitions)

    @property
    def worth_a_run(self) -> bool:
        """Whether to start a run: the limits are exceeded or there is a problem to report, and no run is at work.

        Never while the pipeline is :attr:`held`.

        A ``STUCK`` pipeline counts as well; a caller that starts runs automatically must also check the verdict.
        """
        return self.running is None and self.held is None and (self.over or self.needs_a_run)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        error = self.error
        return {
            "pipeline": self.pipeline,
            "verdict": self.verdict.value,
            "lag": self.records,
            "age": rounded(self.age),
            "share": rounded(self.share, 4),
            "lost": self.lost,
            "over": self.over,
            "incomplete": self.incomplete,
            "limits": self.limits.as_dict(),
            "running": self.running,
            "held": self.held,
            "at": self.at.isoformat(timespec="milliseconds") if self.at else None,
            "error": error
            and {
                "type": type(error).__name__, "exit_code": int(error.exit_code), "what": error.what,
                "state": error.state, "next_step": error.next_step,
            },
            "partitions": [p.as_dict() for p in self.partitions],
        }  # fmt: skip

    def brief(self, most: int = 20) -> dict[str, Any]:
        """Return :meth:`as_dict` with the partitions of the largest lags only, and how many others there are."""
        worst = sorted(self.partitions, key=lambda p: -1 if p.records is None else p.records, reverse=True)[:most]
        shown = [p.as_dict() for p in self.partitions if p in worst]
        return {**self.as_dict(), "partitions": shown, "others": len(self.partitions) - len(shown)}

    def _sum(self, values: Iterable[int | None]) -> int | None:
        found = [v for v in values if v is not None]
        nothing_to_know = not self.partitions and self.error is None
        return sum(found) if found or nothing_to_know else None
