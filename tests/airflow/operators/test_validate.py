"""The operator that judges, against a spark-submit that does as it is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowSkipException
from tests.airflow.conftest import FakeSpark

from sluice.errors import ConfigError, QualityError, Retry, SluiceError
from sluice.ledger import Ledger
from sluice.run.decision import accept
from sluice_airflow.operators.validate import ValidateOperator
from sluice_airflow.retry import TypedRetryPolicy

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

BAD = {
    "success": False,
    "suite": "demo",
    "rows": 7,
    "results": [
        {"expectation": "expect_column_values_to_not_be_null", "column": "carrier", "severity": "critical",
         "success": False, "observed": None, "unexpected_count": 3, "unexpected_percent": 42.857,
         "examples": ["<a>", "<b>"], "exception": None, "scope": "slice"},
        {"expectation": "expect_table_row_count_to_be_between", "column": None, "severity": "warning",
         "success": True, "observed": 7, "unexpected_count": None, "unexpected_percent": None,
         "examples": [], "exception": None, "scope": "slice"},
    ],
    "data_docs": "https://docs.example/demo", "error": None,
}  # fmt: skip


@pytest.fixture
def validate(pipeline_file: Callable[..., Path], spark: FakeSpark) -> Callable[..., ValidateOperator]:
    def make(on_failed: str = "fail", **kwargs: Any) -> ValidateOperator:
        kwargs = {"run_id": "manual__1", "spark_binary": spark.binary, **kwargs}
        return ValidateOperator(task_id="validate", pipeline=str(pipeline_file(on_failed=on_failed)), **kwargs)

    return make


@pytest.fixture
def a_run(ingest: Any, spark: FakeSpark, context: Any) -> Callable[..., None]:
    def run(**plan: Any) -> None:
        spark.plan("bounded_run.py", written=[7], **plan)
        ingest().execute(context())

    return run


@pytest.mark.parametrize("verdict", ["passed", "warned", "empty"])
def test_the_runs_own_verdict_needs_no_spark(
    validate: Any, spark: FakeSpark, context: Any, a_run: Any, verdict: str
) -> None:
    a_run(verdict=verdict)
    assert validate().execute(context()) == verdict
    assert spark.call("validate_sink.py") is None


@pytest.mark.parametrize("verdict", ["failed", "error"])
def test_a_bad_verdict_fails_the_task_and_never_retries(
    validate: Any, context: Any, a_run: Any, verdict: str, capfd: Any
) -> None:
    a_run(verdict=verdict, judgement=BAD)
    here = context()
    with pytest.raises(QualityError) as caught:
        validate().execute(here)
    assert TypedRetryPolicy().evaluate(caught.value, 1, 3).action is RetryAction.FAIL
    log = capfd.readouterr().out
    assert "expect_column_values_to_not_be_null" in log
    assert "42.86" in log
    assert "'<a>', '<b>'" in log
    judgement = here["ti"].xcoms["judgement"]  # pushed before the task failed
    assert judgement["verdict"] == verdict
    assert judgement["failed"][0]["column"] == "carrier"
    assert "<a>" not in json.dumps(judgement)


def test_what_was_refused_or_lost_is_said(validate: Any, context: Any, a_run: Any, capfd: Any) -> None:
    excess = {"limit": "max_quarantined", "verdict": "failed", "why": "98 of 100 records are in quarantine"}
    a_run(verdict="failed", judgement={"suite": "none", "rows": 2, "results": [], "excesses": [excess]})
    here = context()
    with pytest.raises(QualityError, match="max_quarantined: 98 of 100 records") as caught:
        validate().execute(here)
    assert "--quarantined" in caught.value.next_step
    assert "max_quarantined: 98 of 100 records" in capfd.readouterr().out
    assert here["ti"].xcoms["judgement"]["exceeded"] == ["max_quarantined: 98 of 100 records are in quarantine"]


def test_on_failed_warn_only_warns(validate: Any, context: Any, a_run: Any) -> None:
    a_run(verdict="failed", judgement=BAD)
    assert validate(on_failed="warn").execute(context()) == "failed"


def test_what_somebody_accepted_no_longer_fails(validate: Any, context: Any, a_run: Any, capfd: Any) -> None:
    a_run(verdict="failed", judgement=BAD)
    with pytest.raises(QualityError, match="carrier") as caught:
        validate(on_failed="hold").execute(context())
    assert "sluice accept demo manual__1 --reason TEXT" in caught.value.next_step
    accept(Ledger.open(), "demo", "manual__1", reason="known gap")
    assert validate(on_failed="hold").execute(context()) == "failed"
    assert "the verdict was accepted (known gap): the task goes on" in capfd.readouterr().out


def test_a_run_without_a_verdict_is_judged_now(validate: Any, spark: FakeSpark, context: Any, a_run: Any) -> None:
    a_run()
    spark.plan("validate_sink.py", verdict="passed", judgement={**BAD, "success": True})
    assert validate().execute(context()) == "passed"
    assert spark.call("validate_sink.py")["argv"][-2:] == ["--run", "manual__1"]


@pytest.mark.parametrize("how", ["cleared", "asked"])
def test_judging_again(validate: Any, spark: FakeSpark, context: Any, a_run: Any, how: str) -> None:
    a_run(verdict="failed", judgement=BAD)
    spark.plan("validate_sink.py", verdict="passed")
    operator = validate(rejudge=how == "asked")
    assert operator.execute(context(try_number=2 if how == "cleared" else 1)) == "passed"


@pytest.mark.parametrize("on_failed", ["fail", "warn"])
def test_exit_code_50_is_an_answer(validate: Any, spark: FakeSpark, context: Any, a_run: Any, on_failed: str) -> None:
    a_run()
    spark.plan("validate_sink.py", code=50, verdict="failed", judgement=BAD, say=["sluice: error: judged failed"])
    if on_failed == "warn":
        assert validate(on_failed="warn").execute(context()) == "failed"
    else:
        with pytest.raises(QualityError, match="carrier"):
            validate().execute(context())


def test_judging_that_breaks_is_typed(validate: Any, spark: FakeSpark, context: Any, a_run: Any) -> None:
    a_run()
    spark.plan("validate_sink.py", code=10, say=["sluice: error: no such suite"])
    with pytest.raises(ConfigError, match="no such suite"):
        validate().execute(context())


def test_validate_false_skips(validate: Any, spark: FakeSpark, context: Any) -> None:
    with pytest.raises(AirflowSkipException):
        validate().execute(context(validate=False))
    assert spark.call("validate_sink.py") is None


def test_nothing_to_judge(validate: Any, context: Any) -> None:
    with pytest.raises(SluiceError, match="has no run") as caught:
        validate().execute(context())
    assert caught.value.next_step == "clear the ingest task of this DAG run first"
    assert caught.value.retry is Retry.AS_THE_TASK_SAYS
