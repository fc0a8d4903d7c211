"""Connections to queues that a Python worker of Spark keeps from one task to the next.

Spark uses a worker's process again for later tasks. In the driver nothing is kept: it reads little, and its process may
live long.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict

from pyspark import TaskContext

from sluice.connections import Connection
from sluice.sources.queue.base import Queue
from sluice.sources.queue.config import QueueSource
from sluice.sources.queue.source import connected

__all__ = ["ConnectionPool"]

_LONGEST = 60.0
"""Seconds without a task after which a connection is not used again: servers close idle ones."""

_idle: dict[str, tuple[Queue, float]] = {}


class ConnectionPool:
    """A connection that is used by one task at a time.

    Attributes
    ----------
    used
        Whether an earlier task had it, so that its server may have closed it meanwhile.
    """

    def __init__(self, config: QueueSource, connection: Connection) -> None:
        self._config, self._connection = config, connection
        self._key = json.dumps([config.model_dump(mode="json"), asdict(connection)], default=str, sort_keys=True)
        queue, since = _idle.pop(self._key, (None, 0.0))
        if queue is not None and time.monotonic() - since > _LONGEST:
            _close(queue)
            queue = None
        self.used = queue is not None
        self.queue = queue or connected(config, connection)

    def renew(self) -> None:
        """Take a new connection in its place."""
        _close(self.queue)
        self.queue, self.used = connected(self._config, self._connection), False

    def release(self, *, sound: bool) -> None:
        """End using it; it is kept if it is sound, and if this is a task of Spark's."""
        if not sound or TaskContext.get() is None or self._key in _idle:
            _close(self.queue)
        else:
            _idle[self._key] = (self.queue, time.monotonic())


def _close(queue: Queue) -> None:
    with suppress(Exception):  # it is of no use any more
        queue.close()
