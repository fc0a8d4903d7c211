"""What people are told: of a run that failed, of what was asked for in vain, of causes, and of lengths of time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from tests.airflow.conftest import FakeSpark

from sluice.errors import ConfigError, QualityError
from sluice.lag import Backlog, PartitionLag
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.text import length
from sluice_airflow.factory import build_dag
from sluice_airflow.log_tables import lag_table
from sluice_airflow.operators.validate import ValidateOperator
from sluice_airflow.window import run_window

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def states(run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


# --- a run that failed -----------------------------------------------------------------------------------------------


def test_a_failed_verdict_is_told_of_and_the_run_ends_as_failed(dag: DAG, spark: FakeSpark, capfd: Any) -> None:
    spark.plan("bounded_run.py", written=[12], verdict="failed", judgement={"results": []})
    run = dag.test(logical_date=None)
    assert str(run.state) == "failed"
    assert states(run)["account"] == "failed"
    told = capfd.readouterr().out
    assert "verdict failed" in told
    assert told.count("in all: 12 planned, 12 written") == 2, "by ingest and by account"
    assert "validate failed: what the run did is told above" in told


def test_what_a_run_committed_before_it_failed_is_told(dag: DAG, spark: FakeSpark, capfd: Any) -> None:
    spark.plan("bounded_run.py", written=[5], code=21, say=["sluice: error: offsets are gone"])
    run = dag.test(logical_date=None)
    assert str(run.state) == "failed"
    assert "in all: 5 planned, 5 written" in capfd.readouterr().out


def test_a_run_that_never_began_fails(dag: DAG, spark: FakeSpark, capfd: Any) -> None:
    spark.plan("bounded_run.py", record=False, code=10, say=["sluice: error: wrong"])
    run = dag.test(logical_date=None)
    assert (str(run.state), states(run)["account"]) == ("failed", "failed")
    assert "failed before it was planned" in capfd.readouterr().out


# --- params ----------------------------------------------------------------------------------------------------------


def test_a_param_that_does_not_exist_is_refused_before_anything_is_read(dag: DAG, spark: FakeSpark, capfd: Any) -> None:
    run = dag.test(logical_date=None, run_conf={"strat": "2013-03-01T00:00:00Z"})
    assert str(run.state) == "failed"
    assert states(run)["wait_for_lag"] == "failed"
    assert spark.call("bounded_run.py") is None
    assert Ledger.open().runs("flights") == []
    told = capfd.readouterr().out
    assert "'strat'" in told
    assert "did you mean 'start'" in told


def test_a_dag_of_ones_own_may_be_given_anything(pipeline_file: Callable[..., Path]) -> None:
    spec = load(pipeline_file())
    context: Any = {
        "run_id": "r", "params": {"colour": "red"}, "dag": SimpleNamespace(params={"recovery": "replay"}),
        "dag_run": SimpleNamespace(conf={"colour": "red"}, run_type="manual"),
    }  # fmt: skip
    assert run_window(context, spec).interval is None
    context["dag"] = build_dag(spec)
    with pytest.raises(ConfigError, match="'colour'"):
        run_window(context, spec)
    context["dag_run"].conf = None
    assert run_window(context, spec).interval is None


# --- causes ----------------------------------------------------------------------------------------------------------


def test_only_what_failed_the_run_is_named_as_its_cause(
    pipeline_file: Callable[..., Path], spark: FakeSpark, context: Any
) -> None:
    def result(name: str, severity: str, exception: str | None = None) -> dict[str, Any]:
        return {"expectation": name, "severity": severity, "success": False, "exception": exception, "scope": "slice"}

    judgement = {
        "results": [result("critical_one", "critical"), result("warning_one", "warning"),
                    result("info_one", "info"), result("broken_one", "info", "ValueError: no")],
        "excesses": [{"limit": "max_quarantined", "verdict": "failed", "why": "9 of 10"},
                     {"limit": "max_lost", "verdict": "warned", "why": "1 of 10"}],
    }  # fmt: skip
    spark.plan("validate_sink.py", verdict="failed", judgement=judgement)
    spark.plan("bounded_run.py", written=[3])
    task = ValidateOperator(task_id="validate", pipeline=str(pipeline_file()), run_id="r", spark_binary=spark.binary)
    with Ledger.open().acquire("demo", "r") as lease:
        Ledger.open().run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        Ledger.open().judged(lease, "demo", "r", verdict="failed", judgement=judgement)
    with pytest.raises(QualityError) as caught:
        task.execute(context())
    for cause in ("critical_one", "broken_one", "max_quarantined"):
        assert cause in caught.value.what
    for no_cause in ("warning_one", "info_one", "max_lost", "more"):
        assert no_cause not in caught.value.what


# --- lengths of time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.25, "0.2 s"), (59.7, "60 s"), (119, "119 s"), (120, "2 min"), (125, "2 min 5 s"),
        (3600, "1 h"), (3661, "1 h 1 min"), (86_400, "1 d"), (90_000, "1 d 1 h"), (438_328_912.6, "5,073 d 6 h"),
    ],
)  # fmt: skip
def test_a_length_of_time_is_said_in_words(seconds: float, words: str) -> None:
    assert length(seconds) == words


def test_the_sensors_table_says_ages_in_words() -> None:
    old = PartitionLag("flights", 0, 0, 0, 12, 438_328_912.6)
    unknown = PartitionLag("flights", 1, 0, 0, 12, None)
    text = lag_table(Backlog("flights", (old, unknown)).as_dict())
    assert "5,073 d 6 h" in text
    assert "438" not in text
