"""The key ``dedupe`` of a pipeline file: of records with the same keys, only the first goes into the sink."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field, model_validator

from sluice.fields import Duration
from sluice.pipeline.hold import Hold
from sluice.pipeline.operator import OperatorKind, StateOperator

__all__ = ["KIND", "Dedupe"]


class Dedupe(StateOperator):
    """Duplicates, by event time. Spark's checkpoint keeps the keys that may come again from run to run."""

    key = "dedupe"
    said = "dedupe"
    holding = "remembers keys"
    unredrivable = "has dedupe: a record that is redriven would have to be compared with keys that live runs remember"
    combines = False
    unretractable = "has dedupe: its keys are remembered, so rows that are taken back would not come again"
    counted = "{keys:,} keys are remembered"
    ends = "A key is forgotten when the watermark has reached its event time and dedupe.within"
    begins = "the keys of earlier records are forgotten: a duplicate of one of them is written"

    keys: Annotated[tuple[str, ...], Field(min_length=1)]
    """Columns of the transform's result: records with the same values in all of them are duplicates."""
    time: Annotated[str, Field(min_length=1)] = "_timestamp"
    """The column of the transform's result that has the event time, a TIMESTAMP; by default the record's own time."""
    within: Duration
    """For how much event time a key is remembered, at least. Records older than that are late, and are dropped."""
    ahead: Duration = timedelta(days=1)
    """A record whose event time is later than its batch's time by more than this goes to the quarantine."""
    hold: Hold | None = None
    """Whether partitions that are behind hold the watermark back; by default it follows the latest record of any."""

    @model_validator(mode="after")
    def _sound(self) -> Dedupe:
        if self.within <= timedelta(0):
            raise ValueError("dedupe.within must be longer than nothing")
        lowered = [name.lower() for name in self.keys]
        if doubled := [name for name in self.keys if lowered.count(name.lower()) > 1]:
            raise ValueError(f"dedupe.keys: {doubled[0]} appears twice")
        return self

    @property
    def grouping(self) -> tuple[str, ...]:
        """``keys``."""
        return self.keys

    @property
    def delay(self) -> timedelta:
        """How far the watermark is behind the latest event time: ``within``."""
        return self.within

    @property
    def kept(self) -> timedelta:
        """For how much event time a key is to be kept, at most: the watermark is ``within`` behind, too."""
        return 2 * self.within

    @property
    def definition(self) -> dict[str, Any]:
        """What may not change while keys are remembered: those of other columns would be mixed with these."""
        return {"keys": list(self.keys), "time": self.time}


KIND = OperatorKind(
    Dedupe,
    "sluice_spark.batch.dedupe:DedupeWriter",
    "sluice_spark.windows.duplicates:check",
    "sluice_spark.windows.state:remembered_keys",
)
