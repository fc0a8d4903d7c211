"""Reads from a checkpoint which windows are open, which keys are remembered, or what a processor keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.kinds import imported, kind_of
from sluice.pipeline import Pipeline
from sluice.pipeline.window import END, START
from sluice.run.actions import ReadState
from sluice_spark.columns import column
from sluice_spark.paths import located

__all__ = [
    "PaneSpans",
    "groups",
    "held_keys",
    "last_timer",
    "of_key",
    "of_processor",
    "open_windows",
    "read",
    "read_state",
    "remembered_keys",
]


class PaneSpans(NamedTuple):
    """For windows that are made of panes: their size and slide, and the watermark, in milliseconds."""

    size: int
    step: int
    watermark: int


def read_state(_: Pipeline, action: ReadState, open_session: Callable[[], SparkSession]) -> Any:
    """Return what an action asks for of an operator's state, ready for JSON."""
    where, kept = (open_session(), action.checkpoint, action.batch), kind_of("operators", action.keeps)
    panes = [PaneSpans(*action.panes)] if action.panes else []  # which windows alone are made of
    if action.of is None:
        return imported(kept.held)(*where, *panes)
    return imported(kept.of_key)(*where, *action.of, *panes)


def open_windows(
    spark: SparkSession, checkpoint: str, batch: int, panes: PaneSpans | None = None
) -> list[dict[str, Any]]:
    """Return the windows that are open after a batch, with the number of their keys, in the order of their ends.

    Sessions are summed up by the hour in which they end: from the first start to the last end.

    Parameters
    ----------
    checkpoint
        Its path or URL.
    batch
        A batch that Spark committed, one of about the last hundred.
    panes
        If the state has panes: what windows they make, and the watermark after the batch.
    """
    state = read(spark, checkpoint, batch)
    key: Any = state.schema["key"].dataType
    if panes is not None:
        return _of_panes(state, key, panes)
    if not isinstance(key.fields[0].dataType, StructType):
        value: Any = state.schema["value"].dataType
        return _sessions(state, F.col("value")[value.fields[0].name])
    # by its place: the name of the window's field says how long records may be late
    span = F.col("key")[key.fields[0].name]
    found = state.groupBy(
        F.unix_millis(span["start"]).alias(START), F.unix_millis(span["end"]).alias(END)
    ).agg(F.count("*").alias("keys"))  # fmt: skip
    return [row.asDict() for row in found.orderBy(END, START).collect()]


def _of_panes(state: DataFrame, key: StructType, panes: PaneSpans) -> list[dict[str, Any]]:
    # a key's first column is the end of the pane's last window; the others are those of the window's key
    last = F.unix_millis(F.col("key")[key.fields[0].name])
    ends = F.sequence(last - F.lit(panes.size - panes.step), last, F.lit(panes.step))
    columns = [F.col("key")[field.name].alias(f"k{n}") for n, field in enumerate(key.fields[1:])]
    windows = state.select(F.explode(ends).alias(END), *columns).where(F.col(END) > panes.watermark).distinct()
    found = windows.groupBy(END).agg(F.count("*").alias("keys"))
    start = (F.col(END) - F.lit(panes.size)).alias(START)
    return [row.asDict() for row in found.select(start, END, "keys").orderBy(END, START).collect()]


def _sessions(state: DataFrame, span: Column) -> list[dict[str, Any]]:
    found = state.groupBy(F.date_trunc("hour", span["end"]).alias("hour")).agg(
        F.unix_millis(F.min(span["start"])).alias(START),
        F.unix_millis(F.max(span["end"])).alias(END),
        F.count("*").alias("keys"),
    )
    return [{name: row[name] for name in (START, END, "keys")} for row in found.orderBy("hour").collect()]


def groups(spark: SparkSession, checkpoint: str, batch: int) -> list[dict[str, Any]]:
    """Return how many groups are kept after a batch; parameters as for :func:`open_windows`."""
    return [{"keys": read(spark, checkpoint, batch).count()}]


def remembered_keys(spark: SparkSession, checkpoint: str, batch: int) -> list[dict[str, Any]]:
    """Return how many keys are remembered after a batch, and the first and the last watermark that forgets any.

    Parameters
    ----------
    checkpoint, batch
        As for :func:`open_windows`.
    """
    until = F.col("value.expiresAtMicros") / 1000
    found = read(spark, checkpoint, batch).agg(
        F.count("*").alias("keys"),
        F.ceil(F.min(until)).alias("first_forgotten_at"),
        F.ceil(F.max(until)).alias("last_forgotten_at"),
    )
    return [row.asDict() for row in found.collect()]


def of_key(
    spark: SparkSession,
    checkpoint: str,
    batch: int,
    names: Sequence[str],
    wanted: Mapping[str, str],
    limit: int,
    panes: PaneSpans | None = None,
) -> list[dict[str, Any]]:
    """Return what is kept of a key after a batch, in the order of time.

    Parameters
    ----------
    checkpoint, batch, panes
        As for :func:`open_windows`.
    names
        The columns of the key.
    wanted
        The value that some of these columns must have, as Spark writes it as text.
    limit
        Maximum number of rows.

    Returns
    -------
    list of dict
        ``key``, as text, and ``state``, the values that Spark keeps, as JSON text. For windows ``window_start`` and
        ``window_end``, of panes those of the pane, in milliseconds since 1970.
    """
    state = read(spark, checkpoint, batch)
    key: Any = state.schema["key"].dataType
    value: Any = state.schema["value"].dataType
    # by their places: what Spark calls a column may say how long records may be late
    first = key.fields[0]
    windowed = panes is not None or isinstance(first.dataType, StructType)
    columns = [F.col("key")[field.name] for field in key.fields[1 if windowed else 0 :]]
    texts = {name: each.cast("string") for name, each in zip(names, columns, strict=False)}
    found = state.where(reduce(and_, (texts[name] == text for name, text in wanted.items())))
    # from objects made of texts: names of columns may be any
    told = F.array(*(F.struct(F.lit(name).alias("name"), text.alias("text")) for name, text in texts.items()))
    bounds = _bounds(F.col("key")[first.name], F.col("value")[value.fields[0].name], windowed, value, panes)
    shown = found.select(told.alias("key"), *bounds, F.to_json("value", {"ignoreNullFields": "false"}).alias("state"))
    rows = shown.orderBy(*shown.columns[1:]).limit(limit).collect()
    return [row.asDict() | {"key": {part["name"]: part["text"] for part in row["key"]}} for row in rows]


