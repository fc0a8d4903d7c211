"""Counts records per partition in the pass that writes them, or in a second pass if that count may be wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F

from sluice.decoders.config import RESCUED
from sluice.facts.rescued import NONE, Rescued
from sluice.ranges import OffsetRange, Times
from sluice_spark.decoders.base import DATA, RULE
from sluice_spark.decoders.rescued import names_of

__all__ = ["OUTSIDE", "ReadTally", "rescued_in"]

Key = tuple[str, int]

_SPREAD = 1_000_000  # more than the partitions of any topic
_FIRST = "__sluice_first"
OUTSIDE = "__sluice_outside"
"""True for a record that was read but is outside of the interval; the column may be missing."""
_ROW_IN_TASK = (1 << 33) - 1
_CELL = "__sluice_cell"
_CELLS = 16
"""Maximum number of cells of a batch: each costs two aggregates over every record."""
_NAMES, _TRACKED = 50, 2_000
"""Names of unknown fields, and of their combinations, that are counted; and combinations that are told apart."""
_SEPARATOR = "\0"
_FINEST = 5_000
"""Minimum number of offsets of a cell; smaller partitions are not divided."""


def rescued_in(decoded: DataFrame) -> Rescued:
    """Return the unknown fields of the records that broke no rule, where the pipeline keeps them; it reads them."""
    return _rescued_by(decoded, _unknown())


def _rescued_by(decoded: DataFrame, names: Column) -> Rescued:
    return _rescued(*decoded.agg(_most(names), F.count(names)).collect()[0])


def _unknown() -> Column:
    """Return the names of a record's unknown fields, together; null if it has none, or if it broke a rule."""
    names = F.array_sort(names_of(F.col(DATA).getField(RESCUED)))
    return F.when(F.col(RULE).isNull(), F.array_join(F.slice(names, 1, _NAMES), _SEPARATOR))


def _most(names: Column) -> Column:
    """Return the most frequent values; their number is exact as long as there are few."""
    return F.call_function("approx_top_k", names, F.lit(_NAMES), F.lit(_TRACKED)).alias("most")


def _rescued(most: Sequence[Row], records: int) -> Rescued:
    told = [row for row in most if row["item"] is not None]
    found = Rescued.of([row["item"].split(_SEPARATOR) for row in told], [row["count"] for row in told])
    return Rescued(records, found.fields)


class _Figures(NamedTuple):
    read: dict[Key, int]
    bad: dict[Key, int]
    outside: dict[Key, int]
    times: dict[int, tuple[int, int]]
    """By cell, the first and last record time in milliseconds since 1970; cells without records are missing."""
    rescued: Rescued = NONE
    """The unknown fields of the records that broke no rule."""


