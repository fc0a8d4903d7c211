"""The button Spark UI: there while the driver lives, and gone with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.airflow.conftest import FakeSpark

from sluice_airflow.links.spark_ui import SparkUiLink
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.redrive import RedriveOperator
from sluice_airflow.operators.validate import ValidateOperator

pytestmark = pytest.mark.airflow


def test_it_opens_the_address_that_the_driver_logs(
    pipeline_file: Callable[..., Path], spark: FakeSpark, context: Callable[..., Any]
) -> None:
    operator = BoundedRunOperator(
        task_id="ingest", pipeline=str(pipeline_file()), run_id="r", spark_binary=spark.binary
    )
    spark.plan("bounded_run.py", say=["12:00:00 sluice: Spark's web UI: http://worker:4040"], written=[1])
    given = context()
    operator.execute(given)
    link = SparkUiLink()
    assert given["ti"].xcoms[link.xcom_key] == "http://worker:4040"
    assert link.get_link(operator, ti_key=None) == "", "Airflow asks when the task has ended"


@pytest.mark.parametrize("operator", [BoundedRunOperator, ValidateOperator, RedriveOperator])
def test_every_task_that_starts_spark_has_the_button(operator: type) -> None:
    assert "Spark UI" in [link.name for link in operator.operator_extra_links]
