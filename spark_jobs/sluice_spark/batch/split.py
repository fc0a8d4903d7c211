"""The expectations of a pipeline's suite that are row rules: rows that break one do not reach the sink.

They judge the transform's rows, as Great Expectations does, and in the pass that writes them. Only if a row broke one
are the records read a second time, for the quarantine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.fields import TAKES_AWAY
from sluice.pipeline import Pipeline
from sluice.pipeline.sections import EVERYTHING
from sluice.pipeline.suite import UNASKED, Suite, place
from sluice.ranges import OffsetRange
from sluice.storage import is_url
from sluice_spark.batch.tally import OUTSIDE
from sluice_spark.decoders.base import COLUMN, RULE, source_columns
from sluice_spark.engine.logs import logger
from sluice_spark.paths import LONGEST_NAME
from sluice_spark.rules.expectations import PARTITION_VALUE, Judged, RowRule, compiled, judged_by
from sluice_spark.transforms.transform import Transformer, apply

__all__ = ["Split", "SplitTally", "blamed", "judges_of", "told"]

Key = tuple[str, int]

_BROKEN = "__sluice_broken"
_FIRST = "__sluice_first_row"
_PLACE = ("topic", "partition", "offset")
_SPREAD = 1_000_000  # more than the partitions of any topic
_ROW_IN_TASK = (1 << 33) - 1


def judges_of(spark: SparkSession, pipeline: Pipeline, suite: Suite, schema: T.StructType) -> list[Judged]:
    """Say of each expectation whether it splits the rows of a run, and why not.

    Parameters
    ----------
    schema
        The columns of the sink's rows.
    """
    if pipeline.unsplit is not None:
        return [Judged(n, item, None, pipeline.unsplit) for n, item in enumerate(suite.expectations, start=1)]
    wanted = suite.splitting(pipeline.quality.split)
    found = []
    own = T.StructType(
        [field for field in schema.fields if field.name not in ("_run", TAKES_AWAY)]
    )  # which a record does not have
    for each in judged_by(spark, suite.expectations, own):
        if each.rule is None or each.number in wanted:
            found.append(each)
        else:
            found.append(Judged(each.number, each.item, None, _unwanted(each.item)))
    return found


def told(spark: SparkSession, pipeline: Pipeline, schema: T.StructType) -> list[dict[str, object]]:
    """Return who judges each expectation of a pipeline's suite, ready for JSON; nothing without a suite."""
    suite = Suite.of(pipeline)
    judges = judges_of(spark, pipeline, suite, schema) if suite is not None else []
    return [
        {"number": each.number, "expectation": each.item["type"], "row_rule": each.rule is not None, "why": each.why}
        for each in judges
    ]


def _unwanted(item: Mapping[str, Any]) -> str:
    if item.get("severity", "critical") != "critical":
        return f"its severity is {item['severity']}: its rows stay, and are counted"
    return UNASKED if (item.get("meta") or {}).get("split") is None else "its meta.split is false"


@dataclass(frozen=True)
class Split:
    """The row rules of a suite, in the order of its file, and those of partition columns.

    Parameters
    ----------
    whole
        Whether what becomes of a record may depend on other records, so that all must be read again to tell which
        broke a rule.
    deletes
        Whether some rows only delete others: they have no values, and break nothing.
    """

    rules: tuple[RowRule, ...]
    whole: bool = True
    deletes: bool = False

    @classmethod
    def of(cls, spark: SparkSession, pipeline: Pipeline, schema: T.StructType) -> Split | None:
        """Return the row rules of a pipeline; None if it has none.

        Raises
        ------
        ConfigError
            If an expectation with ``meta.split: true`` cannot be one.
        """
        rules = (*_of_suite(spark, pipeline, schema), *_of_partitions(pipeline, schema))
        return cls(rules, pipeline.transform.sql != EVERYTHING, pipeline.decode.deletes) if rules else None

    @property
    def broken(self) -> Column:
        """The first rule that a row breaks, and its column; null if it breaks none."""
        found = F.coalesce(
            *(
                F.when(rule.broken, F.struct(F.lit(rule.name).alias("rule"), F.lit(rule.column).alias("column")))
                for rule in self.rules
            )
        )
        return F.when(~self._takes_away, found) if self.deletes else found

    @property
    def breaks(self) -> Column:
        """Whether a row breaks a rule; never null. It costs Spark a third of what :attr:`broken` does."""
        found = reduce(Column.__or__, (rule.broken for rule in self.rules))
        return ~self._takes_away & found if self.deletes else found

    @property
    def _takes_away(self) -> Column:
        return F.coalesce(F.col(TAKES_AWAY), F.lit(False))

    def count(self, rows: DataFrame) -> dict[Key, int]:
        """Return the number of rows per partition that break a rule; reads them."""
        found = rows.where(self.breaks).groupBy("_topic", "_partition").count().collect()
        return {(row["_topic"], row["_partition"]): row["count"] for row in found}

    def off(self, decoded: DataFrame, transform: Transformer) -> DataFrame:
        """Return decoded records in which those whose row breaks a rule have its name, as if the record broke it.

        It applies the transform, to the records that broke no rule yet, and joins: for few records, or a second pass.
        """
        judged = F.col(RULE).isNull()
        if OUTSIDE in decoded.columns:  # such a record has no row
            judged = judged & ~F.col(OUTSIDE)
        rows = apply(transform, source_columns(decoded.where(judged)))
        broken = rows.withColumn(_BROKEN, self.broken).where(F.col(_BROKEN).isNotNull())
        return blamed(decoded, broken, F.col(f"{_BROKEN}.rule"), F.col(f"{_BROKEN}.column"))


