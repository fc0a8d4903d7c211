"""The key ``sink.kafka`` of a pipeline file."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from sluice.fields import METADATA_COLUMNS, Duration, Strict
from sluice.sinks.base import SinkConfig, SinkKind

__all__ = ["KIND", "MARKS", "KafkaSink", "ValueColumn"]

MARKS = ".sluice-commits"
"""What is added to a topic's name for the topic that holds the marks of its commits."""
_LONGEST = 249
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_MOST_KEPT = timedelta(days=6)
"""Shorter than the time in which no mark is compacted away: the marks say which files were committed."""


def _topic(name: str) -> str:
    if not _TOPIC.fullmatch(name) or name in (".", "..") or len(name) > _LONGEST - len(MARKS):
        raise ValueError(
            f"{name!r} is no name of a topic: use a-z, A-Z, 0-9, dot, _ and -, at most {_LONGEST - len(MARKS)} "
            f"characters, since the topic of the commits is called NAME{MARKS}"
        )
    if name.endswith(MARKS):
        raise ValueError(f"{name!r} is the name of a topic that holds commits: choose another one")
    return name


def _timeout(value: timedelta) -> timedelta:
    if value < timedelta(seconds=1):
        raise ValueError("write at least 1s: all records of a batch are sent within this time")
    return value


def _keep(value: timedelta) -> timedelta:
    if value > _MOST_KEPT:
        raise ValueError(f"write at most {_MOST_KEPT.days}d")
    return value


class ValueColumn(Strict):
    """A column as a record's value."""

    column: Annotated[str, Field(min_length=1)]
    """A column of type STRING or BINARY; null is a tombstone."""


class KafkaSink(SinkConfig):
    """A topic of a Kafka cluster. Each batch is one transaction, together with its batch number."""

    connection: str = "kafka_default"
    """The id of an Airflow connection of type ``kafka``; outside Airflow it is read from ``AIRFLOW_CONN_<ID>``."""
    topic: Annotated[str, AfterValidator(_topic)]
    """The topic; beside it ``TOPIC.sluice-commits`` holds the marks of the commits."""
    key: str | None = None
    """The column that becomes the record's key, as text unless it is BINARY; by default records have no key."""
    value: Literal["json"] | ValueColumn = "json"
    """``json``: an object of the columns. ``{column: NAME}``: a column as it is."""
    headers: tuple[str, ...] = ()
    """Columns that become headers of their names, as text; they are not in the JSON. Null gives no header."""
    partition: str | None = None
    """The column with the number of the partition; it is not in the JSON. By default the key's hash decides."""
    origin: bool = True
    """Whether headers with the names of the metadata columns say where a row came from."""
    timestamp: Literal["now", "record"] = "now"
    """The record's time: ``now``, when it is sent, or ``record``, that of its source record."""
    partitions: Annotated[int, Field(ge=1)] | None = None
    """How many partitions the first run gives a topic that does not exist; without it, such a topic is refused."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """How the producer compresses; the readers of the topic need the codec, too."""
    transaction_timeout: Annotated[Duration, AfterValidator(_timeout)] = timedelta(minutes=10)
    """How long a transaction may stay open; the cluster's own limit is 15 minutes unless it was changed."""
    keep: Annotated[Duration, AfterValidator(_keep)] = timedelta(days=1)
    """How long the staged files of judged runs are kept, so that such a run can be validated again."""

    @model_validator(mode="after")
    def _columns(self) -> KafkaSink:
        if len(set(self.headers)) < len(self.headers):
            raise ValueError("a column stands twice in headers")
        if self.origin and (taken := sorted(set(self.headers) & set(METADATA_COLUMNS))):
            raise ValueError(f"the header {taken[0]} is there already: remove it from headers, or write origin: false")
        return self

    @property
    def marks(self) -> str:
        """The topic of the commits' marks."""
        return self.topic + MARKS

    @property
    def location(self) -> str:
        """Where the files of a batch are staged until they are sent and judged, relative to ``SLUICE_HOME``."""
        return f"staged/{self.connection}/{self.topic}"

    @property
    def shown(self) -> str:
        """Topic and connection."""
        return f"{self.topic} ({self.connection})"

    @property
    def needs(self) -> str:
        """The cluster's connection."""
        return self.connection


KIND = SinkKind(
    config=KafkaSink,
    open="sluice_spark.sinks.kafka.topic:opened",
    transactional=True,
    replaceable=False,
    readable=True,
    whole=False,
    outputs=("append", "update"),
)
