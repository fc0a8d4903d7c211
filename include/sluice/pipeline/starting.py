"""The keys ``schedule`` and ``lag`` of a pipeline file: what starts a run."""

from __future__ import annotations

from typing import Annotated, Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field, field_validator

from sluice.fields import Duration, Strict

__all__ = ["Lag", "Schedule"]


class Schedule(Strict):
    """When the DAG runs by itself."""

    cron: str
    """Five fields, or ``@hourly`` and the like."""
    timezone: str = "UTC"
    """In which ``cron`` is meant, such as ``Europe/Berlin``."""

    @field_validator("cron")
    @classmethod
    def _cron(cls, cron: str) -> str:
        from croniter import croniter  # type: ignore[import-untyped]

        if cron != "@quarterly" and (
            not croniter.is_valid(cron) or not (cron.startswith("@") or len(cron.split()) == 5)
        ):
            raise ValueError(f"{cron!r} is not a cron expression of five fields, such as 0 * * * * (each hour)")
        return cron

    @field_validator("timezone")
    @classmethod
    def _zone(cls, zone: str) -> str:
        if zone not in available_timezones():
            raise ValueError(f"{zone!r} is not a time zone of the tz database, such as Europe/Berlin")
        ZoneInfo(zone)
        return zone


class Lag(Strict):
    """From which backlog on a run is worth starting. ``max_records`` counts beside the others only when written."""

    max_records: Annotated[int, Field(ge=0)] = 0
    """More offsets than these wait."""
    max_age: Duration | None = None
    """The first record that waits is older, by Kafka's time."""
    max_retention_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """The first record that waits has used up more of the topic's retention time."""
    match: Literal["any", "all"] = "any"
    """Whether any of the limits must be passed, or all that are given."""
    on_idle: Literal["proceed", "wait", "skip"] = "proceed"
    """What a run that a cron schedule starts does while the limits are not passed: it runs all the same, waits, or is
    skipped."""
    mirror_group: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """A consumer group into which each run copies its positions, for tools that only know groups; never read back."""
