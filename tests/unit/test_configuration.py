"""Connections, Kafka's settings, the spark-submit: what each client is told, and that no secret is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.connections import Connection, variable_of
from sluice.errors import ConfigError
from sluice.launch.jars import locked
from sluice.launch.submit import SparkSubmit, bounded_run, spark_master, validate_sink
from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice.run.interval import Interval
from sluice.run.request import RunRequest
from sluice.sources.kafka import KafkaSettings

SECRET = "hunter2"

SASL = {
    "bootstrap.servers": "a:1,b:2", "client.id": "me", "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "us\"er", "sasl.password": SECRET + "\\\"",
    "ssl.ca.location": "/ca.pem",
    "request.timeout.ms": 5000, "group.id": "ignored", "auto.offset.reset": "ignored",
}  # fmt: skip


def connection(extra: dict[str, object], **fields: object) -> Connection:
    return Connection("kafka_default", "kafka", extra=extra, **fields)  # type: ignore[arg-type]


def test_kafka_python_is_told_in_its_own_words() -> None:
    assert KafkaSettings.from_connection(connection(SASL)).for_python() == {
        "bootstrap_servers": ["a:1", "b:2"], "client_id": "me", "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": 'us"er', "sasl_plain_password": SECRET + '\\"',
        "ssl_cafile": "/ca.pem", "request_timeout_ms": 5000,
    }  # fmt: skip


def test_spark_is_told_in_java_words_with_the_password_quoted() -> None:
    options = KafkaSettings.from_connection(connection(SASL)).for_spark()
    jaas = options.pop("kafka.sasl.jaas.config")
    assert options == {
        "kafka.bootstrap.servers": "a:1,b:2", "kafka.client.id": "me", "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.request.timeout.ms": "5000",
        "kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "/ca.pem",
    }  # fmt: skip
    assert jaas == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="us\\"er" password="hunter2\\\\\\"";'
    )


def test_spark_is_told_a_client_s_certificate_by_its_text(tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_text("the certificate")
    key.write_text("the key")
    words = {"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.certificate.location": str(certificate)}
    options = KafkaSettings.from_connection(connection({**words, "ssl.key.location": str(key)})).for_spark()
    assert {name: text for name, text in options.items() if "keystore" in name} == {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "the certificate",
        "kafka.ssl.keystore.key": "the key",
    }
    alone = KafkaSettings.from_connection(connection(words)).for_spark()
    assert alone["kafka.ssl.keystore.key"] == "the certificate", "one file may hold both"
    lost = KafkaSettings.from_connection(connection({**words, "ssl.key.location": "/no/such.key"}))
    with pytest.raises(ConfigError, match=r"ssl\.key\.location .* cannot be read"):
        lost.for_spark()


def test_every_word_that_kafka_python_is_told_is_one_it_knows() -> None:
    from kafka.admin import KafkaAdminClient

    words = {
        "ssl.certificate.location": "c",
        "ssl.key.location": "k",
        "ssl.key.password": "p",
        "sasl.mechanisms": "PLAIN",
    }
    told = KafkaSettings.from_connection(connection({**SASL, **words})).for_python()
    assert told.keys() <= KafkaAdminClient.DEFAULT_CONFIG.keys()


def test_a_host_and_a_port_will_do_for_an_address() -> None:
    assert KafkaSettings.from_connection(connection({}, host="h", port=19092)).bootstrap == "h:19092"
    assert KafkaSettings.from_connection(connection({}, host="h")).bootstrap == "h:9092"


@pytest.mark.parametrize(
    "wrong",
    [connection({}), Connection("c", "spark", extra={"bootstrap.servers": "a:1"}), connection({"servers": "a"})],
)
def test_what_is_no_kafka_connection_is_refused_with_an_example(wrong: Connection) -> None:
    with pytest.raises(ConfigError, match="not a Kafka connection") as caught:
        KafkaSettings.from_connection(wrong)
    assert "bootstrap.servers" in caught.value.next_step


def test_a_connection_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert variable_of("my_kafka") == "AIRFLOW_CONN_MY_KAFKA"
    whole = {"conn_type": "kafka", "host": "h", "port": "9", "login": "l", "password": SECRET, "extra": SASL}
    for text in (json.dumps(whole), json.dumps({**whole, "extra": json.dumps(SASL)})):
        monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", text)
        read = Connection.from_env("my_kafka")
        assert (read.host, read.port, read.login, read.password, read.extra) == ("h", 9, "l", SECRET, SASL)
        monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", read.to_json())
        assert Connection.from_env("my_kafka") == read


@pytest.mark.parametrize(
    "text", ["", "kafka://u:hunter2@h:1", "[]", '"x"', '{"port": "hunter2"}', '{"extra": "{hunter2"}']
)
def test_a_variable_that_is_not_in_json_form_is_refused_without_being_repeated(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", text)
    with pytest.raises(ConfigError, match=r"my_kafka|AIRFLOW_CONN_MY_KAFKA") as caught:
        Connection.from_env("my_kafka")
    assert SECRET not in str(caught.value)


def test_no_form_of_a_connection_shows_a_secret() -> None:
    secret = connection(SASL, password=SECRET)
    assert SECRET not in repr(secret) + str(secret)
    settings = KafkaSettings.from_connection(secret)
    assert SECRET not in repr(settings) + str(settings)
    assert "a:1" in repr(settings)


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_jars: list[Path]) -> SparkSubmit:
    home = tmp_path / "home"
    home.mkdir()
    (home / "jars").symlink_to(spark_jars[0].parent.parent)
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.setenv("SLUICE_LEDGER_URL", f"postgresql://u:{SECRET}@h/d")
    file = tmp_path / "p.yaml"
    file.write_text("{pipeline: p, source: {kafka: {topics: [t]}}, decode: {text: {}}, sink: {delta: {path: p}}}")
    return bounded_run(
        load(file),
        RunRequest(
            "scheduled__2013-01-01T00:00:00+00:00",
            Recovery.REPLAY,
            7,
            Interval.parse("2013-01-01", "2013-01-02"),
            validate=False,
        ),
        spark=Connection("spark_default", "spark", host="local[2]"),
        kafka=connection(SASL, password=SECRET),
    )


def test_secrets_go_to_the_environment_and_nowhere_else(submit: SparkSubmit) -> None:
    assert SECRET not in " ".join(submit.argv())
    assert SECRET not in repr(submit)
    assert SECRET in submit.env["AIRFLOW_CONN_KAFKA_DEFAULT"]
    assert SECRET in submit.env["SLUICE_LEDGER_URL"]


def test_the_command_line_says_all_that_was_asked(submit: SparkSubmit, spark_jars: list[Path]) -> None:
    argv = submit.argv()
    assert argv[argv.index("--master") + 1] == "local[2]"
    jars = [str(jar.resolve()) for jar in spark_jars]
    assert f"spark.driver.extraClassPath={':'.join(jars)}" in argv
    assert "spark.sql.session.timeZone=UTC" in argv
    main = next(i for i, a in enumerate(argv) if a.endswith("spark_jobs/bounded_run.py"))
    assert Path(argv[main]).is_file()
    assert argv[main + 3 :] == [
        "--run", "scheduled__2013-01-01T00:00:00+00:00", "--recovery", "replay", "--max-records-per-batch", "7",
        "--start", "2013-01-01T00:00:00Z", "--end", "2013-01-02T00:00:00Z", "--no-validate",
    ]  # fmt: skip


def test_executors_elsewhere_are_sent_the_jars(submit: SparkSubmit, tmp_path: Path) -> None:
    cluster = Connection("spark_default", "spark", host="spark://m", port=7077)
    argv = bounded_run(load(tmp_path / "p.yaml"), RunRequest("r"), spark=cluster, kafka=connection(SASL)).argv()
    assert [Path(jar).name for jar in argv[argv.index("--jars") + 1].split(",")] == [
        jar.file_name for jar in locked("spark")
    ]
    assert [a for a in argv if a.startswith("spark.driver.extraClassPath=")]  # the driver has them at hand


def test_judging_again_needs_no_kafka(submit: SparkSubmit, tmp_path: Path) -> None:
    again = validate_sink(load(tmp_path / "p.yaml"), "r", spark=Connection("spark_default", "spark", host="local[2]"))
    assert again.application.name == "validate_sink.py"
    assert again.application.is_file()
    assert "AIRFLOW_CONN_KAFKA_DEFAULT" not in again.env


@pytest.mark.parametrize(
    ("host", "port", "master"),
    [
        ("local", None, "local"), ("local[*]", None, "local[*]"), ("spark://m", 7077, "spark://m:7077"),
        ("spark://m:1", 2, "spark://m:1"), ("yarn", None, "yarn"), ("k8s://https://h:1", None, "k8s://https://h:1"),
    ],
)  # fmt: skip
def test_masters(host: str, port: int | None, master: str) -> None:
    assert spark_master(Connection("s", "spark", host=host, port=port)) == master


@pytest.mark.parametrize(
    "wrong",
    [
        Connection("s", "kafka", host="local"), Connection("s", "spark"), Connection("s", "spark", host="spark://m"),
        Connection("s", "spark", host="m", port=7077),
    ],
)  # fmt: skip
def test_what_is_no_spark_connection_is_never_taken_for_yarn(wrong: Connection) -> None:
    with pytest.raises(ConfigError, match="is not a Spark connection"):
        spark_master(wrong)


def test_cluster_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="deploy-mode 'cluster'"):
        spark_master(Connection("s", "spark", host="spark://m", port=7077, extra={"deploy-mode": "cluster"}))
