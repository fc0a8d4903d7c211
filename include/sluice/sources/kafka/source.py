"""Topics of a Kafka cluster as a :class:`~sluice.sources.base.Source`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property

from sluice.connections import find
from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ranges import Positions
from sluice.sources.base import Source, SourceKind
from sluice.sources.clusters import bare, bare_positions, named
from sluice.sources.kafka.cluster import cluster_of
from sluice.sources.kafka.config import KafkaSource
from sluice.sources.kafka.mirror import mirror
from sluice.sources.state import Key, TopicState

__all__ = ["KIND", "KafkaTopics"]


class KafkaTopics(Source):
    """The topics of a pipeline, with its isolation level."""

    notes = ()

    def __init__(self, config: KafkaSource, home: Home, pipeline: str) -> None:
        self.config = config
        self.cluster = cluster_of(find(config.active))

    @cached_property
    def topics(self) -> list[str]:
        """The topics, as the file names them or as its pattern matched them at the first question.

        A topic that appears later belongs to the next run.
        """
        return self.cluster.topics_of(self.config)

    def snapshot(self) -> list[TopicState]:
        """Return the state of each topic: :meth:`Cluster.snapshot <sluice.sources.kafka.Cluster.snapshot>`.

        Topics that a pattern matched, and that were deleted since, are missing.
        """
        try:
            found = self.cluster.snapshot(self.topics, isolation_level=self.config.isolation_level)
            return [replace(state, topic=named(self.config.prefix, state.topic)) for state in found]
        except ConfigError:
            there = self.cluster.existing(self.topics) if self.config.pattern is not None else set[str]()
            if not there:
                raise
            return self.cluster.snapshot(there, isolation_level=self.config.isolation_level)

    def states_of(self, topics: Iterable[str]) -> list[TopicState]:
        """Return the state of those of these topics that there are, whether the file still names them or not.

        Raises
        ------
        SourceUnreachableError, AuthorizationError
            If that is not known of one of them.
        """
        there = self.cluster.existing(map(bare, topics))
        found = self.cluster.snapshot(sorted(there), isolation_level=self.config.isolation_level) if there else []
        return [replace(state, topic=named(self.config.prefix, state.topic)) for state in found]

    def stream_ids(self, streams: Collection[str]) -> dict[str, str]:
        """Return the ids of these topics now; those that are gone, or have none, are missing.

        Raises
        ------
        SourceUnreachableError, AuthorizationError
            If no broker answers.
        """
        found = self.cluster.ids(map(bare, streams))
        return {named(self.config.prefix, topic): own for topic, own in found.items()}

    def ends_of_epochs(self, seen: Mapping[Key, tuple[int, int]]) -> dict[Key, int]:
        """Return where the records of leader epochs end: :meth:`Cluster.ends_of_epochs`; of topics of this cluster."""
        own = {(bare(t), p): epoch for (t, p), (epoch, _) in seen.items() if named(self.config.prefix, bare(t)) == t}
        found = self.cluster.ends_of_epochs(own)
        return {(named(self.config.prefix, topic), partition): end for (topic, partition), end in found.items()}

    def deleted(self, topics: Iterable[str]) -> list[str]:
        """Return which of these topics a pattern would match, but are no longer there; none without a pattern.

        Raises
        ------
        SourceUnreachableError, AuthorizationError
            If that is not known of one of them.
        """
        if self.config.pattern is None:
            return []
        ours = self.config.matching(topics)
        return sorted(set(ours) - self.cluster.existing(ours))

    def copy(self, group: str, positions: Positions, note: str) -> int:
        """Copy positions into a consumer group: :func:`~sluice.sources.kafka.mirror.mirror`."""
        return mirror(self.cluster.settings, group, bare_positions(positions), note)

    def offsets_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        """Return the first offset at or after ``moment``; partitions that do not answer are missing."""
        asked = [(bare(stream), partition) for stream, partition in keys]
        found = self.cluster.at_time(asked, moment, isolation_level=self.config.isolation_level)
        return {(named(self.config.prefix, topic), partition): at for (topic, partition), at in found.items()}

    def done(self, positions: Positions) -> None:
        """Do nothing: topics have a retention of their own."""

    def close(self) -> None:
        """Close the client."""
        self.cluster.close()


KIND = SourceKind(
    config=KafkaSource,
    open="sluice.sources.kafka.source:KafkaTopics",
    reader="sluice_spark.sources.kafka:KafkaReader",
    replayable=True,
    seek_by_time=True,
    retention=True,
    by_range=True,
    notes_start=True,
    messages=True,
    measured="sluice.sources.kafka.cluster:cluster_of",
)