def held_keys(spark: SparkSession, checkpoint: str, batch: int) -> list[dict[str, Any]]:
    """Return of how many keys a processor keeps anything after a batch, and how many timers, from when to when.

    Parameters
    ----------
    checkpoint, batch
        As for :func:`open_windows`.
    """
    timers = _timers(spark, checkpoint, batch)
    kept = [timers, *(frame for _, frame in _variables(spark, checkpoint, batch))]
    keys = reduce(DataFrame.union, (frame.select("key") for frame in kept)).distinct().count()
    found = timers.agg(
        F.count("*").alias("timers"),
        F.min("expiration_timestamp_ms").alias("first_timer_at"),
        F.max("expiration_timestamp_ms").alias("last_timer_at"),
    )
    return [{"keys": keys, **row.asDict()} for row in found.collect()]


def last_timer(spark: SparkSession, checkpoint: str, batch: int) -> int | None:
    """Return when the last timer of a processor fires that a batch has left; None if there is none.

    Parameters
    ----------
    checkpoint, batch
        As for :func:`open_windows`.
    """
    row = _timers(spark, checkpoint, batch).agg(F.max("expiration_timestamp_ms")).first()
    return None if row is None else row[0]


def of_processor(
    spark: SparkSession, checkpoint: str, batch: int, names: Sequence[str], wanted: Mapping[str, str], limit: int
) -> list[dict[str, Any]]:
    """Return what a processor keeps of a key after a batch: a row for each of its variables, and one for its timers.

    Parameters
    ----------
    checkpoint, batch, names, wanted, limit
        As for :func:`of_key`.

    Returns
    -------
    list of dict
        ``key``, as text, and ``state``, as JSON text: by the variable's name what it holds; ``timers``, in milliseconds
        since 1970, have no name that a variable may have.
    """
    timers = _timers(spark, checkpoint, batch).groupBy("key").agg(
        F.array_sort(F.collect_list("expiration_timestamp_ms")).alias("$timers")
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    for name, frame in [*_variables(spark, checkpoint, batch), ("$timers", timers)]:
        texts = {by: F.col("key")[by].cast("string") for by in names}
        found = frame.where(reduce(and_, (texts[by] == text for by, text in wanted.items())))
        told = F.array(*(F.struct(F.lit(by).alias("name"), text.alias("text")) for by, text in texts.items()))
        held = F.to_json(F.struct(column(name)), {"ignoreNullFields": "false"})
        shown = found.select(told.alias("key"), held.alias("state")).orderBy("key").limit(limit - len(rows))
        rows += [row.asDict() | {"key": {p["name"]: p["text"] for p in row["key"]}} for row in shown.collect()]
    return rows


def _variables(spark: SparkSession, checkpoint: str, batch: int) -> Iterator[tuple[str, DataFrame]]:
    """Yield the name of each variable of a processor, with a frame of keys and of what it holds, called like it."""
    described = (
        spark.read.format("state-metadata")
        .load(located(checkpoint))
        .where("operatorId = 0")
        .select("operatorProperties")
    )
    properties = json.loads(described.first()[0])
    for variable in properties["stateVariables"]:
        name, kind = variable["stateName"], variable["stateVariableType"]
        if kind == "TimerState":
            continue
        frame = _read(spark, checkpoint, batch, stateVarName=name, flattenCollectionTypes="false")
        held = {"ListState": "list_value", "MapState": "map_value"}.get(kind, "value")
        yield name, frame.select("key", F.col(held).alias(name))


def _timers(spark: SparkSession, checkpoint: str, batch: int) -> DataFrame:
    return _read(spark, checkpoint, batch, readRegisteredTimers="true")


def _bounds(first: Column, held: Column, windowed: bool, value: Any, panes: PaneSpans | None) -> list[Column]:
    """Return the start and the end of what a row of the state is of; none if it is of no time."""
    if panes is not None:
        start = F.unix_millis(first) - F.lit(panes.size)
        return [start.alias(START), (start + F.lit(panes.step)).alias(END)]
    span = first if windowed else held
    if not windowed and not isinstance(value.fields[0].dataType, StructType):
        return []
    return [F.unix_millis(span["start"]).alias(START), F.unix_millis(span["end"]).alias(END)]


def read(spark: SparkSession, checkpoint: str, batch: int) -> DataFrame:
    """Return the state after a batch: structs of keys and of values."""
    return _read(spark, checkpoint, batch)


def _read(spark: SparkSession, checkpoint: str, batch: int, **options: str) -> DataFrame:
    # an application that has run no stream lacks the coordinator of state stores, which readers of RocksDB's ask; the
    # manager of streams starts it
    _ = spark.streams.active
    return spark.read.format("statestore").options(batchId=batch, operatorId=0, **options).load(located(checkpoint))
