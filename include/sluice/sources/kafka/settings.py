"""Translates a ``kafka`` connection into the settings of kafka-python, librdkafka and the Java client (Spark)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.connections import Connection
from sluice.errors import ConfigError

__all__ = ["KafkaSettings"]

# librdkafka's name (which Airflow's Kafka provider reads) → kafka-python's argument
_PYTHON = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "request.timeout.ms": "request_timeout_ms",
}
# names that the Java client shares with librdkafka
_JAVA = ("security.protocol", "client.id", "request.timeout.ms", "ssl.key.password")
# names that are librdkafka's, and that it needs to connect
_LIBRDKAFKA = (
    "client.id",
    "security.protocol",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.key.password",
)
_LOGIN_MODULE = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ADDRESS = re.compile(r"(\[[^\]]+\]|[^:\[\]]+):\d{1,5}")


def _mistake(properties: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what cannot be meant, and what to write instead.

    A misspelt key must not pass: without ``security.protocol`` a client would speak in plain text.
    """
    for key in properties.keys() - _PYTHON.keys():
        if near := difflib.get_close_matches(key, _PYTHON, 1, 0.9):
            return f"{key!r} is not a key that is read", f"write {near[0]} instead"
    for server in filter(None, map(str.strip, properties["bootstrap.servers"].split(","))):
        if not _ADDRESS.fullmatch(server):
            shown = server.rpartition("@")[2]  # what is before it may be a password
            return f"bootstrap.servers: {shown!r} is not an address with a port", "write host:port, such as kafka:9092"
    if not (timeout := properties.get("request.timeout.ms", "1")).isdecimal():
        return f"request.timeout.ms {timeout!r} is not a number of milliseconds", "write one, such as 30000"
    protocol = properties.get("security.protocol", "PLAINTEXT")
    if protocol not in _PROTOCOLS:
        return f"security.protocol {protocol!r} is not known", f"write one of {', '.join(_PROTOCOLS)}"
    for key in ("sasl.mechanism", "sasl.mechanisms"):
        if (mechanism := properties.get(key)) is not None and mechanism not in _LOGIN_MODULE:
            return f"{key} {mechanism!r} is not supported", f"write one of {', '.join(_LOGIN_MODULE)}"
    for prefix, kind in (("sasl.", "SASL"), ("ssl.", "SSL")):
        given = sorted(key for key in properties if key.startswith(prefix))
        if unknown := [key for key in given if key not in _PYTHON]:
            known = ", ".join(key for key in _PYTHON if key.startswith(prefix))
            return f"{unknown[0]!r} is not a key that is read", f"write it by {known}"
        if given and "security.protocol" not in properties:
            return (
                f"{given[0]} has no effect without security.protocol",
                f"write security.protocol, such as {'SASL_SSL' if kind == 'SASL' else 'SSL'}, or leave {given[0]} out",
            )
    return None


