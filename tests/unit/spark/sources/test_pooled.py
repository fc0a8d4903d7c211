"""A worker's connection to a queue goes from task to task, unless something is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluice.connections import Connection
from sluice.ranges import OffsetRange
from sluice.sources.queue.base import LostError, Message
from sluice.sources.queue.config import QueueSource
from sluice_spark.sources import pooled
from sluice_spark.sources.inputs import UnreadableError
from sluice_spark.sources.queue_input import QueueInput

CONFIG = QueueSource.model_validate({"connection": "c", "kind": "nats_jetstream", "streams": ["s"]})
SOURCE = QueueInput(CONFIG, Connection("c", "generic"), None)
SPAN = OffsetRange("s", 0, 0, 2)


class Queue:
    def __init__(self) -> None:
        self.closed = False
        self.fails_behind: int | None = None

    def read(self, span: OffsetRange, guide: Any) -> Iterator[list[Message]]:
        for offset in range(span.start, span.end):
            if offset == self.fails_behind:
                raise LostError("the line is dead")
            yield [Message(offset, 1, None, b"v")]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Queue]:
    """The connections that were made; this is a task of Spark's."""
    found: list[Queue] = []

    def connected(config: QueueSource, connection: Connection) -> Queue:
        found.append(Queue())
        return found[-1]

    monkeypatch.setattr(pooled, "connected", connected)
    monkeypatch.setattr(pooled, "_idle", {})
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: object())
    return found


def read() -> list[int]:
    with SOURCE.opened() as ranges:
        return [message.offset for chunk in ranges.read(SPAN) for message in chunk.messages]


def test_the_next_task_has_the_connection_of_the_last(made: list[Queue]) -> None:
    assert read() == read() == [0, 1]
    (queue,) = made
    assert not queue.closed


def test_two_at_once_have_one_each(made: list[Queue]) -> None:
    with SOURCE.opened() as ranges:
        assert read() == [0, 1]
        assert len(list(ranges.read(SPAN))) == 2
    assert [queue.closed for queue in made] == [True, False]
    assert read() == [0, 1]
    assert len(made) == 2


def test_in_the_driver_nothing_is_kept(made: list[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: None)
    assert read() == read() == [0, 1]
    assert [queue.closed for queue in made] == [True, True]


def test_one_that_rested_too_long_is_not_used_again(made: list[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    read()
    monkeypatch.setattr(pooled, "_LONGEST", -1.0)
    read()
    assert [queue.closed for queue in made] == [True, False]


def test_what_the_server_closed_meanwhile_is_made_anew(made: list[Queue]) -> None:
    read()
    made[0].fails_behind = 0
    assert read() == [0, 1]
    assert [queue.closed for queue in made] == [True, False]


def test_what_fails_for_a_new_connection_or_halfway_is_told_and_not_kept(made: list[Queue]) -> None:
    read()
    made[0].fails_behind = 1
    with pytest.raises(UnreadableError, match="the line is dead"):
        read()
    assert [queue.closed for queue in made] == [True]
    with SOURCE.opened() as ranges:
        made[1].fails_behind = 0
        with pytest.raises(UnreadableError, match="the line is dead"):
            list(ranges.read(SPAN))
    assert [queue.closed for queue in made] == [True, True]


def test_one_that_was_left_halfway_is_not_kept(made: list[Queue]) -> None:
    def first(reading: Callable[[], Any]) -> None:
        next(iter(reading()))

    with SOURCE.opened() as ranges:
        first(lambda: ranges.read(SPAN))
    assert made[0].closed


def test_one_that_failed_is_not_kept_though_it_read_another_range(made: list[Queue]) -> None:
    with SOURCE.opened() as ranges:
        made[0].fails_behind = 0
        with pytest.raises(UnreadableError, match="the line is dead"):
            list(ranges.read(SPAN))
        made[0].fails_behind = None
        assert len(list(ranges.read(SPAN))) == 2
    assert made[0].closed
