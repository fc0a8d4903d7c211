"""The standalone cluster of one's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.fixtures.runs import await_that

from sluice.errors import SluiceError
from sluice_demo.spark import SparkCluster

pytestmark = pytest.mark.spark

APPLICATION = "from pyspark.sql import SparkSession; spark = SparkSession.builder.getOrCreate(); input()"


@pytest.mark.long
def test_spark_cluster_that_is_stopped_leaves_no_process(tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "cluster", workers=1) as cluster:
        assert cluster.start().worker_pids == cluster.worker_pids, "a second start changes nothing"
        submit = f"--master {cluster.master} --conf spark.ui.enabled=false pyspark-shell"
        env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_SUBMIT_ARGS": submit}
        of_no_interest = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        application = subprocess.Popen(
            [sys.executable, "-c", APPLICATION], env=env, stdin=subprocess.PIPE, **of_no_interest
        )
        try:
            await_that(cluster.executor_pids, "the application has an executor", application)
            pids = [*cluster.worker_pids, *(pid for pids in cluster.executor_pids().values() for pid in pids)]
            cluster.stop()
        finally:
            application.kill()
            application.communicate()
    assert len(pids) == 2
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    with pytest.raises(SluiceError, match="not running"):
        _ = cluster.master


def test_spark_cluster_shows_the_log_of_a_worker_that_cannot_start(tmp_path: Path) -> None:
    cluster = SparkCluster(tmp_path / "cluster", workers=1, memory="0m")
    with pytest.raises(SluiceError, match="worker-0") as caught:
        cluster.start()
    assert "org.apache.spark.deploy.worker.Worker" in str(caught.value)
    assert cluster.worker_pids == []
