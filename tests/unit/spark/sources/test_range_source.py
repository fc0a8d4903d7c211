"""Sources that are read by ranges: batches and tasks, the rows of rate, and a worker's connection to a queue."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from sluice.connections import Connection
from sluice.ranges import OffsetRange, Positions
from sluice.sources.queue.base import LostError, Message
from sluice.sources.queue.config import QueueSource
from sluice.sources.rate.source import Clockwork
from sluice_spark.sources import connection_pool
from sluice_spark.sources.inputs import RECORDS, UnreadableError
from sluice_spark.sources.queue_input import QueueInput
from sluice_spark.sources.range_source import Plan, next_cut
from sluice_spark.sources.rate import RateInput

CUTS = [
    [OffsetRange("t", 0, 0, 5)],
    [OffsetRange("t", 0, 5, 9), OffsetRange("t", 1, 2, 3)],
    [OffsetRange("u", 0, 0, 1)],
]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"t": {0: 0, 1: 2}}, {"t": {0: 5, 1: 2}}),
        ({"t": {0: 5, 1: 2}}, {"t": {0: 9, 1: 3}}),
        ({"t": {0: 5}}, {"t": {0: 9, 1: 3}}),
        ({"t": {0: 9, 1: 3}}, {"t": {0: 9, 1: 3}, "u": {0: 1}}),
        ({"t": {0: 9, 1: 3}, "u": {0: 1}}, {"t": {0: 9, 1: 3}, "u": {0: 1}}),
        ({}, {"t": {0: 5}}),
    ],
)
def test_ranged_source_plans_the_next_batch_that_was_cut(start: Positions, end: Positions) -> None:
    assert next_cut(start, CUTS) == end
    assert next_cut(start, []) == start


def test_ranged_source_gives_a_task_ranges_of_one_partition() -> None:
    places = (("t", 0, 0, 6), ("t", 1, 0, 1), ("u", 0, 3, 4), ("t", 0, 9, 10))
    ranges, nowhere = [OffsetRange(*place) for place in places], cast(Any, mock.Mock())
    shares = Plan("p", nowhere, 2).shares(ranges)
    assert [share.ranges for share in shares] == [(ranges[0], ranges[3]), (ranges[1],), (ranges[2],)]
    halved = Plan("p", nowhere, 2, tasks=2).shares(ranges)
    assert [list(map(len, share.ranges)) for share in halved] == [[4], [2, 1], [1], [1]]


def test_rate_rows_follow_from_their_offsets() -> None:
    clockwork = Clockwork("x", 1_700_000_000_000_000, 3, 2)
    with RateInput(clockwork).opened() as reader:
        chunks = list(reader.read(OffsetRange("rate", 1, 49_999, 100_002)))
    assert [len(c.offsets) for c in chunks] == [50_000, 3]
    first = json.loads(chunks[0].values()[0] or b"")
    assert first == {"value": 99_999, "timestamp": "2023-11-15T07:28:52.666666Z"}
    table = chunks[1].records()
    assert table.schema == RECORDS
    assert table.column("value").to_pylist() == chunks[1].values()
    assert table.column("offset").to_pylist() == [99_999, 100_000, 100_001]
    assert chunks[1].chosen([0, 2]).values() == [chunks[1].values()[0], chunks[1].values()[2]]
    assert chunks[1].keys() == [None] * 3
    assert chunks[1].times.tolist() == [clockwork.time(n) // 1000 for n in (99_999, 100_000, 100_001)]


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
    monkeypatch.setattr(connection_pool, "connected", lambda *_: found.append(Queue()) or found[-1])
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
