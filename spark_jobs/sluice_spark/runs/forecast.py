"""Which ranges Spark will plan the next batches of a run with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

from sluice.ranges import OffsetRange, Positions, ranges_between
from sluice_spark.runs.tables import Tables
from sluice_spark.sources.base import Foreseeable

__all__ = ["Forecast"]


@dataclass
class Forecast:
    """Foresees the batches of a bounded query. What it says may be wrong: nothing but speed may depend on it.

    A query with ``availableNow`` reads up to the ends that it found when it started. Spark tells them after the first
    batch. Before, the ends that the run found are used, if the first batch fits them.

    Parameters
    ----------
    limit
        The ``max_records`` of the stream.
    ends
        Where the records ended when the run looked.

    Attributes
    ----------
    query
        The query, once it has started.
    """

    reader: object
    tables: Tables
    limit: int
    ends: Positions
    query: StreamingQuery | None = None
    _told: bool = False

    def after(self, number: int) -> Iterator[tuple[int, tuple[OffsetRange, ...]]]:
        """Yield the batches after a planned one, each with its number and its ranges; none if they are not known."""
        if not isinstance(self.reader, Foreseeable):
            return
        self._listen()
        start, end = self.tables.checkpoint.start_of(number), self.tables.checkpoint.end_of(number)
        if not self._told and self.reader.batch_end(start, self.ends, self.limit) != end:
            return
        while True:
            start, end = end, self.reader.batch_end(end, self.ends, self.limit)
            ranges = tuple(ranges_between(start, end))
            if not ranges:
                return
            number += 1
            yield number, ranges

    def _listen(self) -> None:
        progress = self.query.lastProgress if self.query is not None and not self._told else None
        if progress is None or len(progress.sources) != 1:
            return
        latest = json.loads(progress.sources[0].latestOffset or "null")
        if latest:
            self.ends = {topic: {int(p): int(o) for p, o in parts.items()} for topic, parts in latest.items()}
            self._told = True
