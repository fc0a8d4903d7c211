"""Row rules: which decoded records are refused, and by which name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.fixtures.pipelines import KAFKA

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline
from sluice.pipeline.model import model_for
from sluice.shipped import CHECKOUT
from sluice_spark.decoders.base import COLUMN, RULE, source_columns
from sluice_spark.rules.records import check, decoded

pytestmark = pytest.mark.spark

RECORDS = [
    (b"k", b'{"id": 1, "topic": "a", "value": 5}', "t", 0, 0),
    (b"k", b'{"id": 2, "topic": null, "value": 5}', "t", 0, 1),
    (b"k", b'{"id": 3, "topic": "c", "value": -5}', "t", 0, 2),
    (b"k", b'{"id": 4, "topic": null, "value": -5}', "t", 0, 3),
    (b"k", b"not json", "t", 0, 4),
    (b"k", b'{"id": null, "topic": "x", "value": null}', "t", 0, 5),
]
SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG"


def pipeline(*rules: dict[str, Any]) -> Pipeline:
    named_as_the_records_own = {"json": {"schema": "id BIGINT, topic STRING, value BIGINT"}}
    spec = KAFKA | {"decode": named_as_the_records_own, "rules": list(rules)}
    made = model_for(spec).model_validate(spec)
    made._file = Path("p.yaml")
    return made


def refused(spark: SparkSession, *rules: dict[str, Any]) -> dict[int, tuple[str, str | None]]:
    records = spark.createDataFrame(RECORDS, SCHEMA).withColumn("timestamp", F.timestamp_millis(F.col("offset")))
    found = decoded(records, pipeline(*rules))
    assert found.columns[: len(records.columns)] == records.columns
    assert [(r["key"], r["value"]) for r in found.orderBy("offset").collect()] == [r[:2] for r in RECORDS]
    rows = found.where(F.col(RULE).isNotNull()).select("offset", RULE, COLUMN).collect()
    return {row["offset"]: (row[RULE], row[COLUMN]) for row in rows}


NOT_NULL = {"name": "has_topic", "not_null": {"columns": ["id", "topic"]}}
POSITIVE = {"name": "positive", "sql": {"passes": "value > 0 -- or null", "column": "value"}}


def test_rules_refuse_nothing_where_there_are_none(spark: SparkSession) -> None:
    assert refused(spark) == {4: ("json", None)}


def test_rules_refuse_a_record_by_the_first_that_it_breaks(spark: SparkSession) -> None:
    first = {1: ("has_topic", "topic"), 2: ("positive", "value"), 4: ("json", None), 5: ("has_topic", "id")}
    assert refused(spark, NOT_NULL, POSITIVE) == first | {3: ("has_topic", "topic")}
    assert refused(spark, POSITIVE, NOT_NULL) == first | {3: ("positive", "value")}


def test_rules_let_null_pass_and_see_metadata(spark: SparkSession) -> None:
    late = {"name": "early", "sql": {"passes": "_offset < 2 AND _topic = 't' AND _timestamp < '2000-01-01'"}}
    assert refused(spark, late) == {n: ("early", None) for n in (2, 3, 5)} | {4: ("json", None)}
    assert refused(spark, POSITIVE) == {2: ("positive", "value"), 3: ("positive", "value"), 4: ("json", None)}


def test_rules_make_a_plan_that_grows_no_faster_than_they_do(spark: SparkSession) -> None:
    many = [{"name": f"r{n}", "sql": {"passes": f"value > {-100 - n}"}} for n in range(60)]
    more = [{**rule, "name": f"s{rule['name']}"} for rule in many]
    assert refused(spark, *many, POSITIVE, *more) == refused(spark, POSITIVE)


def test_rules_allow_any_name_of_a_column(spark: SparkSession) -> None:
    check(spark.createDataFrame([], "value BIGINT, violation INT"), pipeline(POSITIVE))


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ({"sql": {"passes": "vlaue > 0"}}, "vlaue"),
        ({"sql": {"passes": "value >"}}, "PARSE_SYNTAX_ERROR"),
        ({"sql": {"passes": "sum(value) > 0"}}, "MISSING_GROUP_BY"),
        ({"sql": {"passes": "value"}}, "DATATYPE_MISMATCH"),
        ({"not_null": {"columns": ["nowhere"]}}, "nowhere"),
    ],
)
def test_rule_that_spark_cannot_evaluate_is_named_first(spark: SparkSession, rule: dict[str, Any], named: str) -> None:
    spec = pipeline({"name": "odd", **rule})
    sample = source_columns(decoded(spark.createDataFrame([], f"{SCHEMA}, timestamp TIMESTAMP"), pipeline()))
    with pytest.raises(ConfigError, match="rule odd") as caught:
        check(sample, spec)
    assert named in caught.value.what
    check(sample, pipeline(NOT_NULL, POSITIVE))


def test_rule_of_another_package_is_a_key_of_the_file(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(str(CHECKOUT)) / "tests" / "fixtures" / "toy"))
    even = {"name": "even_ids", "even": {"column": "id"}}
    assert refused(spark, even) == {0: ("even_ids", "id"), 2: ("even_ids", "id"), 4: ("json", None)}
