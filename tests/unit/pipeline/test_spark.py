"""The key ``spark`` of a pipeline file, and the command line that comes of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.pipelines import loaded

from sluice.cli.run import spark_of
from sluice.connections import Connection
from sluice.errors import ConfigError
from sluice.launch import submit
from sluice.launch.submit import SparkSubmit
from sluice.pipeline import Pipeline
from sluice.pipeline.spark import CORE, DEFAULTS, RESERVED, WORKERS, Spark
from sluice.pipeline.spark import LOCAL as ALONE
from sluice.run.actions import Action, Check, Redrive, RunRequest, Validate

LOCAL = Connection("spark_default", "spark", host="local[2]")
Make = Callable[[str], Pipeline]


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(submit.jars, "paths", lambda _set: [Path("/jars/a.jar")])
    return lambda spark: loaded(tmp_path, f"spark: {spark}" if spark else "")


def started(pipeline: Pipeline, action: Action, **more: Any) -> SparkSubmit:
    return submit.submit(pipeline, action, find=lambda name: Connection(name, "kafka"), **{"spark": LOCAL, **more})


@pytest.mark.parametrize("action", [RunRequest("r"), Redrive("r"), Validate("r")], ids=lambda action: action.name)
def test_spark_resources_of_the_file_are_those_of_each_application(orders: Make, action: Action) -> None:
    keys = "driver_memory: 3g, executor_memory: 2048m, executor_cores: 2, num_executors: 4, total_executor_cores: 8"
    conf = "conf: {spark.sql.shuffle.partitions: 16, spark.sql.ansi.enabled: false}"
    submission = started(orders(f"{{{keys}, {conf}}}"), action)
    argv = submission.argv()
    options = dict(itertools.pairwise(argv))
    assert options["--driver-memory"] == "3g"  # on the command line: the JVM is there before any setting is read
    assert (options["--executor-memory"], options["--executor-cores"]) == ("2048m", "2")
    assert (options["--num-executors"], options["--total-executor-cores"]) == ("4", "8")
    assert {"spark.sql.shuffle.partitions=16", "spark.sql.ansi.enabled=false"} <= set(argv)
    assert argv.index("--driver-memory") < argv.index(str(submission.application))


def test_spark_resources_are_asked_for_only_where_the_file_does(orders: Make, tmp_path: Path) -> None:
    plain = orders("")
    assert (started(plain, RunRequest("r")).resources, plain.spark.connection) == ({}, "spark_default")
    asked = Check(tmp_path / "result", ("p.yaml",))
    assert "--driver-memory" not in started(orders("{driver_memory: 3g}"), asked, settings=Spark()).argv()


@pytest.mark.parametrize("master", ["local[2]", "spark://master:7077"])
def test_spark_conf_of_the_core_is_refused_in_a_file(orders: Make, master: str) -> None:
    submission = started(orders(""), RunRequest("r"), spark=Connection("spark_default", "spark", host=master))
    assert set(submission.conf) <= set(CORE) | set(DEFAULTS) | set(ALONE) | set(WORKERS) | set(RESERVED)
    assert (submission.conf.get("spark.executor.killOnFatalError.depth") == "0") is master.startswith("local")
    for key in submission.conf.keys() - (DEFAULTS | ALONE | WORKERS):
        with pytest.raises(ConfigError) as caught:
            orders(f"{{conf: {{{key}: x}}}}")
        assert key in caught.value.what


def test_spark_settings_of_a_task_replace_those_of_the_file_key_by_key() -> None:
    spark = Spark(conf={"spark.a": "1", "spark.b": "1"}, driver_memory="2g", executor_cores=2)
    over = spark.over(conf={"spark.b": 2, "spark.c": True}, driver_memory="4g", executor_cores=None)
    assert over.conf == {"spark.a": "1", "spark.b": "2", "spark.c": "true"}
    assert (over.driver_memory, over.executor_cores) == ("4g", 2)
    with pytest.raises(ConfigError, match=r"spark\.ui\.showConsoleProgress"):
        spark.over(conf={"spark.ui.showConsoleProgress": "true"})
    with pytest.raises(ConfigError, match="conf"):
        spark.over(conf="spark.a=1")


def test_spark_connection_of_the_file_is_used(orders: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", '{"conn_type": "kafka"}')
    spec = orders("{connection: cluster}")
    with pytest.raises(ConfigError, match="'cluster'"):
        spark_of(spec)
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", '{"conn_type": "spark", "host": "spark://master:7077"}')
    assert spark_of(spec).host == "spark://master:7077"


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net", True),
        ("spark.hadoop.fs.azure.account.oauth2.client.secret.store", True),
        ("spark.hadoop.fs.azure.sas.container.store.blob.core.windows.net", True),
        ("spark.hadoop.fs.gs.auth.service.account.private.key", True),
        ("spark.authenticate.secret", True),
        ("spark.executorEnv.AZURE_CLIENT_SECRET", True),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", False),
        ("spark.hadoop.fs.azure.account.auth.type", False),
        ("spark.hadoop.fs.azure.account.oauth.provider.type", False),
        ("spark.kubernetes.authenticate.driver.oauthTokenFile", False),
        ("spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY", False),
        ("spark.kubernetes.executor.secrets.store", False),
        ("spark.sql.shuffle.partitions", False),
    ],
)
def test_spark_conf_refuses_a_secret_and_takes_keys_that_only_lead_to_one(key: str, secret: bool) -> None:
    with pytest.raises(ValueError, match="secret") if secret else nullcontext():
        assert Spark(conf={key: "x"}).conf == {key: "x"}
    for option in ("-Djavax.net.ssl.trustStorePassword=x", "-Xmx1g -Dpw=x", "-Ddb.pwd=x"):
        with pytest.raises(ValueError, match="secret"):
            Spark(conf={"spark.driver.defaultJavaOptions": option})
    Spark(conf={"spark.driver.defaultJavaOptions": "-Dpower=x"})


@pytest.mark.parametrize("key", ["spark.ui.enabled", "spark.python.sql.dataFrameDebugging.enabled"])
def test_spark_conf_takes_a_key_that_has_a_default_of_sluice(orders: Make, key: str) -> None:
    for spark, value in (("", "false"), (f"{{conf: {{{key}: true}}}}", "true")):
        assert started(orders(spark), RunRequest("r")).conf[key] == value
