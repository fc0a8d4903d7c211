"""What Airflow's UI and command line know of Sluice."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from airflow.models.connection import Connection
from airflow.providers_manager import ProvidersManager

from sluice.connections import Connection as CoreConnection
from sluice.shipped import CHECKOUT
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
    assert hook is not None
    assert (hook.hook_class_name, hook.package_name) == ("sluice_airflow.hooks.kafka.KafkaHook", "sluice")
    assert "sluice_airflow.links.data_docs.DataDocsLink" in manager.extra_links_class_names


def test_a_connection_of_the_type_makes_the_hook_with_a_button_that_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Connection(conn_id="somewhere", conn_type="kafka", extra='{"bootstrap.servers": "127.0.0.1:1"}')
    monkeypatch.setenv("AIRFLOW_CONN_SOMEWHERE", made.as_json())
    assert isinstance(made.get_hook(), KafkaHook)
    good, says = made.test_connection()
    assert not good
    assert "127.0.0.1:1" in says


def test_the_form_has_a_field_for_each_key_that_is_read() -> None:
    (kafka,) = provider.get_provider_info()["connection-types"]
    assert set(kafka["conn-fields"]) == KEYS
    for key, field in kafka["conn-fields"].items():
        assert ("password" in key) == (field["schema"].get("format") == "password"), key
    widgets = ProvidersManager().connection_form_widgets
    assert {name for name in widgets if name.startswith("extra__kafka__")} >= {f"extra__kafka__{key}" for key in KEYS}


def test_a_field_that_was_left_empty_is_not_there() -> None:
    extra: dict[str, Any] = dict.fromkeys(KEYS, "") | {"bootstrap.servers": "b:9092", "sasl.password": None}
    settings = KafkaSettings.from_connection(CoreConnection("c", "kafka", extra=extra))
    assert settings.properties == {"bootstrap.servers": "b:9092"}


def test_every_module_that_is_named_is_there() -> None:
    info = provider.get_provider_info()
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for module in info[kind][0]["python-modules"]:
            assert importlib.import_module(module)
    folder = Path(provider.__file__).parent
    named = {m.removeprefix("sluice_airflow.") for k in ("operators", "sensors", "hooks", "triggers")
             for m in info[k][0]["python-modules"]}  # fmt: skip
    there = {
        f"{kind}.{file.stem}" for kind in ("operators", "sensors", "hooks") for file in (folder / kind).glob("*.py")
    }
    assert {name for name in there if not name.endswith("__init__")} - named == {"operators.submit"}, "a base class"


def test_the_type_is_left_to_airflows_own_provider_where_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "_OTHER", "airflow.providers.standard")
    assert "connection-types" not in provider.get_provider_info()
    assert "hooks" in provider.get_provider_info()


def test_the_wheel_carries_it(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=CHECKOUT, check=True, capture_output=True, timeout=120, env=dict(os.environ),
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = (n for n in files.namelist() if n.endswith("entry_points.txt"))
        assert "sluice_airflow.provider:get_provider_info" in files.read(name).decode()
        assert "sluice_airflow/provider.py" in files.namelist()
    assert any(
        e.value == "sluice_airflow.provider:get_provider_info" for e in entry_points(group="apache_airflow_provider")
    )
