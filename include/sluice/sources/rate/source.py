"""Made-up rows as a :class:`~sluice.sources.base.Source`: they follow from the offset and from when they began."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sluice.atomic_file import made_once
from sluice.errors import START_OVER, ConfigError, SinkError
from sluice.home import Home
from sluice.ranges import Positions
from sluice.sources.base import Source, SourceKind
from sluice.sources.rate.config import RateSource
from sluice.sources.state import Key, PartitionState, TopicState

__all__ = ["KIND", "Clockwork", "MadeUp"]

_STATE = "nothing was read or written now; what earlier runs wrote is in the sink"
_MICROS = 1_000_000


@dataclass(frozen=True)
class Clockwork:
    """Says when each row comes. It never changes once a pipeline has begun.

    Attributes
    ----------
    id
        What tells these rows from others under the same offsets.
    begun
        When the first rows come, in microseconds since 1970 (UTC).
    """

    id: str
    begun: int
    rows_per_second: int
    partitions: int

    def time(self, offset: Any) -> Any:
        """Return when the row of an offset comes, in microseconds since 1970; offsets may be a NumPy array."""
        return self.begun + offset * self.partitions * _MICROS // self.rows_per_second

    def end(self, now: int) -> int:
        """Return the number of rows that have come to a partition by a time, in microseconds since 1970."""
        passed = now - self.begun
        return max(0, ((passed + 1) * self.rows_per_second - 1) // (self.partitions * _MICROS) + 1)

    def first(self, moment: int) -> int:
        """Return the first offset that comes at or after a time, in microseconds since 1970."""
        return max(0, -(-(moment - self.begun) * self.rows_per_second // (self.partitions * _MICROS)))


class MadeUp(Source):
    """The rows of a pipeline."""

    notes = ()

    def __init__(self, config: RateSource, home: Home, pipeline: str) -> None:
        self.config = config
        self.clockwork = self._kept(Path(home.source(pipeline)))

    def _kept(self, folder: Path) -> Clockwork:
        """Return the clockwork that the first run of the pipeline made."""
        config, file = self.config, folder / "rate.json"
        try:
            if not file.exists():
                folder.mkdir(parents=True, exist_ok=True)
                begun = time.time_ns() // 1000 - int(config.backlog.total_seconds() * _MICROS)
                made = Clockwork(uuid.uuid4().hex, begun, config.rows_per_second, config.partitions)
                made_once(file, json.dumps(asdict(made)).encode())
            found = Clockwork(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise SinkError(
                f"{file}, which says when the rows of source.rate began, cannot be used: {error}",
                state=_STATE,
                next_step="fix the storage, or restore the file from a copy, then run again",
            ) from error
        if (found.rows_per_second, found.partitions) != (config.rows_per_second, config.partitions):
            raise ConfigError(
                f"source.rate has {config.rows_per_second} rows a second in {config.partitions} partitions, and the "
                f"pipeline began with {found.rows_per_second} in {found.partitions}: its offsets would be other rows",
                state=_STATE,
                next_step=f"set them as they were; or {START_OVER}",
            )
        return found

    def snapshot(self) -> list[TopicState]:
        """Return how many rows have come to each partition."""
        end = self.clockwork.end(time.time_ns() // 1000)
        (stream,) = self.config.streams
        parts = {number: PartitionState(0, end) for number in range(self.config.partitions)}
        return [TopicState(stream, self.clockwork.id, parts)]

    def offsets_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        """Return the first offset at or after ``moment``; None if its row has not come yet."""
        found = self.clockwork.first(round(moment.timestamp() * _MICROS))
        return dict.fromkeys(keys, found if found < self.clockwork.end(time.time_ns() // 1000) else None)

    def done(self, positions: Positions) -> None:
        """Do nothing: rows need no room."""


KIND = SourceKind(
    config=RateSource,
    open="sluice.sources.rate.source:MadeUp",
    reader="sluice_spark.sources.rate:RateReader",
    replayable=True,
    seek_by_time=True,
    retention=False,
    by_range=True,
)
