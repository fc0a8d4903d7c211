"""A worker's connection to a queue goes from task to task unless it failed, rested or was left halfway."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sluice.connections import Connection
from sluice.ranges import OffsetRange
from sluice.sources.queue.base import LostError, Message
from sluice.sources.queue.config import QueueSource
from sluice_spark.sources import pooled
from sluice_spark.sources.inputs import UnreadableError
from sluice_spark.sources.queue_input import QueueInput

CONFIG = QueueSource.model_validate({"connection": "c", "kind": "nats_jetstream", "streams": ["s"]})
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
def source(tmp_path: Path) -> QueueInput:
    """Return a queue that no other test has connections to."""
    return QueueInput(CONFIG, Connection(str(tmp_path), "generic"), None)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Queue]:
    """Return the connections that were made; this is a task of Spark's."""
    found: list[Queue] = []
    monkeypatch.setattr(pooled, "connected", lambda *_: found.append(Queue()) or found[-1])
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: object())
    return found


def read(source: QueueInput) -> list[int]:
    with source.opened() as ranges:
        return [message.offset for chunk in ranges.read(SPAN) for message in chunk.messages]


def test_queue_connection_of_a_task_is_used_by_the_next_one(made: list[Queue], source: QueueInput) -> None:
    assert read(source) == read(source) == [0, 1]
    assert [queue.closed for queue in made] == [False]


def test_queue_connection_is_used_by_one_task_at_a_time(made: list[Queue], source: QueueInput) -> None:
    with source.opened() as ranges:
        assert read(source) == [0, 1]
        assert len(list(ranges.read(SPAN))) == 2
    assert [queue.closed for queue in made] == [True, False]
    assert read(source) == [0, 1]
    assert len(made) == 2


def test_queue_connection_is_not_kept_in_the_driver_nor_after_a_long_rest(
    made: list[Queue], source: QueueInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(source)
    with mock.patch.object(time, "monotonic", return_value=time.monotonic() + 61):
        read(source)
    assert [queue.closed for queue in made] == [True, False]
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: None)
    assert read(source) == read(source) == [0, 1]
    assert [queue.closed for queue in made] == [True, True, True]


def test_queue_connection_that_the_server_closed_meanwhile_is_renewed(made: list[Queue], source: QueueInput) -> None:
    read(source)
    made[0].fails_behind = 0
    assert read(source) == [0, 1]
    assert [queue.closed for queue in made] == [True, False]


def test_queue_connection_that_fails_halfway_or_when_new_is_an_error(made: list[Queue], source: QueueInput) -> None:
    read(source)
    made[0].fails_behind = 1
    with pytest.raises(UnreadableError, match="the line is dead"):
        read(source)
    with source.opened() as ranges:
        made[1].fails_behind = 0
        with pytest.raises(UnreadableError, match="the line is dead"):
            list(ranges.read(SPAN))
        made[1].fails_behind = None
        assert len(list(ranges.read(SPAN))) == 2
    assert [queue.closed for queue in made] == [True, True], "although it read another range then"


def test_queue_connection_that_was_left_halfway_is_not_kept(made: list[Queue], source: QueueInput) -> None:
    with source.opened() as ranges:
        next(iter(ranges.read(SPAN)))
    assert made[0].closed
