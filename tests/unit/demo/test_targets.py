"""The feeder of flights without a broker: its account, files, and sockets."""

from __future__ import annotations

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice_demo import flights
from sluice_demo.fed import Fed, accounts
from sluice_demo.flights import feed_into
from sluice_demo.targets import Files, Flight, target_of

START, MIDDLE, END = (datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (0, 14, 20))


def ids(folder: Path) -> list[int]:
    files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    return [json.loads(line)["id"] for file in files for line in file.read_bytes().splitlines()]


def test_flights_are_fed_into_files_once_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "_FILE", 20)
    target = target_of(f"files:{tmp_path}")
    late = feed_into(target, start=MIDDLE, until=END)
    early = feed_into(target, start=START, until=END)
    assert (late.already, early.already) == (0, late.produced)
    assert ids(tmp_path) == list(range(late.produced + early.produced))
    assert feed_into(target, start=START, until=END).produced == 0
    assert len(list(tmp_path.iterdir())) > 5


def test_flights_continue_behind_the_last_whole_file_of_a_killed_feed(tmp_path: Path) -> None:
    target = Files(str(tmp_path))
    target.add([Flight(n, 0, b'{"id":%d}' % n) for n in range(3)])
    (tmp_path / ".flights-000003-000005.json").write_bytes(b'{"id":3}\n{"id')
    feed_into(target, start=START, until=MIDDLE)
    assert ids(tmp_path) == list(range(len(ids(tmp_path))))
    assert len(ids(tmp_path)) > 3


def test_flights_go_to_the_run_that_connects_to_the_socket() -> None:
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    target = target_of(f"socket:{port}")
    with ThreadPoolExecutor(1) as pool:
        fed = pool.submit(feed_into, target, start=START, until=MIDDLE)
        with socket.create_connection(("localhost", port)) as client, client.makefile("rb") as lines:
            first = next(lines)
            found = [
                json.loads(line)["id"] for line in (first, *(next(lines) for _ in range(fed.result().produced - 1)))
            ]
    assert found == list(range(fed.result().produced))
    with pytest.raises(ConfigError, match="hung"):
        target.add([Flight(1, 0, b"x" * 100_000_000)])


@pytest.mark.parametrize("target", ["floppy:a", "socket:here", "socket:70000", "socket:taken"])
def test_flights_refuse_a_target_that_cannot_be_fed(target: str) -> None:
    with socket.create_server(("localhost", 0)) as taken, pytest.raises(ConfigError):
        target_of(target.replace("taken", str(taken.getsockname()[1])))


def test_flights_are_all_accounted_for_by_the_newest_header_after_a_kill() -> None:
    dice = random.Random(1)
    truth: set[int] = set()
    log: list[bytes] = []
    fed = Fed(1)
    for _ in range(60):
        first = dice.randrange(300)
        todo = [rank for a, b in fed.missing(first, first + dice.randrange(40)) for rank in range(a, b + 1)]
        for rank in todo[: dice.randrange(len(todo) + 1)]:
            assert rank not in truth
            truth.add(rank)
            log.append(fed.add(rank))
        if log:
            fed = accounts([(0, log[-1])], newest_only=True)[0]
            assert {rank for a, b in fed.ranges for rank in range(a, b + 1)} == truth
            assert accounts([(0, header) for header in log])[0].ranges == fed.ranges
    assert len(truth) > 60
