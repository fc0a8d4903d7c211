"""Queries a Kafka cluster for partitions, offsets and retention, with a deadline and typed errors."""

from __future__ import annotations

import contextlib
import difflib
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from sluice.connections import Connection
from sluice.errors import AuthorizationError, ConfigError, SluiceError, described
from sluice.sources.kafka import requests as questions
from sluice.sources.kafka.client import UNTOUCHED, Client, refused, unreachable
from sluice.sources.kafka.config import KafkaSource
from sluice.sources.kafka.settings import KafkaSettings
from sluice.sources.state import FirstUnread, Key, PartitionState, TopicState

__all__ = ["Cluster", "cluster_of"]

T = TypeVar("T")

_CONFIG_FOR = 60.0
"""Seconds for which a topic's retention time is cached."""


def cluster_of(connection: Connection, timeout: float = 20.0) -> Cluster:
    """Return the cluster of a connection.

    Raises
    ------
    ConfigError
        If it is not a Kafka connection, or names no servers.
    """
    return Cluster(KafkaSettings.from_connection(connection), timeout=timeout)


class Cluster:
    """Queries to a Kafka cluster through one client, which is cached between queries and recreated when it fails.

    Several threads may use it, and it survives a fork. The client ends with :meth:`close`, at the end of a ``with``
    block, or when the cluster is garbage-collected.

    Parameters
    ----------
    settings
        Address and credentials.
    timeout
        Seconds for each query, including all retries. kafka-python's own calls may wait without a limit.
    """

    def __init__(self, settings: KafkaSettings, *, timeout: float = 20.0) -> None:
        self.settings = settings
        self.timeout = timeout
        self._retention: dict[str, tuple[float, timedelta | None]] = {}
        self._begin()

    @property
    def address(self) -> str:
        """The host and port of its first server."""
        return self.settings.bootstrap.split(",")[0].strip()

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
        """Close the client and end its thread; the next query opens another one."""
        if os.getpid() == self._pid:
            _close_all(self._kept)

    # --- questions -------------------------------------------------------------------------------------------------

    def snapshot(self, topics: Iterable[str], *, isolation_level: str = "read_uncommitted") -> list[TopicState]:
        """Return the state of each topic: all of it, or an error.

        Raises
        ------
        SourceUnreachableError
            If no broker answers within the deadline, or a partition has no leader.
        AuthorizationError
            If credentials or a right are missing; with the topic's name.
        ConfigError
            If a topic does not exist, or the connection's settings cannot work.
        """
        states = self._states(topics, isolation_level, self.timeout / 2)
        errors = [e for s in states for e in (s.error, *s.errors.values()) if e is not None]
        for kind in (AuthorizationError, ConfigError, SluiceError):
            for error in errors:
                if isinstance(error, kind):
                    raise error
        return states

    def names(self) -> list[str]:
        """Return the names of all topics that the credentials may describe, without Kafka's internal ones.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            If no broker answers.
        """
        return self._ask(questions.names)

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of those of these topics that there are; without their offsets, in a single request.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            If no broker answers.
        """
        names = sorted(topics)
        return self._ask(lambda client, until: questions.ids(client, names, until))

    def existing(self, topics: Iterable[str]) -> set[str]:
        """Return which of these topics there are.

        Raises
        ------
        SourceUnreachableError, AuthorizationError
            If that is not known of one of them: a topic that one may not describe is not one that is gone.
        """
        wanted = set(topics)
        states = self.look(wanted) if wanted else []
        for state in states:
            if state.error is not None and not isinstance(state.error, ConfigError):
                raise state.error
        return {state.topic for state in states if state.error is None}

    def topics_of(self, source: KafkaSource) -> list[str]:
        """Return the topics that a pipeline file names, or that its pattern matches now.

        Raises
        ------
        ConfigError
            If the pattern matches none.
        SourceUnreachableError, AuthorizationError
            If no broker answers.
        """
        if source.pattern is None:
            return source.streams
        found = source.matching(self.names())
        if not found:
            raise ConfigError(
                f"no topic of {self.settings.bootstrap} that may be described matches source.kafka.pattern "
                f"{source.pattern!r}",
                state=UNTOUCHED,
                next_step="create a topic, or correct the pattern: it must match a whole name, and it matches neither "
                "names that begin with __ nor what the pipeline writes to. If the topics exist, grant DESCRIBE on them",
            )
        return found

    def look(self, topics: Iterable[str], *, isolation_level: str = "read_uncommitted") -> list[TopicState]:
        """Return the state of each topic as far as it is known; the result has an error for each unknown part.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            If nothing is known of any topic.
        """
        return self._states(topics, isolation_level, min(2.0, self.timeout / 4))

    def first_unread(
        self, positions: Mapping[Key, int], ends: Mapping[Key, int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[Key, FirstUnread]:
        """Return, per partition, the first record at or after its position and below its end; needs READ.

        Partitions that refuse or do not answer in time are missing in the result.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            If no broker answers.
        """
        if not positions:
            return {}
        return self._ask(lambda client, until: questions.first_unread(client, positions, ends, isolation_level, until))

    def at_time(
        self, keys: Collection[Key], moment: datetime, *, isolation_level: str = "read_uncommitted"
    ) -> dict[Key, int | None]:
        """Return, per partition, the first offset whose timestamp is at or after ``moment``; None if there is none.

        Partitions that do not answer are missing in the result.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            If no broker answers.
        """
        if not keys:
            return {}
        milliseconds = round(moment.timestamp() * 1000)
        return self._ask(lambda client, until: questions.at_time(client, keys, milliseconds, isolation_level, until))

    def ends_of_epochs(self, epochs: Mapping[Key, int]) -> dict[Key, int]:
        """Return, per partition, where the records of its leader epochs up to the given one end.

        Partitions whose leader does not know it, or does not say, are missing.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            If no broker answers.
        """
        return self._ask(lambda client, until: questions.ends_of_epochs(client, epochs, until)) if epochs else {}

    def retention(self, topics: Iterable[str]) -> dict[str, timedelta | None]:
        """Return each topic's retention time; None if it is unlimited. Needs DESCRIBE_CONFIGS.

        The retention time of topics that are only compacted is unlimited. Topics that refuse are missing. The answer is
        cached for a minute.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            If no broker answers.
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
            near: list[str] = []
            with contextlib.suppress(SluiceError):
                near = difflib.get_close_matches(of.partition("'")[2].rstrip("'"), self.names(), n=1, cutoff=0.7)
            return ConfigError(
                f"Kafka has no {of}{f': did you mean {near[0]!r}?' if near else ''}",
                state=UNTOUCHED,
                next_step="create the topic, or name another one; a pipeline file has it in source.kafka.topics",
            )
        if isinstance(error, errors.InvalidTopicError):
            return ConfigError(
                f"{of} is no name that Kafka has for topics",
                state=UNTOUCHED,
                next_step="write 1 to 249 letters, digits, dots, underscores and hyphens",
            )
        if isinstance(error, errors.AuthorizationError):
            return refused(self.settings, f"{of}: {type(error).__name__}, the right DESCRIBE on it is missing")
        why = "has no leader" if isinstance(error, errors.LeaderNotAvailableError) else described(error)
        return unreachable(self.settings, f"{of}: {why.strip()}")

    # --- asking ----------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[Client, float], Awaitable[T]]) -> T:
        """Run a query with a time limit for single nodes, so that a silent one does not cost the others' answers."""
        from kafka import errors

        if os.getpid() != self._pid:
            self._begin()  # forked: the client's thread and sockets belong to the parent
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
                    raise unreachable(self.settings, described(error)) from error
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
