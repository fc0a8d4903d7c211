"""Recomputes the windows that a table must have, from the records, and compares them with its rows. Writes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any, cast

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import Window as Ordered
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.audit.windows import EVER, Plan, Verdict, doubt
from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.pipeline.window import END, START, Window
from sluice.ranges import OffsetRange, describe, joined, overlaps, subtract
from sluice.recovery import Recovery
from sluice.run.actions import AuditWindows
from sluice.run.interval import ALWAYS
from sluice_spark.batch.windows import WindowWriter
from sluice_spark.columns import column
from sluice_spark.paths import located
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.interval_offsets import IntervalOffsets
from sluice_spark.runs.tables import Tables
from sluice_spark.sources.parts import RecordsInParts
from sluice_spark.transforms.lookups import Lookups
from sluice_spark.windows.sessions import in_sessions
from sluice_spark.windows.watermark import seconds

__all__ = ["TOLERANCE", "audited", "recompute"]

TOLERANCE = 1e-9
"""By how much of the greater of two doubles they may differ: sums depend on the order in which they are added."""

_MOST = 1000
_BUCKETS = 50_000
_OF_ORDER = re.compile(
    r"\b(any_value|approx_percentile|approx_top_k\w*|first\w*|last\w*|histogram_numeric|listagg|max_by|min_by|mode"
    r"|percentile_approx|string_agg|\w*sketch\w*)\s*\(",
    re.IGNORECASE,
)
_PLACE = ("_topic", "_partition", "_offset")
_SPAN, _OWNER, _LATE, _SIDE, _NUMBER, _FIRST, _LAST = (
    f"__sluice_{name}" for name in ("span", "owner", "late", "side", "number", "first", "last")
)
_OTHER_LENGTH = "those of another length than the pipeline file has now were written when it had that length"


def audited(pipeline: Pipeline, action: AuditWindows, open_session: Callable[[], SparkSession]) -> dict[str, Any]:
    """Return what :func:`recompute` finds for the plan in a file, ready for JSON."""
    asked = Plan(**json.loads(action.plan.read_text(encoding="utf-8")))
    context = RunContext(pipeline, "audit", Ledger.open(), Home.from_env(), open_session, Recovery.REPLAY, judge=None)
    with context.resources:
        return asdict(recompute(context, asked))


def recompute(context: RunContext, plan: Plan) -> Verdict:
    """Return what the comparison of the plan's windows with the sink found.

    Raises
    ------
    SluiceError
        If source, write-ahead log or a table cannot be read, or the transform does not fit.
    """
    return _Audit(context, plan).verdict()


@dataclass
class _Audit:
    context: RunContext
    plan: Plan
    doubtful: list[list[Any]] = field(default_factory=list)

    @property
    def window(self) -> Window:
        window = self.context.pipeline.window
        assert window is not None
        return window

    def verdict(self) -> Verdict:
        spark = self.context.session()
        tables = self.context.tables(self.context.ledger.offsets.epoch(self.context.pipeline.name))
        self.doubtful = [list(item) for item in self.plan.doubtful]
        source, readable = self._source(spark)
        writer = cast(WindowWriter, self.context.writer(spark, tables))
        self._compacted(spark, source, readable)
        found = spark.read.format("delta").option("versionAsOf", self.plan.version).load(located(tables.sink.path))
        columns = self._compared(writer, found)
        expected = self._expected(spark, tables, source, readable)
        try:
            compared, count, differences = self._differences(expected, found, columns)
        except SluiceError:
            raise
        except Exception as error:
            if not readable:
                raise
            raise source.diagnose(error, readable) from error
        if gone := source.missing(readable):  # removed while they were read
            self._gone(gone)
            differences = [item for item in differences if not self._in_doubt(item["start"], item["end"])]
            count = min(count, len(differences))
        return Verdict(compared, count, differences, [*self.doubtful, *self._of_another_length(found)], columns)

    # --- what can be read --------------------------------------------------------------------------------------------

    def _source(self, spark: SparkSession) -> tuple[RecordsInParts, list[OffsetRange]]:
        offsets = IntervalOffsets(self.context, ALWAYS)
        _, available = offsets.available()
        needed = _disjoint([OffsetRange(*row[:4]) for row in (*self.plan.recomputed, *self.plan.made)])
        needed = subtract(needed, [OffsetRange(*row) for row in self.plan.lost])
        empty = [OffsetRange(*row[:4]) for row in self.plan.live if row[8] == 0]
        gone = subtract(available.gaps(needed), empty)
        if gone and available.trouble is not None:
            raise available.trouble
        self._gone(gone)
        readable = subtract(needed, available.gaps(needed))
        kafka, log, segments = available.split(readable)
        return offsets.source(spark, available, kafka, log, segments), readable

    def _gone(self, gone: Sequence[OffsetRange], reason: str | None = None) -> None:
        """Doubt the windows that may have records of these ranges; by default because the records are gone."""
        if not gone:
            return
        for topic, partition, start, end, _, _, first, last, count, same, _ in self.plan.live:
            here = overlaps([OffsetRange(topic, partition, start, end)], gone)
            if not here or count == 0:
                continue
            why = (
                reason or f"their records are in neither the source nor the write-ahead log any more: {describe(here)}"
            )
            if first is not None:
                self.doubtful.append([*doubt(self.window, first, last), why, True])
            # an interval may have seen other times in them, by the present file or by other versions of tables
            if not same or self.context.pipeline.tables:
                numbers = {row[4] for row in self.plan.made if overlaps(here, [OffsetRange(*row[:4])])}
                self.doubtful += [[*own[:2], why, True] for own in self.plan.owned if own[2] in numbers]

    def _compacted(self, spark: SparkSession, source: RecordsInParts, readable: Sequence[OffsetRange]) -> None:
        """Doubt the windows of batches of which the source has fewer records than they read."""
        spans = {tuple(row[:4]): row[8] for row in self.plan.live if row[8] is not None}
        whole = [(span, count) for span, count in spans.items() if not subtract([OffsetRange(*span)], readable)]
        if not readable or not whole:
            return
        placed = _Placed(spark, [[*span, 0, 0] for span, _ in whole])
        records = source.read(readable).select("topic", "partition", "offset")
        counted = placed.join(records, "").groupBy("topic", "partition", "__from").count().collect()
        found = {(row[0], row[1], row[2]): row[3] for row in counted}
        self._gone([OffsetRange(*span) for span, count in whole if found.get(span[:3], 0) < count])

    # --- both sides --------------------------------------------------------------------------------------------------

    def _expected(
        self,
        spark: SparkSession,
        tables: Tables,
        source: RecordsInParts,
        readable: Sequence[OffsetRange],
    ) -> DataFrame | None:
        found = []
        for lookups, rows in self._by_version(spark):
            here = overlaps(readable, _disjoint([OffsetRange(*row[:4]) for row in rows]))
            if here:
                writer = cast(WindowWriter, self.context.writer(spark, tables, lookups))
                found += self._placed(spark, tables, rows, self._rows(writer, source.read(here)))
        if not found:
            return None
        placed = reduce(DataFrame.unionByName, found)
        return self._sessions(placed) if self.window.gap is not None else self._windows(placed)

    def _by_version(self, spark: SparkSession) -> list[tuple[Lookups | None, list[list[Any]]]]:
        """Return the ranges with owner and watermark, and which versions of tables their records were joined with."""
        live = [(row[:6], f"{row[4]}:{row[10]}") for row in self.plan.recomputed]
        made = [([*row[:4], -row[4], -EVER], f"{-row[4]}:{row[5]}") for row in self.plan.made]
        if not self.context.pipeline.tables:
            return [(None, [row for row, _ in (*live, *made)])]
        groups: dict[str, list[list[Any]]] = {}
        for row, batch in (*live, *made):
            groups.setdefault(json.dumps(self.plan.joined.get(batch), sort_keys=True), []).append(row)
        found: list[tuple[Lookups | None, list[list[Any]]]] = []
        for text, rows in groups.items():
            try:
                found.append((self._joined(spark, json.loads(text), first=not found), rows))
            except ConfigError as why:
                self._gone([OffsetRange(*row[:4]) for row in rows], why.what)
        return found

    def _joined(self, spark: SparkSession, recorded: Any, *, first: bool) -> Lookups:
        if recorded is None:
            raise ConfigError("it is not on record which versions of tables their records were joined with")
        if not first and "connect" in type(spark).__module__:  # which looks for a view when it reads it
            raise ConfigError("over Spark Connect, the records of one version of a table are compared at a time")
        return Lookups.of(self.context.pipeline, self.context.home, recorded)

    def _rows(self, writer: WindowWriter, records: DataFrame) -> DataFrame:
        return writer.transformed(writer.decoded(records)).where(column(self.window.time).isNotNull())

    def _placed(
        self, spark: SparkSession, tables: Tables, placed: Sequence[Sequence[Any]], rows: DataFrame
    ) -> list[DataFrame]:
        """Return the rows with the owner of their windows, without those of refused records that none has."""
        if tables.quarantine.table() is None:
            return [_Placed(spark, placed).join(rows, "_")]
        # no window has a refused record, also one that is ahead of time, but for some windows of an interval
        refused = tables.quarantine.rows(spark).select(*_PLACE).distinct()
        found = [_Placed(spark, placed).join(rows.join(refused, list(_PLACE), "left_anti"), "_")]
        owners = {-row[4] for row in placed}
        if partly := [[*row[:4], -row[4], -EVER] for row in self.plan.partly if row[4] in owners]:
            found.append(_Placed(spark, partly).join(rows.join(refused, list(_PLACE), "left_semi"), "_"))
        return found

    def _windows(self, placed: DataFrame) -> DataFrame:
        window = self.window
        span = F.window(column(window.time), seconds(window.length), seconds(window.step) if window.slide else None)
        spread = placed.withColumn(_SPAN, span)
        start, end = (F.unix_millis(F.col(_SPAN)[name]) for name in ("start", "end"))
        owner = F.col(_OWNER)
        number, epoch = self._owner(start, 2), self._owner(start, 3)
        closed, former = _by(owner, self.plan.closed, 0), _by(owner, self.plan.former, -EVER)
        by_live = (owner > 0) & (end > F.col(_LATE)) & (end <= closed) & (end > former) & (epoch < owner)
        spread = spread.where(by_live | ((owner < 0) & (number == -owner)))
        # an epoch that went on with the state of another made the rest of its windows
        spread = spread.withColumn(_OWNER, F.when(owner > 0, _by(owner, self.plan.begun, 0)).otherwise(owner))
        made_of = spread.groupBy(_OWNER, _SPAN, *map(column, window.by)).agg(*self._aggregates())
        bounds = F.col(_SPAN)["start"].alias(START), F.col(_SPAN)["end"].alias(END)
        return made_of.select(*bounds, *map(column, [*window.by, *window.aggregates]))

    def _sessions(self, placed: DataFrame) -> DataFrame:
        window, owner = self.window, F.col(_OWNER)
        time, gap = F.unix_micros(column(window.time)), F.lit(round(window.length.total_seconds() * 1_000_000))
        own = placed.where((owner > 0) & (time + gap > _by(owner, self.plan.former, -EVER) * 1000))
        grouped = in_sessions(own, window, [_OWNER], F.col(_LATE), _NUMBER).groupBy(
            _OWNER, _NUMBER, *map(column, window.by)
        )
        made_of = grouped.agg(F.min(time).alias(_FIRST), (F.max(time) + gap).alias(_LAST), *self._aggregates())
        closed = made_of.where(F.col(_LAST) <= _by(owner, self.plan.closed, 0) * 1000)
        bounds = F.timestamp_micros(_FIRST).alias(START), F.timestamp_micros(_LAST).alias(END)
        return closed.select(*bounds, *map(column, [*window.by, *window.aggregates]))

    def _aggregates(self) -> list[Column]:
        return [F.expr(text).alias(name) for name, text in self.window.aggregates.items()]

    def _owner(self, start: Column, place: int) -> Column:
        """Return number or epoch of the interval that made a window last; 0 for none."""
        found = F.lit(0)
        for own in self.plan.owned:
            found = F.when((start >= own[0]) & (start < own[1]), F.lit(own[place])).otherwise(found)
        return found

    def _provable(self, frame: DataFrame) -> DataFrame:
        start, end = F.unix_millis(F.col(START)), F.unix_millis(F.col(END))
        if self.window.gap is not None:
            lasting = [(end >= item[0]) & (start < item[1]) for item in _merged(self.doubtful)]
            return frame.where(~reduce(or_, lasting)) if lasting else frame
        owned = self._owner(start, 2) != 0
        doubtful = [
            (start >= item[0]) & (start < item[1]) & (F.lit(True) if item[3] else ~owned)
            for item in _merged(self.doubtful)
        ]
        doubtful += [] if (other := self._other_length()) is None else [other]
        if self.window.output == "update":  # the table also has what was open, and what an epoch left open
            epochs = sorted(map(int, self.plan.closed))
            closed = {e: self.plan.closed[str(e)] for e in epochs}
            doubtful += [
                (end > closed[e]) & (end <= self.plan.former.get(str(after), closed[e])) & ~owned
                for e, after in pairwise(epochs)
            ]
            doubtful.append(end > max(closed.values(), default=0))
        return frame.where(~reduce(or_, doubtful)) if doubtful else frame

    def _other_length(self) -> Column | None:
        """Return whether a row is a window that another file made, by its length; None if no other file made any."""
        window = self.window
        if window.gap is not None or len(self.plan.recomputed) == len(self.plan.live):
            return None
        start, end = F.unix_millis(F.col(START)), F.unix_millis(F.col(END))
        return (end - start != F.lit(round(window.length.total_seconds() * 1000))) & (self._owner(start, 2) == 0)

    def _of_another_length(self, found: DataFrame) -> list[list[Any]]:
        """Tell of such rows: their first and last start say nothing of other windows between them."""
        if (other := self._other_length()) is None:
            return []
        start = F.unix_millis(F.col(START))
        row = found.where(other).agg(F.min(start), F.max(start)).first()
        return [] if row is None or row[0] is None else [[row[0], row[1] + 1, _OTHER_LENGTH, False]]

    def _in_doubt(self, start: int, end: int) -> bool:
        lasts = end if self.window.gap is not None else start
        return any(item[0] <= lasts and start < item[1] for item in self.doubtful)

    def _compared(self, writer: WindowWriter, found: DataFrame) -> dict[str, str]:
        """Return which aggregates are not compared, and why."""
        there = {f.name: f.dataType for f in found.schema.fields}
        why = dict[str, str]()
        for name, text in self.window.aggregates.items():
            if name not in there:
                why[name] = "the sink has no such column, since it has not been written since the column was added"
            elif _OF_ORDER.search(text):
                why[name] = f"{text} depends on the order of records, so it is not compared"
            elif "map<" in (kind := there[name].simpleString()):
                why[name] = f"values of type {kind.upper()} are not compared"
        return why

    def _differences(
        self, expected: DataFrame | None, found: DataFrame, left_out: Mapping[str, str]
    ) -> tuple[int, int, list[dict[str, Any]]]:
        values = [name for name in self.window.aggregates if name not in left_out]
        keys = [START, END, *self.window.by]
        types = {f.name: f.dataType for f in found.schema.fields}
        sides = [found.select(*map(column, [*keys, *values]), F.lit(1).alias(_SIDE))]
        if expected is not None:
            cast_to = [column(name).cast(types[name]).alias(name) for name in (*keys, *values)]
            sides.append(expected.select(*cast_to, F.lit(0).alias(_SIDE)))
        both = self._provable(reduce(DataFrame.unionByName, sides))
        # a row that the table has twice is there once too often; two epochs may have made parts of one window
        order = Ordered.partitionBy(_SIDE, *map(column, keys)).orderBy(*map(column, values), F.lit(0))
        numbered = both.withColumn(_NUMBER, F.row_number().over(order))
        packed = F.struct(*(column(name) for name in values), F.lit(1).alias(_SIDE))
        pairs = numbered.groupBy(*map(column, keys), _NUMBER).agg(
            *(F.first(F.when(F.col(_SIDE) == side, packed), ignorenulls=True).alias(f"__side{side}") for side in (0, 1))
        )
        same = reduce(
            lambda left, right: left & right,
            (_same(F.col("__side0")[name], F.col("__side1")[name], types[name]) for name in values),
            F.col("__side0").isNotNull() & F.col("__side1").isNotNull(),
        )
        pairs = pairs.withColumn("__same", same).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            total = pairs.agg(F.count("*"), F.count_if(~F.col("__same"))).first()
            assert total is not None
            shown = pairs.where(~F.col("__same")).orderBy(START, END, *map(column, self.window.by)).limit(_MOST)
            rows = shown.select(
                F.unix_millis(START).alias("start"),
                F.unix_millis(END).alias("end"),
                F.array(*(column(name).cast("string") for name in self.window.by)).alias("by"),
                *(F.col(f"__side{side}").isNotNull().alias(f"there{side}") for side in (0, 1)),
                F.array(
                    *(
                        F.array(*(_text(F.col(f"__side{side}")[name]) for side in (0, 1)))
                        for name in values
                    )
                ).alias("values"),
                F.array(
                    *(_same(F.col("__side0")[name], F.col("__side1")[name], types[name]) for name in values)
                ).alias("same"),
            ).collect()  # fmt: skip
        finally:
            pairs.unpersist()
        return total[0], total[1], [_told(self.window, values, row) for row in rows]


class _Placed:
    """Ranges of offsets, to which records are joined by Spark."""

    def __init__(self, spark: SparkSession, rows: Sequence[Sequence[Any]]) -> None:
        self._size = max(1, sum(row[3] - row[2] for row in rows) // _BUCKETS)
        names = ("__topic", "__partition", "__from", "__to", _OWNER, _LATE, "__bucket")
        placed = [
            (*row[:6], bucket)
            for row in rows
            for bucket in range(row[2] // self._size, (row[3] - 1) // self._size + 1)
            if row[3] > row[2]
        ]
        columns = zip(*placed, strict=True) if placed else [[] for _ in names]
        kinds = (pa.string(), pa.int32(), *[pa.int64()] * 5)
        table = pa.table({n: pa.array(list(c), k) for n, c, k in zip(names, columns, kinds, strict=True)})
        self._frame = spark.createDataFrame(table)

    def join(self, records: DataFrame, prefix: str) -> DataFrame:
        """Return each record once for each range that has it, with the range's owner and watermark."""
        topic, partition, offset = (F.col(f"{prefix}{name}") for name in ("topic", "partition", "offset"))
        here = (
            (topic == F.col("__topic"))
            & (partition == F.col("__partition"))
            & (F.floor(offset / F.lit(self._size)) == F.col("__bucket"))
            & (offset >= F.col("__from"))
            & (offset < F.col("__to"))
        )
        return records.join(F.broadcast(self._frame), here)


