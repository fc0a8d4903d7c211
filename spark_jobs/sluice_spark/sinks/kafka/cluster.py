"""What a cluster says of topics, and what its errors mean to a sink."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from sluice.connections import find
from sluice.errors import AuthorizationError, ConfigError, LeaseHeldError, SinkError, SluiceError, quoted
from sluice.sources.kafka.client import probe
from sluice.sources.kafka.settings import KafkaSettings

__all__ = ["FENCED", "LOG", "MARKS_CONFIG", "NOTHING_COMMITTED", "PATIENCE", "Cluster", "Topic"]

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a cluster has for an answer."""
MARKS_CONFIG = {
    "cleanup.policy": "compact",
    # the mark of a writer's newest batch stays for good, the others for a week
    "min.compaction.lag.ms": str(7 * 86_400_000),
    "segment.ms": str(86_400_000),
    "max.message.bytes": str(16 << 20),
}
"""The settings of a topic of marks."""
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError._AUTHENTICATION,
}
_UNKNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
_SMALLEST = 1_048_588
"""Bytes of a batch that a topic takes by default."""

LOG = logging.getLogger("sluice.librdkafka")
LOG.addHandler(logging.NullHandler())
LOG.propagate = False

NOTHING_COMMITTED = "nothing of this batch is visible to readers; what was committed before stays"


@dataclass(frozen=True)
class Topic:
    """What the cluster says of a topic: its id, its number of partitions, and the largest batch that it takes."""

    id: str
    partitions: int
    largest: int
    policy: str
    """How old records are removed: ``delete``, ``compact``, or both; empty if the cluster does not say."""
    before: int = 1 << 63
    after: int = 1 << 63
    """By how many milliseconds a record's time may be before and after the cluster's."""


