"""Hooks and the connections that they read: one definition serves Airflow and the core."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.airflow.conftest import SECRET

from sluice.errors import ConfigError
from sluice_airflow import connections
from sluice_airflow.hooks.kafka import KafkaHook
from sluice_airflow.hooks.spark import SparkHook

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_kafka_hook_reads_the_ordinary_kafka_connection() -> None:
    settings = KafkaHook().settings()
    assert settings.bootstrap == "broker:9092"
    assert settings.for_python()["sasl_plain_password"] == SECRET
    assert SECRET not in repr(settings)
    assert KafkaHook().cluster(timeout=3).timeout == 3
    assert asyncio.run(connections.aget("kafka_default")) == connections.get("kafka_default")


def test_kafka_connection_that_is_missing_is_refused_with_the_command_that_adds_it() -> None:
    with pytest.raises(ConfigError, match="'kafka_else'") as caught:
        KafkaHook("kafka_else").settings()
    assert "airflow connections add kafka_else" in caught.value.next_step
    with pytest.raises(ConfigError):
        asyncio.run(connections.aget("kafka_else"))


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ('{"conn_type": ', "cannot read"),
        (json.dumps({"conn_type": "kafka", "extra": "not json"}), "JSON object"),
        (json.dumps({"conn_type": "kafka", "extra": "[1]"}), "JSON object"),
    ],
)
def test_kafka_connection_that_cannot_be_parsed_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, text: str, token: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_ELSE", text)
    with pytest.raises(ConfigError, match=token):
        connections.get("kafka_else")


def test_spark_hook_drops_the_jvm_warning_about_incubator_modules() -> None:
    hook = SparkHook(cast(Any, SimpleNamespace(name="run", master="local[2]")))
    lines = ["WARNING: Using incubator modules: jdk.incubator.vector\n", "12:00:00 sluice: run r of p\n"]
    assert list(hook._kept(iter(lines))) == lines[1:]
    assert list(hook.output) == ["12:00:00 sluice: run r of p"]
