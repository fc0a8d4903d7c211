"""What a strategy decides in a live run, and ``replay``, on which the other strategies build."""

from __future__ import annotations

from collections.abc import Callable
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
    """A micro-batch to prepare.

    Parameters
    ----------
    name
        The name of its folders in the tables.
    ranges
        Its planned ranges.
    source
        Reads its records again.
    frame
        Its records, as the engine passed them; None if they have to be read from ``source``.
    """

    name: str
    ranges: tuple[OffsetRange, ...]
    source: Records
    frame: DataFrame | None
    spark: SparkSession


class Held(NamedTuple):
    """A batch's records, as a strategy holds them; the frame is None if they have to be read from ``source``."""

    frame: DataFrame | None
    source: Records


class Strategy(Protocol):
    """How a live run recovers. One object serves all runs and keeps no state between calls.

    A strategy also has a route, ``recovery.route``. It is defined apart from this protocol, because the pipeline
    model, the ledger and the hand-over between epochs need it without Spark.
    """

    @property
    def recovery(self) -> Recovery:
        """Its name in the pipeline file, the trigger form and the ledger."""

    @property
    def headers(self) -> bool:
        """Whether the frames to hold need the column ``headers``."""

    def admit(self, gone: OffsetsGoneError) -> None:
        """Accept that planned offsets are gone, before the run reads anything; raise ``gone`` to refuse the run."""

    def hold(
        self, frame: DataFrame, source: Records, tell: Callable[[str], None], *, later: bool
    ) -> AbstractContextManager[Held]:
        """Hold a batch's records until the block ends.

        Parameters
        ----------
        tell
            Called with the reason if they are not held as the strategy promises. The run then continues as under
            ``replay``.
        later
            Whether to hold only those that Spark reads: the Arrow path takes the others.
        """

    def hold_when_read(
        self, spark: SparkSession, source: Records, tell: Callable[[str], None]
    ) -> AbstractContextManager[Records]:
        """Return the source until the block ends, such that it holds what Spark reads; ``tell`` as for :meth:`hold`."""

    def hold_emitted(
        self, emitted: DataFrame, source: Records, tell: Callable[[str], None]
    ) -> AbstractContextManager[Held]:
        """Hold what a stateful operator emitted of a batch, and the batch's records once they are read to be counted.

        Parameters
        ----------
        emitted
            The frame that Spark passed. It is used once, as a whole, also by holding it.
        tell
            As for :meth:`hold`.
        """

    def prepare(self, writer: BatchWriter, batch: Batch) -> PreparedBatch:
        """Write a batch to files and account for each of its offsets. Commits nothing.

        Raises
        ------
        SluiceError
            If it cannot be prepared. The run ends, and the next run reads the same ranges again.
        """


@dataclass(frozen=True)
class Replay:
    """Refuses offsets that are gone. A batch that fails ends the run; the next run reads its logged ranges again."""

    recovery: Recovery = Recovery.REPLAY
    headers: bool = False

    def admit(self, gone: OffsetsGoneError) -> None:
        """Refuse the run."""
        raise gone

    def hold(
        self, frame: DataFrame, source: Records, tell: Callable[[str], None], *, later: bool
    ) -> AbstractContextManager[Held]:
        """Hold nothing: records that are needed again are read from the source."""
        return nullcontext(Held(frame, source))

    def hold_when_read(
        self, spark: SparkSession, source: Records, tell: Callable[[str], None]
    ) -> AbstractContextManager[Records]:
        """Hold nothing: records are read again from the source."""
        return nullcontext(source)

    def hold_emitted(
        self, emitted: DataFrame, source: Records, tell: Callable[[str], None]
    ) -> AbstractContextManager[Held]:
        """Hold nothing: if it is lost, Spark makes it again from the records and from the state of the batch before."""
        return nullcontext(Held(emitted, source))

    def prepare(self, writer: BatchWriter, batch: Batch) -> PreparedBatch:
        """Prepare the batch once."""
        try:
            return writer.prepare(batch.frame, batch.name, batch.ranges, batch.source)
        except SluiceError:
            raise
        except Exception as error:
            writer.lookups.refuse_gone()
            raise batch.source.diagnose(error, batch.ranges) from error
