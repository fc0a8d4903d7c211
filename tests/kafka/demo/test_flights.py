"""The feeder of flights, on small windows: each flight once, also after a crash of the feeder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.fixtures.runs import await_that, consume

from sluice.errors import ConfigError
from sluice.local.kafka import Topics
from sluice_demo.fed import doubles
from sluice_demo.flights import FeedResult, feed, partition_of

pytestmark = pytest.mark.kafka

JAN_1, JAN_2, JAN_3, JAN_4 = (datetime(2013, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4))


@pytest.fixture
def name(
    topics: Topics, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[str]:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    name = f"flights-{request.node.name[:60]}"
    yield name
    if topics.exists(name):
        topics.delete(name)


def flights(topics: Topics, name: str) -> Counter[bytes]:
    return Counter(record.value for record in consume(topics, name))


def test_feeder_sends_a_flight_in_each_record(topics: Topics, name: str) -> None:
    result = feed(topics.bootstrap, start=JAN_1, until=JAN_2, topic=name)
    records = consume(topics, name)
    assert result == FeedResult(len(records), 0, topics.ends(name))
    first = min(records, key=lambda record: record.timestamp)
    assert json.loads(first.value) == {
        "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2,
        "arr_time": 830, "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545,
        "tailnum": "N14228", "origin": "EWR", "dest": "IAH", "air_time": 227, "distance": 1400,
        "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    assert first.key == b"UA"
    assert first.timestamp == datetime(2013, 1, 1, 10, 15, tzinfo=UTC).timestamp() * 1000
    assert all(record.partition == partition_of(record.key, 4) for record in records)
    assert any(json.loads(record.value)["dep_time"] is None for record in records)
    for partition in range(4):
        times = [record.timestamp for record in records if record.partition == partition]
        assert times == sorted(times)
    for key in (b"UA", b"B6", b"EV", b"DL", b"AA"):
        [(chosen, _)] = topics.produce(name, [(None, key, b"")])
        assert chosen == partition_of(key, 4), "as the Java client chooses"
    end = topics.ends(name)
    again = next(record for record in records if record.partition == 1)
    assert doubles(topics.bootstrap, name, dict.fromkeys(end, 0), result.ends) == 0
    topics.produce(name, [(1, again.key, again.value, again.timestamp, again.headers)])
    assert doubles(topics.bootstrap, name, dict.fromkeys(end, 0), topics.ends(name)) == 1


def test_feeder_keeps_record_times_and_retention_across_the_change_to_summer_time(topics: Topics, name: str) -> None:
    day: dict[str, Any] = {"start": datetime(2013, 3, 10), "until": datetime(2013, 3, 11), "topic": name}
    before = feed(topics.bootstrap, **day)
    offsets = set()
    for record in consume(topics, name):
        flight = json.loads(record.value)
        local = datetime.fromtimestamp(record.timestamp / 1000, ZoneInfo("America/New_York"))
        assert local.hour * 100 + local.minute == flight["sched_dep_time"]
        offsets.add(local.utcoffset())
    assert len(offsets) == 2
    topics.delete_records(name, {partition: end - 1 for partition, end in before.ends.items()})
    again = feed(topics.bootstrap, **day)
    assert again == FeedResult(0, before.produced, before.ends), "flights that retention removed are not fed again"
    topics.delete_records(name, topics.ends(name))
    with pytest.raises(ConfigError):  # nothing tells which flights were fed
        feed(topics.bootstrap, until=JAN_3, topic=name)


def test_feeder_sends_each_flight_once_by_windows_in_any_order(topics: Topics, name: str) -> None:
    """Also beside records of another producer, an aborted transaction, and new partitions."""
    middle = feed(topics.bootstrap, start=JAN_2, until=JAN_3, topic=name)
    assert feed(topics.bootstrap, start=JAN_2, until=JAN_3, topic=name) == FeedResult(0, middle.produced, middle.ends)
    early = feed(topics.bootstrap, until=datetime(2013, 1, 2, 14), topic=name)
    assert early.already > 0
    topics.produce(name, [(partition, b"XX", b"not a flight") for partition in range(4)])
    topics.produce_transaction(name, [(0, b"XX", b"not a flight either")], commit=False)
    topics.add_partitions(name, 6)
    rest = feed(topics.bootstrap, start=JAN_1, until=JAN_4, topic=name)
    assert rest.already == middle.produced + early.produced
    assert (rest.ends[4], rest.ends[5]) == (0, 0), "no flight moves"
    with ThreadPoolExecutor(2) as pool:  # two feeders take turns
        results = list(pool.map(lambda _: feed(topics.bootstrap, until=JAN_4, topic=name), range(2)))
    assert [result.produced for result in results] == [0, 0]
    counts = Counter({value: n for value, n in flights(topics, name).items() if value.startswith(b"{")})
    assert set(counts.values()) == {1}
    assert len(counts) == rest.already + rest.produced


def test_feeder_continues_after_a_kill_without_doubles(topics: Topics, name: str) -> None:
    command = [sys.executable, "-m", "sluice_demo.flights", "--until", "2013-01-04", "--rate", "1000"]
    feeder = subprocess.Popen([*command, "--bootstrap", topics.bootstrap, "--topic", name])
    try:
        await_that(lambda: topics.exists(name) and sum(topics.ends(name).values()) >= 300, "it feeds", feeder)
    finally:
        os.kill(feeder.pid, signal.SIGKILL)
        feeder.wait()
    result = feed(topics.bootstrap, until=JAN_4, topic=name)
    assert result.already >= 300
    assert result.produced > 0
    counts = flights(topics, name)
    assert set(counts.values()) == {1}
    assert len(counts) == result.already + result.produced


def test_feeder_keeps_its_rate(topics: Topics, name: str) -> None:
    began = time.monotonic()
    result = feed(topics.bootstrap, until=datetime(2013, 1, 1, 11), topic=name, rate=100)
    assert time.monotonic() - began >= (result.produced - 1) / 100 - 0.1
