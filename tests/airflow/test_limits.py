"""How many Spark drivers a pipeline, and all of them together, may have at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.sdk import DAG

from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice_airflow.factory import build_dag

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


@pytest.fixture(autouse=True)
def _no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_POOL", raising=False)


def limits(dag: DAG) -> dict[str, tuple[int | None, str]]:
    return {task.task_id: (task.max_active_tis_per_dag, task.pool) for task in dag.tasks}


def test_a_backfill_is_bounded_without_any_pool(pipeline_file: Callable[..., Path]) -> None:
    assert limits(build_dag(pipeline_file())) == {
        "wait_for_lag": (None, "default_pool"), "ingest": (2, "default_pool"), "validate": (2, "default_pool"),
        "account": (None, "default_pool"),
    }  # fmt: skip


def test_a_file_may_say_otherwise(pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_POOL", "every_driver")
    assert limits(build_dag(pipeline_file()))["ingest"] == (2, "every_driver")
    found = limits(build_dag(pipeline_file(more="airflow: {pool: mine, max_drivers: 4}\n")))
    assert (found["ingest"], found["validate"]) == ((4, "mine"), (4, "mine"))
    assert (found["wait_for_lag"][1], found["account"][1]) == ("default_pool", "default_pool"), "they start no Spark"
    with pytest.raises(ConfigError, match="max_drivers"):
        load(pipeline_file(more="airflow: {max_drivers: 0}\n"))
