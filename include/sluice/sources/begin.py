"""Where reading begins: the key ``starting_offsets`` of a source, and the option ``--from`` of a reset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AwareDatetime, BeforeValidator, Field, TypeAdapter, ValidationError

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.fields import Strict
from sluice.ranges import Positions
from sluice.sources.state import TopicState, ends, starts

if TYPE_CHECKING:
    from sluice.sources.base import Source

__all__ = ["Begin", "ByTime", "beginning"]

_UNREAD = "nothing was read or written; the position stays where it was"


class ByTime(Strict):
    """A beginning by time."""

    by_time: AwareDatetime
    """Each partition begins at its first record of this time or later; at its end if it has none."""

    def __str__(self) -> str:
        return f"the records of {self.by_time.isoformat()}"


def _parsed(value: object) -> object:
    """Refuse in one sentence what is none of the four."""
    try:
        if isinstance(value, dict) and "by_time" in value and not isinstance(value["by_time"], dict):
            return ByTime.model_validate(value)
        if isinstance(value, dict) and value:
            return _OFFSETS.validate_python(value)
    except ValidationError:
        value = str(value)
    if value in ("earliest", "latest") or isinstance(value, ByTime):
        return value
    raise ValueError(
        f"{value!r}: write earliest, latest, {{by_time: 2026-01-01T00:00:00Z}} (with a zone), or offsets by topic and "
        "partition, such as {flights: {0: 120}}"
    )


_OFFSETS = TypeAdapter(dict[str, dict[int, Annotated[int, Field(ge=0)]]])
Begin = Annotated[
    Literal["earliest", "latest"] | ByTime | dict[str, dict[int, Annotated[int, Field(ge=0)]]], BeforeValidator(_parsed)
]
"""``earliest``, ``latest``, a time, or offsets by topic and partition; other partitions begin at their first record."""


def beginning(begin: Begin | datetime, states: Sequence[TopicState], source: Source) -> Positions:
    """Return where reading begins, within what each partition has.

    Raises
    ------
    ConfigError
        If an offset lies beyond the end of its partition, or there is no such partition.
    SourceUnreachableError
        If a partition does not say which offset a time has.
    """
    if begin == "earliest":
        return starts(states)
    if begin == "latest":
        return ends(states)
    return _at(begin.by_time if isinstance(begin, ByTime) else begin, states, source)


def _at(begin: datetime | Mapping[str, Mapping[int, int]], states: Sequence[TopicState], source: Source) -> Positions:
    keys = [(state.topic, number) for state in states for number in state.partitions]
    if isinstance(begin, datetime):
        found = source.offsets_at(keys, begin)
        if silent := [f"{topic}-{number}" for topic, number in keys if (topic, number) not in found]:
            raise SourceUnreachableError(
                f"{', '.join(silent[:8])}: the source does not say which offset {begin.isoformat()} has there",
                state=_UNREAD,
                next_step="run again when it answers",
            )
    else:
        found = {(topic, number): at for topic, parts in begin.items() for number, at in parts.items()}
        if strange := [f"{topic}-{number}" for topic, number in found if (topic, number) not in keys]:
            raise ConfigError(
                f"starting_offsets names {', '.join(strange[:8])}, which the source does not have",
                state=_UNREAD,
                next_step="name partitions that there are; those that are left out begin at their first record",
            )
    positions: Positions = {}
    for state in states:
        for number, now in state.partitions.items():
            at = found.get((state.topic, number), now.end if isinstance(begin, datetime) else now.start)
            if not isinstance(begin, datetime) and at is not None and at > now.end:
                raise ConfigError(
                    f"starting_offsets: {state.topic}-{number} begins at {at}, and its records end at {now.end}",
                    state=_UNREAD,
                    next_step="name an offset that it has, or latest",
                )
            positions.setdefault(state.topic, {})[number] = now.end if at is None else min(max(at, now.start), now.end)
    return positions