def _disjoint(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return what ranges cover, each offset once: batches of two epochs, and intervals, may have the same ones."""
    found: list[OffsetRange] = []
    for item in sorted(ranges):
        here = [last for last in found[-1:] if (last.topic, last.partition) == (item.topic, item.partition)]
        start = max([item.start, *(last.end for last in here)])
        if start < item.end:
            found.append(OffsetRange(item.topic, item.partition, start, item.end))
    return joined(found)


def _same(by: Column, there: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.FloatType | T.DoubleType):
        near = F.abs(by - there) <= F.greatest(F.abs(by), F.abs(there)) * F.lit(TOLERANCE)
        return by.eqNullSafe(there) | F.coalesce(near, F.lit(False))
    if isinstance(kind, T.ArrayType):  # collected values come in any order
        return F.sort_array(by).eqNullSafe(F.sort_array(there))
    return by.eqNullSafe(there)


def _text(value: Column) -> Column:
    return F.coalesce(value.cast("string"), F.lit("NULL"))


def _by(owner: Column, known: Mapping[str, int], other: int) -> Column:
    found = F.lit(other)
    for epoch, value in known.items():
        found = F.when(owner == int(epoch), F.lit(value)).otherwise(found)
    return found


def _merged(doubtful: Iterable[Sequence[Any]]) -> list[tuple[int, int, str, bool]]:
    found: list[tuple[int, int, str, bool]] = []
    for start, end, also in sorted({(item[0], item[1], item[3]) for item in doubtful}):
        last = next((n for n in range(len(found) - 1, -1, -1) if found[n][3] == also), None)
        if last is not None and start <= found[last][1]:
            found[last] = (found[last][0], max(end, found[last][1]), "", also)
        else:
            found.append((start, end, "", also))
    return found


def _told(window: Window, values: Sequence[str], row: Any) -> dict[str, Any]:
    both = row.there0 and row.there1
    chosen = [n for n, same in enumerate(row.same) if not (both and same)]
    return {
        "start": row.start,
        "end": row.end,
        "by": {name: text if text is not None else "NULL" for name, text in zip(window.by, row.by, strict=True)},
        "expected": row.there0,
        "found": row.there1,
        "values": {values[n]: list(row["values"][n]) for n in chosen},
    }
