"""The names of streams when a pipeline has several clusters, and where a mirrored record came from; pure.

The topics of the first cluster keep their plain names. Those of another cluster are called ``CONNECTION:TOPIC``, in
the ledger, in the marks and in the rows, because its offsets have nothing to do with those of the first one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sluice.ranges import Positions

__all__ = ["active_of", "bare", "bare_positions", "named", "named_positions", "origin_pattern", "prefix_of"]


def prefix_of(connection: str, clusters: Iterable[str]) -> str:
    """Return what the names of a cluster's streams begin with: nothing for the first one."""
    return "" if connection == next(iter(clusters), connection) else f"{connection}:"


def named(prefix: str, topic: str) -> str:
    """Return the name of a topic's stream; a name that says its cluster already stays."""
    return topic if ":" in topic else f"{prefix}{topic}"


def bare(stream: str) -> str:
    """Return the name of a stream's topic in its cluster."""
    return stream.rpartition(":")[2]


def named_positions(prefix: str, positions: Positions) -> Positions:
    """Return positions by stream instead of topic."""
    return {named(prefix, topic): parts for topic, parts in positions.items()}


def bare_positions(positions: Positions) -> Positions:
    """Return the positions of one cluster's streams by topic."""
    return {bare(stream): parts for stream, parts in positions.items()}


def active_of(positions: Positions | None) -> str:
    """Return the prefix of the streams that an epoch reads; nothing for those of the first cluster."""
    stream = next(iter(positions or {}), "")
    connection, colon, _ = stream.rpartition(":")
    return connection + colon


def origin_pattern(clusters: Iterable[str], topics: Iterable[str]) -> str:
    """Return the regular expression of what the header of a mirrored record may say: ``STREAM:PARTITION:OFFSET``.

    Its groups are the stream, the partition and the offset. Only streams of the pipeline match.
    """
    known, names = list(clusters), list(topics)
    streams = [named(prefix_of(cluster, known), topic) for cluster in known for topic in names]
    return f"^({'|'.join(map(re.escape, streams))}):([0-9]{{1,9}}):([0-9]{{1,18}})$"
