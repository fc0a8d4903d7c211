"""Connections to Redis that lead to no Redis."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from sluice.connections import Connection
from sluice.errors import ConfigError, SourceUnreachableError, public
from sluice.sources.queue.redis import RedisStreams

PASSWORD = "s3cr3t"


@pytest.fixture
def web() -> Iterator[int]:
    """The port of a server that speaks HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    asked, _ = server.accept()
                except OSError:
                    return
                with asked:
                    asked.recv(1024)
                    asked.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_redis_host_that_is_a_url_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match="is a URL") as caught:
        RedisStreams(Connection("redis_default", "redis", f"redis://:{PASSWORD}@h"), None, None)
    assert PASSWORD not in str(caught.value)


def test_redis_connection_to_another_server_is_named_without_its_answer(web: int) -> None:
    queue = RedisStreams(Connection("redis_default", "redis", "127.0.0.1", web), None, None)
    with pytest.raises(SourceUnreachableError, match="Redis") as caught:
        queue.state("events")
    assert caught.value.next_step
    assert "reply type" not in public(str(caught.value))
