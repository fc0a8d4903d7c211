"""Operators of a pipeline ``p``, whose Spark is the fake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.airflow.conftest import FakeSpark

from sluice_airflow.operators.accept import AcceptOperator
from sluice_airflow.operators.acknowledge import AcknowledgeOperator
from sluice_airflow.operators.adopt import AdoptOperator
from sluice_airflow.operators.redrive import RedriveOperator
from sluice_airflow.operators.reset import ResetOperator
from sluice_airflow.operators.retract import RetractOperator
from sluice_airflow.operators.submit import SubmitOperator

ARGUMENTS: dict[type, dict[str, Any]] = {
    AcceptOperator: {"of_run": "live", "reason": "known gap"},
    AcknowledgeOperator: {"reason": "retention took it"},
    AdoptOperator: {"former": "old"},
    RedriveOperator: {"run_id": "again"},
    ResetOperator: {"run_id": "again", "reason": "new transform"},
    RetractOperator: {"run_id": "back", "what": "live", "reason": "wrong currency"},
}
"""Arguments of an operator unless a test has others."""


@pytest.fixture
def make(pipeline_file: Any, spark: FakeSpark) -> Callable[..., Any]:
    file = pipeline_file("p")

    def operator(kind: type, **more: Any) -> Any:
        submits = {"run_id": "manual__1", "spark_binary": spark.binary} if issubclass(kind, SubmitOperator) else {}
        return kind(**{"task_id": "t", "pipeline": str(file), **submits, **ARGUMENTS.get(kind, {}), **more})

    return operator
