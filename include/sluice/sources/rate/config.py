"""The key ``source.rate`` of a pipeline file."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from sluice.fields import Duration
from sluice.sources.base import SourceConfig

__all__ = ["RateSource"]


class RateSource(SourceConfig):
    """Made-up rows that come at a steady rate; the same offset always has the same row."""

    rows_per_second: Annotated[int, Field(gt=0, le=10_000_000)]
    """How many rows come in a second, in all partitions together."""
    partitions: Annotated[int, Field(gt=0, le=1_000)] = 1
    """How many partitions they are divided into."""
    backlog: Duration = timedelta(0)
    """How long the rows have been coming when the first run begins: it finds the rows of so long a time."""

    @property
    def streams(self) -> list[str]:
        """Always ``rate``."""
        return ["rate"]
