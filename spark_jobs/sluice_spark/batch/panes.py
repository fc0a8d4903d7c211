"""One batch of a pipeline whose sliding windows are made of panes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.errors import CheckpointError, begin_again
from sluice.pipeline import Pipeline
from sluice.run.checkpoint import Checkpoint
from sluice_spark.batch.stateful import Opening, way_on
from sluice_spark.batch.windows import WindowWriter
from sluice_spark.engine.logs import logger
from sluice_spark.windows.decomposition import Decomposed, NotDecomposedError, decompose
from sluice_spark.windows.panes import StrangeStateError, ends_to_emit, kept, panes_of, windows_from
from sluice_spark.windows.state import PaneSpans

__all__ = ["PaneWriter", "in_its_way"]


@dataclass(frozen=True)
class PaneWriter(WindowWriter):
    """Prepares and commits batches of which Spark passes the panes that they change.

    What windows a batch closes, and what is in them, follows from the state of the batch before, from the records, and
    from the times of the batch: a batch that is repeated writes the same.

    Parameters
    ----------
    how
        How windows are made of panes.
    state
        The checkpoint, and the batch before; None for the first batch.
    """

    how: Decomposed = field(default_factory=lambda: Decomposed((), ()))
    state: tuple[str, int] | None = None

    @classmethod
    def of(cls, writer: WindowWriter, how: Decomposed) -> Self:
        """Return the writer of windows that are made of panes, from that of Spark's own windows."""
        same = {f.name: getattr(writer, f.name) for f in fields(WindowWriter)}
        return cls(**same, how=how)

    def at(self, checkpoint: Checkpoint, number: int) -> Self:
        """Return the writer of a batch."""
        state = (checkpoint.path, number - 1) if number > 0 else None
        return replace(super().at(checkpoint, number), state=state)

    def emit(self, records: DataFrame) -> DataFrame:
        """Return the stream of changed panes, from the stream of records."""
        rows = self.transformed(self.decoded(records))
        # in a stream, Spark puts the time there with which it planned the batch
        sound = rows.where(self.strange(F.current_timestamp()).isNull())
        return panes_of(sound, self.window, self.how, self.held_to)

    @property
    def output(self) -> str:
        """Spark's output mode: it passes what a batch changes, and keeps what it may still need."""
        return "update"

    @property
    def types(self) -> dict[str, str]:
        """None: the types of panes are compared by themselves."""
        return {}

    def live(self, read: int, stored: int) -> int:
        """Return how many bytes windows would have: a pane is counted in each of its windows."""
        return read * (self.window.length // self.window.step)

    def panes(self, watermark: int) -> PaneSpans:
        """Return how the state's panes lie."""
        size, step = (round(span.total_seconds() * 1000) for span in (self.window.length, self.window.step))
        return PaneSpans(size, step, watermark)

    def to_rows(self, records: DataFrame) -> DataFrame:
        """Return the windows that the batch closes, changes or has, from the panes that it changes."""
        spark = records.sparkSession
        ends = ends_to_emit(self.window, max(self.clock.late, self.former_to or 0), self.clock.closing)
        if ends is None:
            # no window is closed, but Spark makes its state only of a frame that is consumed
            records.write.format("noop").mode("overwrite").save()
            columns = [f for f in self.schema.fields if f.name != "_run"]
            return spark.createDataFrame([], type(self.schema)(columns))
        return windows_from(records, self._before(spark), self.window, self.how, ends, self.schema)

    def _before(self, spark: SparkSession) -> Any:
        if self.state is None:
            return None
        try:
            return kept(spark, *self.state, self.window, self.how)
        except StrangeStateError as error:
            raise CheckpointError(
                f"pipeline {self.pipeline.name!r}: the panes in {self.state[0]} are not those of the pipeline file: "
                f"{error}",
                state="nothing of this batch was written; what is kept between runs is in the checkpoint as it was",
                next_step=f"undo the last change in {self.pipeline.file.name}; or drop what is kept: "
                f"{begin_again(self.pipeline.name)}",
            ) from error


def in_its_way(writer: WindowWriter, opening: Opening) -> WindowWriter:
    """Return the writer that makes windows as this epoch began to; a new epoch takes panes if they do.

    Raises
    ------
    CheckpointError
        If the epoch keeps panes, and the pipeline file asks for others.
    """
    pipeline, checkpoint = writer.pipeline, opening.checkpoint
    begun = bool(checkpoint.planned())
    noted = checkpoint.panes() if begun else None
    if begun and noted is None:
        return writer
    # what was begun in panes goes on in them
    window = writer.window.model_copy(update={"panes": "auto"}) if begun else writer.window
    try:
        how = decompose(opening.spark, window, writer.taken)
    except NotDecomposedError as why:
        if not begun:
            logger.info("windows are Spark's own: %s", why)
            checkpoint.note_panes(None)
            return writer
        raise _other_panes(pipeline, opening.epoch, str(why)) from why
    if begun and noted != how.as_dict():
        raise _other_panes(
            pipeline, opening.epoch, f"it has {_listed(noted)}, and the pipeline file needs {_listed(how.as_dict())}"
        )
    if not begun:
        checkpoint.note_panes(how.as_dict())
        logger.info("windows are made of %d panes each", window.length // window.step)
    return PaneWriter.of(writer, how)


def _listed(panes: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{function} {kind.upper()}" for function, kind in (panes or {}).get("parts", ()))


def _other_panes(pipeline: Pipeline, epoch: int, what: str) -> CheckpointError:
    return CheckpointError(
        f"pipeline {pipeline.name!r}: epoch {epoch} keeps panes of its windows that do not fit: {what}",
        state="nothing was read or written; what is kept between runs is in the checkpoint as it was",
        next_step=f"undo it in {pipeline.file.name}, or cast the column in the transform; or {way_on(pipeline)}",
    )
