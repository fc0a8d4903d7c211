"""What a strategy decides in a live run, and ``replay``, which lies beneath all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

from sluice.errors import OffsetsGoneError, SluiceError
from sluice.ranges import OffsetRange
from sluice.recovery import Recovery
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.sources.base import Records

__all__ = ["Batch", "Held", "Replay", "Strategy"]


@dataclass(frozen=True)
class Batch:
    """A micro-batch that is to be prepared.

    Parameters
    ----------
    name
        Of its folders in the tables.
    ranges
        What it was planned with.
    source
        Where its records can be read again.
    frame
        Its records, as the engine handed them over; None when they are to be read from ``source``.
    """

    name: str
    ranges: tuple[OffsetRange, ...]
    source: Records
    frame: DataFrame | None
    spark: SparkSession


class Held(NamedTuple):
    """A batch's records as a strategy holds them.

    Parameters
    ----------
    shortfall
        Why they are not held as the strategy promises; the run goes on as under ``replay``, and records this.
    """

    frame: DataFrame
    source: Records
    shortfall: str | None = None


class Strategy(Protocol):
    """How a live run recovers. One object serves all runs: it keeps nothing between two calls.

    The route that an epoch's records take, ``recovery.route``, is a strategy's other half: the pipeline model, the
    ledger and the hand-over between epochs need it without Spark.
    """

    @property
    def recovery(self) -> Recovery:
        """Its name in pipeline file, form and ledger."""

    @property
    def headers(self) -> bool:
        """Whether the frames that it holds must have the column ``headers``."""

    def admit(self, gone: OffsetsGoneError) -> None:
        """Accept that planned offsets are gone, before the run reads anything; raise ``gone`` to refuse the run."""

    def hold(self, frame: DataFrame, source: Records) -> AbstractContextManager[Held]:
        """Hold a batch's records for as long as the block lasts."""

    def prepare(self, writer: BatchWriter, batch: Batch) -> PreparedBatch:
        """Write a batch to files and account for each of its offsets. Commits nothing.

        Raises
        ------
        SluiceError
            When it cannot be prepared: the run ends, and the next one reads the same ranges again.
        """


@dataclass(frozen=True)
class Replay:
    """Refuses what is gone; a batch that fails ends the run, and is read again from its logged ranges."""

    recovery: Recovery = Recovery.REPLAY
    headers: bool = False

    def admit(self, gone: OffsetsGoneError) -> None:
        """Refuse the run."""
        raise gone

    def hold(self, frame: DataFrame, source: Records) -> AbstractContextManager[Held]:
        """Hold nothing: the records are read again from the source where they are needed again."""
        return nullcontext(Held(frame, source))

    def prepare(self, writer: BatchWriter, batch: Batch) -> PreparedBatch:
        """Prepare the batch once."""
        try:
            frame = batch.frame if batch.frame is not None else batch.source.read(batch.ranges)
            return writer.prepare(frame, batch.name, batch.ranges, batch.source)
        except SluiceError:
            raise
        except Exception as error:
            raise batch.source.diagnose(error, batch.ranges) from error
