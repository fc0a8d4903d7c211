"""Streams of a message queue as a :class:`~sluice.sources.base.Source`."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path

from sluice.atomic_file import made_once
from sluice.connections import Connection, find
from sluice.home import Home
from sluice.ranges import Positions
from sluice.sources.base import Source, SourceKind
from sluice.sources.queue.base import Queue
from sluice.sources.queue.config import QueueSource
from sluice.sources.queue.user_queue import UserQueue
from sluice.sources.state import Key, PartitionState, TopicState

__all__ = ["KIND", "QueueStreams", "connected"]


def connected(config: QueueSource, connection: Connection, owner: tuple[str, str] | None = None) -> Queue:
    """Return a connection to the queue.

    Parameters
    ----------
    owner
        The pipeline's name and id; None where only ranges are read.

    Raises
    ------
    SluiceError
        If a class of the user's own cannot be used, or fails.
    """
    if ":" in config.kind:
        return UserQueue(config.kind, connection, owner)
    if config.kind == "redis_streams":
        from sluice.sources.queue.redis import RedisStreams

        return RedisStreams(connection, owner, config.field)
    from sluice.sources.queue.nats import JetStream

    return JetStream(connection)


class QueueStreams(Source):
    """The streams of a pipeline; each is a topic with one partition."""

    notes = ()

    def __init__(self, config: QueueSource, home: Home, pipeline: str) -> None:
        self.config = config
        self.connection = find(config.connection)
        self.queue = connected(config, self.connection, (pipeline, _own_id(Path(home.source(pipeline)))))

    def snapshot(self) -> list[TopicState]:
        """Return the state of each stream.

        Raises
        ------
        SluiceError
            As :meth:`Queue.state <sluice.sources.queue.base.Queue.state>`.
        """
        found = [(stream, self.queue.state(stream)) for stream in self.config.streams]
        return [
            TopicState(stream, now.id, {0: PartitionState(now.start, now.end, epoch=now.last)}) for stream, now in found
        ]

    def ends_of_epochs(self, seen: Mapping[Key, tuple[int, int]]) -> dict[Key, int]:
        """Return up to where streams still have the messages that they had, of those that do not have all."""
        asked = getattr(self.queue, "kept_up_to", None)
        if asked is None:  # of the user's own
            return {}
        own = [(key, asked(key[0], *of)) for key, of in seen.items() if key[0] in self.config.streams]
        return {key: end for key, end in own if end is not None}

    def offsets_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        """Return the first offset at or after ``moment``, of each stream."""
        milliseconds = int(moment.timestamp() * 1000)
        return {key: self.queue.first_at(key[0], milliseconds) for key in keys}

    def done(self, positions: Positions) -> None:
        """Tell the queue how far the pipeline has read."""
        for stream, parts in positions.items():
            self.queue.done(stream, parts.get(0, 0))

    def close(self) -> None:
        """Close the connection."""
        self.queue.close()


def _own_id(folder: Path) -> str:
    """Return what tells this pipeline from one of the same name in another ``SLUICE_HOME``."""
    file = folder / "id"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made_once(file, uuid.uuid4().hex[:12].encode())
    return file.read_text()


KIND = SourceKind(
    config=QueueSource,
    open="sluice.sources.queue.source:QueueStreams",
    reader="sluice_spark.sources.queue:QueueReader",
    replayable=True,
    seek_by_time=True,
    retention=True,
    by_range=True,
    messages=True,
)
