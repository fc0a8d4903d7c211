"""Kafka, seen from the core: one connection's settings for each client, and a snapshot of offsets."""

from sluice.kafka.cluster import Cluster, PartitionState, TopicState
from sluice.kafka.settings import KafkaSettings

__all__ = ["Cluster", "KafkaSettings", "PartitionState", "TopicState"]
