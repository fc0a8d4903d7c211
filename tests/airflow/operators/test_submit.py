"""What a task may say of Spark: it arrives, or it is refused when the DAG is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from tests.airflow.conftest import FakeSpark

from sluice.errors import ConfigError
from sluice_airflow.factory import build_dag
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.validate import ValidateOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

HONOURED = {
    "conn_id", "spark_binary", "conf", "driver_memory", "executor_memory", "executor_cores", "num_executors",
    "total_executor_cores",
}  # fmt: skip


def argv_of(spark: FakeSpark, main: str) -> list[str]:
    call = spark.call(main)
    assert call is not None
    argv: list[str] = call["argv"]
    return argv


def after(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


@pytest.mark.parametrize(
    ("operator", "main"), [(BoundedRunOperator, "bounded_run"), (ValidateOperator, "validate_sink")]
)
def test_what_a_task_says_reaches_spark_submit_over_the_file(
    operator: Any, main: str, pipeline_file: Callable[..., Path], spark: FakeSpark, context: Any
) -> None:
    file = pipeline_file(more="spark: {driver_memory: 1g, executor_cores: 3, conf: {spark.a: 1, spark.b: 1}}\n")
    shared = {"pipeline": str(file), "run_id": "manual__1", "spark_binary": spark.binary}
    if main == "validate_sink":
        spark.plan("bounded_run.py", written=[1])
        BoundedRunOperator(task_id="ingest", **shared).execute(context())
        spark.plan("validate_sink.py", verdict="passed")
    task = operator(task_id="t", driver_memory="5g", conf={"spark.b": 2}, **shared)
    task.execute(context())
    argv = argv_of(spark, f"{main}.py")
    assert after(argv, "--driver-memory") == "5g"
    assert after(argv, "--executor-cores") == "3"
    assert {"spark.a=1", "spark.b=2", "spark.sql.session.timeZone=UTC"} <= set(argv)


def test_settings_are_templates(pipeline_file: Callable[..., Path], spark: FakeSpark, context: Any) -> None:
    task = BoundedRunOperator(
        task_id="t", pipeline=str(pipeline_file()), run_id="r", spark_binary=spark.binary,
        driver_memory="{{ params.memory }}", executor_cores="{{ params.cores }}", executor_memory="{{ params.none }}",
        conf={"spark.a": "{{ params.memory }}"},
    )  # fmt: skip
    now = context(memory="2g", cores=4, none=None)
    task.render_template_fields(now)
    task.execute(now)
    argv = argv_of(spark, "bounded_run.py")
    assert (after(argv, "--driver-memory"), after(argv, "--executor-cores")) == ("2g", "4")
    assert "spark.a=2g" in argv
    assert "--executor-memory" not in argv


def test_a_template_that_renders_to_nonsense_is_refused(
    pipeline_file: Callable[..., Path], spark: FakeSpark, context: Any
) -> None:
    task = BoundedRunOperator(
        task_id="t", pipeline=str(pipeline_file()), spark_binary=spark.binary, driver_memory="{{ params.memory }}"
    )
    now = context(memory="plenty")
    task.render_template_fields(now)
    with pytest.raises(ConfigError, match="plenty"):
        task.execute(now)
    assert spark.call("bounded_run.py") is None


ARGUMENTS = sorted(set(inspect.signature(SparkSubmitOperator.__init__).parameters) - HONOURED - {"self", "kwargs"})


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("operator", [BoundedRunOperator, ValidateOperator])
def test_an_argument_that_would_do_nothing_is_refused(operator: Any, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        operator(task_id="ingest", pipeline="orders", **{name: "x"})
    assert name in caught.value.what
    assert "driver_memory" in caught.value.next_step


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"conf": {"spark.ui.showConsoleProgress": "true"}}, "Sluice sets it"),
        ({"conf": {"spark.driver.memory": "4g"}}, "write driver_memory"),
        ({"driver_memory": "much"}, "no amount of memory"),
        ({"executor_cores": 0}, "executor_cores"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_dag_is_read(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BoundedRunOperator(task_id="ingest", pipeline="orders", **asked)


def test_a_file_names_its_spark_connection(
    pipeline_file: Callable[..., Path], spark: FakeSpark, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", '{"conn_type": "spark", "host": "spark://master:7077"}')
    file = pipeline_file(more="spark: {connection: cluster}\n")
    ingest = build_dag(file).get_task("ingest")
    ingest.run_id, ingest._spark_binary = "r", spark.binary
    ingest.execute(context())
    assert after(argv_of(spark, "bounded_run.py"), "--master") == "spark://master:7077"
