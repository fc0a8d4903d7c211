"""A Kafka connection in the words of each client, and the errors of one that is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kafka.admin
import pytest
from kafka import errors
from tests.fixtures.connections import SASL, SECRET, connection

from sluice.connections import Connection
from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.sources.kafka import Cluster, KafkaSettings, client
from sluice.sources.kafka.requests import _harvest
from sluice.sources.state import FirstUnread

PASSWORD = SECRET + '\\"'


def settings(extra: dict[str, object], **fields: object) -> KafkaSettings:
    return KafkaSettings.from_connection(connection(extra, **fields))


def test_kafka_settings_for_librdkafka_only_connect(tmp_path: Path) -> None:
    assert settings(SASL).for_librdkafka() == {
        "bootstrap.servers": "a:1,b:2", "client.id": "me", "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": 'us"er', "sasl.password": PASSWORD,
        "ssl.ca.location": "/ca.pem",
    }  # fmt: skip
    both = tmp_path / "both.pem"
    both.write_text("key and certificate")
    mutual = settings({"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.certificate.location": str(both)})
    words = mutual.for_librdkafka()
    assert words["ssl.certificate.pem"] == words["ssl.key.pem"] == "key and certificate"
    both.unlink()
    with pytest.raises(ConfigError, match=r"ssl\.certificate\.location"):
        mutual.for_librdkafka()
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location .*/ca\.pem"):
        settings(SASL).check_authorities()


def test_kafka_settings_for_python_are_words_that_it_knows() -> None:
    assert settings(SASL).for_python() == {
        "bootstrap_servers": ["a:1", "b:2"], "client_id": "me", "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": 'us"er', "sasl_plain_password": PASSWORD,
        "ssl_cafile": "/ca.pem", "request_timeout_ms": 5000,
    }  # fmt: skip
    more = {"ssl.certificate.location": "c", "ssl.key.location": "k", "ssl.key.password": "p"}
    words = settings({**SASL, **more, "sasl.mechanisms": "PLAIN"}).for_python()
    assert words.keys() <= kafka.admin.KafkaAdminClient.DEFAULT_CONFIG.keys()


def test_kafka_settings_for_spark_are_words_of_java_with_the_password_quoted() -> None:
    options = settings(SASL).for_spark()
    jaas = options.pop("kafka.sasl.jaas.config")
    assert options == {
        "kafka.bootstrap.servers": "a:1,b:2", "kafka.client.id": "me", "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.request.timeout.ms": "5000",
        "kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "/ca.pem",
    }  # fmt: skip
    assert jaas == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="us\\"er" password="hunter2\\\\\\"";'
    )


def test_kafka_settings_for_spark_have_a_client_certificate_by_its_text(tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_text("the certificate")
    key.write_text("the key")
    words = {"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.certificate.location": str(certificate)}
    options = settings({**words, "ssl.key.location": str(key)}).for_spark()
    assert {name: text for name, text in options.items() if "keystore" in name} == {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "the certificate",
        "kafka.ssl.keystore.key": "the key",
    }
    assert settings(words).for_spark()["kafka.ssl.keystore.key"] == "the certificate", "one file may hold both"
    with pytest.raises(ConfigError, match=r"ssl\.key\.location"):
        settings({**words, "ssl.key.location": "/no/such.key"}).for_spark()


@pytest.mark.parametrize("servers", ["a:1", "a:1, b:2", "a:1,b:2,", "[::1]:9092", "kafka.example.org:9092"])
def test_kafka_addresses_are_taken_as_people_write_them(servers: str) -> None:
    assert settings({"bootstrap.servers": servers, "linger.ms": "5"})
    assert settings({}, host="h", port=19092).bootstrap == "h:19092"
    assert settings({}, host="h").bootstrap == "h:9092"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (connection({}), "kafka_default"),
        (Connection("c", "spark", extra={"bootstrap.servers": "a:1"}), "'c'"),
        (connection({"servers": "a"}), "kafka_default"),
        (connection({"bootstrap.servers": "a:1", "securty.protocol": "SASL_SSL"}), r"security\.protocol"),
        (connection({"bootstrap.servers": "a:1", "security_protocol": "SASL_SSL"}), r"security\.protocol"),
        (connection({"bootstrap.servers": "localhost"}), "'localhost'"),
        (connection({"bootstrap.servers": "a:1,b:x"}), "'b:x'"),
        (connection({"bootstrap.servers": "a:1", "security.protocol": "SASL_TLS"}), "SASL_PLAINTEXT"),
        (connection({"bootstrap.servers": "a:1", "sasl.mechanism": "OAUTHBEARER"}), "OAUTHBEARER"),
        (connection({"bootstrap.servers": "a:1", "request.timeout.ms": "30s"}), "'30s'"),
        # what would have no effect: the client would speak in plain text, or without a login
        (connection({"bootstrap.servers": "a:1", "sasl.username": "u"}), r"sasl\.username has no effect"),
        (connection({"bootstrap.servers": "a:1", "ssl.ca.location": "/ca"}), r"ssl\.ca\.location has no effect"),
        (connection({**SASL, "sasl.jaas.config": "x"}), r"'sasl\.jaas\.config' is not a key"),
        (connection({"bootstrap.servers": "a:1"}, login="u", password="p"), "login and password"),
    ],
)
def test_kafka_connection_is_refused_before_a_broker_is_asked(wrong: Connection, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        KafkaSettings.from_connection(wrong)


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (errors.SaslAuthenticationFailedError("no"), AuthorizationError),
        (errors.TopicAuthorizationFailedError("topic"), AuthorizationError),
        (errors.KafkaTimeoutError("Unable to bootstrap"), SourceUnreachableError),
    ],
)
@pytest.mark.parametrize(("chosen", "level"), [(logging.NOTSET, logging.WARNING), (logging.DEBUG, logging.DEBUG)])
def test_kafka_client_error_is_typed_and_its_log_is_quiet(
    monkeypatch: pytest.MonkeyPatch, error: Exception, becomes: type[SluiceError], chosen: int, level: int
) -> None:
    def refuse(**_: Any) -> None:
        raise error

    log = logging.getLogger("kafka")
    monkeypatch.setattr(log, "level", chosen)
    monkeypatch.setattr(client, "probe", lambda *_: None)
    monkeypatch.setattr(kafka.admin, "KafkaAdminClient", refuse)
    with pytest.raises(becomes):
        Cluster(KafkaSettings("broker:9092", {"bootstrap.servers": "broker:9092"}), timeout=5).snapshot(["topic"])
    assert log.level == level


WANTED = {("t", 0): 5}


@pytest.mark.parametrize(
    ("code", "again"),
    [
        (None, True),
        (errors.NotLeaderForPartitionError.errno, True),
        (errors.TopicAuthorizationFailedError.errno, False),
        (errors.OffsetOutOfRangeError.errno, False),
        (0, True),
    ],
    ids=["no answer", "another leader", "no right", "removed", "nothing yet"],
)
def test_kafka_partition_is_asked_again_until_an_answer_is_final(code: int | None, again: bool) -> None:
    part = SimpleNamespace(partition_index=0, error_code=code, records=b"", aborted_transactions=None)
    answer: Any = SimpleNamespace(responses=[SimpleNamespace(topic="t", partitions=[part])])
    found: dict[tuple[str, int], FirstUnread] = {}
    answers = [] if code is None else [answer]
    assert _harvest(answers, WANTED, {("t", 0): 9}, "read_uncommitted", found) == (WANTED if again else {})
    assert found == {}
