"""Queries to brokers, as coroutines on a client's thread: one request per leader, with an answer per partition."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sluice.sources.kafka.client import Client
from sluice.sources.state import FirstUnread, Key, PartitionState, stream_id

__all__ = ["TopicAnswer", "at_time", "ends_of_epochs", "first_unread", "ids", "names", "retention", "states"]

_EARLIEST, _LATEST = -2, -1
_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
_CHUNK = 200
"""Maximum number of partitions in one fetch."""
_BYTES = 16 * 1024
"""Bytes per partition in a shared fetch."""
_ALONE = 1024 * 1024
"""Bytes of a fetch for a single partition whose batch is larger, or has nothing readable."""
_IN_VAIN = 10
"""Give up after this many fetches without progress."""
_UNTIMED = FirstUnread(-1.0)
"""A record without a timestamp: of the oldest format, or of a producer that sets none."""


@dataclass
class TopicAnswer:
    """A topic's id and, per partition, its state or kafka-python's error."""

    topic: str
    topic_id: str = ""
    partitions: dict[int, PartitionState | Exception] = field(default_factory=dict)
    error: Exception | None = None


@dataclass
class _Metadata:
    topics: list[TopicAnswer]
    leaders: dict[Key, int]

    def by_leader(self, keys: Iterable[Key]) -> dict[int, list[Key]]:
        found: dict[int, list[Key]] = {}
        for key in keys:
            if key in self.leaders:
                found.setdefault(self.leaders[key], []).append(key)
        return found


async def states(
    client: Client, topics: Collection[str], isolation_level: str, *, patience: float, until: float
) -> list[TopicAnswer]:
    """Return start and end of each partition; retry transient errors for ``patience`` seconds.

    Partitions of nodes that do not answer ``until`` then (monotonic seconds) get an error.

    Raises
    ------
    kafka.errors.KafkaError
        If no node answers; the client must be recreated then.
    """
    give_up = time.monotonic() + patience
    while True:
        answers = await _states(client, topics, isolation_level, until)
        found = [e for a in answers for e in (a.error, *a.partitions.values()) if isinstance(e, Exception)]
        if not any(_mends_itself(e) for e in found) or time.monotonic() > give_up:
            break
        await client.sleep(0.1)
    parts = [p for a in answers for p in a.partitions.values()]
    if parts and all(isinstance(p, Exception) and _is_connection(p) for p in parts):
        raise next(p for p in parts if isinstance(p, Exception))
    return answers


async def _states(client: Client, topics: Collection[str], isolation_level: str, until: float) -> list[TopicAnswer]:
    metadata = await _metadata(client, topics, until)
    # start before end: if a partition changes in between, its length cannot become negative
    specs = [(_EARLIEST, "read_uncommitted"), (_LATEST, isolation_level)]
    if isolation_level == "read_committed":
        specs.append((_LATEST, "read_uncommitted"))
    epochs: dict[Key, int] = {}
    columns = await _offsets(client, metadata, list(metadata.leaders), specs, until, epochs)
    of = {answer.topic: answer for answer in metadata.topics}
    for topic, number in metadata.leaders:
        found = [column[topic, number] for column in columns]
        error = next((f for f in found if isinstance(f, Exception)), None)
        if error is not None:
            of[topic].partitions[number] = error
            continue
        start, end, *high = (f for f in found if isinstance(f, int))
        of[topic].partitions[number] = PartitionState(
            start, end, high=next(iter(high), None), epoch=epochs.get((topic, number))
        )
    return metadata.topics


async def _of_any(client: Client, request: Any, until: float) -> Any:
    """Ask any node, and another one if it does not answer: kafka-python chooses the one with the fewest requests."""
    from kafka.errors import KafkaError

    for tries in (3, 2):
        now = time.monotonic()
        try:
            return await client.within(client.send(request), now + (until - now) / tries)
        except KafkaError as error:
            if not _is_connection(error):
                raise
    return await client.within(client.send(request), until)


async def names(client: Client, until: float) -> list[str]:
    """Return the names of all topics that one may describe, without Kafka's internal ones."""
    from kafka.protocol.metadata import MetadataRequest

    response = await _of_any(client, MetadataRequest(topics=None, allow_auto_topic_creation=False), until)
    return sorted(topic.name for topic in response.topics if not topic.is_internal)