@dataclass(frozen=True)
class KafkaSettings:
    """A cluster's address and credentials; ``repr`` shows the address only."""

    bootstrap: str
    properties: dict[str, str] = field(repr=False)

    @classmethod
    def from_connection(cls, connection: Connection) -> KafkaSettings:
        """Read the dotted keys of the connection's extra.

        Raises
        ------
        ConfigError
            If it is not a ``kafka`` connection, or names no servers.
        """
        properties = {str(k): str(v) for k, v in connection.extra.items() if v not in (None, "")}
        bootstrap = properties.get("bootstrap.servers") or (
            f"{connection.host}:{connection.port or 9092}" if connection.host else ""
        )
        if connection.conn_type not in ("kafka", "") or not bootstrap:
            raise ConfigError(
                f"connection {connection.conn_id!r} is not a Kafka connection with bootstrap.servers in its extra",
                state="nothing was read or written",
                next_step='give it the type kafka and the extra {"bootstrap.servers": "host:9092"}',
            )
        if connection.login or connection.password:
            raise ConfigError(
                f"connection {connection.conn_id!r}: login and password of a Kafka connection have no effect",
                state="nothing was read or written",
                next_step="leave them out of the connection; if the broker wants a login, write sasl.username and "
                "sasl.password into its extra, with security.protocol and sasl.mechanism",
            )
        properties["bootstrap.servers"] = bootstrap
        if wrong := _mistake(properties):
            raise ConfigError(
                f"connection {connection.conn_id!r}: {wrong[0]}",
                state="nothing was read or written",
                next_step=f"in the connection's extra, {wrong[1]}",
            )
        return cls(bootstrap, properties)

    def for_python(self) -> dict[str, Any]:
        """Return the arguments of a kafka-python client."""
        arguments: dict[str, Any] = {_PYTHON[k]: v for k, v in self.properties.items() if k in _PYTHON}
        if "request_timeout_ms" in arguments:
            arguments["request_timeout_ms"] = int(arguments["request_timeout_ms"])
        arguments["bootstrap_servers"] = self.bootstrap.split(",")
        return arguments

    def for_spark(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source. They hold secrets: never log them, never put them in argv.

        Raises
        ------
        ConfigError
            If the client's certificate or its key cannot be read.
        """
        options = {f"kafka.{k}": v for k, v in self.properties.items() if k in _JAVA}
        options["kafka.bootstrap.servers"] = self.bootstrap
        mechanism = self.properties.get("sasl.mechanism") or self.properties.get("sasl.mechanisms")
        if mechanism:
            options["kafka.sasl.mechanism"] = mechanism
        module = _LOGIN_MODULE.get(mechanism or "")
        if module and "sasl.username" in self.properties:
            user, password = (self._quoted(self.properties.get(k, "")) for k in ("sasl.username", "sasl.password"))
            options["kafka.sasl.jaas.config"] = f'{module} required username="{user}" password="{password}";'
        if "ssl.ca.location" in self.properties:
            options["kafka.ssl.truststore.type"] = "PEM"
            options["kafka.ssl.truststore.location"] = self.properties["ssl.ca.location"]
        return options | self._certificate()

    def for_librdkafka(self) -> dict[str, str]:
        """Return the settings of a librdkafka consumer. They hold secrets: never log them, never put them in argv.

        The client's certificate and its key are there by their content, as for Spark.

        Raises
        ------
        ConfigError
            If they cannot be read.
        """
        found = {k: v for k, v in self.properties.items() if k in _LIBRDKAFKA}
        found["bootstrap.servers"] = self.bootstrap
        if mechanism := self.properties.get("sasl.mechanism") or self.properties.get("sasl.mechanisms"):
            found["sasl.mechanism"] = mechanism
        certificate = self.properties.get("ssl.certificate.location")
        if certificate is not None:
            key = self.properties.get("ssl.key.location", certificate)
            found["ssl.certificate.pem"] = self._text("ssl.certificate.location", certificate)
            found["ssl.key.pem"] = self._text("ssl.key.location", key)
        return found

    def _certificate(self) -> dict[str, str]:
        """Return the client's certificate and key as Java options, by their content instead of a path.

        Only the driver reads the two files; executors do not need them.
        """
        certificate = self.properties.get("ssl.certificate.location")
        if certificate is None:
            return {}
        return {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": self._text("ssl.certificate.location", certificate),
            "kafka.ssl.keystore.key": self._text(
                "ssl.key.location", self.properties.get("ssl.key.location", certificate)
            ),
        }

    def check_authorities(self) -> None:
        """Raise a :class:`~sluice.errors.ConfigError` if ``ssl.ca.location`` cannot be read: no client names it."""
        if "ssl.ca.location" in self.properties and self.properties.get("security.protocol", "").endswith("SSL"):
            self._text("ssl.ca.location", self.properties["ssl.ca.location"])

    @staticmethod
    def _text(word: str, path: str) -> str:
        try:
            return Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{word} of the Kafka connection cannot be read: {error}",
                state="nothing was read or written",
                next_step=f"fix {word} in the connection's extra: a PEM file that the driver can read",
            ) from None

    @staticmethod
    def _quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"')
