"""Topics as a broker answers for them, and how they are measured."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sluice.errors import SourceUnreachableError
from sluice.lag import Backlog, measure
from sluice.ranges import OffsetRange
from sluice.sources.state import FirstUnread, PartitionState, TopicState

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

DOWN = SourceUnreachableError("no broker answers", state="untouched", next_step="start it")


def topic(*spans: tuple[int, int], name: str = "t", **more: Any) -> TopicState:
    return TopicState(name, "id", {p: PartitionState(*span) for p, span in enumerate(spans)}, **more)


def ago(seconds: float) -> FirstUnread:
    return FirstUnread(NOW.timestamp() - seconds, "CreateTime")


def span(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


def at(position: int, *spans: tuple[int, int], **known: Any) -> Backlog:
    """Measure a topic whose partitions are all read up to one position."""
    return measure("p", {"t": dict.fromkeys(range(len(spans)), position)}, [topic(*spans)], now=NOW, **known)