async def ids(client: Client, topics: Collection[str], until: float) -> dict[str, str]:
    """Return the ids of those of these topics that there are, as far as the cluster gives any."""
    return {found.topic: found.topic_id for found in (await _metadata(client, topics, until)).topics if found.topic_id}


async def _metadata(client: Client, topics: Collection[str], until: float) -> _Metadata:
    from kafka.errors import for_code
    from kafka.protocol.metadata import MetadataRequest

    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=t) for t in sorted(topics)],
        allow_auto_topic_creation=False,
    )
    response = await _of_any(client, request, until)
    named = {t.name: t for t in response.topics}
    found = _Metadata([], {})
    for topic in sorted(topics):
        told = named.get(topic)
        answer = TopicAnswer(topic)
        found.topics.append(answer)
        if told is None or told.error_code:
            answer.error = for_code(told.error_code if told else 3)(topic)
            continue
        topic_id = getattr(told, "topic_id", None)
        answer.topic_id = stream_id(getattr(response, "cluster_id", None), str(topic_id) if topic_id else None)
        for part in told.partitions:
            if part.leader_id < 0:
                answer.partitions[part.partition_index] = for_code(part.error_code or 5)()
            else:
                found.leaders[topic, part.partition_index] = part.leader_id
    return found


async def _offsets(
    client: Client,
    metadata: _Metadata,
    keys: Collection[Key],
    specs: Iterable[tuple[int, str]],
    until: float,
    epochs: dict[Key, int] | None = None,
) -> list[dict[Key, int | Exception]]:
    """Ask each leader for all of its partitions: one request per timestamp and isolation level, all in parallel.

    ``epochs`` takes up the leader epoch that was the newest when the first of the ends was answered.
    """
    from kafka.errors import KafkaError, for_code
    from kafka.protocol.consumer import ListOffsetsRequest

    topic_of, part_of = ListOffsetsRequest.ListOffsetsTopic, ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    found: list[dict[Key, int | Exception]] = []
    sent = []
    for timestamp, isolation_level in specs:
        answers: dict[Key, int | Exception] = {}
        found.append(answers)
        for node, mine in metadata.by_leader(keys).items():
            request = ListOffsetsRequest(
                isolation_level=_LEVELS[isolation_level],
                topics=[
                    topic_of(name=t, partitions=[part_of(partition_index=p, timestamp=timestamp) for p in ps])
                    for t, ps in _by_topic(mine).items()
                ],
                min_version=2 if isolation_level == "read_committed" else 1,
            )
            sent.append((timestamp, answers, mine, client.send(request, node)))
    for timestamp, answers, mine, future in sent:
        try:
            response = await client.within(future, until)
        except KafkaError as error:
            answers |= dict.fromkeys(mine, error)
            continue
        for topic in response.topics:
            for part in topic.partitions:
                key = (topic.name, part.partition_index)
                answers[key] = for_code(part.error_code)(f"{key[0]}-{key[1]}") if part.error_code else part.offset
                epoch = getattr(part, "leader_epoch", None)  # brokers before 2.1 tell none
                if (
                    epochs is not None
                    and timestamp == _LATEST
                    and not part.error_code
                    and epoch is not None
                    and epoch >= 0
                ):
                    epochs.setdefault(key, epoch)
        for key in mine:
            answers.setdefault(key, for_code(3)(f"{key[0]}-{key[1]}"))
    return found


async def at_time(
    client: Client, keys: Collection[Key], milliseconds: int, isolation_level: str, until: float
) -> dict[Key, int | None]:
    """Return the first offset at or after a time, or None if there is none. Partitions that fail are missing."""
    metadata = await _metadata(client, {t for t, _ in keys}, until)
    (found,) = await _offsets(client, metadata, keys, [(milliseconds, isolation_level)], until)
    return {k: o if o >= 0 else None for k, o in found.items() if isinstance(o, int)}


