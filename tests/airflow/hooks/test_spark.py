"""The hook hands on what the application says, but for the JVM's warning about a module that Spark asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice_airflow.hooks.spark import SparkHook

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_the_warning_is_neither_logged_nor_kept() -> None:
    hook = SparkHook(cast(Any, SimpleNamespace(name="run", master="local[2]")))
    lines = ["WARNING: Using incubator modules: jdk.incubator.vector\n", "12:00:00 sluice: run r of p\n"]
    assert list(hook._kept(iter(lines))) == lines[1:]
    assert list(hook.output) == ["12:00:00 sluice: run r of p"]
