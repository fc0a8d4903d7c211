"""The key ``spark`` of a pipeline file, and the command line that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.connections import Connection
from sluice.errors import ConfigError
from sluice.launch import submit
from sluice.launch.submit import SparkSubmit, bounded_run, redrive, validate_sink, validate_spec
from sluice.pipeline import Pipeline, load
from sluice.pipeline.spark import CORE, DEFAULTS, RESERVED, WORKERS, Spark
from sluice.pipeline.spark import LOCAL as ALONE
from sluice.run.request import RunRequest

LOCAL = Connection("spark_default", "spark", host="local[2]")

FILE = """\
pipeline: orders
source: {kafka: {topics: [orders]}}
decode: {text: {}}
sink: {delta: {path: orders}}
"""


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Pipeline]:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(submit.jars, "paths", lambda _set: [Path("/jars/a.jar")])

    def make(spark: str) -> Pipeline:
        file = tmp_path / "orders.yaml"
        file.write_text(FILE + (f"spark: {spark}\n" if spark else ""))
        return load(file)

    return make


def after(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


MAINS: dict[str, Callable[[Pipeline], SparkSubmit]] = {
    "run": lambda p: bounded_run(p, RunRequest("r"), spark=LOCAL, kafka=None),
    "redrive": lambda p: redrive(p, "r", spark=LOCAL, kafka=None),
    "validate": lambda p: validate_sink(p, "r", spark=LOCAL),
}


@pytest.mark.parametrize("main", MAINS)
def test_each_application_of_a_pipeline_gets_what_its_file_says(orders: Any, main: str) -> None:
    spec = orders(
        "{driver_memory: 3g, executor_memory: 2048m, executor_cores: 2, num_executors: 4, total_executor_cores: 8, "
        "conf: {spark.sql.shuffle.partitions: 16, spark.sql.ansi.enabled: false}}"
    )
    argv = MAINS[main](spec).argv()
    assert after(argv, "--driver-memory") == "3g"  # on the command line: the JVM is there before any setting is read
    assert after(argv, "--executor-memory") == "2048m"
    assert after(argv, "--executor-cores") == "2"
    assert after(argv, "--num-executors") == "4"
    assert after(argv, "--total-executor-cores") == "8"
    assert "spark.sql.shuffle.partitions=16" in argv
    assert "spark.sql.ansi.enabled=false" in argv
    assert argv.index("--driver-memory") < argv.index(str(MAINS[main](spec).application))


def test_checking_a_file_starts_spark_as_it_is(orders: Any, tmp_path: Path) -> None:
    assert "--driver-memory" not in validate_spec([orders("{driver_memory: 3g}")], tmp_path / "result").argv()


def test_without_the_key_nothing_is_asked_for(orders: Any) -> None:
    submission = MAINS["run"](orders(""))
    assert submission.resources == {}
    assert orders("").spark.connection == "spark_default"


@pytest.mark.parametrize("master", ["local[2]", "spark://master:7077"])
def test_all_that_the_core_sets_is_refused_in_a_file(orders: Any, master: str) -> None:
    spark = Connection("spark_default", "spark", host=master)
    submission = bounded_run(orders(""), RunRequest("r"), spark=spark, kafka=None)
    assert set(submission.conf) <= set(CORE) | set(DEFAULTS) | set(ALONE) | set(WORKERS) | set(RESERVED)
    assert (submission.conf.get("spark.executor.killOnFatalError.depth") == "0") is master.startswith("local")
    for key in submission.conf.keys() - (DEFAULTS | ALONE | WORKERS):
        with pytest.raises(ConfigError, match="leave it out") as caught:
            orders(f"{{conf: {{{key}: x}}}}")
        assert key in caught.value.what


@pytest.mark.parametrize(
    ("spark", "says"),
    [
        ("{conf: {spark.driver.memory: 4g}}", "write driver_memory"),
        ("{conf: {spark.driver.extraJavaOptions: -Xss4m}}", "spark.driver.defaultJavaOptions"),
        ("{conf: {spark.master: yarn}}", "the Spark connection"),
        ("{conf: {sql.shuffle.partitions: 4}}", "begin with spark."),
        ("{conf: {spark.hadoop.fs.s3a.secret.key: abc}}", "command line"),
        ("{conf: {spark.ssl.keyPassword: abc}}", "command line"),
        ("{driver_memory: 4}", "spark.driver_memory"),
        ("{driver_memory: '4096'}", "no amount of memory"),
        ("{driver_memory: 0g}", "no amount of memory"),
        ("{executor_cores: 0}", "spark.executor_cores"),
        ("{driver_cores: 2}", "unknown key"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_way_out(orders: Any, spark: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        orders(spark)
    assert says in caught.value.what


def test_a_credentials_provider_is_no_secret(orders: Any) -> None:
    key = "spark.hadoop.fs.s3a.aws.credentials.provider"
    assert orders(f"{{conf: {{{key}: org.example.Provider}}}}").spark.conf == {key: "org.example.Provider"}


def test_a_task_replaces_key_by_key() -> None:
    spark = Spark(conf={"spark.a": "1", "spark.b": "1"}, driver_memory="2g", executor_cores=2)
    over = spark.over(conf={"spark.b": 2, "spark.c": True}, driver_memory="4g", executor_cores=None)
    assert over.conf == {"spark.a": "1", "spark.b": "2", "spark.c": "true"}
    assert (over.driver_memory, over.executor_cores) == ("4g", 2)
    with pytest.raises(ConfigError, match="Sluice sets it"):
        spark.over(conf={"spark.ui.showConsoleProgress": "true"})
    with pytest.raises(ConfigError, match="conf"):
        spark.over(conf="spark.a=1")


def test_a_file_may_name_its_spark_connection(orders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.cli.run import connections

    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", '{"conn_type": "kafka"}')
    spec = orders("{connection: cluster}")
    with pytest.raises(ConfigError, match="'cluster' is not defined"):
        connections(spec)
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", '{"conn_type": "spark", "host": "spark://master:7077"}')
    assert connections(spec)[0].host == "spark://master:7077"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net", "x"),
        ("spark.hadoop.fs.azure.account.oauth2.client.secret.store", "x"),
        ("spark.hadoop.fs.azure.sas.container.store.blob.core.windows.net", "x"),
        ("spark.hadoop.fs.gs.auth.service.account.private.key", "x"),
        ("spark.hadoop.fs.s3a.secret.key", "x"),
        ("spark.authenticate.secret", "x"),
        ("spark.executorEnv.AZURE_CLIENT_SECRET", "x"),
        ("spark.driver.defaultJavaOptions", "-Djavax.net.ssl.trustStorePassword=x"),
    ],
)
def test_a_secret_is_refused_wherever_its_name_stands(key: str, value: str) -> None:
    with pytest.raises(ValueError, match="a secret would be in the command line"):
        Spark(conf={key: value})


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.s3a.aws.credentials.provider",
        "spark.hadoop.fs.azure.account.auth.type",
        "spark.hadoop.fs.azure.account.oauth.provider.type",
        "spark.kubernetes.authenticate.driver.oauthTokenFile",
        "spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY",
        "spark.kubernetes.executor.secrets.store",
        "spark.sql.shuffle.partitions",
    ],
)
def test_what_only_leads_to_a_secret_is_taken(key: str) -> None:
    assert Spark(conf={key: "x"}).conf == {key: "x"}


@pytest.mark.parametrize("key", ["spark.ui.enabled", "spark.python.sql.dataFrameDebugging.enabled"])
def test_a_default_of_ours_can_be_set(orders: Any, key: str) -> None:
    assert MAINS["run"](orders("")).conf[key] == "false"
    assert MAINS["run"](orders(f"{{conf: {{{key}: true}}}}")).conf[key] == "true"
