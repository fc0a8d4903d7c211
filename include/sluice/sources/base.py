"""The interface between the core and a source.

The rule of sources: a source whose offsets can be read again is read directly. Any other is first landed in the
write-ahead log, which gives it offsets. A range is always ``(stream, partition, [start, end))``. Spark's checkpoint
holds the offsets of every source as JSON, ``{stream: {partition: next offset}}``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Annotated, Any, Protocol, Self, runtime_checkable

from pydantic import Field

from sluice.connections import Connection
from sluice.fields import Strict
from sluice.home import Home
from sluice.kinds import imported
from sluice.ranges import OffsetRange, Positions
from sluice.sources.begin import Begin
from sluice.sources.measurable import Measurable
from sluice.sources.state import Key, TopicState

__all__ = [
    "Announcing", "CopyError", "Copying", "Matching", "Replaced", "Rewritten", "Source", "SourceConfig", "SourceKind",
]  # fmt: skip


class SourceConfig(Strict):
    """A source's settings in a pipeline file; each kind of source adds keys of its own."""

    starting_offsets: Begin = "earliest"
    """Where a new pipeline begins to read: ``earliest``, at the first record; ``latest``, after the last one;
    ``{by_time: …}``; or ``{TOPIC: {PARTITION: OFFSET}}``, the others at their first record."""
    max_records_per_batch: Annotated[int, Field(gt=0, lt=1 << 63)] | None = None
    """The approximate upper limit of records in a micro-batch.

    By default 500,000. On the Arrow path, as many as earlier runs read in half a minute, at most 5,000,000.

    A crash reprocesses at most one batch.
    """

    @property
    def batch_limit(self) -> int:
        """``max_records_per_batch``, or its default."""
        return self.max_records_per_batch or 500_000

    @property
    def streams(self) -> list[str]:
        """The names of the streams that are read: Kafka's topics, or the source's equivalent."""
        raise NotImplementedError

    @property
    def labels(self) -> list[str]:
        """What is read, for people: the streams, or the pattern that their names match."""
        return self.streams

    def reads(self, stream: str) -> bool:
        """Tell whether a stream of this name is one that is read."""
        return stream in self.streams

    def at(self, positions: Positions | None) -> SourceConfig:
        """Return the settings for an epoch that begins at these positions: of several clusters, one is read."""
        return self

    def prefix_at(self, positions: Positions | None) -> str:
        """Return what the names of an epoch's streams begin with, if there are several clusters."""
        return ""

    def everywhere(self) -> Sequence[SourceConfig]:
        """Return the settings of each cluster, if there are several; else these."""
        return [self]

    def has(self, stream: str) -> bool:
        """Tell whether a stream is one of the cluster of these settings, if there are several."""
        return True

    @property
    def objects(self) -> bool:
        """Whether each record's value is a JSON object that the source makes of typed columns."""
        return False

    @property
    def folders(self) -> list[str]:
        """The folders that the source reads, or moves files into, as the file names them; no table may lie there."""
        return []

    @property
    def needs(self) -> str | None:
        """The id of the connection that the source needs, or None; the driver gets it through its environment."""
        return None

    @property
    def needs_also(self) -> list[str]:
        """The ids of further connections that it needs."""
        return []


