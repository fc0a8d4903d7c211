"""Kafka, seen from the core: one connection's settings for each client, and a snapshot of offsets."""

from sluice.sources.kafka.cluster import Cluster
from sluice.sources.kafka.settings import KafkaSettings
from sluice.sources.state import FirstUnread, PartitionState, TopicState

__all__ = ["Cluster", "FirstUnread", "KafkaSettings", "PartitionState", "TopicState"]
