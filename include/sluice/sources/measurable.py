"""The interface between the measurement of lag and a source that has one, such as Kafka."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from sluice.ranges import Positions
from sluice.sources.begin import Begin
from sluice.sources.state import FirstUnread, Key, TopicState

__all__ = ["Measurable", "Topics"]

Isolation = Literal["read_uncommitted", "read_committed"]


class Topics(Protocol):
    """The settings of such a source: topics of a cluster, or of several clusters that mirror each other."""

    starting_offsets: Begin
    isolation_level: Isolation
    pattern: str | None
    clusters: list[str] | None
    """The connections of all clusters, if there are several."""
    origin_header: str | None
    origin_required: bool

    @property
    def streams(self) -> list[str]:
        """The topics; none if a pattern says which."""

    @property
    def active(self) -> str:
        """The connection of the cluster that is read."""

    @property
    def prefix(self) -> str:
        """The beginning of the names of its streams."""

    @property
    def origins(self) -> str | None:
        """The regular expression that ``origin_header`` must match; None if there is only one cluster."""

    def prefix_of(self, connection: str) -> str:
        """Return the beginning of the names of a cluster's streams: nothing for the first one."""

    def on(self, prefix: str) -> Any:
        """Return the same topics in the cluster whose streams' names begin so."""

    def at(self, positions: Positions | None) -> Any:
        """Return the same topics in the cluster that an epoch with these positions reads."""


class Measurable(Protocol):
    """A cluster whose topics have a lag.

    A question to it ends within the seconds for which it was opened. It raises
    :class:`~sluice.errors.SourceUnreachableError`, :class:`~sluice.errors.AuthorizationError` or
    :class:`~sluice.errors.ConfigError` if nothing is known.
    """

    @property
    def address(self) -> str:
        """The host and port of its first server."""

    def topics_of(self, source: Any) -> list[str]:
        """Return the topics that the settings name, or that their pattern matches now."""

    def snapshot(self, topics: Iterable[str], *, isolation_level: Isolation = ...) -> list[TopicState]:
        """Return the state of each topic; raise if any part of it is unknown."""

    def look(self, topics: Iterable[str], *, isolation_level: Isolation = ...) -> list[TopicState]:
        """Return the state of each topic, with an error where it is unknown."""

    def first_unread(
        self, positions: Mapping[Key, int], ends: Mapping[Key, int], *, isolation_level: Isolation = ...
    ) -> dict[Key, FirstUnread]:
        """Return the first record between position and end of each partition that answers and has one."""

    def at_time(
        self, keys: Collection[Key], moment: datetime, *, isolation_level: Isolation = ...
    ) -> dict[Key, int | None]:
        """Return the first offset at or after a moment of each partition that answers; None if there is none."""

    def retention(self, topics: Iterable[str]) -> dict[str, timedelta | None]:
        """Return for how long the topics that answer keep records; None for ever."""

    def close(self) -> None:
        """Close the client."""

    def __enter__(self) -> Measurable: ...

    def __exit__(self, *_: object) -> None: ...
