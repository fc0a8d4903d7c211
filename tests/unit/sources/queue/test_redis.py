"""Redis Streams: how entries are found by their offsets, with a real server."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.queues import Redis, started

from sluice.connections import Connection
from sluice.ranges import OffsetRange
from sluice.sources.queue.redis import RedisStreams


def test_redis_entries_are_found_behind_trimmed_ones(tmp_path: Path) -> None:
    """A query that goes on for long keeps one connection; what it knew of the stream's past is gone then."""
    server = started(Redis, tmp_path / "server")
    try:
        queue = RedisStreams(Connection("q", "redis", "127.0.0.1", server.port, password="secret"), None, "value")
        server.add("s", [b"%d" % n for n in range(10)])
        first = OffsetRange("s", 0, 0, 10)
        assert len(next(iter(queue.read(first, queue.guide([first]))))) == 10
        server.add("s", [b"%d" % n for n in range(10, 20)])
        server.trim("s", 8)
        later = OffsetRange("s", 0, 12, 20)
        guide = queue.guide([later])
        assert [m.value for found in queue.read(later, guide) for m in found] == [b"%d" % n for n in range(12, 20)]
        assert min(offset for offset, _ in guide["s"]) == 12, "what was read before is not kept"
    finally:
        server.stop()
