"""Expectations as row rules: they call exactly those rows unexpected that Great Expectations does."""

from __future__ import annotations

import datetime as dt
import random
import warnings
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from sluice_spark.quality.building import import_gx
from sluice_spark.rules.expectations import Judged, judged_by

pytestmark = pytest.mark.spark

SCHEMA = (
    "id BIGINT, i INT, l BIGINT, d DOUBLE, f FLOAT, n DECIMAL(12, 2), s STRING, t STRING, b BOOLEAN, c BOOLEAN, "
    "day DATE, time TIMESTAMP, deep STRUCT<inner: INT, text: STRING>, `flat.name` INT"
)
NAN, INF = float("nan"), float("inf")
DAY, TIME = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC)
VALUES: dict[str, list[Any]] = {
    "i": [None, 0, 1, 5, -7, 2**31 - 1],
    "l": [None, 0, 5, 2**53, 2**53 + 1, -(2**63)],
    "d": [None, 0.0, -0.0, 5.0, 2.5, NAN, INF, -INF],
    "f": [None, 0.1, 5.0, NAN],
    "n": [None, Decimal("0.10"), Decimal("5.00"), Decimal("-7.25")],
    "s": [None, "", "a", "abc", "ABC", "ä€😀", "a\nb", " 5 ", "5", "NULL", "x'y"],
    "t": [None, "", "a", "ABC", "zzz"],
    "b": [None, True, False],
    "c": [None, True, False],
    "day": [None, DAY, dt.date(1969, 12, 31), dt.date(2024, 3, 1)],
    "time": [None, TIME, TIME.replace(microsecond=1), TIME.replace(year=1968)],
    "deep": [None, (5, "a"), (None, "abc"), (-7, None)],
    "flat.name": [None, 5, 0],
}


def rows() -> list[tuple[Any, ...]]:
    """Return rows in which values meet others at random, the same each time; the last one has none."""
    some = random.Random(20)
    found = [(number, *(some.choice(values) for values in VALUES.values())) for number in range(80)]
    return [*found, (100, *(None for _ in VALUES))]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(rows(), SCHEMA).coalesce(1).persist()


@pytest.fixture(scope="module")
def gx_batch(frame: DataFrame) -> Any:
    import_gx()
    import great_expectations as gx

    warnings.simplefilter("ignore", DeprecationWarning)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_spark("hostile", persist=False).add_dataframe_asset("rows")
    return asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})


def told_by_gx(batch: Any, *items: dict[str, Any]) -> list[tuple[int, set[int]] | None]:
    """Return how many rows Great Expectations counts as unexpected, and which; None where it raises."""
    from great_expectations import ExpectationSuite

    suite = ExpectationSuite(name="s", expectations=[dict(item) for item in items])
    assert len(suite.expectations) == len(items)
    form = {
        "result_format": "COMPLETE",
        "unexpected_index_column_names": ["id"],
        "return_unexpected_index_query": False,
    }
    found = batch.validate(suite, result_format=form)
    by_meta = {result.expectation_config.meta["n"]: result for result in found.results}
    told: list[tuple[int, set[int]] | None] = []
    for n in range(len(items)):
        result = by_meta[n].result
        if "unexpected_count" not in result:
            told.append(None)
            continue
        told.append((result["unexpected_count"], {row["id"] for row in result.get("unexpected_index_list") or []}))
    return told


def numbered(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**item, "meta": {"n": n}} for n, item in enumerate(items)]


