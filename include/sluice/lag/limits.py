"""Thresholds of the lag that start a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Literal

from sluice.pipeline.schedule import Lag
from sluice.text import length

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Thresholds of the lag that start a run. They are exclusive, and an unknown value exceeds none.

    Parameters
    ----------
    max_records
        Exceeded when more offsets than this wait; None: no limit.
    max_age
        Exceeded when the first unread record is older.
    max_retention_share
        Exceeded when that record's age is a larger share, from 0 to 1, of the topic's retention time.
    match
        Whether ``any`` of the given limits must be exceeded, or ``all``.
    """

    max_records: int | None = 0
    max_age: timedelta | None = None
    max_retention_share: float | None = None
    match: Literal["any", "all"] = "any"

    @classmethod
    def of(cls, lag: Lag) -> Limits:
        """Read the key ``lag`` of a pipeline file.

        If the file limits only age or share, the default of ``max_records`` (any record) does not apply.
        """
        timed = lag.max_age is not None or lag.max_retention_share is not None
        counted = not timed or "max_records" in lag.model_fields_set
        return cls(lag.max_records if counted else None, lag.max_age, lag.max_retention_share, lag.match)

    def __str__(self) -> str:
        parts = []
        if self.max_records is not None:
            parts.append(f"more than {self.max_records:,} records")
        if self.max_age is not None:
            parts.append(f"older than {length(self.max_age.total_seconds())}")
        if self.max_retention_share is not None:
            parts.append(f"over {self.max_retention_share:.0%} of the retention time")
        return (" and " if self.match == "all" else " or ").join(parts) or "no limit"

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form; ``max_age`` in seconds."""
        seconds = None if self.max_age is None else self.max_age.total_seconds()
        return {**asdict(self), "max_age": seconds}
