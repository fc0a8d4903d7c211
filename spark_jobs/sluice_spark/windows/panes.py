"""Sliding windows made of panes: Spark's state has a row for each key and slide, not one for each key and window.

The state keeps a pane until the last of its windows is closed, and so decides by itself, by Spark's own rules, which
records are late for all of them. A batch gets the panes that its records changed. The windows that it closes are made
of these and of the state of the batch before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.pipeline.window import END, START, Window
from sluice_spark.columns import column
from sluice_spark.windows.decomposition import Decomposed
from sluice_spark.windows.merge_panes import Merging
from sluice_spark.windows.state import read
from sluice_spark.windows.watermark import with_watermark

__all__ = ["StrangeStateError", "ends_to_emit", "kept", "panes_of", "windows_from"]

_LAST = "__sluice_last_end"
"""The end of a pane's last window, by which Spark judges lateness and forgets panes."""
_EVER = 1 << 40
"""More slides than there are between any two times, however short they are."""
_KEY, _HASH, _PLACE = "__sluice_k", "__sluice_hash", "__sluice_place"


class StrangeStateError(Exception):
    """The state is not that of these panes."""


def panes_of(rows: DataFrame, window: Window, how: Decomposed, held_to: int | None = None) -> DataFrame:
    """Return the stream of changed panes: the end of the last window, the keys, and the values.

    Parameters
    ----------
    rows, held_to
        As for :func:`~sluice_spark.windows.aggregate.windows_of`.
    """
    # with output: complete nothing is ever closed
    timely = rows if window.output == "complete" else with_watermark(rows, window.time, window.delay, held_to)
    time = F.unix_micros(column(window.time))
    last = F.timestamp_micros(time - F.pmod(time, F.lit(_micros(window.step))) + F.lit(_micros(window.length)))
    # with the metadata of the event time, Spark takes it for one: a plain column would never be forgotten
    named = [last.alias(_LAST, metadata=timely.schema[window.time].metadata)]
    keys = _keys(window)
    named += [column(name).alias(key) for name, key in zip(window.by, keys, strict=True)]
    return timely.select(*named, *how.arguments()).groupBy(_LAST, *keys).agg(*how.columns())


def ends_to_emit(window: Window, late: int, until: int) -> tuple[int, int] | None:
    """Return the first and the last end of windows that a batch may write, as numbers of slides since 1970.

    With ``output: append`` those that it closes, and None if it closes none; with ``update`` those that it may have
    changed; with ``complete`` all.

    Parameters
    ----------
    late, until
        The watermark by which records are late, and by which windows are closed, in milliseconds since 1970.
    """
    step = _micros(window.step)
    first, last = late * 1000 // step + 1, until * 1000 // step
    if window.output == "append":
        return (first, last) if first <= last else None
    return (first if window.output == "update" else -_EVER), _EVER


def kept(spark: SparkSession, checkpoint: str, batch: int, window: Window, how: Decomposed) -> DataFrame:
    """Return the panes that the state has after a batch, with the columns of :func:`panes_of`.

    Raises
    ------
    StrangeStateError
        If it has other columns.
    """
    state = read(spark, checkpoint, batch)
    key: Any = state.schema["key"].dataType
    value: Any = state.schema["value"].dataType
    expected = [kind for part in how.parts for kind in part.kept]
    found = [f.dataType.simpleString() for f in value.fields]
    if len(key.fields) != 1 + len(window.by) or found != expected:
        raise StrangeStateError(f"its columns are {', '.join(found)}, and not {', '.join(expected)}")
    # two sums have one name: columns are found by their places
    names = [_LAST, *_keys(window)]
    keys = F.col("key").cast(_renamed(key, names))
    values = F.col("value").cast(_renamed(value, [f"f{n}" for n in range(len(found))]))
    named = state.select(keys.alias("key"), values.alias("value"))
    columns: list[Column] = [F.col("key")[name].alias(name) for name in names]
    place = 0
    for part, name in zip(how.parts, how.values, strict=True):
        stored = F.col("value")[f"f{place}"]
        if len(part.kept) > 1:  # a sum of decimals begins with 0, and says that it is empty
            stored = F.when(~F.col("value")[f"f{place + 1}"], stored)
        columns.append(stored.alias(name))
        place += len(part.kept)
    return named.select(*columns)


def windows_from(
    changed: DataFrame, before: DataFrame | None, window: Window, how: Decomposed, ends: tuple[int, int],
    schema: StructType,
) -> DataFrame:  # fmt: skip
    """Return the windows that end within a span, made of panes; with ``output: update`` those that have a changed one.

    Parameters
    ----------
    changed, before
        The panes that the batch changed, and those that were there before it. The first are used once, as a whole.
    ends
        From :func:`ends_to_emit`.
    schema
        Has the types of the window's columns.
    """
    step, size = _micros(window.step), _micros(window.length)
    keys = _keys(window)

    hashed = F.xxhash64(*keys) if keys else F.lit(0).cast("long")

    def told(panes: DataFrame, *, new: bool) -> DataFrame:
        pane = F.expr(f"(unix_micros({_LAST}) - {size}L) div {step}L")
        place = (pane * 2 + int(new)).alias(_PLACE)
        return panes.where(pane < ends[1]).select(hashed.alias(_HASH), place, *keys, *how.values)

    panes = told(changed, new=True)
    if before is not None:
        panes = told(before, new=False).unionAll(panes)
    # all rows of a key lie in one partition, and together. One column of numbers is sorted by its bytes, which takes a
    # fraction of the time of comparing keys; what two keys with one hash need is left to the merging
    together = panes.repartition(_HASH).sortWithinPartitions(_HASH) if keys else panes.repartition(1)
    merging = Merging(len(keys), how.aggregates, size // step, step, *ends, changed=window.output == "update")
    # names by place: those of the file may be any
    made = StructType().add("start", "long").add("end", "long")
    rest = [*window.by, *window.aggregates]
    for number, name in enumerate(rest):
        made.add(f"c{number}", schema[name].dataType)
    found = together.mapInArrow(merging.of, made)
    bounds = F.timestamp_micros("start").alias(START), F.timestamp_micros("end").alias(END)
    return found.select(*bounds, *(F.col(f"c{number}").alias(name) for number, name in enumerate(rest)))


def _keys(window: Window) -> list[str]:
    return [f"{_KEY}{n}" for n in range(len(window.by))]


def _renamed(kind: Any, names: Sequence[str]) -> StructType:
    found = StructType()
    for field, name in zip(kind.fields, names, strict=True):
        found.add(name, field.dataType)
    return found


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
