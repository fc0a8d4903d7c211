"""Kafka, seen from the core: one connection's settings for each client, and a snapshot of offsets."""

from sluice.kafka.cluster import Cluster
from sluice.kafka.settings import KafkaSettings
from sluice.kafka.state import FirstUnread, PartitionState, TopicState

__all__ = ["Cluster", "FirstUnread", "KafkaSettings", "PartitionState", "TopicState"]
