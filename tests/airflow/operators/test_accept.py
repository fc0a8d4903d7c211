"""The task that accepts a run whose verdict failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from tests.fixtures.books import split

from sluice.errors import ConfigError
from sluice.ledger import Ledger, UnknownRunError
from sluice_airflow.operators.accept import AcceptOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


@pytest.fixture
def made(pipeline_file: Callable[..., Path]) -> Callable[..., AcceptOperator]:
    file, ledger = pipeline_file(on_failed="hold"), Ledger.open()
    with ledger.acquire("demo", "bad") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=[split(0, 5)])
        ledger.judged(lease, "demo", "bad", verdict="failed", judgement={})

    def make(**more: Any) -> AcceptOperator:
        asked = {"of_run": "bad", "reason": "known gap", **more}
        return AcceptOperator(task_id="accept", pipeline=str(file), **asked)

    return make


def test_it_accepts_once(made: Callable[..., AcceptOperator], context: Any) -> None:
    for _ in range(2):
        assert made().execute(context()) == {"run": "bad", "verdict": "failed"}
    assert Ledger.open().acceptance("demo", "bad") == "known gap"


def test_it_may_be_the_new_normal(made: Callable[..., AcceptOperator], context: Any) -> None:
    made(new_normal=True).execute(context())
    assert Ledger.open().normal_since("demo") == ("bad", "known gap")


@pytest.mark.parametrize(
    ("more", "error", "told"),
    [
        ({"of_run": ""}, AirflowSkipException, "no run is named"),
        ({"of_run": "None"}, AirflowSkipException, "no run is named"),
        ({"reason": ""}, ConfigError, "say why"),
        ({"of_run": "bat"}, UnknownRunError, "the nearest are bad"),
    ],
)
def test_what_makes_no_sense_changes_nothing(
    made: Callable[..., AcceptOperator], context: Any, more: Any, error: Any, told: str
) -> None:
    with pytest.raises(error, match=told):
        made(**more).execute(context())
    assert Ledger.open().acceptance("demo", "bad") is None
