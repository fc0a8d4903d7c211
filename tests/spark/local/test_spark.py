"""The standalone cluster of one's own, and how many executors an application finds on it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.fixtures.runs import await_that

from sluice.errors import SluiceError
from sluice.local.spark import SparkCluster

pytestmark = pytest.mark.spark

APPLICATION = """
import sys
from pyspark.sql import SparkSession
from sluice_spark.strategies.hot import executors
spark = SparkSession.builder.getOrCreate()
print("executors:", executors(spark), flush=True)
sys.stdin.read()
spark.stop()
"""


@contextlib.contextmanager
def application(cluster: SparkCluster, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """An application that says how many executors it has, and stays until its stdin is closed."""
    script = folder / "application.py"
    script.write_text(APPLICATION)
    env = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"--master {cluster.master} --conf spark.ui.enabled=false pyspark-shell",
    }
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_spark_cluster_has_its_executors_counted_though_they_come_late(cluster: SparkCluster, tmp_path: Path) -> None:
    await_that(lambda: not cluster.executor_pids(), "the executors of earlier tests are gone")
    with application(cluster, tmp_path) as process:
        assert process.stdout.readline() == "executors: 2\n"
        (pids,) = cluster.executor_pids().values()
        assert len(set(pids)) == 2
        process.communicate(timeout=60)
        assert process.returncode == 0
    await_that(lambda: not cluster.executor_pids(), "the executors ended with their application")


@pytest.mark.long
def test_spark_cluster_that_is_stopped_leaves_no_process(tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "cluster", workers=1) as cluster:
        assert cluster.start().worker_pids == cluster.worker_pids, "a second start changes nothing"
        with application(cluster, tmp_path) as process:
            await_that(cluster.executor_pids, "the application has an executor", process)
            pids = [*cluster.worker_pids, *(pid for pids in cluster.executor_pids().values() for pid in pids)]
            cluster.stop()
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
