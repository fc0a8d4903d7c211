"""Windows made of panes are Spark's own, row for row, whatever is late, empty or null, and however batches are cut."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from sluice.pipeline.window import Window
from sluice.run.checkpoint import Checkpoint
from sluice_spark.windows.aggregate import windows_of
from sluice_spark.windows.decomposition import decompose, told
from sluice_spark.windows.panes import ends_to_emit, kept, panes_of, windows_from

pytestmark = pytest.mark.spark

SCHEMA = T.StructType()
for _name, _kind in {
    "at": T.TimestampType(), "k": T.StringType(), "j": T.IntegerType(), "i": T.IntegerType(), "b": T.LongType(),
    "d": T.DoubleType(), "m": T.DecimalType(10, 2), "w": T.DecimalType(38, 0), "f": T.BooleanType(),
    "s": T.StringType(), "t": T.DateType(), "x": T.BinaryType(),
}.items():  # fmt: skip
    SCHEMA.add(_name, _kind)
EXACT = {
    "n": "count(*)", "ni": "count(i)", "nf": "count_if(f)", "si": "sum(i)", "sb": "sum( b )", "sm": "SUM(m * 2)",
    "sw": "sum(w)", "ai": "avg(i)", "li": "min(i)", "gi": "max(i)", "ld": "min(d)", "gd": "max(d)", "lm": "min(m)",
    "ls": "min(s)", "gs": "max(s)", "lt": "min(t)", "gt": "max(at)", "all": "bool_and(f)", "some": "bool_or(f)",
    "again": "sum(i)", "one": "count(1)", "at2": "count(at)",
}  # fmt: skip
ROUGH = {"sd": "sum(d)", "ad": "avg(d)", "ab": "avg(b)"}
NUMBERS = itertools.count()


def window(**keys: Any) -> Window:
    given = {"time": "at", "size": "30m", "slide": "10m", "by": ["k", "j"], "watermark": "15m", "panes": "auto"}
    return Window(**{**given, "aggregates": {**EXACT, **ROUGH}, **keys})


MINUTES = st.integers(0, 40).map(lambda n: n * 5)
VALUES = st.fixed_dictionaries(
    {
        "at": MINUTES,
        "k": st.sampled_from(["a", "b", None]),
        "j": st.sampled_from([1, None]),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "b": st.none() | st.integers(-(2**50), 2**50),
        "d": st.none() | st.floats(-1e6, 1e6) | st.sampled_from([float("inf"), float("nan")]),
        "m": st.none() | st.decimals(-10, 10, places=2),
        "w": st.none() | st.integers(-(10**30), 10**30).map(Decimal),
        "f": st.none() | st.booleans(),
        "s": st.none() | st.text("aZé😀", max_size=3),
        "t": st.none() | st.dates(),
        "x": st.none() | st.binary(max_size=2),
    }
)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def rows_of(values: list[dict[str, Any]], begin: datetime = BEGIN) -> list[tuple[Any, ...]]:
    return [(begin + timedelta(minutes=v["at"]), *(v[name] for name in SCHEMA.names[1:])) for v in values]


class Both:
    """The same batches by both ways: what each has written, and Spark's checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, window: Window, batches: list[list[tuple[Any, ...]]]) -> None:
        self.spark, self.window, self.folder = spark, window, folder / f"both-{next(NUMBERS)}"
        self.source = self.folder / "source"
        self.how = decompose(spark, window, SCHEMA)
        for number, batch in enumerate(batches):
            spark.createDataFrame(batch, SCHEMA).coalesce(1).write.parquet(str(self.folder / "made" / str(number)))
            (self.source).mkdir(exist_ok=True, parents=True)
            for file in (self.folder / "made" / str(number)).glob("*.parquet"):
                file.rename(self.source / f"{number:03d}.parquet")

    def stream(self) -> DataFrame:
        options = {"maxFilesPerTrigger": 1, "latestFirst": False}
        found: DataFrame = self.spark.readStream.schema(SCHEMA).options(**options).parquet(str(self.source))
        return found

    def of_panes(self) -> list[Any]:
        found: list[Any] = []
        place = str(self.folder / "panes")
        schema = windows_of(self.spark.createDataFrame([], SCHEMA), self.window).schema

        def on_batch(changed: DataFrame, number: int) -> None:
            clock = Checkpoint(place).clock_of(number)
            ends = ends_to_emit(self.window, clock.late, clock.closing)
            if ends is None:
                changed.write.format("noop").mode("overwrite").save()
                return
            before = kept(changed.sparkSession, place, number - 1, self.window, self.how) if number else None
            made = windows_from(changed, before, self.window, self.how, ends, schema)
            assert made.schema.simpleString() == schema.simpleString()
            found.extend((number, row) for row in made.collect())

        panes = panes_of(self.stream(), self.window, self.how)
        self._run(panes.writeStream.outputMode("update").foreachBatch(on_batch), place)
        return found

    def of_spark(self) -> list[Any]:
        found: list[Any] = []
        made = windows_of(self.stream(), self.window).writeStream.outputMode(self.window.output)

        def on_batch(rows: DataFrame, number: int) -> None:
            found.extend((number, row) for row in rows.collect())

        self._run(made.foreachBatch(on_batch), str(self.folder / "spark"))
        return found

    def _run(self, query: Any, place: str) -> None:
        query.option("checkpointLocation", place).trigger(availableNow=True).start().awaitTermination()