class Source(Protocol):
    """An open source, which answers before and during a run, without Spark."""

    notes: Sequence[str] = ()
    """What the last :meth:`snapshot` left out, for the account of the run."""

    def snapshot(self) -> list[TopicState]:
        """Return the id of each stream and the start and end of its partitions now.

        Raises
        ------
        SluiceError
            A subclass (:class:`~sluice.errors.SourceUnreachableError`, ...) if any part of it is unknown.
        """

    def offsets_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        """Return, per partition, the first offset whose timestamp is at or after ``moment``; None if there is none.

        Called only if the source is ``seek_by_time``. ``moment`` has a time zone.
        """

    def missing(self, span: OffsetRange) -> list[OffsetRange]:
        """Return the parts of a range that are gone although :meth:`snapshot` counts them, in their order."""
        return []

    def done(self, positions: Positions) -> None:
        """Let go of the records before these positions, which are in the sink or in the log; best effort."""

    def close(self) -> None:
        """Release connections and threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@runtime_checkable
class Announcing(Protocol):
    """A source whose snapshot may take long, and knows early that there are records to read.

    Attributes
    ----------
    found
        Called then, perhaps more than once; set by who wants to know.
    """

    found: Callable[[], None]


@runtime_checkable
class Replaced(Protocol):
    """A source whose streams others may delete, and make again under the same names, while they are read."""

    def stream_ids(self, streams: Collection[str]) -> Mapping[str, str]:
        """Return the ids of those of these streams that there are now; quickly, since it is asked for each batch.

        Raises
        ------
        SluiceError
            If they are not known.
        """


@runtime_checkable
class Rewritten(Protocol):
    """A source whose streams may be put back to an earlier state, and go on from there with other records."""

    def ends_of_epochs(self, seen: Mapping[Key, tuple[int, int]]) -> dict[Key, int]:
        """Return up to where streams still have the records that they had, as far as that is known.

        Parameters
        ----------
        seen
            The epoch of a stream, as :attr:`~sluice.sources.state.PartitionState.epoch` was, and its end then.
        """


@runtime_checkable
class Numbering(Protocol):
    """A source that gives its records their offsets, and keeps which ones in the home."""

    def recorded(self) -> list[TopicState]:
        """Return the streams as they are on record, without looking for new records, which would get offsets."""


class CopyError(Exception):
    """Positions could not be copied; it says why."""


@runtime_checkable
class Copying(Protocol):
    """A source that can copy positions into a consumer group, for tools that only know groups. Never read back."""

    def copy(self, group: str, positions: Positions, note: str) -> int:
        """Commit positions under a group that has no members; return how many partitions were written.

        Parameters
        ----------
        note
            Kept beside each position, up to 4096 bytes.

        Raises
        ------
        CopyError
            If the source refuses or does not answer, or if the group has members.
        """


@runtime_checkable
class Matching(Protocol):
    """A source that may read all streams whose names match a pattern."""

    def deleted(self, topics: Collection[str]) -> list[str]:
        """Return which of these streams the pattern would match, but are no longer there; none without a pattern.

        Raises
        ------
        SourceUnreachableError, AuthorizationError
            If that is not known of one of them.
        """


@dataclass(frozen=True)
class SourceKind:
    """A kind of source, selected by a key below ``source`` of a pipeline file.

    Parameters
    ----------
    config
        The model of that key.
    open
        ``package.module:callable``, which takes the config, the :class:`~sluice.home.Home` and the name of the
        pipeline, and returns an open :class:`Source`, without Spark.
    reader
        ``package.module:callable``, which takes the session, the config and the open source and returns a
        ``sluice_spark.sources.base.SourceReader``.
    replayable
        Whether a range can be read again and yields the same records.
    seek_by_time
        Whether offsets can be found by record time; intervals need it.
    retention
        Whether the source removes records by itself, so that offsets below a partition's start may have been records.
    by_range
        Whether Spark's Python workers can read its ranges by themselves (``sluice_spark.sources.inputs``). The Arrow
        path needs it.
    notes_start
        Whether Spark's checkpoint records where the first batch started (``sources/0/0``), as with Spark's own Kafka
        source. For any other source the run records it in the ledger before its first batch.
    measured
        ``package.module:callable``, which takes a connection and seconds and returns a
        :class:`~sluice.sources.measurable.Measurable`; None if there is no lag to be measured.
    """

    config: type[SourceConfig]
    open: str
    reader: str
    replayable: bool
    seek_by_time: bool
    retention: bool
    by_range: bool = False
    notes_start: bool = False
    messages: bool = False
    measured: str | None = None

    def opened(self, config: SourceConfig, home: Home, pipeline: str) -> Source:
        """Open the source of a pipeline."""
        source: Source = imported(self.open)(config, home, pipeline)
        return source

    def cluster(self, connection: Connection, *, timeout: float = 20.0) -> Measurable:
        """Return the cluster of a connection, if there is a lag to be measured; nothing is sent to it yet.

        Raises
        ------
        ConfigError
            If it is not a connection to such a cluster.
        """
        assert self.measured is not None
        opened: Measurable = imported(self.measured)(connection, timeout)
        return opened

    def read_with(self, spark: Any, config: SourceConfig, source: Source) -> Any:
        """Return the Spark half of an open source."""
        return imported(self.reader)(spark, config, source)
