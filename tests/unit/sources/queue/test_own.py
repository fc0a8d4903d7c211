"""A queue of the user's own: it is made with the connection, and what is wrong with it is said."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.connections import Connection
from sluice.errors import ConfigError, SourceUnreachableError
from sluice.ranges import OffsetRange
from sluice.sources.queue.base import Message, StreamState
from sluice.sources.queue.config import QueueSource
from sluice.sources.queue.source import connected

CONNECTION = Connection("c", conn_type="generic", host="there")


class Good:
    def __init__(self, connection: Connection, owner: tuple[str, str] | None) -> None:
        self.made = f"{connection.conn_id}, {owner}"

    def state(self, stream: str) -> StreamState:
        return StreamState(self.made, 0, 0)

    def guide(self, ranges: Any) -> Any: ...

    def read(self, span: Any, guide: Any) -> Any:
        yield []
        yield [Message(0, 1, None, b"v"), (1, 1, b"k", None, ())]
        raise OSError("the line is dead")

    def first_at(self, stream: str, milliseconds: int) -> Any: ...

    def done(self, stream: str, position: int) -> None: ...

    def close(self) -> None: ...


def without_methods(connection: Connection, owner: tuple[str, str] | None) -> object:
    return object()


def broken(connection: Connection, owner: tuple[str, str] | None) -> object:
    raise KeyError("port")


def leaves(connection: Connection, owner: tuple[str, str] | None) -> object:
    raise SystemExit(0)


def down(connection: Connection, owner: tuple[str, str] | None) -> object:
    raise SourceUnreachableError("there is no answer", state="nothing was read", next_step="wait")


def asked(name: str) -> QueueSource:
    return QueueSource(connection="c", kind=f"{__name__}:{name}", streams=["s"])


def test_it_gets_connection_and_owner() -> None:
    assert connected(asked("Good"), CONNECTION, ("p", "id")).state("s").id == "c, ('p', 'id')"
    assert connected(asked("Good"), CONNECTION).state("s").id == "c, None"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("without_methods", "has no state, guide, read, first_at, done, close"),
        ("gone", "cannot be imported"),
    ],
)
def test_what_is_wrong_with_it_is_said(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        connected(asked(name), CONNECTION)


@pytest.mark.parametrize(
    ("name", "told"), [("broken", "KeyError: 'port'"), ("leaves", "RuntimeError: it called sys.exit")]
)
def test_one_that_cannot_connect_is_an_unreachable_source(name: str, told: str) -> None:
    with pytest.raises(SourceUnreachableError, match=f"the connection of .*:{name} failed: {told}"):
        connected(asked(name), CONNECTION)


def test_what_it_says_of_its_server_is_passed_on() -> None:
    with pytest.raises(SourceUnreachableError, match="there is no answer"):
        connected(asked("down"), CONNECTION)


def test_what_it_cannot_read_is_said() -> None:
    reading = connected(asked("Good"), CONNECTION).read(OffsetRange("s", 0, 0, 3), None)
    assert next(reading) == [Message(0, 1, None, b"v"), Message(1, 1, b"k", None)]
    with pytest.raises(
        SourceUnreachableError, match=r"read\(s-0 \[0, 3\)\) of .*:Good failed: OSError: the line is dead"
    ):
        next(reading)
