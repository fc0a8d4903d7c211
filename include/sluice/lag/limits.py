"""From which lag on a run is worth starting."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Literal

from sluice.pipeline.starting import Lag
from sluice.text import length

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """From which lag on a run is worth starting.

    Parameters
    ----------
    max_records
        More offsets than these wait; None: however many.
    max_age
        The first record that waits is older.
    max_retention_share
        It has used up more of the topic's retention time, from 0 to 1.
    match
        Whether ``any`` of the limits given must be passed, or ``all``. A limit is passed, not met; what is not known
        has passed none.
    """

    max_records: int | None = 0
    max_age: timedelta | None = None
    max_retention_share: float | None = None
    match: Literal["any", "all"] = "any"

    @classmethod
    def of(cls, lag: Lag) -> Limits:
        """Read a pipeline file's part ``lag``.

        Who limits the age or the share alone does not mean "or a single record": ``max_records`` then counts only
        when it is written in the file.
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
