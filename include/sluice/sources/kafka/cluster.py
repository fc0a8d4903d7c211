"""Asks the broker: which partitions there are, where they begin and end. With a deadline, and with typed errors."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from sluice.errors import AuthorizationError, ConfigError, SluiceError
from sluice.sources.kafka import requests as questions
from sluice.sources.kafka.client import UNTOUCHED, Client, refused, unreachable
from sluice.sources.kafka.settings import KafkaSettings
from sluice.sources.state import FirstUnread, Key, PartitionState, TopicState, ends, ids_of, starts

__all__ = ["Cluster", "PartitionState", "TopicState", "ends", "ids_of", "starts"]

T = TypeVar("T")

_CONFIG_FOR = 60.0
"""Seconds for which a topic's retention is remembered."""


class Cluster:
    """A Kafka cluster, asked through one client, which is kept between questions and made anew when it fails.

    Safe to be asked from several threads, and after a fork. The client ends with :meth:`close`, at the end of a
    ``with`` block, or when nobody holds the cluster any more.

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
        self._retention: dict[str, tuple[float, timedelta | None]] = {}
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._kept: list[Client] = []  # one or none
        weakref.finalize(self, _close_all, self._kept).atexit = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the client and its thread; the next question makes another one."""
        if os.getpid() == self._pid:
            _close_all(self._kept)

    # --- questions -------------------------------------------------------------------------------------------------

    def snapshot(self, topics: Iterable[str], *, isolation_level: str = "read_uncommitted") -> list[TopicState]:
        """Return the state of each topic, whole.

        Raises
        ------
        SourceUnreachableError
            When no broker answers within the deadline, or a partition has no leader.
        AuthorizationError
            When credentials or a right are missing; it names the topic.
        ConfigError
            When a topic does not exist, or the connection's settings cannot work.
        """
        states = self._states(topics, isolation_level, self.timeout / 2)
        errors = [e for s in states for e in (s.error, *s.errors.values()) if e is not None]
        for kind in (AuthorizationError, ConfigError, SluiceError):
            for error in errors:
                if isinstance(error, kind):
                    raise error
        return states

    def look(self, topics: Iterable[str], *, isolation_level: str = "read_uncommitted") -> list[TopicState]:
        """Return what can be known of each topic; what cannot is an error of its partition or topic.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            When nothing can be known of any.
        """
        return self._states(topics, isolation_level, min(2.0, self.timeout / 4))

    def first_unread(
        self, positions: Mapping[Key, int], ends: Mapping[Key, int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[Key, FirstUnread]:
        """Return the first record at or after each position, and below each end; needs READ.

        Partitions that refuse, or that do not answer in time, are missing in the answer.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            When no broker answers at all.
        """
        if not positions:
            return {}
        return self._ask(lambda client, until: questions.first_unread(client, positions, ends, isolation_level, until))

    def at_time(
        self, keys: Collection[Key], moment: datetime, *, isolation_level: str = "read_uncommitted"
    ) -> dict[Key, int | None]:
        """Return the first offset whose record is not older than a moment; None where all are older.

        Partitions that do not answer are missing.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            When no broker answers at all.
        """
        if not keys:
            return {}
        milliseconds = round(moment.timestamp() * 1000)
        return self._ask(lambda client, until: questions.at_time(client, keys, milliseconds, isolation_level, until))

    def retention(self, topics: Iterable[str]) -> dict[str, timedelta | None]:
        """Return each topic's retention time; None when it has no end. Needs DESCRIBE_CONFIGS.

        Topics that are compacted and never deleted from have none, and topics that refuse are missing. The answer may
        be a minute old.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            When no broker answers at all.
        """
        names, now = sorted(topics), time.monotonic()
        known = {t: value for t, (asked, value) in list(self._retention.items()) if asked + _CONFIG_FOR > now}
        missing = [t for t in names if t not in known]
        if missing:
            found = self._ask(lambda client, until: questions.retention(client, missing, until))
            self._retention.update({t: (now, value) for t, value in found.items()})
            known |= found
        return {t: known[t] for t in names if t in known}

    def _states(self, topics: Iterable[str], isolation_level: str, patience: float) -> list[TopicState]:
        names = sorted(topics)
        answers = self._ask(
            lambda client, until: questions.states(client, names, isolation_level, patience=patience, until=until)
        )
        return [self._state(answer) for answer in answers]

    def _state(self, answer: questions.TopicAnswer) -> TopicState:
        partitions = {p: found for p, found in answer.partitions.items() if isinstance(found, PartitionState)}
        errors = {
            p: self._typed(found, f"{answer.topic}-{p}")
            for p, found in answer.partitions.items()
            if isinstance(found, Exception)
        }
        error = self._typed(answer.error, f"topic {answer.topic!r}") if answer.error else None
        return TopicState(answer.topic, answer.topic_id, partitions, errors, error)

    def _typed(self, error: Exception, of: str) -> SluiceError:
        from kafka import errors

        if isinstance(error, errors.UnknownTopicOrPartitionError) and of.startswith("topic"):
            return ConfigError(
                f"Kafka has no {of}",
                state=UNTOUCHED,
                next_step="create the topic, or fix source.kafka.topics in the pipeline file",
            )
        if isinstance(error, errors.AuthorizationError):
            return refused(self.settings, f"{of}: {type(error).__name__}, the right DESCRIBE on it is missing")
        why = (
            "has no leader" if isinstance(error, errors.LeaderNotAvailableError) else f"{type(error).__name__} {error}"
        )
        return unreachable(self.settings, f"{of}: {why.strip()}")

    # --- asking ----------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[Client, float], Awaitable[T]]) -> T:
        """Put a question; it is told until when it may wait for single nodes, so that the others' answers count."""
        from kafka import errors

        if os.getpid() != self._pid:
            self._begin()  # a fork: thread and sockets of the client are the parent's
        begun = time.monotonic()
        deadline = begun + self.timeout
        while True:
            client = self._client(deadline)
            left = deadline - time.monotonic()
            until = time.monotonic() + 0.7 * left
            try:
                return client.ask(lambda c, until=until: question(c, until), max(0.0, left))  # type: ignore[misc]
            except SluiceError:
                self._drop(client)
                raise
            except TimeoutError:
                self._drop(client)
                raise unreachable(self.settings, f"no answer within {self.timeout:.0f} s") from None
            except (errors.SaslAuthenticationFailedError, errors.AuthorizationError) as error:
                self._drop(client)
                raise refused(self.settings, str(error) or type(error).__name__) from error
            except (errors.KafkaError, OSError) as error:
                self._drop(client)
                again = isinstance(error, errors.KafkaError) and bool(error.retriable)
                if not again or time.monotonic() - begun > self.timeout / 2:
                    raise unreachable(self.settings, f"{type(error).__name__}: {error}") from error
            time.sleep(0.1)

    def _client(self, deadline: float) -> Client:
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise unreachable(self.settings, f"no answer within {self.timeout:.0f} s")
        try:
            for client in self._kept:
                return client
            client = Client.open(self.settings, max(0.1, deadline - time.monotonic()))
            self._kept.append(client)
            return client
        finally:
            self._lock.release()

    def _drop(self, client: Client) -> None:
        with contextlib.suppress(ValueError):
            self._kept.remove(client)
        client.close()


def _close_all(kept: list[Client]) -> None:
    while kept:
        kept.pop().close()