def rounded(rows: list[Any], rough: dict[str, str]) -> Counter[str]:
    """Return rows as texts; sums of doubles as far as they do not depend on the order in which they were added."""
    return Counter(
        str(number)
        + json.dumps(
            {n: f"{round(v, 4) + 0.0:.4f}" if n in rough and v is not None else str(v) for n, v in row.asDict().items()}
        )
        for number, row in rows
    )


BATCHES = st.lists(st.lists(VALUES, min_size=1, max_size=25), min_size=2, max_size=4)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"output": "update", "size": "70m", "by": [], "watermark": "5m"},
        pytest.param({"size": "70m", "by": [], "watermark": "5m"}, marks=pytest.mark.long),
        pytest.param({"output": "update"}, marks=pytest.mark.long),
        pytest.param({"output": "complete", "watermark": None}, marks=pytest.mark.long),
    ],
    ids=["three-panes", "updated-without-by", "seven-panes-without-by", "updated", "completed"],
)
@settings(
    max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], derandomize=True
)  # each example is two streams: too slow to look for the smallest
@given(batches=BATCHES)
def test_panes_make_the_windows_of_spark(few: SparkSession, tmp_path: Path, keys: dict[str, Any], batches: Any) -> None:
    # a last batch closes everything
    last = {**{key: None for key in batches[0][0]}, "at": 10_000}
    both = Both(few, tmp_path, window(**keys), [rows_of(batch) for batch in [*batches, [last]]])
    mine, theirs = both.of_panes(), both.of_spark()
    assert rounded(mine, ROUGH) == rounded(theirs, ROUGH)
    assert mine


def at_once(spark: SparkSession, shape: Window, rows: DataFrame) -> DataFrame:
    """Return all windows of rows that are no stream."""
    how, schema = decompose(spark, shape, SCHEMA), windows_of(rows, shape).schema
    ends = ends_to_emit(shape, 0, int(BEGIN.timestamp() + 10**6) * 1000)
    return windows_from(panes_of(rows, shape, how), None, shape, how, ends, schema)


@pytest.fixture
def cut(few: SparkSession) -> Any:
    """A session whose Python workers get three rows at a time."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = few.conf.get(name)
    few.conf.set(name, "3")
    yield few
    few.conf.set(name, before)


@pytest.mark.parametrize(
    "by",
    # (a, null) and (null, a) have one hash
    [["s", "k"], ["d"], ["j", "m", "t", "f"], ["x", "w", "b"]],
    ids=["texts", "doubles", "numbers", "bytes"],
)
def test_panes_have_the_keys_of_spark_however_rows_are_cut(cut: SparkSession, by: list[str]) -> None:
    values: dict[str, list[Any]] = {
        "s": [None, "a", "", "é"], "k": ["a", None, "", "b"], "d": [0.0, -0.0, float("nan"), None, float("-inf"), 1.5],
        "j": [1, None, -1], "i": list(range(9)), "b": [None, 2**62, -1], "m": [None, Decimal("1.10"), Decimal(0)],
        "w": [None, Decimal(10**37)], "f": [True, False, None], "t": [None, BEGIN.date()], "x": [b"", None, b"\x00"],
    }  # fmt: skip
    names, places = SCHEMA.names[1:], itertools.product(range(0, 80, 5), range(8))
    made = [
        (BEGIN + timedelta(minutes=at), *(values[name][(n * 7 + at // 5) % len(values[name])] for name in names))
        for at, n in places
    ]
    rows = cut.createDataFrame(made, SCHEMA)
    shape = window(by=by, aggregates={"n": "count(*)", "si": "sum(i)", "li": "min(i)", "gt": "max(at)"})
    mine, theirs = at_once(cut, shape, rows).collect(), windows_of(rows, shape).collect()
    assert rounded([(0, row) for row in mine], {}) == rounded([(0, row) for row in theirs], {})
    assert len({tuple(str(row[name]) for name in by) for row in mine}) > 3


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "3 panes"),
        ({"panes": "off"}, "window.panes"),
        ({"slide": "20m"}, "slide"),
        ({"output": "update"}, "3 panes"),
        ({"by": ["at"]}, "at is TIMESTAMP"),
        ({"aggregates": {"x": "avg(m)"}}, "DECIMAL(10,2)"),
        *(
            ({"aggregates": {"x": text}}, "none of count")
            for text in (
                "approx_count_distinct(s)",
                "sum(i) + sum(b)",
                "sum(i) / count(*)",
                "sum(DISTINCT i)",
                "count(i, b)",
                "count(i) FILTER (WHERE f)",
                "percentile(d, 0.5)",
                "sum(i -- of )\n)",
            )
        ),
    ],
)
def test_panes_are_not_used_where_only_spark_has_the_rows(spark: SparkSession, keys: dict[str, Any], why: str) -> None:
    assert why in told(spark, window(**keys), SCHEMA)
