"""Beginning a pipeline again from Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from tests.airflow.conftest import FakeSpark
from tests.airflow.operators.test_audit import commit

from sluice.errors import ConfigError, LeaseHeldError
from sluice.ledger import Ledger
from sluice_airflow.operators.reset import ResetOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


@pytest.fixture
def made(pipeline_file: Callable[..., Path], spark: FakeSpark) -> Callable[..., ResetOperator]:
    file = pipeline_file("p")

    def make(**more: Any) -> ResetOperator:
        said = {"run_id": "again", "reason": "new transform", **more}
        return ResetOperator(task_id="reset", pipeline=str(file), spark_binary=spark.binary, **said)

    return make


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({}, []),
        ({"begin": "", "truncate": "False", "agreed": "None"}, []),
        ({"begin": "2026-11-01", "truncate": True}, ["--from=2026-11-01", "--truncate"]),
        ({"begin": " earliest ", "truncate": "true", "agreed": "True"}, ["--from=earliest", "--truncate", "--yes"]),
    ],
)
def test_what_is_asked_for_reaches_the_application(
    made: Callable[..., ResetOperator], spark: FakeSpark, context: Any, more: Any, asked: list[str]
) -> None:
    commit((0, 5))
    with pytest.raises(AirflowSkipException, match="stands there already"):  # the fake resets nothing
        made(**more).execute(context())
    call = spark.call("reset.py")
    assert call is not None
    argv = call["argv"]
    words = argv[next(n for n, word in enumerate(argv) if word.endswith("reset.py")) + 1 :]
    assert words[2:] == ["--run", "again", "--reason=new transform", *asked]
    assert [run.kind for run in Ledger.open().runs("p") if run.run == "again"] == ["reset"]


def test_state_is_kept_if_asked_for(
    made: Callable[..., ResetOperator], pipeline_file: Callable[..., Path], spark: FakeSpark, context: Any
) -> None:
    pipeline_file("p", more="dedupe: {keys: [id], within: 1h}\n")  # in place of that of the fixture
    commit((0, 5))
    with pytest.raises(AirflowSkipException):
        made(rebuild_state="true").execute(context())
    call = spark.call("reset.py")
    assert call is not None
    assert "--rebuild-state" in call["argv"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"reason": " "}, "reason: it is empty"),
        ({"begin": "soon"}, "'soon' is not a time"),
        ({"truncate": True}, "nobody said from where"),
        ({"rebuild_state": "True"}, "there is no state to rebuild"),
        ({"truncate": "perhaps", "begin": "latest"}, "truncate: 'perhaps' is neither true nor false"),
    ],
)
def test_what_makes_no_sense_starts_no_spark(
    made: Callable[..., ResetOperator], spark: FakeSpark, context: Any, more: Any, told: str
) -> None:
    commit((0, 5))
    with pytest.raises(ConfigError, match=told):
        made(**more).execute(context())
    assert spark.call("reset.py") is None


def test_a_run_that_is_active_is_a_reason_to_try_again_later(
    made: Callable[..., ResetOperator], spark: FakeSpark, context: Any
) -> None:
    commit((0, 5))
    spark.plan("reset.py", code=40, record=False)
    with pytest.raises(LeaseHeldError):
        made().execute(context())
