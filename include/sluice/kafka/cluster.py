"""Asks the broker: which partitions there are, where they begin and end. With a deadline, and with typed errors."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.kafka.settings import KafkaSettings
from sluice.ranges import Positions

__all__ = ["Cluster", "PartitionState", "TopicState", "ends", "starts"]

T = TypeVar("T")

_UNTOUCHED = "nothing was read or written; the position stays where it was"


@dataclass(frozen=True)
class PartitionState:
    """Log start and end (exclusive; the last stable offset under ``read_committed``) of one partition.

    ``high`` is the high watermark, where it was asked for beside the last stable offset.
    """

    start: int
    end: int
    high: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TopicState:
    """One topic as the broker sees it now. ``topic_id`` changes when the topic is deleted and made again.

    ``errors`` holds what the broker refused or could not say of single partitions, ``error`` of the whole topic; both
    are empty in a :meth:`Cluster.snapshot`.
    """

    topic: str
    topic_id: str
    partitions: dict[int, PartitionState]
    errors: dict[int, SluiceError] = field(default_factory=dict)
    error: SluiceError | None = None


def starts(states: Iterable[TopicState]) -> Positions:
    """Return the log starts."""
    return {s.topic: {p: state.start for p, state in s.partitions.items()} for s in states}


def ends(states: Iterable[TopicState]) -> Positions:
    """Return the log ends."""
    return {s.topic: {p: state.end for p, state in s.partitions.items()} for s in states}


class _Refusals(logging.Handler):
    """Keeps a refused login: kafka-python 3.0.12 tells its log of it, and its caller only of a timeout."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "AuthenticationFailed" in message:
            self.last = message.rpartition("Error: ")[2].rstrip(")")


class Cluster:
    """A Kafka cluster, asked through kafka-python's admin client.

    Parameters
    ----------
    settings
        Address and credentials.
    timeout
        Seconds for each question, all attempts included. kafka-python's own calls may wait without a limit.
    """

    def __init__(self, settings: KafkaSettings, *, timeout: float = 20.0) -> None:
        self.settings = settings
        self.timeout = timeout

    def snapshot(self, topics: Iterable[str], *, isolation_level: str = "read_uncommitted") -> list[TopicState]:
        """Return the state of each topic.

        Raises
        ------
        SourceUnreachableError
            When no broker answers within the deadline, or a partition has no leader.
        AuthorizationError
            When credentials or a right are missing; it names the topic.
        ConfigError
            When a topic does not exist.
        """
        names = sorted(topics)
        return self._ask(lambda admin: _snapshot(admin, names, isolation_level, self.timeout))

    def _probe(self) -> None:
        # A client that fails to bootstrap leaves its thread behind for good (kafka-python 3.0.12): look first.
        problems = []
        for server in self.settings.bootstrap.split(","):
            host, _, port = server.strip().rpartition(":")
            try:
                with socket.create_connection((host.strip("[]"), int(port)), timeout=min(5.0, self.timeout)):
                    return
            except (OSError, ValueError) as error:
                problems.append(f"{server.strip()}: {error}")
        raise self._unreachable("; ".join(problems))

    def _unreachable(self, why: str) -> SourceUnreachableError:
        return SourceUnreachableError(
            f"Kafka at {self.settings.bootstrap} cannot be reached: {why}",
            state=_UNTOUCHED,
            next_step="start the broker or mend bootstrap.servers; the next run catches up by itself",
        )

    def _ask(self, question: Callable[[Any], T]) -> T:
        self._probe()
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sluice-kafka")
        future = pool.submit(self._with_admin, question)
        try:
            return future.result(self.timeout)
        except FutureTimeout:
            raise self._unreachable(f"no answer within {self.timeout:.0f} s") from None
        finally:
            pool.shutdown(wait=False)

    def _with_admin(self, question: Callable[[Any], T]) -> T:
        from kafka import errors
        from kafka.admin import KafkaAdminClient
        from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

        budget = int(self.timeout * 1000)
        config = {"request_timeout_ms": budget, **self.settings.for_python(), "bootstrap_timeout_ms": budget * 3 // 4}
        refusals = _Refusals()
        log = logging.getLogger("kafka.net.transport")
        log.addHandler(refusals)
        try:
            admin = KafkaAdminClient(**config)
            try:
                retriable = retry_if_exception(lambda e: isinstance(e, errors.KafkaError) and bool(e.retriable))
                for attempt in Retrying(
                    retry=retriable,
                    wait=wait_exponential(0.1, max=1),
                    stop=stop_after_delay(self.timeout / 2),
                    reraise=True,
                ):
                    with attempt:
                        return question(admin)
                raise AssertionError("unreachable")
            finally:
                admin.close()
        except SluiceError:
            raise
        except (errors.SaslAuthenticationFailedError, errors.AuthorizationError) as error:
            raise self._refused(str(error)) from error
        except (errors.KafkaError, OSError) as error:
            if refusals.last:
                raise self._refused(refusals.last) from error
            raise self._unreachable(f"{type(error).__name__}: {error}") from error
        finally:
            log.removeHandler(refusals)

    def _refused(self, why: str) -> AuthorizationError:
        return AuthorizationError(
            f"Kafka at {self.settings.bootstrap} refused: {why}",
            state=_UNTOUCHED,
            next_step="grant the user DESCRIBE and READ on the topics, or mend the connection's credentials",
        )


def _snapshot(admin: Any, topics: list[str], isolation_level: str, timeout: float) -> list[TopicState]:
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec
    from kafka.errors import for_code

    described = {d["name"]: d for d in admin.describe_topics(topics)}
    partitions: dict[str, list[int]] = {}
    for topic in topics:
        answer = described.get(topic, {"error_code": 3})
        code = int(answer.get("error_code") or 0)
        if code == 3:
            raise ConfigError(
                f"Kafka has no topic {topic!r}",
                state=_UNTOUCHED,
                next_step="create the topic, or mend source.kafka.topics in the pipeline file",
            )
        if code:
            raise for_code(code)(topic)
        for partition in answer["partitions"]:
            if partition.get("leader_id", 0) < 0:
                raise for_code(5)(f"{topic}-{partition['partition_index']} has no leader")
        partitions[topic] = sorted(int(p["partition_index"]) for p in answer["partitions"])
    tps = [TopicPartition(t, p) for t, ps in partitions.items() for p in ps]
    # begin first, then end: a partition that is read in between looks longer, never negative
    budget = int(timeout * 1000)
    first = admin.list_partition_offsets(dict.fromkeys(tps, OffsetSpec.EARLIEST), timeout_ms=budget)
    last = admin.list_partition_offsets(
        dict.fromkeys(tps, OffsetSpec.LATEST), isolation_level=isolation_level, timeout_ms=budget
    )
    return [
        TopicState(
            topic,
            str(described[topic].get("topic_id") or ""),
            {
                p: PartitionState(first[TopicPartition(topic, p)].offset, last[TopicPartition(topic, p)].offset)
                for p in partitions[topic]
            },
        )
        for topic in topics
    ]
