"""Vacuum from Airflow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.fixtures.deltas import aged, marked

from sluice.errors import ConfigError
from sluice.home import Home
from sluice_airflow.operators.vacuum import VacuumOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_it_removes_what_is_long_out_of_use(pipeline_file: Callable[..., Path], context: Any) -> None:
    file = pipeline_file("p")
    path = Home.from_env().resolve("p")
    for number in range(3):
        write_deltalake(path, pa.table({"a": [number]}), mode="append")
    marked(path, "p", "sink")
    DeltaTable(path).optimize.compact()
    (row,) = VacuumOperator(task_id="v", pipeline=str(file)).execute(context())
    assert row["files"] == 0
    aged(path, timedelta(days=8))
    (row,) = VacuumOperator(task_id="v", pipeline=str(file), dry_run=True).execute(context())
    assert row["files"] == 3
    with pytest.raises(ConfigError, match="execution_timeout"):
        VacuumOperator(task_id="v", pipeline=str(file), older_than=timedelta(hours=1)).execute(context())
    (row,) = VacuumOperator(task_id="v", pipeline=str(file)).execute(context())
    assert row["files"] == 3
    assert DeltaTable(path).count() == 3