async def ends_of_epochs(client: Client, epochs: Mapping[Key, int], until: float) -> dict[Key, int]:
    """Return where the records of leader epochs end, up to these ones; KIP-101. What no leader knows is missing."""
    from kafka.errors import KafkaError
    from kafka.protocol.consumer import OffsetForLeaderEpochRequest

    topic_of = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    part_of = topic_of.OffsetForLeaderPartition
    metadata = await _metadata(client, {t for t, _ in epochs}, until)
    found: dict[Key, int] = {}
    sent = []
    for node, mine in metadata.by_leader(epochs).items():
        topics = [
            topic_of(
                topic=t,
                partitions=[part_of(partition=p, current_leader_epoch=-1, leader_epoch=epochs[t, p]) for p in parts],
            )
            for t, parts in _by_topic(mine).items()
        ]
        with contextlib.suppress(KafkaError):  # a broker that does not know the question
            sent.append(client.send(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), node))
    for future in sent:
        try:
            response = await client.within(future, until)
        except KafkaError:
            continue
        for topic in response.topics:
            for part in topic.partitions:
                if not part.error_code and part.end_offset >= 0:
                    found[topic.topic, part.partition] = part.end_offset
    return found


async def retention(client: Client, topics: Collection[str], until: float) -> dict[str, timedelta | None]:
    """Return the topics' retention time; topics that fail are missing."""
    from kafka.protocol.admin import DescribeConfigsRequest

    request = DescribeConfigsRequest(
        resources=[(2, topic, ["retention.ms", "cleanup.policy"]) for topic in topics], include_synonyms=False
    )
    response = await _of_any(client, request, until)
    found: dict[str, timedelta | None] = {}
    for result in response.results:
        if result.error_code:
            continue
        config = {c.name: c.value for c in result.configs}
        milliseconds = int(config.get("retention.ms") or -1)
        deletes = "delete" in (config.get("cleanup.policy") or "delete")
        found[result.resource_name] = timedelta(milliseconds=milliseconds) if deletes and milliseconds > 0 else None
    return found


# --- records ----------------------------------------------------------------------------------------------------


async def first_unread(
    client: Client, positions: Mapping[Key, int], ends: Mapping[Key, int], isolation_level: str, until: float
) -> dict[Key, FirstUnread]:
    """Fetch until each partition has yielded a record or has none below its end, or until the deadline."""
    metadata = await _metadata(client, {t for t, _ in positions}, until)
    found: dict[Key, FirstUnread] = {}
    wanted, alone, in_vain = dict(positions), set[Key](), 0
    while wanted and in_vain < _IN_VAIN and time.monotonic() < until:
        requests = []
        for node, mine in metadata.by_leader(wanted).items():
            shared = [key for key in mine if key not in alone]
            requests += [(node, shared[i : i + _CHUNK], _BYTES) for i in range(0, len(shared), _CHUNK)]
            requests += [(node, [key], _ALONE) for key in mine if key in alone]  # yields at least one whole batch
        sent = [client.send(_fetch(wanted, keys, isolation_level, size), node) for node, keys, size in requests]
        answers = [answer for future in sent if (answer := await _or_none(client.within(future, until))) is not None]
        left = _harvest(answers, wanted, ends, isolation_level, found)
        in_vain = in_vain + 1 if left == wanted else 0
        if in_vain:
            await client.sleep(0.1)
        wanted = left
        alone |= set(left)
    return found


def _fetch(wanted: Mapping[Key, int], keys: Collection[Key], isolation_level: str, size: int) -> Any:
    from kafka.protocol.consumer import FetchRequest

    topic_of, part_of = FetchRequest.FetchTopic, FetchRequest.FetchTopic.FetchPartition
    return FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=max(1, size * len(keys)),
        isolation_level=_LEVELS[isolation_level],
        topics=[
            topic_of(
                topic=topic,
                partitions=[
                    part_of(partition=p, fetch_offset=wanted[topic, p], partition_max_bytes=size) for p in parts
                ],
            )
            for topic, parts in _by_topic(keys).items()
        ],
        forgotten_topics_data=[],
        rack_id="",
        max_version=12,  # from 13 on, requests name topics by id
    )


