"""A driver that hangs is ended, and does not hold the pipeline for ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from tests.airflow.conftest import FakeSpark

from sluice.errors import ConfigError
from sluice.lag import Backlog, PartitionLag
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice_airflow.factory import build_dag
from sluice_airflow.sensors import kafka_lag as sensor_module

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_each_task_of_a_pipeline_ends_at_some_time(pipeline_file: Callable[..., Path]) -> None:
    assert {t.execution_timeout for t in build_dag(pipeline_file()).tasks} == {timedelta(hours=12)}
    dag = build_dag(pipeline_file(more="airflow: {execution_timeout: 90m}\n"))
    assert dag.get_task("ingest").execution_timeout == timedelta(minutes=90)
    with pytest.raises(ConfigError, match="no time"):
        load(pipeline_file(more="airflow: {execution_timeout: 0s}\n"))


@pytest.mark.timeout(90)
def test_a_driver_that_hangs_is_ended_and_tried_again(
    spark: FakeSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Backlog("flights", (PartitionLag("flights", 0, 0, 0, 12),))
    monkeypatch.setattr(sensor_module, "look", lambda *_, **__: full)
    spark.plan("bounded_run.py", hang=str(tmp_path / "hangs"), once=True)
    dag = build_dag("flights")
    ingest = dag.get_task("ingest")
    ingest._spark_binary, ingest.execution_timeout, ingest.retry_delay = (
        spark.binary, timedelta(seconds=5), timedelta(seconds=1)
    )  # fmt: skip
    run = dag.test(logical_date=None, run_conf={"validate": False})
    (found,) = (ti for ti in run.get_task_instances() if ti.task_id == "ingest")
    assert (str(found.state), found.try_number) == ("success", 2)
    (row,) = Ledger.open().runs("flights")
    assert (row.run, row.state) == (run.run_id, "done")
    pids = [int(pid) for pid in (spark.folder / "pids").read_text().split()]
    assert [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE] == []
