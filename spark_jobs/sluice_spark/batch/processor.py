"""One batch of a pipeline with a processor: write the rows that it yields, and say which records came too late."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.pipeline.processor import Processor
from sluice_spark.batch.stateful import Opening, Seen, StatefulWriter
from sluice_spark.batch.writer import PreparedBatch
from sluice_spark.windows import processors
from sluice_spark.windows.checks import timed

__all__ = ["ProcessorWriter"]


@dataclass(frozen=True)
class ProcessorWriter(StatefulWriter):
    """Prepares and commits the batches of a pipeline with a processor. It emits the rows that the processor yields.

    Parameters
    ----------
    former_to
        The watermark of the epochs before this one, in milliseconds since 1970: what was late for them stays late.
        None if there is none.
    """

    former_to: int | None = None

    @property
    def processor(self) -> Processor:
        """The pipeline's processor."""
        assert self.pipeline.processor is not None
        return self.pipeline.processor

    @property
    def time(self) -> str:
        """The column with the event time."""
        return self.processor.time

    def opened(self, opening: Opening) -> Self:
        """Return the writer for which what was late for earlier epochs stays late."""
        return replace(self, former_to=opening.former_to(self.pipeline))

    def emit(self, records: DataFrame) -> DataFrame:
        """Return the stream of the processor's rows, from the stream of records."""
        rows = self.transformed(self.decoded(records))
        sound = rows.where(self.strange(F.current_timestamp()).isNull())
        if self.former_to is not None:
            sound = sound.where(~processors.late(self.processor, self.former_to))
        made = processors.processor_of(self.pipeline, self.processor)
        return processors.processed(sound, self.processor, made, self.held_to)

    def strange(self, now: Column) -> Column:
        """Return the rule that a row's event time breaks."""
        return timed(self.time, self.processor.ahead, now)

    def late(self) -> Column:
        """Return whether a row was late."""
        return processors.late(self.processor, self.clock.late)

    def former(self) -> Column:
        """Return whether a row was late for an earlier epoch, and is not for this one."""
        if self.former_to is None:
            return F.lit(False)
        return processors.late(self.processor, self.former_to) & ~self.late()

    def account(self, prepared: PreparedBatch, seen: Seen) -> PreparedBatch:
        """Count late records as filtered: the processor did not get them."""
        return self.moved(prepared, seen, former_to=self.former_to, operator="processor")
