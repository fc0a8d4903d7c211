"""What windows, ``dedupe`` and processors check of the rows that they are given."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline
from sluice.pipeline.suite import nearest
from sluice_spark.columns import column
from sluice_spark.windows.watermark import seconds

__all__ = ["analyzed", "refuse_across", "refuse_columns", "refuse_unequal", "timed", "wrong"]

_UNTIMED, _AHEAD = "event_time_missing", "event_time_ahead"
"""The rules by which a record without an event time, or with one of the future, goes to the quarantine."""

_FICKLE = re.compile(
    r"\b(current_date|current_time|current_timestamp|localtimestamp|monotonically_increasing_id|now|rand|randn|random"
    r"|randstr|shuffle|spark_partition_id|uniform|unix_timestamp\(current\w*|uuid)\("
)
"""Functions whose result depends on more than the record."""
_ACROSS = re.compile(
    r"^[\s:|+-]*(Aggregate|CoGroup\w*|Deduplicate\w*|Distinct|Except|FlatMapGroups\w*|GlobalLimit|Intersect|Join"
    r"|LocalLimit|MapGroups\w*|Offset|Sample|Sort|Tail|TransformWithState\w*|Union|Window)\b",
    re.MULTILINE,
)
"""Nodes of Spark's plan that look at more than one row, or at another table."""

_RECORDS = re.compile(r"^[\s:|+-]*(LogicalRDD|LocalRelation) (<empty>, )?\[key#")
"""The leaf of Spark's plan of the sample: the records."""
_NODE = re.compile(r"^[\s:]*[:+]- ")
_JOINS = {
    "Inner": "both",
    "Cross": "both",
    "LeftOuter": "left",
    "LeftSemi": "left",
    "LeftAnti": "left",
    "RightOuter": "right",
}
"""On which side of which join the records may be: a batch has no row that no record has."""

_UNEQUAL = re.compile(r"\b(float|double|map|variant|collate|geometry|geography)\b", re.IGNORECASE)
"""Types whose equal values may differ in their bytes, by which state compares keys, or that it cannot compare."""


def timed(name: str, ahead: timedelta, now: Column) -> Column:
    """Return the rule that an event time breaks; null where it breaks none.

    Parameters
    ----------
    now
        When the batch was planned: a batch that is repeated must judge as it did before.
    """
    time, limit = column(name), now + F.expr(f"interval {seconds(ahead)}")
    return F.when(time.isNull(), F.lit(_UNTIMED)).when(time > limit, F.lit(_AHEAD))


def refuse_columns(
    pipeline: Pipeline, key: str, time: str, named: Mapping[str, Sequence[str]], rows: DataFrame
) -> None:
    """Refuse a key of the pipeline file that names columns which the transform's result does not have.

    Parameters
    ----------
    key
        The key, below which ``time`` names the event time.
    named
        Other columns, by the keys that name them.

    Raises
    ------
    ConfigError
        If a column is missing, or the event time is no TIMESTAMP.
    """
    for part, name in (("time", time), *((part, name) for part, names in named.items() for name in names)):
        if name not in rows.columns:
            hint = nearest(name, rows.columns, "its columns are")
            raise wrong(pipeline, f"{key}.{part}: the transform's result has no column {name!r}; {hint}")
    kind = rows.schema[time].dataType
    if not isinstance(kind, TimestampType):
        raise wrong(
            pipeline,
            f"{key}.time: {time} is {kind.simpleString().upper()}, not TIMESTAMP: convert it in the transform",
        )


def refuse_unequal(pipeline: Pipeline, key: str, names: Sequence[str], rows: DataFrame) -> None:
    """Refuse columns whose equal values may differ in their bytes, by which state compares keys.

    Parameters
    ----------
    key
        The key of the pipeline file that names them, in full.

    Raises
    ------
    ConfigError
        With the column and its type.
    """
    for name in names:
        found = rows.schema[name].dataType.simpleString()
        if _UNEQUAL.search(found):
            raise wrong(
                pipeline,
                f"{key}: {name} is {found.upper()}, not a type whose equal values always have equal bytes: convert it "
                "in the transform, such as to STRING",
            )


def refuse_across(pipeline: Pipeline, rows: DataFrame, what: str) -> None:
    """Refuse a transform whose rows depend on more than one record each.

    Raises
    ------
    ConfigError
        With what it does.
    """
    plan = analyzed(rows)
    if (node := _across(plan, bool(pipeline.tables))) is not None:
        beside = "" if pipeline.tables else " or at another table"
        raise wrong(
            pipeline,
            f"transform: before {what} it must treat each record by itself, and Spark's plan of it has "
            f"{node!r}, which looks at several rows{beside}",
        )
    if (found := _FICKLE.search(plan)) is not None:
        raise wrong(
            pipeline,
            f"transform: records are read a second time to be counted, and {found[1]}() would give other rows then: "
            "use _timestamp, or a column of the record",
        )


def _across(plan: str, tables: bool) -> str | None:
    """Return the node of a plan that looks at several records, or, without ``tables``, at another table."""
    if not tables:
        found = _ACROSS.search(plan)
        return None if found is None else found[1]
    _, root, *rest = plan.strip().splitlines()  # the first line has the types of the columns
    lines = [root, *filter(_NODE.match, rest)]  # expressions may have line breaks
    depths = [len(line) - len(line.lstrip(" :|+-")) for line in lines]
    records = [bool(_RECORDS.match(line)) for line in lines]
    for n, line in enumerate(lines):
        end = next((m for m in range(n + 1, len(lines)) if depths[m] <= depths[n]), len(lines))
        found, of = _ACROSS.match(line), sum(records[n + 1 : end])
        if found is None or not of:
            continue  # what only tables go through
        if found[1] != "Join" or of > 1:
            return found[1]
        second = max(m for m in range(n + 1, end) if depths[m] == depths[n + 1])
        kind = line[found.end() :].split(",")[0].strip()
        if _JOINS.get(kind) not in ("both", "left" if any(records[n + 1 : second]) else "right"):
            return f"Join {kind}"
    return "Join of source with itself" if sum(records) > 1 else None


def analyzed(rows: DataFrame) -> str:
    """Return Spark's analyzed plan of the rows."""
    with contextlib.redirect_stdout(io.StringIO()) as plan:
        rows.explain(True)
    return plan.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]


def wrong(pipeline: Pipeline, what: str) -> ConfigError:
    """Return the error of a pipeline file that cannot be run."""
    return ConfigError(
        f"pipeline {pipeline.name!r}: {what}",
        state="nothing was read or written; the position stays where it was",
        next_step=f"fix {pipeline.file.name}, then run again",
    )
