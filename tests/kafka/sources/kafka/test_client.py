"""Listeners with SASL and TLS: logins, rights, and refusals with their types."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.fixtures.runs import KeptSandbox, await_that, good

from sluice.connections import Connection
from sluice.errors import AuthorizationError, ConfigError, ExitCode, SluiceError, SourceUnreachableError
from sluice.local.kafka import Broker, Topics
from sluice.local.machine import free_port
from sluice.sinks.kafka import KafkaSink
from sluice.sources.kafka import Cluster, KafkaSettings
from sluice_demo.secure import SCRAM, Secure
from sluice_spark.sinks.base import NOTHING
from sluice_spark.sinks.kafka.cluster import MARKS_CONFIG
from sluice_spark.sinks.kafka.topic import KafkaTopic

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
    return Secure({USER: "right", "another": "nothing"}, certificate(folder, "broker"), client, *ports)


@pytest.fixture(scope="module")
def broker(kafka_jars: list[Path], secure: Secure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that listens there, too."""
    broker = Broker(tmp_path_factory.mktemp("secured"), port=0, jar_files=kafka_jars, secure=secure).start()
    yield broker
    broker.kill()


def grant(topics: Topics, kind: ResourceType, name: str, rights: Iterable[ACLOperation]) -> None:
    """Allow the user something."""
    admin = KafkaAdminClient(bootstrap_servers=topics.bootstrap)
    pattern = ResourcePattern(kind, name)
    if rights:
        admin.create_acls([ACL(f"User:{USER}", "*", right, ACLPermissionType.ALLOW, pattern) for right in rights])
    admin.close()


@pytest.fixture(scope="module")
def topics(broker: Broker) -> Topics:
    """Topics that the user may describe and read, describe, or neither."""
    read = ACLOperation.READ
    rights = {
        "mine": [ACLOperation.DESCRIBE, read, ACLOperation.DESCRIBE_CONFIGS],
        "described": [ACLOperation.DESCRIBE],
        "theirs": [],
        **{str(way): [read] for way in RUNS_THROUGH},  # what docs/operations.md says a run needs
    }
    topics = Topics(broker.bootstrap)
    for name, allowed in rights.items():
        topics.create(name, 1, {"retention.ms": -1})  # its record is years old
        topics.produce(name, [(0, None, good(0), 1_700_000_000_000)])
        grant(topics, ResourceType.TOPIC, name, allowed)
    return topics


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


Ask = Callable[..., Cluster]


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


def fails(kind: type[SluiceError], cluster: Cluster, words: str, within: float = 5) -> None:
    begun = time.monotonic()
    with pytest.raises(kind, match=words) as caught:
        cluster.look(["mine"])
    assert time.monotonic() - begun < within, "waiting does not fix it"
    assert "right" not in str(caught.value).partition("next:")[0], "no password in a message"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_kafka_sasl_listener_opens_with_the_right_password_alone(through: Ask, way: Way) -> None:
    before = threading.active_count()
    for _ in range(2):
        fails(AuthorizationError, through(way, "wrong"), "refused: .*(nvalid|ailed)")
    fails(AuthorizationError, through(way, sasl_mechanism="SCRAM-SHA-256"), "refused")
    await_that(lambda: threading.active_count() <= before, "the threads have ended")
    (state,) = through(way).snapshot(["mine"])
    assert state.partitions[0].end == 1


def test_kafka_wrong_certificate_authority_is_a_mistake(through: Ask, tmp_path: Path) -> None:
    stranger = str(certificate(tmp_path, "stranger"))
    for authority, words in (
        (stranger, "certificate"),
        ("/no/such/ca.pem", "/no/such"),
        (str(tmp_path), str(tmp_path)),
    ):
        fails(ConfigError, through(SCRAM_TLS, ssl_ca_location=authority), words)
        assert through(WAYS[0], ssl_ca_location=authority).look(["mine"]), "without TLS it is not read"


@pytest.mark.parametrize("way", [WAYS[0], SCRAM_TLS], ids=str)
def test_kafka_plaintext_client_of_a_secured_listener_does_not_wait_forever(through: Ask, way: Way) -> None:
    with pytest.raises(SourceUnreachableError):
        through(way, timeout=1, security_protocol="PLAINTEXT").look(["mine"])


