"""Sources that workers read by ranges, as streams and frames of Spark, by one of its Python data sources."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sluice.errors import SluiceError
from sluice.ranges import OffsetRange, Positions, divided, ranges_between
from sluice.sources.state import TopicState, ends, starts
from sluice_spark.engine.cores import cores
from sluice_spark.engine.failures import Sign, classify
from sluice_spark.sources.base import RECORD_SCHEMA
from sluice_spark.sources.inputs import Input

__all__ = [
    "Plan",
    "RangeSource",
    "RangedReader",
    "Share",
    "batch_end",
    "frame_of",
    "next_cut",
    "stream_of",
    "stream_of_cuts",
]

_FEWEST = 20_000
"""Minimum number of offsets of a task; a smaller one would cost more than it does."""
_TASKS = 2
"""Tasks for each core, so that a slow one does not leave the others idle."""
_numbers = itertools.count(1)


class RangeSource(Protocol):
    """Where ranges can be read. It can be pickled: Spark's planner for Python sources is a process of its own."""

    def input(self, ranges: Sequence[OffsetRange]) -> Input:
        """Return where the records of these ranges are."""


@dataclass(frozen=True)
class Plan:
    """What is read, and by how many tasks. It can be pickled, too."""

    name: str
    source: RangeSource
    cores: int
    tasks: int = 1
    """The smallest number of tasks of a batch that has as many offsets."""
    begin: Positions = field(default_factory=dict)
    ends: Positions = field(default_factory=dict)
    most: int = 0
    cuts: tuple[tuple[OffsetRange, ...], ...] | None = None
    ranges: tuple[OffsetRange, ...] = ()

    def shares(self, ranges: Sequence[OffsetRange]) -> list[Share]:
        """Return the tasks that read these ranges, each of one partition, because a segment of the log has one."""
        total = sum(map(len, ranges))
        size = min(max(_FEWEST, -(-total // (self.cores * _TASKS))), max(1, total // self.tasks))
        of_each: dict[tuple[str, int], list[OffsetRange]] = {}
        for span in ranges:
            of_each.setdefault((span.topic, span.partition), []).append(span)
        shares = [share for own in of_each.values() for share in divided(own, size)]
        return [Share(self.source.input(share), tuple(share)) for share in shares]


class Share(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, source: Input, ranges: tuple[OffsetRange, ...]) -> None:
        self.source, self.ranges = source, ranges

    def records(self) -> Iterator[pa.RecordBatch]:
        """Yield their records, in their order."""
        with self.source.opened() as reader:
            for span in self.ranges:
                for chunk in reader.read(span):
                    yield from chunk.records().to_batches()


class _Data(DataSource):
    plan: ClassVar[Plan]

    @classmethod
    def name(cls) -> str:
        return cls.plan.name

    def schema(self) -> StructType:
        return RECORD_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Batch(self.plan)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Stream(self.plan)


class _Batch(DataSourceReader):
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def partitions(self) -> Sequence[Share]:
        return self.plan.shares(self.plan.ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return partition.records()


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads up to the ends that were there when the run was planned, whatever is added meanwhile."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def initialOffset(self) -> dict[str, Any]:
        return _json(self.plan.begin)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.plan.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the ends are known."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self.plan.cuts is not None:
            return _json(next_cut(_positions(start), self.plan.cuts))
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.plan.most
        return _json(batch_end(_positions(start), self.plan.ends, most))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Share]:
        return self.plan.shares(ranges_between(_positions(start), _positions(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return partition.records()


def batch_end(start: Positions, ends: Positions, most: int) -> Positions:
    """Return where a batch ends: of each partition the same share of what is left; a position never goes back."""
    left = {r: len(r) for r in ranges_between(start, ends)}
    total = sum(left.values())
    found = {topic: dict(parts) for topic, parts in start.items()}
    for topic, parts in ends.items():
        for partition in parts:
            found.setdefault(topic, {}).setdefault(partition, 0)
    for r, size in left.items():
        found[r.topic][r.partition] = r.start + (size if total <= most else max(1, most * size // total))
    return found


def next_cut(start: Positions, cuts: Iterable[Sequence[OffsetRange]]) -> Positions:
    """Return where the first of these batches ends that lies behind a position; the position itself if none does."""
    found = {topic: dict(parts) for topic, parts in start.items()}
    for ranges in cuts:
        ahead = [r for r in ranges if r.end > start.get(r.topic, {}).get(r.partition, 0)]
        for r in ahead:
            found.setdefault(r.topic, {})[r.partition] = r.end
        if ahead:
            break
    return found


def _positions(offset: Mapping[str, Mapping[str, int]]) -> Positions:
    return {topic: {int(p): int(o) for p, o in parts.items()} for topic, parts in offset.items()}


def _json(positions: Positions) -> dict[str, Any]:
    # sorted, because Spark compares the texts of two offsets
    return {t: {str(p): o for p, o in sorted(parts.items())} for t, parts in sorted(positions.items())}


def stream_of(
    spark: SparkSession,
    source: RangeSource,
    max_records: int,
    *,
    start: Positions | None,
    states: Iterable[TopicState],
) -> DataFrame:
    """Return the bounded stream of a source; see :class:`~sluice_spark.sources.base.SourceReader`.

    Parameters
    ----------
    states
        The source's streams when the run was planned; it ends where they ended then.
    """
    known = list(states)
    begin = {s.topic: starts([s])[s.topic] | (start or {}).get(s.topic, {}) for s in known}
    plan = Plan(_name(), source, cores(spark), begin=begin, ends=ends(known), most=max_records)
    return spark.readStream.format(_registered(spark, plan)).load()


def stream_of_cuts(
    spark: SparkSession, source: RangeSource, start: Positions, cuts: Iterable[Sequence[OffsetRange]]
) -> DataFrame:
    """Return a bounded stream whose batches are these, in their order: what was cut before is not cut again.

    Parameters
    ----------
    start
        Where an empty checkpoint starts. One that is further on goes on behind its own position.
    """
    plan = Plan(_name(), source, cores(spark), begin=start, cuts=tuple(tuple(ranges) for ranges in cuts))
    return spark.readStream.format(_registered(spark, plan)).load()


def frame_of(spark: SparkSession, source: RangeSource, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return exactly the records of these ranges, including headers."""
    return spark.read.format(_registered(spark, Plan(_name(), source, cores(spark), ranges=tuple(ranges)))).load()


def _name() -> str:
    return f"sluice_ranges_{next(_numbers)}"


def _registered(spark: SparkSession, plan: Plan) -> str:
    # a class of its own is pickled with its plan, which thereby needs no text form, and no secret is an option
    spark.dataSource.register(type("SluiceRanges", (_Data,), {"plan": plan}))
    return plan.name


class RangedReader:
    """The :class:`~sluice_spark.sources.base.SourceReader` of a source whose ranges workers can read by themselves.

    Attributes
    ----------
    ranged
        Where they can be read.
    """

    signs: Sequence[Sign] = ()
    spark: SparkSession
    ranged: RangeSource

    def stream(
        self,
        max_records: int,
        *,
        start: Positions | None = None,
        states: Iterable[TopicState] = (),
        headers: bool = False,
        over_gaps: bool = False,
    ) -> DataFrame:
        """Return the stream of all records; see :class:`~sluice_spark.sources.base.SourceReader`."""
        return stream_of(self.spark, self.ranged, max_records, start=start, states=states)

    def batch_end(self, start: Positions, ends: Positions, limit: int) -> Positions:
        """Return where a batch ends; see :class:`~sluice_spark.sources.base.Foreseeable`."""
        return batch_end(start, ends, limit)

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges, including headers."""
        return frame_of(self.spark, self.ranged, ranges)

    def inputs(self, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
        """Return where workers can read all of these ranges."""
        return [(self.ranged.input(ranges), list(ranges))]

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that cannot be read any more; by default none."""
        return []

    def refuse(self, ranges: Sequence[OffsetRange]) -> None:
        """Refuse to go on if a part of these ranges cannot be read any more."""

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Do nothing: reading a range refuses to go on without what it should have."""

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Look for what is gone first, whatever the error says."""
        return classify(error, lambda: self.refuse(ranges), self.signs)
