"""The hook reads the ordinary Kafka connection, and its button says what is wrong with it."""

from __future__ import annotations

import asyncio
import contextlib

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


def test_a_missing_connection_names_the_way_out() -> None:
    with pytest.raises(ConfigError, match="'kafka_else' is not defined") as caught:
        KafkaHook("kafka_else").settings()
    assert "airflow connections add kafka_else" in caught.value.next_step
    with pytest.raises(ConfigError):
        asyncio.run(connections.aget("kafka_else"))


def test_the_button_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def snapshot(self, topics: list[str]) -> None:
            raise SourceUnreachableError("no broker answers")

    monkeypatch.setattr(KafkaHook, "cluster", lambda self, timeout: contextlib.nullcontext(Silent()))
    assert KafkaHook().test_connection() == (False, "no broker answers")
