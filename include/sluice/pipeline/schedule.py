"""The keys ``schedule`` and ``lag`` of a pipeline file: what starts a run."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, Field, field_validator

from sluice.fields import Duration, Strict

__all__ = ["Lag", "Schedule", "check_cron", "is_cron"]


_CHANCE = re.compile(r"(?i)(?<![a-z])r(?![a-z])")
"""A field in place of which croniter chooses a time at random, again for each question."""


def is_cron(text: Any) -> bool:
    """Return whether Airflow takes a cron expression: five fields, or a preset."""
    from croniter import croniter  # type: ignore[import-untyped]

    if not isinstance(text, str) or _CHANCE.search(text):
        return False
    return text == "@quarterly" or (croniter.is_valid(text) and (text.startswith("@") or len(text.split()) == 5))


def check_cron(text: str) -> str:
    """Return a cron expression that Airflow takes, too.

    Raises
    ------
    ValueError
        If it has not five fields, and is no preset; or if no day of any year is one of its days.
    """
    from croniter import CroniterBadDateError, croniter

    if not is_cron(text):
        raise ValueError(f"{text!r} is not a cron expression of five fields, such as 0 * * * * (each hour)")
    try:
        if not text.startswith("@"):
            croniter(text, datetime(2000, 1, 1, tzinfo=UTC)).get_next()
    except CroniterBadDateError:
        raise ValueError(f"{text!r} names no day that ever comes") from None
    return text


Cron = Annotated[str, AfterValidator(check_cron)]


class Schedule(Strict):
    """A clock that starts the DAG."""

    cron: Cron
    """A cron expression of five fields, or a preset such as ``@hourly``."""
    timezone: str = "UTC"
    """The time zone of ``cron``, such as ``Europe/Berlin``."""

    @field_validator("timezone")
    @classmethod
    def _zone(cls, zone: str) -> str:
        if zone not in available_timezones():
            raise ValueError(f"{zone!r} is not a time zone of the tz database, such as Europe/Berlin")
        ZoneInfo(zone)
        return zone


class Lag(Strict):
    """Thresholds of the backlog that start a run. Beside the other two, ``max_records`` counts only if it is set."""

    max_records: Annotated[int, Field(ge=0)] = 0
    """Passed when more offsets than this wait."""
    max_age: Duration | None = None
    """Passed when the first unread record is older than this, by Kafka's timestamp."""
    max_retention_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Passed when the first unread record's age is a larger share than this of the topic's retention time."""
    match: Literal["any", "all"] = "any"
    """Whether ``any`` of the given limits must be passed, or ``all`` of them."""
    on_idle: Literal["proceed", "wait", "skip"] = "proceed"
    """What a run that a cron schedule starts does while no limit is passed: it proceeds, waits, or is skipped."""
    mirror_group: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """A consumer group to which each live run copies its positions, for tools that only read consumer groups."""

    @property
    def limits_given(self) -> bool:
        """Whether the file has a limit."""
        return not self.model_fields_set.isdisjoint(("max_records", "max_age", "max_retention_share"))
