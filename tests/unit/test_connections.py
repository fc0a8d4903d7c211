"""Connections are read from variables, and show no secret."""

from __future__ import annotations

import json

import pytest
from tests.fixtures.connections import SASL, SECRET, connection

from sluice.connections import Connection, variable_of
from sluice.errors import ConfigError
from sluice.sources.kafka import KafkaSettings


def test_connection_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert variable_of("my_kafka") == "AIRFLOW_CONN_MY_KAFKA"
    whole = {"conn_type": "kafka", "host": "h", "port": "9", "login": "l", "password": SECRET, "extra": SASL}
    for text in (json.dumps(whole), json.dumps({**whole, "extra": json.dumps(SASL)})):
        monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", text)
        read = Connection.from_env("my_kafka")
        assert (read.host, read.port, read.login, read.password, read.extra) == ("h", 9, "l", SECRET, SASL)
        monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", read.to_json())
        assert Connection.from_env("my_kafka") == read


@pytest.mark.parametrize(
    "text", ["", "kafka://u:hunter2@h:1", "[]", '"x"', '{"port": "hunter2"}', '{"extra": "{hunter2"}']
)
def test_variable_that_is_not_json_is_refused_without_its_secret(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", text)
    with pytest.raises(ConfigError, match=r"my_kafka|AIRFLOW_CONN_MY_KAFKA") as caught:
        Connection.from_env("my_kafka")
    assert SECRET not in str(caught.value)


def test_connection_shows_no_secret() -> None:
    secret = connection(SASL, password=SECRET)
    assert SECRET not in repr(secret) + str(secret)
    settings = KafkaSettings.from_connection(secret)
    assert SECRET not in repr(settings) + str(settings)
    assert "a:1" in repr(settings)
