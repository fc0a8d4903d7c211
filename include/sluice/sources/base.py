"""What the core asks of a source, whichever it is.

The rule of sources: one whose offsets can be read again is read directly; any other is landed in the write-ahead log
first, which gives it offsets. A range is always ``(stream, partition, [start, end))``. Spark's checkpoint holds a
source's offsets as JSON, ``{stream: {partition: next offset}}``, whatever the source.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from sluice.fields import Strict
from sluice.kinds import imported
from sluice.sources.state import Key, TopicState

__all__ = ["Source", "SourceConfig", "SourceKind"]


class SourceConfig(Strict):
    """What a pipeline file says of its source; each kind of source adds keys of its own."""

    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Where a pipeline that has read nothing yet begins: at the first record, or behind the last one."""
    max_records_per_batch: Annotated[int, Field(gt=0)] = 500_000
    """A batch reads about this many at most, and a crash repeats a batch at most."""

    @property
    def streams(self) -> list[str]:
        """The streams that are read: Kafka's topics, or what a source calls them."""
        raise NotImplementedError

    @property
    def needs(self) -> str | None:
        """The id of the connection that the source needs; a run's driver gets it in its environment."""
        return None


class Source(Protocol):
    """A source, opened: asked before and beside a run, without Spark."""

    def snapshot(self) -> list[TopicState]:
        """Return of each stream where its partitions begin and end now, and what tells it from another one.

        Raises
        ------
        SluiceError
            By type (:class:`~sluice.errors.SourceUnreachableError`, ...) when any of it cannot be known.
        """

    def offsets_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        """Return the first offset whose record is not older than a moment; None where all are older.

        Only asked of a source that is ``seek_by_time``.
        """

    def close(self) -> None:
        """Let go of what it holds."""

    def __enter__(self) -> Source: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True)
class SourceKind:
    """A kind of source: what the key below ``source`` of a pipeline file stands for.

    Parameters
    ----------
    config
        Reads what the file says.
    open
        ``package.module:callable``: given the config it returns the opened :class:`Source`; without Spark.
    reader
        ``package.module:callable``: given the session, the config and the opened source it returns the Spark half, a
        ``sluice_spark.sources.base.SourceReader``.
    replayable
        Whether the records of a range can be read again, and are the same.
    seek_by_time
        Whether offsets can be found by record time; intervals need it.
    retention
        Whether it forgets records by itself, so that offsets below a partition's start were records once.
    notes_start
        Whether Spark's checkpoint holds where the first batch started (``sources/0/0``), as with Spark's own Kafka
        source. For any other the run fixes it in the ledger before its first batch.
    """

    config: type[SourceConfig]
    open: str
    reader: str
    replayable: bool
    seek_by_time: bool
    retention: bool
    notes_start: bool = False

    def opened(self, config: SourceConfig) -> Source:
        """Open a source."""
        source: Source = imported(self.open)(config)
        return source

    def read_with(self, spark: Any, config: SourceConfig, source: Source) -> Any:
        """Return the Spark half of an opened source."""
        return imported(self.reader)(spark, config, source)
