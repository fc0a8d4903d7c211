"""The key ``source.kafka`` of a pipeline file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from sluice.errors import ConfigError
from sluice.ranges import Positions
from sluice.sources.base import SourceConfig
from sluice.sources.clusters import active_of, named, origin_pattern, prefix_of
from sluice.sources.kafka.pattern import matches, problem_of

__all__ = ["KafkaSource"]

_TOPIC = re.compile(r"^[A-Za-z0-9._-]{1,249}$")
_CONNECTION = re.compile(r"^[A-Za-z0-9._-]{1,250}$")
_LONGEST = 249
"""The ledger's limit of the name of a stream."""


class KafkaSource(SourceConfig):
    """Topics of a Kafka cluster."""

    connection: str = "kafka_default"
    """The id of an Airflow connection; outside Airflow it is read from ``AIRFLOW_CONN_<ID>``."""
    clusters: Annotated[list[str], Field(min_length=2)] | None = None
    """Instead of ``connection``: the ids of the connections to several clusters that mirror each other.

    A pipeline begins with the first one; ``sluice failover`` goes on with another one.
    """
    origin_header: Annotated[str, Field(min_length=1)] | None = None
    """Beside ``clusters``: the header in which a mirror says where a record came from, ``STREAM:PARTITION:OFFSET``."""
    origin_required: bool = False
    """Whether a record of another cluster than the first one must have it; without it goes to the quarantine."""
    topics: Annotated[list[str], Field(min_length=1)] | None = None
    """Topic names; exactly one of ``topics`` and ``pattern``. Partitions added later are read from their beginning."""
    pattern: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """A regular expression (RE2) that a topic's whole name must match, such as ``orders\\..*``.

    Each run asks the cluster for the topics at its start. Topics that appear later are read from offset 0.
    """
    exclude: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """Beside ``pattern``: topics whose whole name this expression matches are not read."""
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    """Kafka's isolation level: whether records of aborted transactions are read; markers count as ``absent``."""

    _written: frozenset[str] = PrivateAttr(default=frozenset())
    _active: str | None = PrivateAttr(default=None)

    @field_validator("topics")
    @classmethod
    def _topics(cls, topics: list[str] | None) -> list[str] | None:
        if topics is None:
            raise ValueError("name one or more topics, or write pattern instead")
        for topic in topics:
            if not _TOPIC.match(topic):
                raise ValueError(f"{topic!r} is not a Kafka topic name")
        if len(set(topics)) < len(topics):
            raise ValueError("a topic is named twice")
        return topics

    @field_validator("clusters")
    @classmethod
    def _clusters(cls, clusters: list[str] | None) -> list[str] | None:
        if clusters is None:
            raise ValueError("name the connections of two or more clusters, or write connection instead")
        if len(set(clusters)) < len(clusters):
            raise ValueError("a cluster is named twice")
        for name in clusters:
            if not _CONNECTION.match(name):
                raise ValueError(f"{name!r} is no id of a connection: use letters, digits, _, - and .")
        return clusters

    @field_validator("pattern", "exclude")
    @classmethod
    def _expression(cls, pattern: str | None) -> str | None:
        if pattern is None:
            raise ValueError("write a regular expression, or leave it out")
        if problem := problem_of(pattern):
            raise ValueError(problem)
        return pattern

    @model_validator(mode="after")
    def _begins(self) -> KafkaSource:
        named = self.starting_offsets if isinstance(self.starting_offsets, dict) else {}
        if self.topics is not None and (unknown := sorted(set(named) - set(self.topics))):
            raise ValueError(f"starting_offsets: {unknown[0]!r} is not one of topics")
        return self

    @model_validator(mode="after")
    def _either(self) -> KafkaSource:
        if (self.topics is None) == (self.pattern is None):
            told = "topics or pattern is missing" if self.topics is None else "topics and pattern are both given"
            raise ValueError(f"{told}: name the topics, or give the pattern that their names match")
        if self.exclude is not None and self.pattern is None:
            raise ValueError("exclude is for pattern: leave it out, and name the topics that are to be read")
        return self

    @model_validator(mode="after")
    def _mirrored(self) -> KafkaSource:
        if self.clusters is None:
            for key in ("origin_header", "origin_required"):
                if key in self.model_fields_set:
                    raise ValueError(f"{key} is for clusters: leave it out, or name the clusters")
            return self
        if "connection" in self.model_fields_set:
            raise ValueError("connection and clusters are both given: the first of clusters is where a pipeline begins")
        if self.pattern is not None:
            raise ValueError("clusters beside pattern is not supported: name the topics")
        if self.origin_header is None:
            raise ValueError(
                "clusters needs origin_header: without it a mirrored record cannot be told from a new one, and each "
                "would be in the table twice. MirrorMaker 2 adds no such header by itself"
            )
        for stream in (named(self.prefix_of(name), topic) for name in self.clusters for topic in self.topics or ()):
            if len(stream) > _LONGEST:
                raise ValueError(
                    f"{stream!r} is too long: a connection and a topic have {_LONGEST - 1} letters at most"
                )
        return self

    def prefix_of(self, connection: str) -> str:
        """Return what the names of a cluster's streams begin with: nothing for the first one."""
        return prefix_of(connection, self.clusters or ())

    def on(self, prefix: str) -> KafkaSource:
        """Return the same topics in the cluster whose streams' names begin so.

        Raises
        ------
        ConfigError
            If the file does not name that cluster.
        """
        if self.clusters is None and not prefix:
            return self
        wanted = prefix.rstrip(":") or (self.clusters or [""])[0]
        if wanted not in (self.clusters or ()):
            raise ConfigError(
                f"the pipeline reads the cluster {wanted!r}, which source.kafka.clusters no longer names",
                state="nothing was read or written; the position stays where it was",
                next_step="name it there again; sluice failover NAME --to CONNECTION leaves it",
            )
        found = self.model_copy()
        found._active = wanted
        return found

    def at(self, positions: Positions | None) -> KafkaSource:
        """Return the same topics in the cluster that an epoch with these positions reads; see :meth:`on`."""
        return self.on(active_of(positions))

    def prefix_at(self, positions: Positions | None) -> str:
        """Return ``CONNECTION:`` of the cluster that the epoch reads; nothing for the first one."""
        return active_of(positions)

    def everywhere(self) -> list[KafkaSource]:
        """Return the same topics in each of the clusters."""
        return [self.on(self.prefix_of(name)) for name in self.clusters or [self.connection]]

    def has(self, stream: str) -> bool:
        """Tell whether a stream is one of the cluster that is read."""
        return active_of({stream: {}}) == self.prefix

    @property
    def active(self) -> str:
        """The connection of the cluster that is read: the first one, unless :meth:`on` chose another one."""
        return self._active or (self.clusters[0] if self.clusters else self.connection)

    @property
    def prefix(self) -> str:
        """What the names of the streams begin with that are read."""
        return self.prefix_of(self.active)

    @property
    def origins(self) -> str | None:
        """The regular expression of what ``origin_header`` may say; None if there is only one cluster."""
        return None if self.clusters is None else origin_pattern(self.clusters, self.topics or ())

    def never(self, topics: Iterable[str]) -> None:
        """Never let the pattern match these: the pipeline writes to them."""
        self._written = frozenset(topics)

    def matching(self, names: Iterable[str]) -> list[str]:
        """Return which of these topics are read, sorted.

        A pattern matches neither a topic that the pipeline writes to, nor one whose name begins with two underscores,
        as those of Kafka itself and of its tools do.
        """
        if self.pattern is None:
            return sorted(set(names) & set(self.topics or ()))
        own = [name for name in names if not name.startswith("__") and name not in self._written]
        found = set(matches(self.pattern, own))
        return sorted(found.difference(matches(self.exclude, sorted(found)) if self.exclude is not None else ()))

    @property
    def streams(self) -> list[str]:
        """The topics; none if a pattern says which."""
        return self.topics or []

    @property
    def labels(self) -> list[str]:
        """The topics, or the pattern."""
        return self.streams if self.pattern is None else [self.pattern]

    def reads(self, stream: str) -> bool:
        """Tell whether a topic of this name is read, if it exists."""
        return bool(self.matching([stream]))

    @property
    def needs(self) -> str | None:
        """The cluster's connection; of several clusters, the first one's."""
        return self.clusters[0] if self.clusters else self.connection

    @property
    def needs_also(self) -> list[str]:
        """The connections of the other clusters."""
        return (self.clusters or [])[1:]