def blamed(decoded: DataFrame, rows: DataFrame, rule: Column, column: Column) -> DataFrame:
    """Return decoded records with the rules that their rows break; all columns and records stay.

    Parameters
    ----------
    rows
        The rows that break one, at most one of each record.
    rule, column
        The rule that a row breaks, and the column by which it does.
    """
    keys = rows.select(
        *(F.col(f"_{name}").alias(f"__of_{name}") for name in _PLACE),
        F.struct(rule.alias("rule"), column.alias("column")).alias(_BROKEN),
    )
    both = decoded.join(keys, [F.col(name) == F.col(f"__of_{name}") for name in _PLACE], "left")
    of_row = F.col(RULE).isNull() & F.col(_BROKEN).isNotNull()
    judged = {
        RULE: F.coalesce(F.col(RULE), F.col(f"{_BROKEN}.rule")),
        COLUMN: F.when(of_row, F.col(f"{_BROKEN}.column")).otherwise(F.col(COLUMN)),
    }
    return both.select(*(judged.get(name, F.col(name)).alias(name) for name in decoded.columns))


def _of_suite(spark: SparkSession, pipeline: Pipeline, schema: T.StructType) -> Iterator[RowRule]:
    suite = Suite.of(pipeline)
    if suite is None or not suite.splitting(pipeline.quality.split):
        return
    if problems := suite.not_split(pipeline):
        raise suite.refuse(problems)
    found = judges_of(spark, pipeline, suite, schema)
    forced = [e for e in found if e.rule is None and (e.item.get("meta") or {}).get("split") is True]
    if forced:
        raise suite.refuse(f"{place(e.number, e.item)}: meta.split: {e.why}" for e in forced)
    rules = [each.rule for each in found if each.rule is not None]
    logger.info("%d of %d expectations split the rows", len(rules), len(found))
    yield from rules


def _of_partitions(pipeline: Pipeline, schema: T.StructType) -> Iterator[RowRule]:
    """Yield a rule for each text by which a sink is partitioned: some values have no folder of their own."""
    if pipeline.unsplit is not None:
        return
    longest: dict[str, int | None] = {}
    for sink in pipeline.sinks.values():
        for name in sink.config.partition_columns:
            # an object store limits the whole key of an object, and not its parts
            limit = None if is_url(sink.config.location) else LONGEST_NAME
            longest[name] = limit or longest.get(name)
    for name, limit in longest.items():
        if name in schema.names and isinstance(schema[name].dataType, T.StringType):
            yield compiled({"type": PARTITION_VALUE, "kwargs": {"column": name, "longest": limit}}, schema)


class SplitTally:
    """Counts the rows that break a rule, per partition, while the others are written; exact.

    Parameters
    ----------
    rows
        The transform's rows, with the metadata columns.
    again
        Returns them again. It is called if the count may be wrong, because a task ran twice.

    Attributes
    ----------
    frame
        The rows that break none. The figures are those of the first action on it.
    """

    def __init__(
        self, split: Split, rows: DataFrame, again: Callable[[], DataFrame], ranges: Sequence[OffsetRange]
    ) -> None:
        topics = sorted({r.topic for r in ranges})
        self._keys = {topics.index(r.topic) * _SPREAD + r.partition: (r.topic, r.partition) for r in ranges}
        self._split, self._again = split, again
        key: Column = F.col("_partition")
        for number, topic in enumerate(topics[1:], start=1):
            key = F.when(F.col("_topic") == topic, F.col("_partition") + number * _SPREAD).otherwise(key)
        broken = F.col(_BROKEN)
        is_first = F.monotonically_increasing_id().bitwiseAND(_ROW_IN_TASK) == 0
        self._observation = Observation()
        observed = rows.withColumns({_BROKEN: split.breaks, _FIRST: F.when(is_first, F.spark_partition_id())}).observe(
            self._observation,
            F.histogram_numeric(F.when(broken, key.cast("double")), F.lit(max(2, len(self._keys)))).alias("broken"),
            F.count(_FIRST).alias("passes"),
            F.size(F.collect_set(_FIRST)).alias("tasks"),
        )
        self.frame = observed.where(~broken).drop(_BROKEN, _FIRST)

    @cached_property
    def counts(self) -> Mapping[Key, int]:
        """The number of rows per partition that broke a rule; waits for the first action to end."""
        try:
            found = self._observation.get
        except Exception:  # Spark has no figures if it optimized the plan to an empty one
            found = {"passes": None}
        if found.get("passes") is not None and found["passes"] == found["tasks"]:
            counts: Counter[int] = Counter()
            for each in found["broken"] or []:  # Spark merges bins of tasks only if there are too many of them
                counts[round(each["x"])] += round(each["y"])
            if counts.keys() <= self._keys.keys():
                return {self._keys[key]: count for key, count in counts.items()}
        return self._split.count(self._again())
