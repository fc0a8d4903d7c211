"""The base of sources whose rows are landed before they are read."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Protocol

from sluice.ranges import Positions
from sluice.sources.base import Source
from sluice.sources.landed.intake import Intake
from sluice.sources.state import Key, PartitionState, TopicState

__all__ = ["LandedSource"]


class _Config(Protocol):
    keep: timedelta

    @property
    def streams(self) -> list[str]: ...


class LandedSource(Source, Protocol):
    """A source of one stream with one partition, whose rows are landed in a folder of the home."""

    config: _Config
    _path: str
    _intake: Intake | None = None

    @property
    def intake(self) -> Intake:
        """What was landed, as it was read last."""
        if self._intake is None:
            (stream,) = self.config.streams
            self._intake = Intake(self._path, stream)
        return self._intake

    def recorded(self) -> list[TopicState]:
        """Return the state of what was landed, without looking for more."""
        now = self.intake
        return [TopicState(now.stream, now.id, {0: PartitionState(now.start, now.position.end)})]

    def offsets_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        """Return the first offset whose time, or landing, is at or after ``moment``."""
        return dict.fromkeys(keys, self.intake.first_at(int(moment.timestamp() * 1000)))

    def done(self, positions: Positions) -> None:
        """Remove landed rows before a position, after ``keep``; best effort."""
        (stream,) = self.config.streams
        self.intake.forget(positions.get(stream, {}).get(0, 0), self.config.keep.total_seconds())
