"""Writes a pipeline's positions into a consumer group, for tools that only know groups. Never read back."""

from __future__ import annotations

from sluice.errors import described
from sluice.ranges import Positions
from sluice.sources.base import CopyError
from sluice.sources.kafka.settings import KafkaSettings

__all__ = ["mirror"]

_SECONDS = 10


def mirror(settings: KafkaSettings, group: str, positions: Positions, note: str) -> int:
    """Commit positions under a group that has no members; return how many partitions were written.

    Partitions that did not move are written as well: Kafka forgets the offsets of an empty group after a week
    (``offsets.retention.minutes``).

    Parameters
    ----------
    note
        Kept beside each offset, up to 4096 bytes.

    Raises
    ------
    CopyError
        When the broker refuses or does not answer, or if the group has members.

    Notes
    -----
    Needs READ on group and topics. The group is a copy for monitoring: a run never starts from it, and resetting it
    changes nothing.
    """
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

    offsets = {
        TopicPartition(topic, partition): OffsetAndMetadata(offset, note[:4096], -1)
        for topic, partitions in positions.items()
        for partition, offset in partitions.items()
    }
    budget = _SECONDS * 1000
    config = {**settings.for_python(), "request_timeout_ms": budget, "bootstrap_timeout_ms": budget}
    try:
        admin = KafkaAdminClient(**config)
        try:
            # a group's first commit finds its coordinator not there yet, and says so in several ways
            for attempt in Retrying(
                retry=retry_if_exception(lambda e: isinstance(e, KafkaError) and bool(e.retriable)),
                wait=wait_exponential(0.1, max=1),
                stop=stop_after_delay(_SECONDS),
                reraise=True,
            ):
                with attempt:
                    answers = admin.alter_group_offsets(group, offsets)
                    loading = next((a for a in answers.values() if a.errno and a.retriable), None)
                    if loading is not None:
                        raise loading()
        finally:
            admin.close()
    except Exception as error:  # whatever it is, a run must not fail by it
        raise CopyError(described(error)) from error
    refused = {str(tp): answer for tp, answer in answers.items() if answer.errno}
    if refused:
        tp, answer = next(iter(refused.items()))
        raise CopyError(f"{len(refused)} of {len(offsets)} partitions were refused, {tp}: {answer.__name__}")
    return len(offsets)
