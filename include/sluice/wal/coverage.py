"""How far a write-ahead log reaches back, to be compared with the broker's retention."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sluice.wal.catalog import Catalog

__all__ = ["Coverage", "coverage"]


@dataclass(frozen=True)
class Coverage:
    """From where to where a log holds one partition. Whether all of it is intact is what an audit proves.

    Parameters
    ----------
    start, end
        The first offset of its oldest segment, and the end of its newest one.
    segments
        How many there are.
    since
        The earliest record time in the oldest segment, in milliseconds since 1970 (UTC).
    """

    topic: str
    partition: int
    start: int
    end: int
    segments: int
    since: int

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


def coverage(log: Catalog) -> list[Coverage]:
    """Return what a log holds, by topic and partition. For each partition only two seals are read.

    Raises
    ------
    SinkError
        If the log, or one of these seals, cannot be read.
    """
    paths: dict[tuple[str, int], list[str]] = {}
    for span, path in sorted((span, path) for path, span in log.known()):
        paths.setdefault((span.topic, span.partition), []).append(path)
    found = []
    for (topic, partition), held in sorted(paths.items()):
        oldest, newest = log.handle(held[0]), log.handle(held[-1])
        found.append(Coverage(topic, partition, oldest.range.start, newest.range.end, len(held), oldest.first))
    return found
