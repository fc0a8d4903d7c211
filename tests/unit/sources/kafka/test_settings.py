"""Kafka's settings: what each client is told, in its own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.connections import SASL, SECRET, connection

from sluice.connections import Connection
from sluice.errors import ConfigError
from sluice.sources.kafka import KafkaSettings


def test_librdkafka_gets_what_it_needs_to_connect_and_nothing_else(tmp_path: Path) -> None:
    settings = KafkaSettings.from_connection(connection(SASL)).for_librdkafka()
    assert settings == {
        "bootstrap.servers": "a:1,b:2", "client.id": "me", "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": 'us"er', "sasl.password": SECRET + '\\"',
        "ssl.ca.location": "/ca.pem",
    }  # fmt: skip
    both = tmp_path / "both.pem"
    both.write_text("key and certificate")
    words = {"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.certificate.location": str(both)}
    mutual = KafkaSettings.from_connection(connection(words)).for_librdkafka()
    assert mutual["ssl.certificate.pem"] == mutual["ssl.key.pem"] == "key and certificate"
    both.unlink()
    with pytest.raises(ConfigError, match=r"ssl\.certificate\.location"):
        KafkaSettings.from_connection(connection(words)).for_librdkafka()


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


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"securty.protocol": "SASL_SSL"}, "write security.protocol instead"),
        ({"security_protocol": "SASL_SSL"}, "write security.protocol instead"),
        ({"bootstrap.servers": "localhost"}, "'localhost' is not an address with a port"),
        ({"bootstrap.servers": "a:1,b:x"}, "'b:x' is not an address with a port"),
        ({"security.protocol": "SASL_TLS"}, "write one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "not supported"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_broker_is_asked(extra: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        KafkaSettings.from_connection(connection({"bootstrap.servers": "a:1"} | extra))


@pytest.mark.parametrize("servers", ["a:1", "a:1, b:2", "a:1,b:2,", "[::1]:9092", "kafka.example.org:9092"])
def test_addresses_as_people_write_them(servers: str) -> None:
    assert KafkaSettings.from_connection(connection({"bootstrap.servers": servers, "linger.ms": "5"}))
