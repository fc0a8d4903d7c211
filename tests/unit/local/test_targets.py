"""What the feeder puts elsewhere than into a topic is there once, however often it is fed."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.local import flights
from sluice.local.flights import feed_into
from sluice.local.targets import Files, Flight, target_of

START, MIDDLE, END = (datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (0, 14, 20))


def ids(folder: Path) -> list[int]:
    files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    return [json.loads(line)["id"] for file in files for line in file.read_bytes().splitlines()]


def test_files_are_fed_once_in_windows_of_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "_FILE", 20)
    target = target_of(f"files:{tmp_path}")
    late = feed_into(target, start=MIDDLE, until=END)
    early = feed_into(target, start=START, until=END)
    assert (late.already, early.already) == (0, late.produced)
    assert ids(tmp_path) == list(range(late.produced + early.produced))
    assert feed_into(target, start=START, until=END).produced == 0
    assert len(list(tmp_path.iterdir())) > 5


def test_a_feed_that_was_killed_goes_on_behind_the_last_whole_file(tmp_path: Path) -> None:
    target = Files(str(tmp_path))
    target.add([Flight(n, 0, b'{"id":%d}' % n) for n in range(3)])
    (tmp_path / ".flights-000003-000005.json").write_bytes(b'{"id":3}\n{"id')
    feed_into(target, start=START, until=MIDDLE)
    found = ids(tmp_path)
    assert len(found) > 3
    assert found == list(range(len(found)))


def test_what_cannot_be_fed_is_refused_with_what_can() -> None:
    with pytest.raises(ConfigError, match=r"files:NAME is a folder; table:NAME .* socket:NAME is a port") as refused:
        target_of("floppy:a")
    assert "nothing was written" in str(refused.value)


def test_a_socket_sends_each_flight_to_the_run_that_connects() -> None:
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    target = target_of(f"socket:{port}")
    with ThreadPoolExecutor(1) as pool:
        fed = pool.submit(feed_into, target, start=START, until=MIDDLE)
        with socket.create_connection(("localhost", port)) as client, client.makefile("rb") as lines:
            found = [json.loads(next(lines))["id"]]
            found += [json.loads(next(lines))["id"] for _ in range(fed.result().produced - 1)]
    assert found == list(range(fed.result().produced))
    with pytest.raises(ConfigError, match="hung up"):
        target.add([Flight(1, 0, b"x" * 100_000_000)])


@pytest.mark.parametrize("port", ["here", "70000", "taken"])
def test_a_port_that_cannot_be_served_is_named(port: str) -> None:
    with socket.create_server(("localhost", 0)) as taken, pytest.raises(ConfigError, match="port"):
        target_of(f"socket:{taken.getsockname()[1] if port == 'taken' else port}")
