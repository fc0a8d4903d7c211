"""Queues: a class of the user's own and its mistakes, URLs with passwords, and entries of a real Redis."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.queues import Nats, Redis, started

from sluice.connections import Connection
from sluice.errors import ConfigError, SluiceError, SourceUnreachableError, public
from sluice.ranges import OffsetRange
from sluice.sources.queue.base import Message, StreamState
from sluice.sources.queue.config import QueueSource
from sluice.sources.queue.nats import JetStream
from sluice.sources.queue.redis import END_OF_TIME, RedisStreams
from sluice.sources.queue.source import connected

CONNECTION = Connection("c", conn_type="generic", host="there")
Owner = tuple[str, str] | None


class Good:
    def __init__(self, connection: Connection, owner: Owner) -> None:
        self.made = f"{connection.conn_id}, {owner}"

    def state(self, stream: str) -> StreamState:
        return StreamState(self.made, 0, 0)

    def read(self, span: Any, guide: Any) -> Any:
        yield []
        yield [Message(0, 1, None, b"v"), (1, 1, b"k", None, ())]
        raise OSError("the line is dead")

    guide = first_at = done = close = lambda *_: None


def without_methods(connection: Connection, owner: Owner) -> object:
    return object()


def broken(connection: Connection, owner: Owner) -> object:
    raise KeyError("port")


def leaves(connection: Connection, owner: Owner) -> object:
    raise SystemExit(0)


def down(connection: Connection, owner: Owner) -> object:
    raise SourceUnreachableError("there is no answer", state="nothing was read", next_step="wait")


def queue_of(name: str) -> QueueSource:
    return QueueSource(connection="c", kind=f"{__name__}:{name}", streams=["s"])


def test_queue_of_the_user_is_made_with_connection_and_owner() -> None:
    assert connected(queue_of("Good"), CONNECTION, ("p", "id")).state("s").id == "c, ('p', 'id')"
    assert connected(queue_of("Good"), CONNECTION).state("s").id == "c, None"


@pytest.mark.parametrize(
    ("name", "error", "named"),
    [
        ("without_methods", ConfigError, "state, guide, read, first_at, done, close"),
        ("gone", ConfigError, "gone"),
        ("broken", SourceUnreachableError, "KeyError: «'port'»"),
        ("leaves", SourceUnreachableError, "sys.exit"),
        ("down", SourceUnreachableError, "there is no answer"),
    ],
)
def test_queue_of_the_user_that_fails_is_named(name: str, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        connected(queue_of(name), CONNECTION)


def test_queue_of_the_user_that_cannot_read_is_named_with_the_range() -> None:
    reading = connected(queue_of("Good"), CONNECTION).read(OffsetRange("s", 0, 0, 3), None)
    assert next(reading) == [Message(0, 1, None, b"v"), Message(1, 1, b"k", None)]
    with pytest.raises(SourceUnreachableError, match=r"s-0 \[0, 3\).*Good.*OSError"):
        next(reading)


@pytest.mark.parametrize("several", [False, True])
def test_nats_error_names_the_server_without_the_password_of_its_url(several: bool) -> None:
    server = "nats://me:s3cret@127.0.0.1:1"  # nothing listens there
    queue = JetStream(Connection("n", "nats", extra={"servers": [server] if several else server}))
    with pytest.raises(SourceUnreachableError, match=r"127\.0\.0\.1:1") as caught:
        queue.state("orders")
    queue.close()
    assert "s3cret" not in str(caught.value)


def test_nats_answer_of_a_server_is_quoted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as asked:
                asked.sendall(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1024,"proto":1}\r\n')
                asked.recv(4096)
                asked.sendall(b"-ERR 'Authorization Violation for s3cret'\r\n")

        threading.Thread(target=answer, daemon=True).start()
        queue = JetStream(Connection("n", "nats", "127.0.0.1", server.getsockname()[1]))
        with pytest.raises(SluiceError) as caught:
            queue.state("orders")
        queue.close()
    assert "s3cret" in str(caught.value)
    assert "s3cret" not in public(str(caught.value))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = started(Redis, tmp_path / "server")
    yield server
    server.stop()


def opened(server: Redis, field: str | None) -> RedisStreams:
    return RedisStreams(Connection("q", "redis", "127.0.0.1", server.port, password="secret"), None, field)


def test_redis_fields_are_all_there_as_they_came(redis: Redis) -> None:
    redis.client.execute_command("XADD", "s", "1-1", "item", "apple", "item", 'p"ear', "n", "ö")
    redis.client.execute_command("XADD", "s", "1700000000000000000-0", "item", b"caf\xe9")
    span, queues = OffsetRange("s", 0, 0, 2), (opened(redis, None), opened(redis, "item"))
    whole, own = ([m for some in queue.read(span, queue.guide([span])) for m in some] for queue in queues)
    apple = '{"item": "apple", "item": "p\\"ear", "n": "ö"}'.encode()
    assert [(m.value, m.time) for m in whole] == [(apple, 1), (b'{"item": "caf\xe9"}', END_OF_TIME)]
    assert [(m.value, m.headers) for m in own] == [
        (b'p"ear', [("item", b"apple"), ("n", "ö".encode())]), (b"caf\xe9", []),
    ]  # fmt: skip


def test_nats_headers_are_those_of_the_message(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server = started(Nats, tmp_path / "server")
    request.addfinalizer(server.stop)
    server.add("s", [b"0"])

    async def publish(client: Any, js: Any) -> None:
        await client.publish("s.new", b"1", headers={"Status": "100"})
        await client.flush()

    server._do(publish)
    send_raw(server.port, b"s.new", b"NATS/1.0\r\ntag: caf\xe9\r\n", b"2")
    send_raw(server.port, b"s.caf\xe9", b"X\r\n", b"3")
    queue = JetStream(Connection("q", "nats", "127.0.0.1", port=server.port, login="me", password="secret"))
    # the server may take messages of several connections in another order
    found = sorted(
        (m for some in queue.read(OffsetRange("s", 0, 0, 4), None) for m in some), key=lambda m: m.value or b""
    )
    queue.close()
    assert [(m.value, list(m.headers)) for m in found] == [
        (b"0", [("more", b"x")]), (b"1", [("Status", b"100")]), (b"2", [("tag", b"caf\xff")]),
        (b"3", [("", b"X\r\n\r\n")]),
    ]  # fmt: skip
    assert found[3].key == b"s.caf\xe9"


def send_raw(port: int, subject: bytes, headers: bytes, payload: bytes) -> None:
    """Publish as a client that does not encode headers."""
    head = headers + b"\r\n"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(
            b'CONNECT {"headers":true,"verbose":false,"user":"me","pass":"secret"}\r\n'
            b"HPUB %s %d %d\r\n%s%s\r\nPING\r\n" % (subject, len(head), len(head + payload), head, payload)
        )
        came = b""
        while b"PONG" not in came:
            came += client.recv(4096)


def test_redis_entries_are_found_behind_trimmed_ones(redis: Redis) -> None:
    """A query that goes on for long keeps one connection; what it knew of the stream's past is gone then."""
    queue, values = opened(redis, "value"), [b"%d" % n for n in range(20)]
    redis.add("s", values[:10])
    first, later = OffsetRange("s", 0, 0, 10), OffsetRange("s", 0, 12, 20)
    assert len(next(iter(queue.read(first, queue.guide([first]))))) == 10
    redis.add("s", values[10:])
    redis.trim("s", 8)
    guide = queue.guide([later])
    assert [m.value for found in queue.read(later, guide) for m in found] == values[12:]
    assert min(offset for offset, _ in guide["s"]) == 12, "what was read before is not kept"


def test_redis_entries_that_were_deleted_one_by_one_are_named_with_a_way_that_helps(redis: Redis) -> None:
    redis.add("s", [b"%d" % n for n in range(6)])
    redis.client.xdel("s", redis.client.xrange("s")[2][0])
    queue = RedisStreams(Connection("q", "redis", "127.0.0.1", redis.port, password="secret"), ("p", "own"), "value")
    with pytest.raises(ConfigError, match="XDEL") as refused:
        queue.state("s")
    way = re.search(r"XTRIM s MINID \d+-\d+", refused.value.next_step)
    assert way is not None
    redis.client.execute_command(*way[0].split())
    state = queue.state("s")
    assert (state.start, state.end) == (3, 6)
    span = OffsetRange("s", 0, 3, 6)
    assert [m.value for some in queue.read(span, queue.guide([span])) for m in some] == [b"3", b"4", b"5"]
