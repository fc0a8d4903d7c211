"""A listener that demands a login, with and without TLS: what is right, what is wrong, and what is named."""

from __future__ import annotations

import functools
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.runs import KeptSandbox, await_that, good

from sluice.connections import Connection
from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.local.kafka import Broker, Secure, Topics
from sluice.local.machine import free_port
from sluice.local.secure import SCRAM
from sluice.sources.kafka import Cluster, KafkaSettings

pytestmark = pytest.mark.kafka

HOST = "127.0.0.1"
USER = "sluice"


def certificate(folder: Path, name: str) -> Path:
    """Make a key and a certificate that vouches for itself, in one PEM file."""
    key, cert = folder / f"{name}.key", folder / f"{name}.crt"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-addext", f"subjectAltName=IP:{HOST}", "-keyout", key, "-out", cert,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    both = folder / f"{name}.pem"
    both.write_text(key.read_text() + cert.read_text())
    return both


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Secure:
    """The passwords, ports and certificates of the broker and of its client."""
    folder, ports = tmp_path_factory.mktemp("tls"), list[int]()
    while len(set(ports)) < 3:
        ports = [free_port(HOST) for _ in range(3)]
    client = certificate(folder, USER).with_suffix(".crt")
    return Secure({USER: "right", "nobody": "nothing"}, certificate(folder, "broker"), client, *ports)


