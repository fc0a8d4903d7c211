"""The key ``processor`` of a pipeline file: stateful logic of one's own, over as many runs as its state is kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from sluice.decoders.config import Ddl
from sluice.decoders.ddl import check_ddl
from sluice.fields import Duration, Strict
from sluice.pipeline.hold import Hold
from sluice.pipeline.operator import OperatorKind, StateOperator

__all__ = ["KIND", "Processor", "TimerFlush"]


class TimerFlush(Strict):
    """What fires the last timers of a stream that has ended, or rests."""

    after: Duration
    """A run fires all timers if no batch has read records for this long. Later records up to the last one are late."""


class Processor(StateOperator):
    """A ``StatefulProcessor`` of PySpark's, by event time. Spark's checkpoint keeps its state from run to run."""

    key = "processor"
    said = "a processor"
    holding = "has state of a processor"
    unredrivable = "has a processor: a record that is redriven would have to be given to the state that live runs keep"
    moving = ("hold", "flush")
    measures = False
    counted = "the processor keeps state or timers of {keys:,} keys"
    ends = "A timer fires in the batch that follows one which has moved the watermark to its time"
    dropped = (
        "what the processor keeps is dropped: what it had absorbed counts as written, and rows that it had not yielded "
        "yet do not come. --truncate with an earlier --from writes all rows again"
    )
    begins = (
        "rows that were written stay as they are: records that are late by the watermark so far count as filtered in "
        "the new epoch, too"
    )

    python: Annotated[str, Field(min_length=1)]
    """``package.module:Class``, a ``pyspark.sql.streaming.StatefulProcessor`` that takes and yields rows; a checkout's
    ``include/`` is on the path."""
    by: Annotated[tuple[str, ...], Field(min_length=1)]
    """Columns of the transform's result: each combination of their values has state and timers of its own."""
    time: Annotated[str, Field(min_length=1)]
    """The column of the transform's result that has the event time: a TIMESTAMP."""
    watermark: Duration
    """How late a record may be: the watermark is the latest event time of earlier batches, less this."""
    ddl: Annotated[Ddl, Field(alias="schema")]
    """The columns of the rows that the class yields, as DDL; the sink gets these."""
    ahead: Duration = timedelta(days=1)
    """A record whose event time is later than its batch's time by more than this goes to the quarantine."""
    hold: Hold | None = None
    """Whether partitions that are behind hold the watermark back; by default it follows the latest record of any."""
    flush: TimerFlush | None = None
    """When timers fire to which no later record moves the watermark; by default never."""

    @field_validator("python")
    @classmethod
    def _class(cls, target: str) -> str:
        from sluice.pipeline.targets import check_function

        check_function(target, classes=True)
        return target

    @model_validator(mode="after")
    def _sound(self) -> Processor:
        lowered = [name.lower() for name in self.by]
        if doubled := [name for name in self.by if lowered.count(name.lower()) > 1]:
            raise ValueError(f"processor.by: {doubled[0]} appears twice")
        return self

    @property
    def columns(self) -> list[str]:
        """The sink's columns, without ``_run``."""
        return check_ddl(self.ddl)

    @property
    def grouping(self) -> tuple[str, ...]:
        """``by``."""
        return self.by

    @property
    def delay(self) -> timedelta:
        """How far the watermark is behind the latest event time: ``watermark``."""
        return self.watermark

    @property
    def kept(self) -> None:
        """For how much event time state is to be kept: that is up to the class."""

    @property
    def definition(self) -> dict[str, Any]:
        """What may not change while there is state: it is of this class and these keys. Spark compares its columns."""
        return {"python": self.python, "by": list(self.by), "time": self.time}


KIND = OperatorKind(
    Processor,
    "sluice_spark.batch.processor:ProcessorWriter",
    "sluice_spark.windows.processors:check",
    "sluice_spark.windows.state:held_keys",
    "sluice_spark.windows.state:of_processor",
    flush="sluice_spark.runs.flush:fire_timers",
)
