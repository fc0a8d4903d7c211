"""The broker of one's own: started, ended, frozen, and found again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.local.kafka import Broker, Topics

pytestmark = pytest.mark.kafka


def test_a_second_start_and_a_second_object_mean_the_same_broker(broker: Broker, topics: Topics) -> None:
    pid = broker.pid
    assert broker.start().pid == pid
    again = Broker(broker.data_dir, port=0)
    assert (again.running, again.pid, again.bootstrap) == (True, pid, broker.bootstrap)


def test_a_running_broker_is_not_moved_to_another_port(broker: Broker, topics: Topics) -> None:
    with pytest.raises(ConfigError, match=f"already runs on port {broker.port}"):
        Broker(broker.data_dir, port=broker.port + 1).start()


def test_a_port_of_somebody_else_is_named_with_the_way_to_choose_another(
    tmp_path: Path, kafka_jars: list[Path]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = somebody.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)) as caught:
            Broker(tmp_path / "kafka", port=port, jar_files=kafka_jars).start()
    assert "SLUICE_KAFKA_PORT" in caught.value.next_step


def test_a_recycled_process_id_is_not_taken_for_the_broker(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(json.dumps({"pid": os.getpid(), "port": 1}))
    other = Broker(tmp_path, port=0)
    assert not other.running
    other.kill()  # must not be aimed at this very process


def test_a_killed_broker_comes_back_on_its_port_with_its_records(
    broker: Broker, topics: Topics, topic: Callable[..., str]
) -> None:
    name = topic(1)
    topics.produce(name, [(0, b"k", b"v")] * 3)
    bootstrap, pid = broker.bootstrap, broker.pid
    broker.kill()
    assert not broker.running
    with pytest.raises(SourceUnreachableError):
        topics.ends(name)
    broker.start()
    assert broker.pid != pid
    assert broker.bootstrap == bootstrap
    assert topics.ends(name) == {0: 3}


def test_a_paused_broker_is_a_typed_error_in_time_and_goes_on_after(
    broker: Broker, topics: Topics, topic: Callable[..., str]
) -> None:
    name = topic(1)
    broker.pause()
    try:
        assert broker.running
        with pytest.raises(SourceUnreachableError):
            Topics(broker.bootstrap, timeout=1).ends(name)
    finally:
        broker.resume()
    assert topics.ends(name) == {0: 0}


def test_stop_ends_a_detached_broker_of_another_process(tmp_path: Path, kafka_jars: list[Path]) -> None:
    start = (
        "import sys, pathlib; from sluice.local.kafka import Broker;"
        "d, *j = map(pathlib.Path, sys.argv[1:]);"
        "print(Broker(d, port=0, jar_files=j).start(detach=True).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", start, str(tmp_path), *map(str, kafka_jars)], capture_output=True, text=True, check=True
    )
    broker = Broker(tmp_path, port=0)
    assert broker.pid == int(done.stdout)
    broker.stop()
    assert not broker.running
