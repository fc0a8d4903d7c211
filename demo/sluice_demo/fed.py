"""Finds out which part of a sequence a topic already holds, by reading headers of its records.

Each partition is fed from one sequence, whose members have ranks (0, 1, 2, ...). Every record has a header with the
number of fed partitions (the lanes) and the ranks that its partition holds up to this record, itself last::

    sluice-fed: 4:0-26893,40112-40200

So the newest record of a partition accounts for all of it, and a feeder that is killed between any two records leaves
an exact account. It is trusted if it adds up to the partition's end offset. Otherwise (foreign records in between, a
transaction's markers, a failed producer batch) every record is read back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sluice.errors import ConfigError, SourceUnreachableError

__all__ = ["HEADER", "Fed", "accounts", "doubles", "read_back", "total"]

HEADER = "sluice-fed"

Range = tuple[int, int]
"""First and last rank, both inclusive."""

_PATIENCE = 30.0


class Fed:
    """The ranks that one partition holds, and the header of the next record.

    Parameters
    ----------
    lanes
        The number of partitions among which the sequence was divided.
    ranges
        The ranks that the partition holds; they may overlap or touch.
    """

    def __init__(self, lanes: int, ranges: Iterable[Range] = ()) -> None:
        self.lanes = lanes
        self._ranges = _merged(ranges)
        self._first = self._last = -1
        self._prefix = ""

    @property
    def ranges(self) -> list[Range]:
        """The ranks that the partition holds: disjoint and sorted."""
        return _merged([*self._ranges, (self._first, self._last)] if self._last >= 0 else self._ranges)

    @property
    def count(self) -> int:
        """The number of ranks that the partition holds."""
        return sum(last - first + 1 for first, last in self.ranges)

    def missing(self, first: int, last: int) -> list[Range]:
        """Return the parts of ``first..last`` that the partition does not hold."""
        found = []
        for held_first, held_last in self.ranges:
            if held_last >= first and held_first <= last:
                if held_first > first:
                    found.append((first, held_first - 1))
                first = held_last + 1
        return [*found, (first, last)] if first <= last else found

    def add(self, rank: int) -> bytes:
        """Add a rank, and return the header of its record."""
        if rank != self._last + 1 or self._last < 0:
            self._ranges = self.ranges
            self._first = next((first for first, last in self._ranges if last == rank - 1), rank)
            self._prefix = f"{self.lanes}:" + "".join(
                f"{first}-{last}," for first, last in self._ranges if last != rank - 1
            )
        self._last = rank
        return f"{self._prefix}{self._first}-{rank}".encode()


def read_back(bootstrap: str, topic: str, starts: dict[int, int], ends: dict[int, int]) -> dict[int, Fed]:
    """Return what each partition holds; a partition that holds nothing of a sequence is missing.

    Raises
    ------
    ConfigError
        If all records of a partition were deleted, and with them the account of what was fed.
    """
    emptied = [partition for partition, end in ends.items() if end and starts[partition] == end]
    if emptied:
        raise ConfigError(
            f"all records of partitions {emptied} of topic {topic} are deleted: nothing tells what was fed into them",
            state="nothing was produced",
            next_step="delete the topic, or feed another one with --topic",
        )
    written = {partition: end for partition, end in ends.items() if end}
    if not written:
        return {}
    with _consumer(bootstrap) as consumer:
        newest = {partition: max(starts[partition], end - 1) for partition, end in written.items()}
        held = accounts(_headers(consumer, topic, newest, written), newest_only=True)
        doubted = {p: starts[p] for p, end in written.items() if p not in held or held[p].count != end}
        if doubted:
            held |= accounts(_headers(consumer, topic, doubted, written), starts=starts)
        return held


def doubles(bootstrap: str, topic: str, begin: dict[int, int], end: dict[int, int]) -> int:
    """Return the number of duplicate ranks between two sets of offsets."""
    grown = {partition: begin.get(partition, 0) for partition, last in end.items() if last > begin.get(partition, 0)}
    with _consumer(bootstrap) as consumer:
        seen = [(partition, _parse(header)[1][-1][1]) for partition, header in _headers(consumer, topic, grown, end)]
    return len(seen) - len(set(seen))


@contextlib.contextmanager
def _consumer(bootstrap: str) -> Iterator[Any]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        fetch_max_bytes=64 * 1024 * 1024,
        max_partition_fetch_bytes=16 * 1024 * 1024,
        max_poll_records=5000,
    )
    try:
        yield consumer
    finally:
        consumer.close()


def accounts(
    headers: Iterable[tuple[int, bytes]], *, newest_only: bool = False, starts: dict[int, int] | None = None
) -> dict[int, Fed]:
    """Add up headers, each with its partition, in a partition's order.

    Parameters
    ----------
    headers
        The headers of the newest record of each partition, or of all remaining records.
    newest_only
        Whether to trust all ranks in a header, not only the record's own one.
    starts
        Log starts; if one is above 0, the first header also accounts for the deleted records before it.
    """
    lanes: dict[int, int] = {}
    ranges: dict[int, list[Range]] = {}
    for partition, header in headers:
        count, claimed = _parse(header)
        lanes[partition] = count
        known = ranges.setdefault(partition, [])
        # The oldest remaining record accounts for the deleted ones before it; each other one only for itself.
        if newest_only or (not known and starts and starts[partition] > 0):
            known.extend(claimed)
        _extend(known, claimed[-1][1])
    return {partition: Fed(lanes[partition], found) for partition, found in ranges.items()}


def _extend(ranges: list[Range], rank: int) -> None:
    if ranges and ranges[-1][1] == rank - 1:
        ranges[-1] = (ranges[-1][0], rank)
    else:
        ranges.append((rank, rank))


def _headers(consumer: Any, topic: str, begin: dict[int, int], end: dict[int, int]) -> Iterable[tuple[int, bytes]]:
    """Yield the account of each record from ``begin`` to ``end``, in a partition's order."""
    from kafka import TopicPartition

    wanted = {TopicPartition(topic, partition): end[partition] for partition in begin}
    consumer.assign(list(wanted))
    for partition in wanted:
        consumer.seek(partition, begin[partition.partition])
    deadline = time.monotonic() + _PATIENCE
    # By position, not by record: the last offset may be a transaction's marker.
    while any(consumer.position(partition) < last for partition, last in wanted.items()):
        for partition, records in consumer.poll(timeout_ms=200).items():
            deadline = time.monotonic() + _PATIENCE
            for record in records:
                header = next((value for key, value in record.headers if key == HEADER), None)
                if header is not None and record.offset < wanted[partition]:
                    yield partition.partition, header
        if time.monotonic() > deadline:
            raise SourceUnreachableError(
                f"the broker returned no record of {topic} for {_PATIENCE:.0f} s while reading back what was fed",
                state="nothing was produced",
                next_step="python -m sluice.local.kafka status",
            )


def _parse(header: bytes) -> tuple[int, list[Range]]:
    lanes, _, ranges = header.decode().partition(":")
    pairs = (each.split("-") for each in ranges.split(","))
    return int(lanes), [(int(first), int(last)) for first, last in pairs]


def _merged(ranges: Iterable[Range]) -> list[Range]:
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def total(ranges: Sequence[Range]) -> int:
    """Return the number of ranks in disjoint ranges."""
    return sum(last - first + 1 for first, last in ranges)
