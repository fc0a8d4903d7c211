"""A listener that demands a login, with and without TLS: what is right, what is wrong, and what is named."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.connections import Connection
from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.kafka import Cluster, KafkaSettings
from sluice.local.kafka import Broker, Secure, Topics
from sluice.local.machine import free_port

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
    """The passwords, ports and certificate of the broker."""
    sasl = free_port(HOST)
    pem = certificate(tmp_path_factory.mktemp("tls"), "broker")
    users = {USER: "right", "nobody": "nothing"}
    return Secure(users, pem, sasl, free_port(HOST, avoid=sasl))


@pytest.fixture(scope="module")
def topics(kafka_jars: list[Path], secure: Secure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """A broker with the two topics, one of which the user may describe and read."""
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType

    broker = Broker(tmp_path_factory.mktemp("secured"), port=0, jar_files=kafka_jars, secure=secure).start()
    topics = Topics(broker.bootstrap)
    for name in ("mine", "described", "theirs"):
        topics.create(name, 1)
        topics.produce(name, [(0, None, b"v", 1_700_000_000_000)])
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    grants = {"mine": [ACLOperation.DESCRIBE, ACLOperation.READ, ACLOperation.DESCRIBE_CONFIGS]}
    grants["described"] = [ACLOperation.DESCRIBE]
    admin.create_acls(
        [
            ACL(f"User:{USER}", "*", right, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, name))
            for name, rights in grants.items()
            for right in rights
        ]
    )
    admin.close()
    yield topics
    broker.kill()


Ask = Callable[..., Cluster]


@pytest.fixture(params=["SASL_PLAINTEXT", "SASL_SSL"])
def ask(topics: Topics, secure: Secure, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """Make a cluster from a connection as users write it."""
    made: list[Cluster] = []

    def make(password: str = "right", *, timeout: float = 10, **extra: str) -> Cluster:
        port = secure.sasl_port if request.param == "SASL_PLAINTEXT" else secure.ssl_port
        words = {
            "bootstrap.servers": f"{HOST}:{port}", "security.protocol": request.param, "sasl.mechanism": "PLAIN",
            "sasl.username": USER, "sasl.password": password, "ssl.ca.location": str(secure.pem),
        }  # fmt: skip
        extra = {key.replace("_", "."): value for key, value in extra.items()}
        connection = Connection("kafka_default", "kafka", extra=words | extra)
        made.append(Cluster(KafkaSettings.from_connection(connection), timeout=timeout))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def fails(kind: type[SluiceError], cluster: Cluster, words: str, within: float = 5) -> None:
    begun = time.monotonic()
    with pytest.raises(kind, match=words) as caught:
        cluster.look(["mine"])
    assert time.monotonic() - begun < within, "waiting does not mend it"
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
    time.sleep(0.2)
    assert threading.active_count() <= before


def test_another_mechanism_is_refused_at_once(ask: Ask) -> None:
    fails(AuthorizationError, ask(sasl_mechanism="SCRAM-SHA-512"), "refused")


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
