"""The key ``source.queue`` of a pipeline file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from sluice.sources.base import SourceConfig

__all__ = ["QueueSource"]

_CLASS = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
_STREAM = re.compile(r"^[A-Za-z0-9._:{}-]{1,249}$")


class QueueSource(SourceConfig):
    """Streams of a message queue that keeps its messages after they are read."""

    connection: str
    """The id of an Airflow connection, such as ``redis_default``; outside Airflow ``AIRFLOW_CONN_<ID>``."""
    kind: Literal["redis_streams", "nats_jetstream"] | Annotated[str, Field(pattern=_CLASS)]
    """Redis Streams (Redis 7 or later), NATS JetStream (streams with limits as retention), or ``package.module:Class``.

    A class of yours has the methods of :class:`sluice.sources.queue.base.Queue`, and is called with a
    :class:`~sluice.connections.Connection` and the pipeline's name and id. A checkout's ``include/`` is on the path.
    """
    stream_names: Annotated[list[str], Field(min_length=1, alias="streams")]
    """The names of the streams. One that is added later is read from its beginning."""
    field: str | None = None
    """For Redis: the field that is the record's value. By default the value is a JSON object of all fields, as text."""

    @field_validator("stream_names")
    @classmethod
    def _stream_names(cls, streams: list[str]) -> list[str]:
        for stream in streams:
            if not _STREAM.match(stream):
                raise ValueError(f"{stream!r}: use letters, digits, and . _ : {{ }} -, at most 249 characters")
        if len(set(streams)) < len(streams):
            raise ValueError("a stream is named twice")
        return streams

    @model_validator(mode="after")
    def _fits(self) -> QueueSource:
        if self.field is not None and self.kind != "redis_streams":
            raise ValueError(f"field is for kind: redis_streams; the value of a message of {self.kind} is its payload")
        return self

    @property
    def streams(self) -> list[str]:
        """The names of the streams."""
        return self.stream_names

    @property
    def needs(self) -> str | None:
        """The queue's connection."""
        return self.connection
