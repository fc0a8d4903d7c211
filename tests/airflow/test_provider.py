"""The provider and the plugin: how Airflow's UI and command line find Sluice."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from airflow.models.connection import Connection
from airflow.providers_manager import ProvidersManager
from tests.airflow.page.conftest import server  # noqa: F401

from sluice.connections import Connection as CoreConnection
from sluice.sources.kafka import KafkaSettings
from sluice_airflow import provider
from sluice_airflow.hooks.kafka import KafkaHook

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

KEYS = {
    "bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
}  # fmt: skip


def test_airflow_finds_the_provider_and_its_hook() -> None:
    manager = ProvidersManager()
    assert manager.providers["sluice"].data["name"] == "Sluice"
    hook = manager.hooks["kafka"]
    assert (hook.hook_class_name, hook.package_name) == ("sluice_airflow.hooks.kafka.KafkaHook", "sluice")
    assert "sluice_airflow.links.data_docs.DataDocsLink" in manager.extra_links_class_names


def test_connection_of_type_kafka_makes_the_hook_and_can_be_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Connection(conn_id="somewhere", conn_type="kafka", extra='{"bootstrap.servers": "127.0.0.1:1"}')
    monkeypatch.setenv("AIRFLOW_CONN_SOMEWHERE", made.as_json())
    assert isinstance(made.get_hook(), KafkaHook)
    good, says = made.test_connection()
    assert not good
    assert "127.0.0.1:1" in says


def test_connection_form_has_a_field_for_each_key_that_is_read() -> None:
    (kafka,) = provider.get_provider_info()["connection-types"]
    assert set(kafka["conn-fields"]) == KEYS
    for key, field in kafka["conn-fields"].items():
        assert ("password" in key) == (field["schema"].get("format") == "password"), key
    widgets = ProvidersManager().connection_form_widgets
    assert {name for name in widgets if name.startswith("extra__kafka__")} >= {f"extra__kafka__{key}" for key in KEYS}


def test_connection_field_left_empty_is_no_setting() -> None:
    extra: dict[str, Any] = dict.fromkeys(KEYS, "") | {"bootstrap.servers": "b:9092", "sasl.password": None}
    settings = KafkaSettings.from_connection(CoreConnection("c", "kafka", extra=extra))
    assert settings.properties == {"bootstrap.servers": "b:9092"}


def test_provider_names_each_module() -> None:
    info, folder = provider.get_provider_info(), Path(provider.__file__).parent
    named = {m for kind in ("operators", "sensors", "hooks", "triggers") for m in info[kind][0]["python-modules"]}
    assert all(map(importlib.import_module, named))
    files = [file for kind in ("operators", "sensors", "hooks") for file in (folder / kind).glob("[!_]*.py")]
    there = {f"sluice_airflow.{file.parent.name}.{file.stem}" for file in files}
    assert there - named == {"sluice_airflow.operators.submit"}, "a base class"


def test_connection_type_is_left_to_airflows_own_kafka_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "_OTHER", "airflow.providers.standard")
    assert "connection-types" not in provider.get_provider_info()
    assert "hooks" in provider.get_provider_info()


def test_airflow_shows_the_plugin_in_its_menu(server: Any) -> None:  # noqa: F811
    client = server("ada")
    found = {p["name"]: p for p in client.get("/api/v2/plugins").json()["plugins"]}["sluice"]
    assert [(a["url_prefix"], a["name"]) for a in found["fastapi_apps"]] == [("/sluice", "Sluice")]
    (view,) = found["external_views"]
    assert (view["name"], view["href"], view["url_route"]) == ("Sluice", "sluice/", "sluice")
    assert (view["destination"], view["nav_top_level"]) == ("nav", True)
    assert client.get(f"/{view['href']}").status_code == 200
    assert client.get(f"/{view['icon']}").headers["content-type"].startswith("image/svg+xml")
    assert client.get("/api/v2/plugins/importErrors").json()["import_errors"] == []
