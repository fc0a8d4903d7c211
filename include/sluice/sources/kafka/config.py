"""The key ``source.kafka`` of a pipeline file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from sluice.sources.base import SourceConfig
from sluice.sources.kafka.pattern import matches, problem_of

__all__ = ["KafkaSource"]

_TOPIC = re.compile(r"^[A-Za-z0-9._-]{1,249}$")


class KafkaSource(SourceConfig):
    """Topics of a Kafka cluster."""

    connection: str = "kafka_default"
    """The id of an Airflow connection; outside Airflow it is read from ``AIRFLOW_CONN_<ID>``."""
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

    @field_validator("pattern", "exclude")
    @classmethod
    def _expression(cls, pattern: str | None) -> str | None:
        if pattern is None:
            raise ValueError("write a regular expression, or leave it out")
        if problem := problem_of(pattern):
            raise ValueError(problem)
        return pattern

    @model_validator(mode="after")
    def _either(self) -> KafkaSource:
        if (self.topics is None) == (self.pattern is None):
            told = "topics or pattern is missing" if self.topics is None else "topics and pattern are both given"
            raise ValueError(f"{told}: name the topics, or give the pattern that their names match")
        if self.exclude is not None and self.pattern is None:
            raise ValueError("exclude is for pattern: leave it out, and name the topics that are to be read")
        return self

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
        """The cluster's connection."""
        return self.connection
