"""What Airflow's UI and command line know of Sluice: the connection type ``kafka``, operators, sensors, triggers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

__all__ = ["get_provider_info"]

_NAME = "Sluice"
_OTHER = "airflow.providers.apache.kafka"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata; Airflow finds it by the entry point ``apache_airflow_provider``.

    Where Airflow's own Apache Kafka provider is installed too, the connection type ``kafka`` is left to that one: one
    type has one hook. Both read the same keys of ``extra``, so connections serve both; the form and its button *Test*
    are then that provider's.
    """
    return {
        "package-name": "sluice",
        "name": _NAME,
        "description": "Bounded, accountable runs from Kafka into Delta tables.",
        "integrations": [{"integration-name": _NAME, "tags": ["apache"]}],
        "operators": [
            _modules(
                *(
                    f"operators.{name}"
                    for name in (
                        "accept",
                        "account",
                        "acknowledge",
                        "adopt",
                        "audit",
                        "bounded_run",
                        "clean",
                        "compact",
                        "freshness",
                        "redrive",
                        "reset",
                        "retract",
                        "vacuum",
                        "validate",
                    )
                )
            )
        ],
        "sensors": [_modules("sensors.kafka_lag")],
        "hooks": [_modules("hooks.kafka", "hooks.spark")],
        "triggers": [_modules("triggers.kafka_lag", "triggers.lag_watcher")],
        "notifications": ["sluice_airflow.notifiers.FailureNotifier"],
        "extra-links": [
            "sluice_airflow.links.data_docs.DataDocsLink",
            "sluice_airflow.links.page.PageLink",
            "sluice_airflow.links.spark_ui.SparkUiLink",
        ],
        **({} if _is_installed(_OTHER) else {"connection-types": [_KAFKA]}),
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _NAME, "python-modules": [f"sluice_airflow.{name}" for name in names]}


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # no provider of that family
        return False


def _text(label: str, description: str, **more: Any) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **more}}


_KAFKA = {
    "connection-type": "kafka",
    "hook-class-name": "sluice_airflow.hooks.kafka.KafkaHook",
    "hook-name": "Apache Kafka",
    "ui-field-behaviour": {
        # Airflow 3.3.1 and 3.3.2 refuse to test a connection without a port (apache/airflow#73298): offer the field
        "hidden-fields": ["schema", "login", "password"],
        "relabeling": {"host": "Broker"},
        "placeholders": {"host": "kafka-1", "port": "9092"},
    },
    # by the names of librdkafka, which are the keys in extra
    "conn-fields": {
        "bootstrap.servers": _text(
            "Bootstrap servers",
            "Several brokers as host:port, separated by commas. They replace broker and port above.",
        ),
        "security.protocol": _text(
            "Security protocol",
            "The protocol of connections to the brokers.",
            enum=[None, "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
            values_display={"null": "not set: PLAINTEXT"},
        ),
        "sasl.mechanism": _text(
            "SASL mechanism",
            "For the protocols SASL_PLAINTEXT and SASL_SSL.",
            enum=[None, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
            values_display={"null": "not set"},
        ),
        "sasl.username": _text("SASL user", "The user's name."),
        "sasl.password": _text("SASL password", "The user's password.", format="password"),
        "ssl.ca.location": _text(
            "CA file", "A PEM file with the certificates to trust, on every machine that runs tasks."
        ),
        "ssl.certificate.location": _text(
            "Client certificate file", "A PEM file on every machine that runs tasks; only if the brokers require it."
        ),
        "ssl.key.location": _text("Client key file", "The key of the client certificate: a PEM file beside it."),
        "ssl.key.password": _text("Client key password", "Only if the key is encrypted.", format="password"),
    },
}