class _Cells:
    """Divides a batch's offsets into a few cells: parts of a partition or, if there are many, several partitions."""

    def __init__(self, ranges: Sequence[OffsetRange], numbers: Mapping[Key, int]) -> None:
        hulls: dict[Key, tuple[int, int]] = {}
        for r in ranges:
            low, high = hulls.get((r.topic, r.partition), (r.start, r.end))
            hulls[r.topic, r.partition] = min(low, r.start), max(high, r.end)
        longest = max((end - start for start, end in hulls.values()), default=0)
        self._parts = max(1, min(_CELLS // max(1, len(hulls)), -(-longest // _FINEST)))
        self._cut = len(hulls) <= _CELLS
        self.count = self._parts * len(hulls) if self._cut else _CELLS
        self._hulls = {numbers[key]: hull for key, hull in hulls.items()}
        self._ranges = [(numbers[r.topic, r.partition], r) for r in ranges]

    def of(self, key: Column) -> Column:
        """Return the cell of a record."""
        if not self._cut:
            return F.pmod(key.cast("int"), F.lit(_CELLS))
        cell = F.lit(None).cast("int")
        for number, (key_number, (start, _)) in enumerate(sorted(self._hulls.items())):
            inside = F.floor((F.col("offset") - F.lit(start)) / F.lit(self._width(key_number)))
            cell = F.when(key == key_number, (F.lit(number * self._parts) + inside).cast("int")).otherwise(cell)
        return cell

    def times(self, found: Mapping[int, tuple[int, int]]) -> list[Times]:
        """Return the record times of each part of the ranges, from the times of the cells."""
        known = []
        order = {key: number for number, key in enumerate(sorted(self._hulls))}
        for key, r in self._ranges:
            start, width = self._hulls[key][0], self._width(key)
            for n in range(self._parts):
                part = r.cut(OffsetRange(r.topic, r.partition, start + n * width, start + (n + 1) * width))
                if part is not None:
                    cell = order[key] * self._parts + n if self._cut else key % _CELLS
                    known.append(Times(part, *found[cell]) if cell in found else Times.none(part))
        return known

    def _width(self, key: int) -> int:
        start, end = self._hulls[key]
        return max(1, -(-(end - start) // self._parts))


class ReadTally:
    """Observes a decoded batch while it is written: per partition the records that were read, that broke a rule and
    that are outside of the interval (:data:`OUTSIDE`), and the record times.

    Parameters
    ----------
    ranges
        The ranges that are read; a partition may have several.
    expected
        The number of records per topic and partition; by default there is one for each offset of the ranges.
    rescues
        Whether the decoded columns have one with unknown fields: records that have any are counted.

    Notes
    -----
    ``histogram_numeric`` is exact as long as it has a bin for each distinct value, so one aggregate counts any number
    of partitions. If two tasks read one partition, its bins are merged by a weighted mean and the value is no longer
    exactly an integer: a double can be rounded, but Spark would truncate an integer. The figures are those of the first
    action on :attr:`frame`.

    They are right only if each task ran once and to its end, which depends on the transform's plan: ``ORDER BY``
    samples its input first, rows that were shuffled to a dead executor are computed again, ``LIMIT`` stops early, and a
    join with an empty side does not read at all. So each task's first record is counted, too. Unless there is one for
    each task and no offset is missing, the batch is counted in a second pass. A topic with offset gaps is therefore
    read twice, once without decoding.
    """

    def __init__(
        self,
        decoded: DataFrame,
        ranges: Sequence[OffsetRange],
        expected: Mapping[Key, int] | None = None,
        *,
        rescues: bool = False,
    ) -> None:
        topics = sorted({r.topic for r in ranges})
        self._decoded = decoded
        self._expected: dict[Key, int] = {}
        for r in ranges:
            self._expected[r.topic, r.partition] = self._expected.get((r.topic, r.partition), 0) + len(r)
        if expected is not None:
            self._expected = dict(expected)
        self._keys = {
            topics.index(r.topic) * _SPREAD + r.partition: (r.topic, r.partition) for r in ranges
        }  # fmt: skip
        key: Column = F.col("partition")
        for number, topic in enumerate(topics[1:], start=1):
            key = F.when(F.col("topic") == topic, F.col("partition") + number * _SPREAD).otherwise(key)
        key = key.cast("double")
        bins = F.lit(max(2, len(self._keys)))
        self._cells = _Cells(ranges, {pair: number for number, pair in self._keys.items()})
        self._timed = {"offset", "timestamp"} <= set(decoded.columns)
        cell = self._cells.of(key) if self._timed else F.lit(None).cast("int")
        self._decoded = decoded.withColumn(_CELL, cell)
        of_cells = []
        for number in range(self._cells.count if self._timed else 0):
            time = F.when(F.col(_CELL) == number, F.unix_millis("timestamp"))
            of_cells += [F.min(time).alias(f"first{number}"), F.max(time).alias(f"last{number}")]
        self._unknown = F.when(~self._outside(), _unknown()) if rescues else None
        is_first = F.monotonically_increasing_id().bitwiseAND(_ROW_IN_TASK) == 0
        self._observation = Observation()
        self.frame = self._decoded.withColumn(_FIRST, F.when(is_first, F.spark_partition_id())).observe(
            self._observation,
            F.histogram_numeric(key, bins).alias("read"),
            F.histogram_numeric(F.when(F.col(RULE).isNotNull(), key), bins).alias("bad"),
            F.histogram_numeric(F.when(self._outside(), key), bins).alias("outside"),
            F.count(_FIRST).alias("passes"),
            F.size(F.collect_set(_FIRST)).alias("tasks"),
            *of_cells,
            *([] if self._unknown is None else [_most(self._unknown), F.count(self._unknown).alias("unknown")]),
        )

    def read(self) -> Mapping[Key, int]:
        """Return the number of records read per partition; waits for the first action to end."""
        return self._figures.read

    def bad(self) -> Mapping[Key, int]:
        """Return the number of records per partition that broke a rule; waits for the first action to end."""
        return self._figures.bad

    def outside(self) -> Mapping[Key, int]:
        """Return the number of records per partition outside of the interval; waits for the first action to end."""
        return self._figures.outside

    def times(self) -> list[Times]:
        """Return the record times of each part of the ranges; waits for the first action to end."""
        return self._cells.times(self._figures.times) if self._timed else []

    def rescued(self) -> Rescued:
        """Return the unknown fields of the records that broke no rule; waits for the first action to end."""
        return self._figures.rescued

    def _outside(self) -> Column:
        return F.col(OUTSIDE) if OUTSIDE in self._decoded.columns else F.lit(False)

    @cached_property
    def _figures(self) -> _Figures:
        observed = self._observed()
        # if only missing offsets are in doubt, the second pass need not decode
        if observed and (observed.read == self._expected or [observed.read] == self._counted(F.count("*"))):
            return observed
        read, bad, outside = self._counted(F.count("*"), F.count(RULE), F.count_if(self._outside()))
        rescued = NONE if self._unknown is None else _rescued_by(self._decoded, self._unknown)
        return _Figures(read, bad, outside, self._looked_up(), rescued)

    def _observed(self) -> _Figures | None:
        """Return the observed figures; None if there are none, or some tasks ran twice."""
        try:
            found = self._observation.get
        except Exception:  # Spark has no figures if it optimized the plan to an empty one
            return None
        if found.get("passes") is None or found["passes"] != found["tasks"]:
            return None
        unknown = NONE if self._unknown is None else _rescued(found["most"], found["unknown"])
        figures = _Figures({}, {}, {}, {}, unknown)
        for number in range(self._cells.count if self._timed else 0):
            if found[f"first{number}"] is not None:
                figures.times[number] = found[f"first{number}"], found[f"last{number}"]
        for name, counts in (("read", figures.read), ("bad", figures.bad), ("outside", figures.outside)):
            for each in found[name] or []:
                key = self._keys[round(each["x"])]
                counts[key] = counts.get(key, 0) + round(each["y"])
        return figures

    def _looked_up(self) -> dict[int, tuple[int, int]]:
        if not self._timed:
            return {}
        time = F.unix_millis("timestamp")
        rows = self._decoded.groupBy(_CELL).agg(F.min(time), F.max(time)).collect()
        return {row[0]: (row[1], row[2]) for row in rows if row[1] is not None}

    def _counted(self, *figures: Column) -> list[dict[Key, int]]:
        rows = self._decoded.groupBy("topic", "partition").agg(*figures).collect()
        return [{(row[0], row[1]): row[n] for row in rows if row[n]} for n in range(2, 2 + len(figures))]
