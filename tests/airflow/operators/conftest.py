"""Operators that use the fake spark-submit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.airflow.conftest import FakeSpark

from sluice_airflow.operators.bounded_run import BoundedRunOperator


@pytest.fixture
def ingest(pipeline_file: Callable[..., Path], spark: FakeSpark) -> Callable[..., BoundedRunOperator]:
    def make(**kwargs: Any) -> BoundedRunOperator:
        kwargs = {"run_id": "manual__1", "spark_binary": spark.binary, **kwargs}
        return BoundedRunOperator(
            task_id="ingest", pipeline=kwargs.pop("pipeline", None) or str(pipeline_file()), **kwargs
        )

    return make