async def _or_none(awaited: Any) -> Any:
    from kafka.errors import KafkaError

    try:
        return await awaited
    except KafkaError:
        return None


def _harvest(
    answers: Iterable[Any],
    wanted: Mapping[Key, int],
    ends: Mapping[Key, int],
    isolation_level: str,
    found: dict[Key, FirstUnread],
) -> dict[Key, int]:
    """Add the records that were fetched to ``found``; return the positions of partitions that need another fetch."""
    from kafka.errors import for_code

    left = dict(wanted)
    for answer in answers:
        for topic in answer.responses:
            for part in topic.partitions:
                key = (topic.topic, part.partition_index)
                if part.error_code:
                    if not _mends_itself(for_code(part.error_code)()):
                        del left[key]  # not authorized, or removed meanwhile
                    continue
                del left[key]
                first, upto = _first_in(part, wanted[key], isolation_level)
                if first is not None:
                    found[key] = first
                elif upto >= ends[key]:
                    found[key] = FirstUnread(None)
                else:
                    left[key] = upto
    for key in [k for k, first in found.items() if first is _UNTIMED]:
        del found[key]
    return left


def _first_in(part: Any, position: int, isolation_level: str) -> tuple[FirstUnread | None, int]:
    """Return the first visible record, or None, and the offset below which there is surely none."""
    from kafka.record import MemoryRecords

    aborted = sorted((a.first_offset, a.producer_id) for a in part.aborted_transactions or ())
    dropped: set[int] = set()
    records = MemoryRecords(bytes(part.records or b""))
    while records.has_next():
        batch = records.next_batch()
        if batch.magic < 2:
            for record in batch:
                if record.offset >= position:
                    return _seen(record.timestamp, record.timestamp_type), position
                position = max(position, record.offset + 1)
            continue
        if isolation_level == "read_committed":
            while aborted and aborted[0][0] <= batch.last_offset:
                dropped.add(aborted.pop(0)[1])
        if batch.is_control_batch:
            dropped.discard(batch.producer_id)  # its transaction ends here
        elif not (batch.is_transactional and batch.producer_id in dropped):
            first = _first_of(batch, position)
            if first is not None:
                return first, position
        position = max(position, batch.last_offset + 1)
    return None, position


def _first_of(batch: Any, position: int) -> FirstUnread | None:
    from kafka.errors import KafkaError

    if batch.last_offset < position:
        return None
    try:
        for record in batch:
            if record.offset >= position:
                return _seen(record.timestamp, batch.timestamp_type)
    except KafkaError:  # a codec that is not installed here: the batch's first timestamp is good enough for a limit
        return _seen(batch.first_timestamp, batch.timestamp_type)
    return None


def _seen(milliseconds: int | None, kind: int | None) -> FirstUnread:
    if milliseconds is None or milliseconds < 0:
        return _UNTIMED
    return FirstUnread(milliseconds / 1000, "LogAppendTime" if kind == 1 else "CreateTime")


# --- errors ----------------------------------------------------------------------------------------------------


def _mends_itself(error: Exception) -> bool:
    from kafka import errors

    if isinstance(error, errors.UnknownTopicOrPartitionError):
        return False  # retriable in Kafka only because of the moment after a topic's creation
    return bool(getattr(error, "retriable", False)) or isinstance(error, errors.UnknownBrokerIdError)


def _is_connection(error: Exception) -> bool:
    from kafka import errors

    return isinstance(
        error,
        errors.KafkaConnectionError | errors.NodeNotReadyError | errors.KafkaTimeoutError | errors.RequestTimedOutError,
    )


def _by_topic(keys: Iterable[Key]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in keys:
        found.setdefault(topic, []).append(partition)
    return found
