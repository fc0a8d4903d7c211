"""The key ``sink.foreach`` of a pipeline file, and what its writers get."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Protocol

from pydantic import Field

from sluice.fields import Duration
from sluice.sinks.base import SinkConfig, SinkKind

__all__ = ["KIND", "Batch", "ForeachSink", "Writer"]


@dataclass(frozen=True)
class Batch:
    """A batch, as a writer gets it: the same in each attempt, and of no other batch of any pipeline.

    Attributes
    ----------
    epoch
        The number of the epoch; ``redriven`` for redrives, which count their batches apart.
    number
        The number of the batch in the epoch, from 0.
    run
        The run that sends it; another run may send it again.
    """

    pipeline: str
    epoch: str
    number: int
    run: str

    def __str__(self) -> str:
        """Return pipeline, epoch and number: an id that is the same in each attempt."""
        return f"{self.pipeline}:{self.epoch}:{self.number}"


class Writer(Protocol):
    """What ``package.module:Writer`` makes, without arguments, for each source partition of each batch."""

    def open(self, partition: str, batch: Batch) -> bool | None:
        """Begin. False skips the rows, since they are known to be there.

        Parameters
        ----------
        partition
            ``STREAM-PARTITION`` that the rows come from; empty for ``rows: aggregate``.
        """

    def process(self, row: dict[str, Any]) -> None:
        """Take one row, with ``_topic``, ``_partition`` and ``_offset``, in the order of the offsets."""

    def close(self, error: BaseException | None) -> None:
        """End; called whenever :meth:`open` was called. What it raises counts as a failure, too."""


class ForeachSink(SinkConfig):
    """An object of yours takes the rows, at least once."""

    python: Annotated[str, Field(min_length=1)]
    """``package.module:Writer``; a checkout's ``include/`` is on the path."""
    connection: str | None = None
    """The id of an Airflow connection that the writer needs; it finds it in ``AIRFLOW_CONN_<ID>``."""
    keep: Duration = timedelta(days=1)
    """How long the staged files of judged runs are kept, so that such a run can be validated again."""

    @property
    def location(self) -> str:
        """Where the files of a batch are staged, relative to ``SLUICE_HOME``; each pipeline has its own folder."""
        return "staged/foreach"

    def location_of(self, pipeline: str) -> str:
        """Where those of a pipeline are."""
        return f"{self.location}/{pipeline}"

    @property
    def shown(self) -> str:
        """The writer."""
        return self.python

    @property
    def needs(self) -> str | None:
        """The writer's connection."""
        return self.connection


KIND = SinkKind(
    config=ForeachSink,
    open="sluice_spark.sinks.outward.foreach:opened",
    transactional=False,
    at_least_once=True,
    outputs=("append", "update", "complete"),
    replaceable=False,
    readable=True,
    whole=False,
)
