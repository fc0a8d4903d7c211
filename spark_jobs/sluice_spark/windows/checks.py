"""What windows, ``dedupe`` and processors check of the rows that they are given."""

from __future__ import annotations

import contextlib
import io
import itertools
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

__all__ = ["BEFORE_1970", "analyzed", "refuse_across", "refuse_columns", "refuse_unequal", "timed", "wrong"]

_UNTIMED, _AHEAD, BEFORE_1970 = "event_time_missing", "event_time_ahead", "event_time_before_1970"
"""The rules by which a record without an event time, with one of the future, or with one that Spark's first watermark
has passed, goes to the quarantine."""

_FICKLE = re.compile(
    r"\b(current_date|current_time|current_timestamp|localtimestamp|monotonically_increasing_id|now|rand|randn|random"
    r"|randstr|shuffle|spark_partition_id|uniform|unix_timestamp\(current\w*|uuid)\("
)
"""Functions whose result depends on more than the record."""
_ACROSS = re.compile(
    r"^[\s:|+-]*(Aggregate|AsOfJoin|CoGroup\w*|Deduplicate\w*|Distinct|Except|FlatMap(Co)?Groups\w*|GlobalLimit"
    r"|Intersect|Join|LocalLimit|MapGroups\w*|NearestByJoin|Offset|Sample|Sort|Tail|TransformWithState\w*|Union\w*|Window)\b",
    re.MULTILINE,
)
"""Nodes of Spark's plan that look at more than one row, or at another table."""

_RECORDS = re.compile(
    r"^[\s:|+-]*(LogicalRDD|LocalRelation) (<empty>, )?\[key#\d+, value#\d+, headers#\d+, topic#\d+, partition#"
)
"""The leaf of Spark's plan of the sample: the records."""
_FIXED = re.compile(r"^[\s:|+-]*(CTERelationRef|LocalRelation|OneRowRelation|Range)\b")
"""Leaves that are the same each time, or that stand for another part of the plan."""
_VIEW = re.compile(r"^[\s:|+-]*View \(`(\w+)`,")
"""What SQL calls by a name."""
_NODE = re.compile(r"^[\s:]*[:+]- ")
_DEEPER = 3
"""By how many characters a node's inputs are printed further to the right; its subqueries are at twice as many."""
_TWICE = "source a second time"
_SIDES = {
    "Inner": "either", "Cross": "either",
    "LeftOuter": "left", "LeftSemi": "left", "LeftAnti": "left", "RightOuter": "right",
}  # fmt: skip
"""On which side of a join the records may be: no row may come that no record has."""

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
    pipeline: Pipeline, key: str, time: str | None, named: Mapping[str, Sequence[str]], rows: DataFrame
) -> None:
    """Refuse a key of the pipeline file that names columns which the transform's result does not have.

    Parameters
    ----------
    key
        The key, below which ``time`` names the event time; None if there is none.
    named
        Other columns, by the keys that name them.

    Raises
    ------
    ConfigError
        If a column is missing, or the event time is no TIMESTAMP.
    """
    of_time = [] if time is None else [("time", time)]
    for part, name in (*of_time, *((part, name) for part, names in named.items() for name in names)):
        if name not in rows.columns:
            hint = nearest(name, rows.columns, "its columns are")
            raise wrong(pipeline, f"{key}.{part}: the transform's result has no column {name!r}; {hint}")
    if time is None:
        return
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
    if pipeline.tables and "CTERelation" in plan:  # whose parts are elsewhere in the plan
        raise wrong(
            pipeline,
            f"transform: before {what}, and beside tables, it has no WITH: write what that names as a subquery",
        )
    if (node := _across(plan, set(pipeline.tables))) is not None:
        beside = "" if pipeline.tables else " or at another table"
        raise wrong(
            pipeline,
            f"transform: before {what} it must treat each record by itself, and Spark's plan of it has "
            f"{node!r}, which looks at several rows{beside}",
        )
    if (other := _other_table(plan, set(pipeline.tables))) is not None:
        raise wrong(
            pipeline,
            f"transform: before {what} it may read the records and what the key tables names, and nothing else: "
            f"{other} may have other rows when the records are read a second time, to be counted",
        )
    if (found := _FICKLE.search(plan)) is not None:
        raise wrong(
            pipeline,
            f"transform: records are read a second time to be counted, and {found[1]}() would give other rows then: "
            "use _timestamp, or a column of the record",
        )


def _across(plan: str, tables: set[str]) -> str | None:
    """Return the node of a plan that looks at several rows, but for joins of the records with tables."""
    nodes = _nodes(plan)
    times = sum(bool(_RECORDS.match(line)) for _, line in nodes)
    if not tables:
        if (found := _ACROSS.search(plan)) is not None:
            return found[1]
        # a subquery is no node: it would join the records with those of other batches
        again = plan.count("CTERelationRef") > plan.count("CTERelationDef")
        return _TWICE if times > 1 or (times and again) else None
    if "LateralJoin" in plan:  # whose sides are not in their order
        return "LateralJoin"
    for n, (depth, line) in enumerate(nodes):
        found = _ACROSS.match(line)
        if found is None:
            continue
        below = list(itertools.takewhile(lambda node: node[0] > depth, nodes[n + 1 :]))  # noqa: B023
        sides = [m for m, (deep, _) in enumerate(below) if deep == depth + _DEEPER]
        at = [m for m, (_, of) in enumerate(below) if _RECORDS.match(of)]
        if found[1] != "Join" or len(at) > 1:
            return found[1]
        kind = line[found.end() :].split(",")[0].strip()
        if at and _SIDES.get(kind) not in ("either", "left" if at[0] < sides[-1] else "right"):
            return f"Join {kind}"
    return None if times == 1 else _TWICE


def _other_table(plan: str, tables: set[str]) -> str | None:
    """Return the leaf of a plan that is neither the records nor a table of the pipeline file."""
    nodes = _nodes(plan)
    named = None  # the depth of the view of a table that is passed now
    for (depth, line), (following, _) in zip(nodes, [*nodes[1:], (0, "")], strict=True):
        if named is not None and depth <= named:
            named = None
        if named is None and (view := _VIEW.match(line)) and view[1] in tables:
            named = depth
        if following <= depth and named is None and not _RECORDS.match(line) and not _FIXED.match(line):
            return line.lstrip(" :|+-")[:80]
    return None


def _nodes(plan: str) -> list[tuple[int, str]]:
    """Return the nodes of a plan, each with its depth."""
    _, root, *rest = plan.strip().splitlines()  # the first line has the types of the columns
    lines = [root, *filter(_NODE.match, rest)]  # expressions may have line breaks
    return [(len(line) - len(line.lstrip(" :|+-")), line) for line in lines]


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
