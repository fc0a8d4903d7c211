"""One definition of a connection serves Airflow and the core."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from tests.airflow.conftest import SECRET

from sluice.errors import ConfigError, SourceUnreachableError
from sluice_airflow import connections
from sluice_airflow.hooks.kafka import KafkaHook

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_the_hook_reads_the_ordinary_kafka_connection() -> None:
    settings = KafkaHook().settings()
    assert settings.bootstrap == "broker:9092"
    assert settings.for_python()["sasl_plain_password"] == SECRET
    assert SECRET not in repr(settings)
    assert KafkaHook().cluster(timeout=3).timeout == 3


def test_the_same_from_an_event_loop() -> None:
    assert asyncio.run(connections.aget("kafka_default")) == connections.get("kafka_default")


def test_a_missing_connection_names_the_way_out() -> None:
    with pytest.raises(ConfigError, match="'kafka_else' is not defined") as caught:
        KafkaHook("kafka_else").settings()
    assert "airflow connections add kafka_else" in caught.value.next_step
    with pytest.raises(ConfigError):
        asyncio.run(connections.aget("kafka_else"))


def test_one_that_airflow_cannot_parse_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_ELSE", '{"conn_type": ')
    with pytest.raises(ConfigError, match="cannot read"):
        connections.get("kafka_else")


@pytest.mark.parametrize("extra", ["not json", "[1]"])
def test_a_broken_extra_is_refused(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_ELSE", json.dumps({"conn_type": "kafka", "extra": extra}))
    with pytest.raises(ConfigError, match="not a JSON object"):
        connections.get("kafka_else")


def test_the_button_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def snapshot(self, topics: list[str]) -> None:
            raise SourceUnreachableError("no broker answers")

    monkeypatch.setattr(KafkaHook, "cluster", lambda self, timeout: contextlib.nullcontext(Silent()))
    assert KafkaHook().test_connection() == (False, "no broker answers")
