"""A Kafka cluster, by the ordinary Airflow connection of type ``kafka``."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from sluice.errors import SluiceError
from sluice.sources.kafka import Cluster, KafkaSettings
from sluice_airflow import connections

__all__ = ["KafkaHook"]


class KafkaHook(BaseHook):
    """Reads the connection that Airflow's own Kafka provider reads: dotted keys in ``extra``.

    Nothing is opened until a :class:`~sluice.sources.kafka.Cluster` is asked something; it then keeps one client until
    it is closed, or it is no longer in use.

    Parameters
    ----------
    kafka_conn_id
        The connection's id.
    """

    conn_name_attr = "kafka_conn_id"
    default_conn_name = "kafka_default"
    conn_type = "kafka"
    hook_name = "Apache Kafka"

    def __init__(self, kafka_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kafka_conn_id = kafka_conn_id

    def settings(self) -> KafkaSettings:
        """Return address and credentials.

        Raises
        ------
        ConfigError
            When the connection is missing, is no Kafka connection, or names no servers.
        """
        return KafkaSettings.from_connection(connections.get(self.kafka_conn_id))

    def cluster(self, timeout: float = 20.0) -> Cluster:
        """Return the cluster; each question to it ends within ``timeout`` seconds.

        Raises
        ------
        ConfigError
            As :meth:`settings` does.
        """
        return Cluster(self.settings(), timeout=timeout)

    def get_conn(self) -> Cluster:
        """Return the cluster (Airflow's name for it)."""
        return self.cluster()

    def test_connection(self) -> tuple[bool, str]:
        """Ask the cluster something that needs no topic; what Airflow's button *Test* calls."""
        try:
            with self.cluster(timeout=10.0) as cluster:
                cluster.snapshot([])
        except SluiceError as error:
            return False, str(error)
        return True, f"{cluster.settings.bootstrap} answers"
