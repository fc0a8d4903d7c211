"""The key ``source.kafka`` of a pipeline file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from sluice.sources.base import SourceConfig

__all__ = ["KafkaSource"]

_TOPIC = re.compile(r"^[A-Za-z0-9._-]{1,249}$")


class KafkaSource(SourceConfig):
    """Topics of a Kafka cluster."""

    connection: str = "kafka_default"
    """The id of an Airflow connection; outside Airflow it is read from ``AIRFLOW_CONN_<ID>``."""
    topics: Annotated[list[str], Field(min_length=1)]
    """Topic names; patterns are not supported. Partitions that are added later are read from their beginning."""
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    """Kafka's isolation level: whether records of aborted transactions are read; markers count as ``absent``."""

    @field_validator("topics")
    @classmethod
    def _topics(cls, topics: list[str]) -> list[str]:
        for topic in topics:
            if not _TOPIC.match(topic):
                raise ValueError(f"{topic!r} is not a Kafka topic name")
        if len(set(topics)) < len(topics):
            raise ValueError("a topic is named twice")
        return topics

    @property
    def streams(self) -> list[str]:
        """The topics."""
        return self.topics

    @property
    def needs(self) -> str | None:
        """The cluster's connection."""
        return self.connection
