"""The key ``sink.console`` of a pipeline file."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from sluice.sinks.base import SinkConfig, SinkKind

__all__ = ["KIND", "ConsoleSink"]


class ConsoleSink(SinkConfig):
    """The first rows of each batch are printed into the driver's log, for a look."""

    rows: Annotated[int, Field(ge=1, le=1000)] = 20
    """How many rows of a batch are printed."""

    @property
    def location(self) -> str:
        """Where the files of a batch are staged, relative to ``SLUICE_HOME``; each pipeline has its own folder."""
        return "staged/console"

    def location_of(self, pipeline: str) -> str:
        """Where those of a pipeline are."""
        return f"{self.location}/{pipeline}"

    @property
    def shown(self) -> str:
        """The console."""
        return "the driver's log"

    @property
    def keep(self) -> timedelta:
        """How long staged files are kept: until their run is judged."""
        return timedelta(0)


KIND = SinkKind(
    config=ConsoleSink,
    open="sluice_spark.sinks.outward.console:opened",
    transactional=False,
    at_least_once=True,
    outputs=("append", "update", "complete"),
    replaceable=False,
    readable=True,
    whole=False,
)