@pytest.fixture(scope="module")
def broker(kafka_jars: list[Path], secure: Secure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that listens there, too."""
    broker = Broker(tmp_path_factory.mktemp("secured"), port=0, jar_files=kafka_jars, secure=secure).start()
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def topics(broker: Broker) -> Topics:
    """Topics that the user may describe and read, describe, or neither."""
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType

    all_rights = [ACLOperation.DESCRIBE, ACLOperation.READ, ACLOperation.DESCRIBE_CONFIGS]
    grants = {"mine": all_rights, "described": [ACLOperation.DESCRIBE], "theirs": []}
    grants |= {str(way): [ACLOperation.READ] for way in RUNS_THROUGH}  # what docs/operations.md says a run needs
    topics = Topics(broker.bootstrap)
    for name in grants:
        topics.create(name, 1, {"retention.ms": -1})  # its record is years old
        topics.produce(name, [(0, None, good(0), 1_700_000_000_000)])
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_acls(
        [
            ACL(f"User:{USER}", "*", right, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, name))
            for name, rights in grants.items()
            for right in rights
        ]
    )
    admin.close()
    return topics


Ask = Callable[..., Cluster]


@dataclass(frozen=True)
class Way:
    """A listener and how to log in there."""

    protocol: str
    mechanism: str = ""

    def words(self, secure: Secure, password: str = "right") -> dict[str, str]:
        """The extra of a connection, as users write it."""
        ports = {"SASL_PLAINTEXT": secure.sasl_port, "SASL_SSL": secure.ssl_port, "SSL": secure.mutual_port}
        words = {
            "bootstrap.servers": f"{HOST}:{ports[self.protocol]}", "security.protocol": self.protocol,
            "ssl.ca.location": str(secure.pem),
        }  # fmt: skip
        if self.mechanism:
            return words | {"sasl.mechanism": self.mechanism, "sasl.username": USER, "sasl.password": password}
        key = secure.clients.with_suffix(".key")
        return words | {"ssl.certificate.location": str(secure.clients), "ssl.key.location": str(key)}

    def __str__(self) -> str:
        return f"{self.protocol}-{self.mechanism}".rstrip("-")


MUTUAL = Way("SSL")
SCRAM_TLS = Way("SASL_SSL", SCRAM)
RUNS_THROUGH = [SCRAM_TLS, MUTUAL]
WAYS = [Way(protocol, mechanism) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in ("PLAIN", SCRAM)]


@pytest.fixture
def through(topics: Topics, secure: Secure) -> Iterator[Ask]:
    """Make a cluster that is asked in a given way."""
    made: list[Cluster] = []

    def make(way: Way, password: str = "right", *, timeout: float = 10, **extra: str) -> Cluster:
        extra = {key.replace("_", "."): value for key, value in extra.items()}
        words = {key: value for key, value in (way.words(secure, password) | extra).items() if value}
        settings = KafkaSettings.from_connection(Connection("kafka_default", "kafka", extra=words))
        made.append(Cluster(settings, timeout=timeout))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(params=WAYS, ids=str)
def ask(through: Ask, request: pytest.FixtureRequest) -> Ask:
    """Make a cluster that is asked with a password: by either listener and mechanism."""
    return functools.partial(through, request.param)


def fails(kind: type[SluiceError], cluster: Cluster, words: str, within: float = 5) -> None:
    begun = time.monotonic()
    with pytest.raises(kind, match=words) as caught:
        cluster.look(["mine"])
    assert time.monotonic() - begun < within, "waiting does not fix it"
    told = str(caught.value)
    assert "next:" in told
    assert "right" not in told.partition("next:")[0], "no password in a message"


def test_the_right_password_opens(ask: Ask) -> None:
    (state,) = ask().snapshot(["mine"])
    assert state.partitions[0].end == 1


def test_the_wrong_password_is_refused_at_once_and_leaves_no_thread(ask: Ask) -> None:
    before = threading.active_count()
    for _ in range(3):
        fails(AuthorizationError, ask("wrong"), "refused: .*(nvalid|ailed)")
    await_that(lambda: threading.active_count() <= before, "the threads have ended")


def test_another_mechanism_is_refused_at_once(ask: Ask) -> None:
    fails(AuthorizationError, ask(sasl_mechanism="SCRAM-SHA-256"), "refused")


def test_a_certificate_that_nobody_vouches_for_is_a_mistake(ask: Ask, secure: Secure, tmp_path: Path) -> None:
    stranger = str(certificate(tmp_path, "stranger"))
    cluster = ask(ssl_ca_location=stranger)
    if cluster.settings.properties["security.protocol"] == "SASL_SSL":
        fails(ConfigError, cluster, "certificate")
    else:
        assert cluster.look(["mine"])


def test_a_file_that_is_not_there_is_a_mistake(ask: Ask) -> None:
    cluster = ask(ssl_ca_location="/no/such/ca.pem")
    if cluster.settings.properties["security.protocol"] == "SASL_SSL":
        fails(ConfigError, cluster, "settings")
    else:
        assert cluster.look(["mine"])


def test_speaking_plainly_to_a_listener_that_demands_more_is_no_endless_wait(ask: Ask) -> None:
    with pytest.raises(SourceUnreachableError):
        ask(timeout=2, security_protocol="PLAINTEXT").look(["mine"])


def test_a_topic_without_the_right_is_named_and_the_others_answer(ask: Ask) -> None:
    mine, theirs = ask().look(["mine", "theirs"])
    assert mine.partitions[0].end == 1
    assert isinstance(theirs.error, AuthorizationError)
    assert "'theirs'" in theirs.error.what
    assert "DESCRIBE" in theirs.error.what
    with pytest.raises(AuthorizationError, match="'theirs'"):
        ask().snapshot(["mine", "theirs"])


def test_without_read_the_offsets_are_known_and_the_age_is_not(ask: Ask) -> None:
    from datetime import UTC, datetime

    cluster = ask()
    (state,) = cluster.look(["described"])
    assert state.partitions[0].end == 1
    keys = {("described", 0): 0, ("mine", 0): 0}
    assert set(cluster.first_unread(keys, dict.fromkeys(keys, 1))) == {("mine", 0)}
    assert cluster.at_time(keys, datetime(2024, 1, 1, tzinfo=UTC)) == dict.fromkeys(keys)  # all are older
    assert set(cluster.retention(["described", "mine"])) == {"mine"}


# --- certificates on both sides --------------------------------------------------------------------------------------


def test_a_certificate_opens_and_its_common_name_is_the_user(through: Ask) -> None:
    mine, theirs = through(MUTUAL).look(["mine", "theirs"])
    assert mine.partitions[0].end == 1
    assert isinstance(theirs.error, AuthorizationError)
    assert "'theirs'" in theirs.error.what


def test_no_certificate_and_a_stranger_s_are_refused_at_once(through: Ask, tmp_path: Path) -> None:
    before = threading.active_count()
    stranger = certificate(tmp_path, USER)  # the same name, and nobody vouches for it
    fails(AuthorizationError, through(MUTUAL, ssl_certificate_location="", ssl_key_location=""), "certificate")
    other = {"ssl_certificate_location": str(stranger), "ssl_key_location": str(stranger)}
    fails(AuthorizationError, through(MUTUAL, **other), "certificate")
    await_that(lambda: threading.active_count() <= before, "the threads have ended")


# --- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize("way", RUNS_THROUGH, ids=str)
def test_a_run_reads_through_the_listener_and_lag_is_told(
    way: Way, topics: Topics, broker: Broker, secure: Secure, spark: SparkSession, tmp_path: Path
) -> None:
    sandbox = KeptSandbox(tmp_path / "home", broker, topics, str(way), spark=spark)
    sandbox.feed(5, partitions=1)
    connection = Connection("kafka_default", "kafka", extra=way.words(secure)).to_json()
    told = sandbox.run("r", AIRFLOW_CONN_KAFKA_DEFAULT=connection).stderr
    assert "PRIVATE KEY" not in told
    assert "Arrow path" not in told  # librdkafka came through as well, with no right on any group
    assert sandbox.account("r")["written"] == 6
    sandbox.assert_exact()
    sandbox.feed(2, partitions=1)
    asked = sandbox.cli("lag", str(sandbox.file), "--json", AIRFLOW_CONN_KAFKA_DEFAULT=connection)
    assert asked.returncode == 1, asked.stderr
    (behind,) = json.loads(asked.stdout)
    assert (behind["verdict"], behind["lag"]) == ("BACKLOG", 2)


@pytest.mark.spark
@pytest.mark.parametrize("way", RUNS_THROUGH, ids=str)
def test_who_is_refused_is_told_so_by_lag_and_by_a_run(
    way: Way, topics: Topics, broker: Broker, secure: Secure, spark: SparkSession, tmp_path: Path
) -> None:
    sandbox = KeptSandbox(tmp_path / "home", broker, topics, str(way), spark=spark)
    words = way.words(secure, "wrong")
    words = {key: value for key, value in words.items() if key not in ("ssl.certificate.location", "ssl.key.location")}
    connection = Connection("kafka_default", "kafka", extra=words).to_json()
    asked = sandbox.cli("lag", str(sandbox.file), "--json", AIRFLOW_CONN_KAFKA_DEFAULT=connection)
    (told,) = json.loads(asked.stdout)
    assert (asked.returncode, told["verdict"], told["lag"]) == (23, "AUTH", None)
    assert told["error"]["type"] == "AuthorizationError"
    assert "refused" in sandbox.run("r", expect=23, AIRFLOW_CONN_KAFKA_DEFAULT=connection).message


def test_a_topic_as_a_sink_needs_its_rights(
    topics: Topics, secure: Secure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType
    from pyspark.sql.types import StructType

    from sluice.sinks.kafka import KafkaSink
    from sluice_spark.sinks.base import NOTHING
    from sluice_spark.sinks.kafka.cluster import MARKS_CONFIG
    from sluice_spark.sinks.kafka.topic import KafkaTopic

    def examine(password: str = "right") -> KafkaTopic:
        extra = Way("SASL_SSL", SCRAM).words(secure, password)
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        sink = KafkaTopic(KafkaSink(topic="sunk"), str(tmp_path), "sluice:p:1")
        sink.examine()
        return sink

    def refused(password: str = "right") -> str:
        with pytest.raises(AuthorizationError) as error:
            examine(password)
        assert "wrong" not in str(error.value)
        return str(error.value)

    topics.create("sunk", 1)
    topics.create("sunk.sluice-commits", 1, MARKS_CONFIG)
    assert "the cluster refused" in refused("wrong")
    assert "the cluster refused" in refused()
    op, kinds = ACLOperation, ResourceType
    steps = [
        (kinds.TOPIC, "sunk", (op.DESCRIBE, op.WRITE)),
        (kinds.TRANSACTIONAL_ID, "sluice.p.sunk", (op.DESCRIBE, op.WRITE)),
        (kinds.TOPIC, "sunk.sluice-commits", (op.DESCRIBE, op.READ, op.WRITE)),
    ]
    admin = KafkaAdminClient(bootstrap_servers=topics.bootstrap)
    for number, (kind, name, rights) in enumerate(steps):
        admin.create_acls(
            [ACL(f"User:{USER}", "*", right, ACLPermissionType.ALLOW, ResourcePattern(kind, name)) for right in rights]
        )
        if number < 2:
            assert "grant DESCRIBE and WRITE on the topic" in refused()
    admin.close()
    sink = examine()
    assert sink.commit(NOTHING, StructType([]), 0, {"run": "r"})
    assert sink.version() == 0