def expect(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_column_{kind}", "kwargs": kwargs}


def compare(spark: SparkSession, frame: DataFrame, batch: Any, items: Sequence[dict[str, Any]]) -> list[Judged]:
    """Compare both judges on expectations that are row rules; return who judges what."""
    judged = judged_by(spark, items, frame.schema)
    mine = [each for each in judged if each.rule is not None]
    if mine:
        broken = frame.select("id", *(each.rule.broken.alias(f"r{n}") for n, each in enumerate(mine)))
        found = broken.collect()
        told = told_by_gx(batch, *numbered(*(dict(each.item) for each in mine)))
        for n, (each, theirs) in enumerate(zip(mine, told, strict=True)):
            ids = {row["id"] for row in found if row[f"r{n}"]}
            assert theirs == (len(ids), ids), each.item
    return judged


NUMBERS = ("i", "l", "d", "f", "n", "deep.inner")
TEXTS = ("s", "t", "deep.text")
TIMES = ("day", "time")
ANY = (*NUMBERS, *TEXTS, *TIMES, "b", "c")
number = st.sampled_from([0, 1, 5, -7, 2.5, 0.1, -0.0, 2**53 + 1, 2**31, 5.0, -7.25])
text = st.sampled_from(["", "a", "abc", "ABC", "5", " 5 ", "ä€😀", "a\nb", "NULL", "x'y", "zzz"])
moment = st.sampled_from(["2024-02-29", "1969-12-31", "2024-02-29T12:30:00", "2024-02-29T12:30:00Z"])
pattern = st.sampled_from(
    ["a", "^a", "^[a-z]+$", "(?i)abc", "^$", ".", r"\d", r"^\p{L}", "a|b", "a.b", "(?s)a.b", "😀"]
)
flag = st.booleans()
legacy = st.sampled_from(
    ['col("i") > 0', 'col("s").notnull()', 'col("s") == "abc"', "col(\"t\") != 'a'", 'col("d") <= 2.5', 'col("n")>=5']
)
structured = st.recursive(
    st.sampled_from(
        [
            {"type": "comparison", "column": {"name": "i"}, "operator": ">=", "parameter": 1},
            {"type": "comparison", "column": {"name": "s"}, "operator": "!=", "parameter": "x'y"},
            {"type": "comparison", "column": {"name": "t"}, "operator": "IN", "parameter": ["a", "ABC"]},
            {"type": "comparison", "column": {"name": "l"}, "operator": "NOT_IN", "parameter": [0, 5]},
            {"type": "nullity", "column": {"name": "b"}, "is_null": True},
            {"type": "nullity", "column": {"name": "deep.inner"}, "is_null": False},
        ]
    ),
    lambda inner: st.builds(
        lambda parts: {"type": "and", "conditions": parts}, st.lists(inner, min_size=2, max_size=3)
    ),
    max_leaves=3,
)
either = st.builds(lambda parts: {"type": "or", "conditions": parts}, st.lists(structured, min_size=2, max_size=3))
sql = st.sampled_from(["i > 0", "s IS NOT NULL AND b", "d > 1 OR n < 0 -- so", "deep.inner = 5", "`flat.name` = 5"])


@st.composite
def expectation(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    kwargs = {name: draw(drawn) for name, drawn in KINDS[kind].items()}
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    if kind == "values_to_be_between numbers" and {"min_value", "max_value"} <= kwargs.keys():
        kwargs["min_value"], kwargs["max_value"] = sorted((kwargs["min_value"], kwargs["max_value"]))
    where = draw(st.sampled_from(["no", "no", "legacy", "structured", "or", "sql"]))
    if where == "legacy":
        kwargs |= {"row_condition": draw(legacy), "condition_parser": "great_expectations"}
    elif where == "sql":
        kwargs |= {"row_condition": draw(sql), "condition_parser": "spark"}
    elif where != "no":
        kwargs["row_condition"] = draw(structured if where == "structured" else either)
    if draw(flag):
        kwargs["mostly"] = draw(st.sampled_from([1, 1.0]))
    return {"type": f"expect_column_{kind.partition(' ')[0]}", "kwargs": kwargs}


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


def column(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.sampled_from(names)


IGNORED = st.sampled_from(["both_values_are_missing", "either_value_is_missing", "neither"])
STRICT = {"strict_min": maybe(flag), "strict_max": maybe(flag)}
KINDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "values_to_not_be_null": {"column": column((*ANY, "deep"))},
    "values_to_be_null": {"column": column((*ANY, "deep"))},
    "values_to_be_in_set numbers": {"column": column(NUMBERS), "value_set": st.lists(maybe(number), max_size=4)},
    "values_to_be_in_set text": {"column": column(TEXTS), "value_set": st.lists(maybe(text), max_size=4)},
    "values_to_be_in_set times": {"column": column(TIMES), "value_set": st.lists(moment, min_size=1, max_size=3)},
    "values_to_be_in_set flags": {"column": column(("b",)), "value_set": st.lists(flag, max_size=2)},
    "values_to_not_be_in_set numbers": {"column": column(NUMBERS), "value_set": st.lists(maybe(number), max_size=4)},
    "values_to_not_be_in_set text": {"column": column(TEXTS), "value_set": st.lists(text, max_size=4)},
    "values_to_be_between numbers": {
        "column": column(NUMBERS), "min_value": maybe(number), "max_value": maybe(number), **STRICT
    },
    "values_to_be_between times": {"column": column(TIMES), "min_value": moment, **STRICT},
    "values_to_be_between until": {"column": column(TIMES), "max_value": moment, **STRICT},
    "value_lengths_to_be_between": {
        "column": column(TEXTS), "min_value": st.integers(-1, 3), "max_value": maybe(st.integers(0, 5)), **STRICT
    },
    "value_lengths_to_equal": {"column": column(TEXTS), "value": st.sampled_from([0, 1, 3, 3.0, 2.5])},
    "values_to_match_regex": {"column": column(TEXTS), "regex": pattern},
    "values_to_not_match_regex": {"column": column(TEXTS), "regex": pattern},
    "values_to_match_regex_list": {
        "column": column(TEXTS),
        "regex_list": st.lists(pattern, min_size=1, max_size=3),
        "match_on": maybe(st.sampled_from(["any", "all"])),
    },
    "values_to_not_match_regex_list": {
        "column": column(TEXTS), "regex_list": st.lists(pattern, min_size=1, max_size=3)
    },
    "pair_values_to_be_equal": {
        "column_A": column(ANY), "column_B": column(ANY), "ignore_row_if": maybe(IGNORED)
    },
    "pair_values_a_to_be_greater_than_b": {
        "column_A": column(ANY), "column_B": column(ANY), "or_equal": maybe(flag), "ignore_row_if": maybe(IGNORED)
    },
    "pair_values_to_be_in_set": {
        "column_A": column(NUMBERS),
        "column_B": column(TEXTS),
        "value_pairs_set": st.lists(st.tuples(maybe(number), maybe(text)).map(list), min_size=1, max_size=3),
        "ignore_row_if": maybe(IGNORED),
    },
}  # fmt: skip


def drawn() -> st.SearchStrategy[tuple[dict[str, Any], ...]]:
    """Draw one expectation of each kind."""
    return st.tuples(*(expectation(kind) for kind in KINDS))


SETTINGS: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "phases": [Phase.explicit, Phase.generate],  # the message names one expectation: there is nothing to shrink
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=1, **SETTINGS)
@given(items=drawn())
def test_the_same_rows_are_unexpected(
    spark: SparkSession, frame: DataFrame, gx_batch: Any, items: tuple[dict[str, Any], ...]
) -> None:
    compare(spark, frame, gx_batch, items)


@pytest.mark.long
@settings(max_examples=25, **SETTINGS)
@given(items=drawn())
def test_the_same_rows_are_unexpected_of_many_more(
    spark: SparkSession, frame: DataFrame, gx_batch: Any, items: tuple[dict[str, Any], ...]
) -> None:
    compare(spark, frame, gx_batch, items)


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (expect("values_to_be_unique", column="i"), "not about single rows"),
        (expect("values_to_not_be_null", column="i", mostly=0.99), "a share of the rows may break it"),
        ({**expect("values_to_not_be_null", column="i"), "meta": {"scope": "table"}}, "the whole table"),
        (expect("values_to_not_be_null", column="nobody"), "no column 'nobody'"),
        (expect("values_to_not_be_null", column="flat.name"), "has a dot"),
        (expect("values_to_be_between", column="s", min_value=1), "column s is string"),
        (expect("values_to_be_between", column="i", min_value="1"), "neither a number, a date nor a time"),
        (expect("values_to_be_between", column="i", min_value={"$PARAMETER": "x"}), "is a parameter"),
        (expect("values_to_be_between", column="i", min_value=5, max_value=1), "greater than max_value"),
        (expect("values_to_be_between", column="day", min_value="2024-02-30"), "day is out of range"),
        (expect("values_to_be_between", column="i"), "neither min_value nor max_value"),
        (expect("values_to_be_in_set", column="s", value_set=[1]), "column s is string"),
        (expect("values_to_be_in_set", column="i", value_set=["1"]), "column i is int"),
        (expect("values_to_be_in_set", column="i", value_set=[True]), "column i is int"),
        (expect("values_to_be_in_set", column="i", value_set=[2**63]), "larger than a BIGINT"),
        (expect("values_to_be_in_set", column="day", value_set=["some day"]), "Spark cannot evaluate it"),
        (expect("values_to_be_in_set", column="deep", value_set=[1]), "column deep is struct"),
        (expect("values_to_match_regex", column="s", regex="(["), "Spark cannot evaluate it"),
        (expect("values_to_match_regex", column="i", regex="5"), "column i is int"),
        (expect("values_to_match_regex_list", column="s", regex_list=[]), "no pattern"),
        (expect("pair_values_to_be_equal", column_A="i", column_B="s"), "compared by a cast"),
        (expect("pair_values_to_be_equal", column_A="i", column_B="l", ignore_row_if="x"), "ignore_row_if 'x'"),
        (expect("values_to_not_be_null", column="i", row_condition="s > 5"), "Spark cannot evaluate it"),
        (expect("values_to_not_be_null", column="i", row_condition="nobody = 5"), "Spark cannot evaluate it"),
        (expect("values_to_not_be_null", column="i", row_condition="max(l) > 5"), "Spark cannot evaluate it"),
        (expect("values_to_not_be_null", column="i", row_condition="rand() > 0.5"), "another answer each time"),
        (expect("values_to_not_be_null", column="i", new_argument=1), "new_argument is not known"),
    ],
)
def test_the_rest_stays_with_great_expectations(
    spark: SparkSession, frame: DataFrame, item: dict[str, Any], why: str
) -> None:
    sound = expect("values_to_not_be_null", column="i", mostly=None, row_condition="l > 0 -- so")
    first, second = judged_by(spark, [item, sound], frame.schema)
    assert first.rule is None
    assert why in (first.why or "")
    assert second.rule is not None
    assert (second.number, second.rule.column) == (2, "i")