@pytest.mark.parametrize("way", RUNS_THROUGH, ids=str)
def test_kafka_topic_without_rights_is_named_and_the_others_answer(through: Ask, way: Way) -> None:
    """With a certificate of its own, the user is the certificate's common name."""
    cluster = through(way)
    mine, theirs = cluster.look(["mine", "theirs"])
    assert mine.partitions[0].end == 1
    assert isinstance(theirs.error, AuthorizationError)
    assert ("'theirs'" in theirs.error.what, "DESCRIBE" in theirs.error.what) == (True, True)
    with pytest.raises(AuthorizationError, match="'theirs'"):
        cluster.snapshot(["mine", "theirs"])
    (state,) = cluster.look(["described"])
    assert state.partitions[0].end == 1, "without READ, the offsets are known, and the age is not"
    keys = {("described", 0): 0, ("mine", 0): 0}
    assert set(cluster.first_unread(keys, dict.fromkeys(keys, 1))) == {("mine", 0)}
    assert cluster.at_time(keys, datetime(2024, 1, 1, tzinfo=UTC)) == dict.fromkeys(keys)  # all are older
    assert set(cluster.retention(["described", "mine"])) == {"mine"}


def test_kafka_client_certificate_that_is_missing_or_wrong_is_refused_at_once(through: Ask, tmp_path: Path) -> None:
    before = threading.active_count()
    stranger = certificate(tmp_path, USER)  # the same name, signed by itself
    fails(AuthorizationError, through(MUTUAL, ssl_certificate_location="", ssl_key_location=""), "certificate")
    other = {"ssl_certificate_location": str(stranger), "ssl_key_location": str(stranger)}
    fails(AuthorizationError, through(MUTUAL, **other), "certificate")
    await_that(lambda: threading.active_count() <= before, "the threads have ended")


@pytest.mark.spark
@pytest.mark.parametrize("way", RUNS_THROUGH, ids=str)
def test_kafka_run_reads_through_a_secured_listener(
    way: Way, topics: Topics, broker: Broker, secure: Secure, spark: SparkSession, tmp_path: Path
) -> None:
    sandbox = KeptSandbox(tmp_path / "home", broker, topics, str(way), spark=spark)
    sandbox.feed(5, partitions=1)
    connection = Connection("kafka_default", "kafka", extra=way.words(secure)).to_json()
    log = sandbox.run("r", AIRFLOW_CONN_KAFKA_DEFAULT=connection).stderr
    assert "PRIVATE KEY" not in log
    assert "Arrow path" not in log  # librdkafka came through as well, with no right on any group
    assert sandbox.account("r")["written"] == 6
    sandbox.assert_exact()
    if way.mechanism:
        wrong = Connection("kafka_default", "kafka", extra=way.words(secure, "wrong")).to_json()
        sandbox.run("refused", expect=ExitCode.NOT_AUTHORIZED, AIRFLOW_CONN_KAFKA_DEFAULT=wrong)


def test_kafka_sink_needs_rights_on_its_topics(
    topics: Topics, secure: Secure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examined(password: str = "right") -> KafkaTopic:
        extra = SCRAM_TLS.words(secure, password)
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        sink = KafkaTopic(KafkaSink(topic="sunk"), str(tmp_path), "sluice:p:1")
        sink.examine()
        return sink

    topics.create("sunk", 1)
    topics.create("sunk.sluice-commits", 1, MARKS_CONFIG)
    with pytest.raises(AuthorizationError) as refused:
        examined("wrong")
    assert "wrong" not in str(refused.value)
    op, kinds = ACLOperation, ResourceType
    for kind, name, rights in [
        (kinds.TOPIC, "sunk", (op.DESCRIBE, op.WRITE)),
        (kinds.TRANSACTIONAL_ID, "sluice.p.sunk", (op.DESCRIBE, op.WRITE)),
        (kinds.TOPIC, "sunk.sluice-commits", (op.DESCRIBE, op.READ, op.WRITE)),
    ]:
        with pytest.raises(AuthorizationError):
            examined()
        grant(topics, kind, name, rights)
    sink = examined()
    assert sink.commit(NOTHING, StructType([]), 0, {"run": "r"})
    assert sink.version() == 0
