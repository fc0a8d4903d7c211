"""Expectations as row rules: they call exactly those rows unexpected that Great Expectations does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.expectations import SCHEMA, drawn, expect, rows

from sluice_spark.quality.gx_project import import_gx
from sluice_spark.rules.expectations import judged_by

pytestmark = pytest.mark.spark


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


def found_by_gx(batch: Any, items: Sequence[Mapping[str, Any]]) -> list[tuple[int | None, set[int]]]:
    """Return how many rows Great Expectations counts as unexpected (None where it raises), and which."""
    from great_expectations import ExpectationSuite

    suite = ExpectationSuite(name="s", expectations=[{**item, "meta": {"n": n}} for n, item in enumerate(items)])
    assert len(suite.expectations) == len(items)
    form = {
        "result_format": "COMPLETE",
        "unexpected_index_column_names": ["id"],
        "return_unexpected_index_query": False,
    }
    results = batch.validate(suite, result_format=form).results
    found = sorted(((of.expectation_config.meta["n"], of.result) for of in results), key=itemgetter(0))
    return [(r.get("unexpected_count"), {row["id"] for row in r.get("unexpected_index_list") or []}) for _, r in found]


def compare(spark: SparkSession, frame: DataFrame, batch: Any, items: Sequence[dict[str, Any]]) -> None:
    """Compare both judges on expectations that are row rules."""
    mine = [each for each in judged_by(spark, items, frame.schema) if each.rule is not None]
    if not mine:
        return
    found = frame.select("id", *(each.rule.broken.alias(f"r{n}") for n, each in enumerate(mine))).collect()
    for n, (each, theirs) in enumerate(zip(mine, found_by_gx(batch, [each.item for each in mine]), strict=True)):
        ids = {row["id"] for row in found if row[f"r{n}"]}
        assert theirs == (len(ids), ids), each.item


SETTINGS: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "phases": [Phase.explicit, Phase.generate],  # the message names one expectation: there is nothing to shrink
    "suppress_health_check": list(HealthCheck),
}


@pytest.mark.parametrize("examples", [1, pytest.param(25, marks=pytest.mark.long)])
def test_row_rules_call_the_same_rows_unexpected_as_great_expectations(
    spark: SparkSession, frame: DataFrame, gx_batch: Any, examples: int
) -> None:
    @settings(max_examples=examples, **SETTINGS)
    @given(items=drawn())
    def compared(items: tuple[dict[str, Any], ...]) -> None:
        compare(spark, frame, gx_batch, items)

    compared()


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (expect("values_to_be_unique", column="i"), "not about single rows"),
        (expect("values_to_not_be_null", column="i", mostly=0.99), "a share of the rows may break it"),
        ({**expect("values_to_not_be_null", column="i"), "meta": {"scope": "table"}}, "the whole table"),
        (expect("values_to_not_be_null", column="nowhere"), "no column 'nowhere'"),
        (expect("values_to_not_be_null", column="flat.name"), "has a dot"),
        (expect("values_to_be_between", column="s", min_value=1), "column s is string"),
        (expect("values_to_be_between", column="i", min_value="1"), "neither a number, a date nor a time"),
        (expect("values_to_be_between", column="i", min_value={"$PARAMETER": "x"}), "is a parameter"),
        (expect("values_to_be_between", column="i", min_value=5, max_value=1), "greater than max_value"),
        (expect("values_to_be_between", column="day", min_value="2024-02-30"), "day is out of range"),
        (expect("values_to_be_between", column="day", max_value="0001-01-01"), "Spark cannot evaluate it"),
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
        (expect("values_to_not_be_null", column="i", row_condition="nowhere = 5"), "Spark cannot evaluate it"),
        (expect("values_to_not_be_null", column="i", row_condition="max(l) > 5"), "Spark cannot evaluate it"),
        (expect("values_to_not_be_null", column="i", row_condition="rand() > 0.5"), "another answer each time"),
        (expect("values_to_not_be_null", column="i", new_argument=1), "new_argument is not known"),
    ],
)
def test_row_rules_leave_the_rest_to_gx(spark: SparkSession, frame: DataFrame, item: dict[str, Any], why: str) -> None:
    sound = expect("values_to_not_be_null", column="i", mostly=None, row_condition="l > 0 -- so")
    first, second = judged_by(spark, [item, sound], frame.schema)
    assert first.rule is None
    assert why in (first.why or "")
    assert (second.number, second.rule.column) == (2, "i")
