"""The button Sluice: from a task to its run on the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice_airflow.links.page import PageLink
from sluice_airflow.operators.account import AccountOperator
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.redrive import RedriveOperator
from sluice_airflow.operators.validate import ValidateOperator

pytestmark = pytest.mark.airflow


def test_it_opens_the_run_of_the_task(pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://air.example")
    operator = SimpleNamespace(pipeline=str(pipeline_file("demo")), run_id="manual__1")
    link = PageLink().get_link(operator, ti_key=None)
    assert link == "https://air.example/plugin/sluice/sluice/?pipeline=demo&run=manual__1"


def test_where_the_file_is_gone_there_is_no_button() -> None:
    assert PageLink().get_link(SimpleNamespace(pipeline="/none.yaml", run_id="r"), ti_key=None) == ""


@pytest.mark.parametrize("operator", [BoundedRunOperator, ValidateOperator, AccountOperator, RedriveOperator])
def test_every_task_that_has_a_run_has_the_button(operator: type) -> None:
    assert "Sluice" in [link.name for link in operator.operator_extra_links]
