"""Kafka without Spark: one connection's settings for each client library, and queries to the cluster."""

from sluice.sources.kafka.cluster import Cluster
from sluice.sources.kafka.settings import KafkaSettings
from sluice.sources.state import FirstUnread, PartitionState, TopicState

__all__ = ["Cluster", "FirstUnread", "KafkaSettings", "PartitionState", "TopicState"]
