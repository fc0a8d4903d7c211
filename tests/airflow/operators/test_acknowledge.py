"""Closing losses from Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from tests.airflow.operators.test_redrive import lose

from sluice.errors import ConfigError, LeaseHeldError
from sluice.ledger import Ledger, UnknownRunError
from sluice_airflow.operators.acknowledge import AcknowledgeOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


@pytest.fixture
def made(pipeline_file: Callable[..., Path]) -> Callable[..., AcknowledgeOperator]:
    file = pipeline_file("p")

    def make(**more: Any) -> AcknowledgeOperator:
        return AcknowledgeOperator(task_id="close", pipeline=str(file), **{"reason": "retention took it", **more})

    return make


def test_what_is_acknowledged_is_no_longer_open(made: Callable[..., AcknowledgeOperator], context: Any) -> None:
    lose((0, 5), (7, 9))
    assert made(ranges="p:0:3-8", of_run="live").execute(context()) == {
        "offsets": 3, "ranges": [["p", 0, 3, 5], ["p", 0, 7, 8]]
    }  # fmt: skip
    assert [(r.range.start, r.range.end) for r in Ledger.open().lost("p")] == [(0, 3), (8, 9)]


def test_a_dag_closes_what_is_left(pipeline_file: Callable[..., Path], dags_in: Any, tmp_path: Path) -> None:
    lose((0, 5))
    file = str(pipeline_file("p"))
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "closing.py").write_text(
        "from airflow.sdk import DAG\n"
        "from sluice_airflow.operators.acknowledge import AcknowledgeOperator\n"
        "with DAG('closing', schedule=None, params={'why': 'retention'}):\n"
        f"    AcknowledgeOperator(task_id='close', pipeline={file!r}, reason='{{{{ params.why }}}}')\n"
    )
    run = dags_in(tmp_path / "dags")["closing"].test(logical_date=None)
    assert [str(t.state) for t in run.get_task_instances()] == ["success"]
    assert Ledger.open().lost("p") == []
    (event,) = [e for e in Ledger.open().events("p") if e["type"] == "LossAcknowledged"]
    assert event["payload"]["reason"] == "retention"


@pytest.mark.parametrize(
    ("more", "error", "told"),
    [
        ({"ranges": "p:0:5-7"}, AirflowSkipException, "no such lost range"),
        ({"ranges": "p:0:9-11"}, ConfigError, "p has read nothing of p-0"),
        ({"reason": ""}, ConfigError, "reason: it is empty"),
        ({"of_run": "none"}, UnknownRunError, "has no run 'none' of 'p'"),
        ({"ranges": ["p-0"]}, ConfigError, "p-0"),
    ],
)
def test_what_makes_no_sense_changes_nothing(
    made: Callable[..., AcknowledgeOperator], context: Any, more: Any, error: Any, told: str
) -> None:
    lose((0, 5), (7, 9))
    with pytest.raises(error, match=told):
        made(**more).execute(context())
    assert len(Ledger.open().lost("p")) == 2


def test_a_run_that_is_active_is_a_reason_to_try_again_later(
    made: Callable[..., AcknowledgeOperator], context: Any
) -> None:
    lose((0, 5))
    with Ledger.open().acquire("p", "live"), pytest.raises(LeaseHeldError):
        made().execute(context())
