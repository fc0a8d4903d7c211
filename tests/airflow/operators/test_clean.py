"""Cleaning from Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LeaseHeldError
from sluice.ledger import Ledger
from sluice_airflow.operators.clean import CleanOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_without_a_log_there_is_nothing_to_remove(pipeline_file: Callable[..., Path], context: Any) -> None:
    operator = CleanOperator(task_id="c", pipeline=str(pipeline_file("p")))
    assert operator.execute(context()) == {"segments": 0, "records": 0, "bytes": 0}


def test_it_waits_for_a_run_that_is_active(pipeline_file: Callable[..., Path], context: Any) -> None:
    operator = CleanOperator(task_id="c", pipeline=str(pipeline_file("p")))
    with Ledger.open().acquire("p", "live"), pytest.raises(LeaseHeldError):
        operator.execute(context())
