"""Taking rows back, and closing losses, from Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from tests.airflow.conftest import FakeSpark
from tests.airflow.operators.test_audit import commit

from sluice.errors import ConfigError, LeaseHeldError
from sluice.ledger import Ledger, UnknownRunError
from sluice_airflow.operators.retract import RetractOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


@pytest.fixture
def made(pipeline_file: Callable[..., Path], spark: FakeSpark) -> Callable[..., RetractOperator]:
    file = pipeline_file("p")

    def make(**more: Any) -> RetractOperator:
        said = {"run_id": "back", "what": "r", "reason": "wrong currency", **more}
        return RetractOperator(task_id="retract", pipeline=str(file), spark_binary=spark.binary, **said)

    return make


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        ("RUN", ["--of-run=RUN"]),
        ("p:0:0-2 p:0:3-4", ["--range", "p:0:0-2", "--range", "p:0:3-4"]),
        (["p:0:0-2"], ["--range", "p:0:0-2"]),
    ],
)
def test_what_is_asked_for_reaches_the_application(
    made: Callable[..., RetractOperator], spark: FakeSpark, context: Any, what: Any, asked: list[str]
) -> None:
    commit((0, 5))
    (run,) = (r.run for r in Ledger.open().runs("p"))
    found = made(what=run if what == "RUN" else what).execute(context())
    call = spark.call("retract.py")
    assert call is not None
    argv = call["argv"]
    words = argv[next(n for n, word in enumerate(argv) if word.endswith("retract.py")) + 1 :]
    assert words[2:5] == ["--run", "back", "--reason=wrong currency"]
    assert words[5:] == [word.replace("RUN", run) for word in asked]
    assert found["retracted"] == {"written": 0, "opened": 0}, "the fake retracts nothing"


@pytest.mark.parametrize(
    ("more", "error", "told"),
    [
        ({"what": ""}, AirflowSkipException, "nothing was asked for"),
        ({"what": "None"}, AirflowSkipException, "nothing was asked for"),
        ({"what": "p:0:7-9"}, AirflowSkipException, "retracted before, or never written"),
        ({"reason": " "}, ConfigError, "reason: it is empty"),
        ({"what": "none"}, UnknownRunError, "has no run 'none' of 'p'"),
        ({"what": "a p:0:0-5"}, ConfigError, "'a' is not a range"),
    ],
)
def test_where_there_is_nothing_to_do_no_spark_is_started(
    made: Callable[..., RetractOperator], spark: FakeSpark, context: Any, more: Any, error: Any, told: str
) -> None:
    commit((0, 5))
    with pytest.raises(error, match=told):
        made(**more).execute(context())
    assert spark.call("retract.py") is None


def test_a_run_whose_batch_waited_is_not_taken_back_as_a_whole_later(
    made: Callable[..., RetractOperator], spark: FakeSpark, context: Any
) -> None:
    commit((0, 5))
    (run,) = (r.run for r in Ledger.open().runs("p"))
    Ledger.open().judged(None, "p", run, verdict="failed", judgement={"reasons": ["x"], "waits": [1, 0]})
    with pytest.raises(ConfigError, match=r"batch 0 of run .*, which had waited, was published"):
        made(what=run).execute(context())
    assert spark.call("retract.py") is None


def test_a_run_that_is_active_is_a_reason_to_try_again_later(
    made: Callable[..., RetractOperator], spark: FakeSpark, context: Any
) -> None:
    commit((0, 5))
    spark.plan("retract.py", code=40, record=False)
    with pytest.raises(LeaseHeldError):
        made(what="p:0:0-5").execute(context())
