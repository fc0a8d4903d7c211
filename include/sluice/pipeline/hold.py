"""The key ``hold`` of a window, ``dedupe`` and a processor: partitions that are behind hold the watermark back."""

from __future__ import annotations

from datetime import timedelta

from pydantic import field_validator

from sluice.fields import Duration, Strict

__all__ = ["Hold"]


class Hold(Strict):
    """The watermark of a run does not pass the slowest partition, as earlier runs of the epoch left it."""

    idle_after: Duration
    """A partition holds nothing back any more when this long lies between the first batch without a record of it and
    the newest batch."""

    @field_validator("idle_after")
    @classmethod
    def _some(cls, span: timedelta) -> timedelta:
        if span <= timedelta(0):
            raise ValueError("must be longer than nothing: otherwise each partition would be idle at once")
        return span
