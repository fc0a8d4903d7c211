"""One definition of a connection serves Airflow and the core."""

from __future__ import annotations

import asyncio
import json

import pytest

from sluice.errors import ConfigError
from sluice_airflow import connections

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_the_same_from_an_event_loop() -> None:
    assert asyncio.run(connections.aget("kafka_default")) == connections.get("kafka_default")


def test_one_that_airflow_cannot_parse_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_ELSE", '{"conn_type": ')
    with pytest.raises(ConfigError, match="cannot read"):
        connections.get("kafka_else")


@pytest.mark.parametrize("extra", ["not json", "[1]"])
def test_a_broken_extra_is_refused(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_ELSE", json.dumps({"conn_type": "kafka", "extra": extra}))
    with pytest.raises(ConfigError, match="not a JSON object"):
        connections.get("kafka_else")