@dataclass
class Cluster:
    """A cluster, as a sink speaks to it.

    Parameters
    ----------
    what
        The sink in words, for messages.
    transactional_id
        The id of its producer, for messages.
    """

    connection: str
    what: str
    transactional_id: str
    _heard: list[KafkaError] = field(default_factory=list, repr=False)
    _newest: Any = field(default=None, repr=False)

    @property
    def settings(self) -> KafkaSettings:
        """The address and the credentials."""
        return KafkaSettings.from_connection(find(self.connection))

    def client(self, **more: Any) -> dict[str, Any]:
        """Return the settings of a client, which hold secrets, with others."""
        own = {"allow.auto.create.topics": False, "log.connection.close": False, "error_cb": self._heard.append}
        return {**self.settings.for_librdkafka(), **own, **more}

    def reached(self) -> None:
        """Raise a :class:`~sluice.errors.SinkError` at once if no server of the cluster accepts connections."""
        try:
            probe(self.settings, 5.0)
        except SluiceError as error:
            raise SinkError(
                f"{self.what}: {error.what}",
                state=NOTHING_COMMITTED,
                next_step="run again when the cluster answers",
            ) from None

    # --- topics --------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic | None:
        """Return what the cluster says of a topic; None if there is none."""
        with self.telling():
            admin = self._admin()
            asked = admin.describe_topics(TopicCollection([name]), request_timeout=PATIENCE)
            try:
                found = self._answer(admin, asked[name])
            except KafkaException as error:
                if error.args[0].code() in _UNKNOWN:
                    return None
                raise
            config = self._config(admin, name)
            return Topic(
                str(found.topic_id),
                len(found.partitions),
                int(config.get("max.message.bytes", _SMALLEST)),
                config.get("cleanup.policy", ""),
                *(_difference(config, name) for name in ("before", "after")),
            )

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic with the cluster's replication factor, unless another program does first."""
        with self.telling():
            admin = self._admin()  # it must live as long as the answer is awaited
            made = admin.create_topics(
                [NewTopic(name, partitions, replication_factor=-1, config=dict(config))], request_timeout=PATIENCE
            )
            try:
                self._answer(admin, made[name])
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def end_of(self, name: str) -> int:
        """Return the end of a topic's first partition, which includes open transactions."""
        with self.telling():
            admin = self._admin()
            asked = admin.list_offsets(
                {TopicPartition(name, 0): OffsetSpec.latest()},  # type: ignore[no-untyped-call]
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=PATIENCE,
            )
            return int(self._answer(admin, next(iter(asked.values()))).offset)

    def consumer(self, **more: Any) -> Consumer:
        """Open a consumer that joins no group and commits nothing."""
        own = {"group.id": f"sluice-{uuid.uuid4().hex}", "enable.auto.commit": False, "enable.partition.eof": True}
        return Consumer(self.client(**own, **more), logger=LOG)

    def _answer(self, admin: AdminClient, future: Any) -> Any:
        """Wait for an answer, or until the cluster refuses the login, of which the answer would not tell."""
        while True:
            try:
                return future.result(timeout=0.1)
            except TimeoutError:
                admin.poll(0)
                refused = [heard for heard in self._heard if heard.code() in _REFUSED]
                if refused:
                    raise KafkaException(refused[0]) from None

    def _admin(self) -> AdminClient:
        return self.heard(AdminClient(self.client(), logger=LOG))

    def heard(self, client: T) -> T:
        """Return a client, after noting that what it reports in the background belongs into messages."""
        self._newest = client
        return client

    def _config(self, admin: AdminClient, name: str) -> dict[str, str]:
        """Return a topic's settings; none if the role may not see them."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        try:
            found = self._answer(admin, admin.describe_configs([resource], request_timeout=PATIENCE)[resource])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return {}
            raise
        return {key: entry.value for key, entry in found.items() if entry.value is not None}

    # --- errors --------------------------------------------------------------------------------------------------

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Turn errors of the client into Sluice's."""
        try:
            yield
        except KafkaException as error:
            raise self.describe(error.args[0]) from error

    def describe(self, error: KafkaError) -> SluiceError:
        """Return the error of Sluice for one of the client, with what the client reported in the background."""
        if self._newest is not None:
            with suppress(KafkaException):  # a fatal error comes out of it again
                self._newest.poll(0)  # such as why a login is refused: the call itself only waited in vain
        # what was heard before may be over: a fenced producer, say, is no matter of rights
        causes = [error] if error.code() in FENCED else [error, *reversed(self._heard)]
        if any((refused := cause).code() in _REFUSED for cause in causes):
            return AuthorizationError(
                f"{self.what}: the cluster refused: {quoted(refused.str())}",
                state=NOTHING_COMMITTED,
                next_step="correct the credentials, or grant DESCRIBE and WRITE on the topic, these and READ on its "
                f"topic of commits, and DESCRIBE and WRITE on the transactional id {self.transactional_id}",
            )
        code = error.code()
        if code in FENCED:
            return LeaseHeldError(
                f"{self.what}: another driver of this pipeline has begun to write",
                state=NOTHING_COMMITTED,
                next_step="run again when it has ended",
            )
        rule: Callable[[], SluiceError] | None = {
            **dict.fromkeys(_UNKNOWN, self._without_topic),
            **dict.fromkeys(_TOO_LARGE, self._too_large),
            KafkaError.INVALID_TRANSACTION_TIMEOUT: self._too_patient,
            KafkaError._UNSUPPORTED_FEATURE: self._too_old,
        }.get(code)
        if rule is not None:
            return rule()
        last = f" ({self._heard[-1].str()})" if self._heard else ""
        return SinkError(
            f"{self.what}: {error.str()}{last}",
            state=NOTHING_COMMITTED,
            next_step="run again when the cluster answers",
        )

    def _without_topic(self) -> SluiceError:
        return ConfigError(
            f"{self.what}: there is no such topic, or no such partition",
            state=NOTHING_COMMITTED,
            next_step="create it, or let the first run do so by sink.kafka.partitions: N",
        )

    def _too_large(self) -> SluiceError:
        return SinkError(
            f"{self.what}: the cluster refuses a record because of its size",
            state=NOTHING_COMMITTED,
            next_step="raise the topic's max.message.bytes, or add a row rule that refuses such records; run again",
        )

    def _too_patient(self) -> SluiceError:
        return ConfigError(
            f"{self.what}: the cluster does not allow transactions to stay open as long as transaction_timeout says",
            state=NOTHING_COMMITTED,
            next_step="write a shorter sink.kafka.transaction_timeout, or raise the brokers' "
            "transaction.max.timeout.ms",
        )

    def _too_old(self) -> SluiceError:
        return ConfigError(
            f"{self.what}: the cluster has no transactions: its brokers are older than 0.11",
            state=NOTHING_COMMITTED,
            next_step="use another cluster",
        )


def _difference(config: Mapping[str, str], side: str) -> int:
    """Return how far from now a record's time may be; a cluster that sets the times itself does not look."""
    if config.get("message.timestamp.type") == "LogAppendTime":
        return 1 << 63
    either = config.get("message.timestamp.difference.max.ms")  # before Kafka 3.6
    return int(config.get(f"message.timestamp.{side}.max.ms") or either or 1 << 63)
