"""Topics of a Kafka cluster as a :class:`~sluice.sources.base.Source`."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from types import TracebackType

from sluice.connections import find
from sluice.home import Home
from sluice.ranges import Positions
from sluice.sources.base import SourceKind
from sluice.sources.kafka.cluster import Cluster
from sluice.sources.kafka.config import KafkaSource
from sluice.sources.kafka.settings import KafkaSettings
from sluice.sources.state import Key, TopicState

__all__ = ["KIND", "KafkaTopics"]


class KafkaTopics:
    """The topics of a pipeline, with its isolation level."""

    notes = ()

    def __init__(self, config: KafkaSource, home: Home, pipeline: str) -> None:
        self.config = config
        self.cluster = Cluster(KafkaSettings.from_connection(find(config.connection)))

    def snapshot(self) -> list[TopicState]:
        """Return the state of each topic: :meth:`Cluster.snapshot <sluice.sources.kafka.Cluster.snapshot>`."""
        return self.cluster.snapshot(self.config.topics, isolation_level=self.config.isolation_level)

    def offsets_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        """Return the first offset at or after ``moment``; partitions that do not answer are missing."""
        return self.cluster.at_time(keys, moment, isolation_level=self.config.isolation_level)

    def done(self, positions: Positions) -> None:
        """Do nothing: topics have a retention of their own."""

    def close(self) -> None:
        """Close the client."""
        self.cluster.close()

    def __enter__(self) -> KafkaTopics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


KIND = SourceKind(
    config=KafkaSource,
    open="sluice.sources.kafka.source:KafkaTopics",
    reader="sluice_spark.sources.kafka:KafkaReader",
    replayable=True,
    seek_by_time=True,
    retention=True,
    by_range=True,
    notes_start=True,
)
