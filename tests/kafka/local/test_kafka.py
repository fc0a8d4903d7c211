"""The local broker: started, ended, frozen, and found again."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.local.kafka import Broker, Topics

pytestmark = pytest.mark.kafka


def test_broker_is_found_on_its_port_by_a_second_start(broker: Broker, topics: Topics) -> None:
    pid = broker.pid
    assert broker.start().pid == pid
    again = Broker(broker.data_dir, port=0)
    assert (again.running, again.pid, again.bootstrap) == (True, pid, broker.bootstrap)
    with pytest.raises(ConfigError, match=str(broker.port)):
        Broker(broker.data_dir, port=broker.port + 1).start()


def test_broker_names_a_taken_port_and_the_variable_to_choose_another(tmp_path: Path, kafka_jars: list[Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)) as caught:
            Broker(tmp_path / "kafka", port=port, jar_files=kafka_jars).start()
    assert "SLUICE_KAFKA_PORT" in caught.value.next_step


def test_broker_is_not_taken_for_a_recycled_process_id(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(json.dumps({"pid": os.getpid(), "port": 1}))
    other = Broker(tmp_path, port=0)
    assert not other.running
    other.kill()  # must not be aimed at this very process


def test_broker_comes_back_after_a_kill_on_its_port_with_its_records(
    broker: Broker, topics: Topics, topic: Callable[..., str]
) -> None:
    name = topic(1)
    topics.produce(name, [(0, b"k", b"v")] * 3)
    bootstrap, pid = broker.bootstrap, broker.pid
    broker.pause()
    try:
        assert broker.running
        with pytest.raises(SourceUnreachableError):
            Topics(broker.bootstrap, timeout=1).ends(name)
    finally:
        broker.resume()
    assert topics.ends(name) == {0: 3}
    broker.kill()
    assert not broker.running
    with pytest.raises(SourceUnreachableError):
        Topics(broker.bootstrap, timeout=1).ends(name)
    broker.start()
    assert broker.pid != pid
    assert broker.bootstrap == bootstrap
    assert topics.ends(name) == {0: 3}
