"""Kafka without Spark: one connection's settings for each client library, and queries to the cluster."""

from sluice.sources.kafka.cluster import Cluster
from sluice.sources.kafka.settings import KafkaSettings

__all__ = ["Cluster", "KafkaSettings"]
