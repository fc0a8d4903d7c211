"""Verdicts show rows that broke an expectation, and never masked values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.quality.conftest import expect, judge_of

from sluice.ranges import Counts
from sluice_spark.quality.judgement import Judgement

pytestmark = pytest.mark.spark

ROWS = (
    "SELECT 'o' AS _topic, CAST(id % 2 AS INT) AS _partition, id AS _offset, 'r' AS _run, "
    "IF(id % 10 = 3, 'secret-a', IF(id % 10 = 4, 'secret-b', IF(id = 5, NULL, 'fine'))) AS name, "
    "IF(id = 7, double('NaN'), double(id)) AS n, array(id) AS many FROM range({rows})"
)


def judged(spark: SparkSession, folder: Path, *expectations: Mapping[str, Any], rows: int = 20, more: str = "",
           without: str = "") -> Judgement:  # fmt: skip
    folder.mkdir(exist_ok=True)
    frame = spark.sql(ROWS.format(rows=rows)).coalesce(1).drop(*without.split())
    judge = judge_of(folder, *expectations, run="r", quality=more)
    return judge.inspect(lambda: frame, rows, Counts(written=rows))


def pages(folder: Path) -> list[str]:
    """Return what Great Expectations wrote."""
    return [f.read_text() for f in folder.glob("quality/**/*") if f.suffix in (".html", ".json")]


NAMES = expect("column_values_to_be_in_set", column="name", value_set=["fine"])
SECRET = "secret"


def test_evidence_has_distinct_values_with_counts_and_offsets(spark: SparkSession, tmp_path: Path) -> None:
    judgement = judged(spark, tmp_path, NAMES, expect("column_values_to_not_be_null", "warning", column="name"))
    names, nulls = (r for r in judgement.results if not r.success)
    assert (judgement.verdict, names.unexpected_count, names.seen) == ("failed", 4, 4)
    assert names.values == [{"value": "secret-a", "count": 2}, {"value": "secret-b", "count": 2}]
    assert names.examples == ["secret-a", "secret-b"]
    assert [(r["topic"], r["partition"], r["offset"]) for r in names.records] == [
        ("o", 1, 3), ("o", 0, 4), ("o", 1, 13), ("o", 0, 14)
    ]  # fmt: skip
    assert str(names).endswith("values: 'secret-a' × 2, 'secret-b' × 2; offsets: o-0 4, 14; o-1 3, 13")
    assert str(nulls).endswith("values: null; offsets: o-1 5")

    validations = tmp_path / "quality" / "judged" / "gx" / "uncommitted"
    (page,) = validations.glob("data_docs/local_site/validations/**/*.html")
    assert "secret-a" in page.read_text()
    assert "3, 13" in page.read_text()


def test_evidence_shows_no_masked_values(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    suite = [NAMES, expect("column_values_to_be_unique", column="name"),
             expect("column_pair_values_to_be_equal", column_A="name", column_B="_topic"),
             expect("column_distinct_values_to_be_in_set", column="name", value_set=["fine"]),
             expect("column_max_to_be_between", column="_offset", max_value=3)]  # fmt: skip
    with caplog.at_level("INFO"):
        masked = judged(spark, tmp_path / "masked", *suite, more=", masked: [name]")
    files = pages(tmp_path / "masked")
    assert len(files) > 2
    assert [text for text in (json.dumps(masked.as_dict()), caplog.text, *files) if SECRET in text] == []
    broken = {r.expectation: r for r in masked.results if not r.success}
    assert len(broken) == 5
    assert (broken["expect_column_values_to_be_in_set"].unexpected_count, masked.verdict) == (4, "failed")
    assert [r["offset"] for r in broken["expect_column_values_to_be_in_set"].records] == [3, 4, 13, 14]
    assert broken["expect_column_max_to_be_between"].observed == 19, "another column is not masked"


@pytest.mark.long
def test_evidence_of_errors_masks_values(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Spark names the value that it cannot convert."""
    suite = [
        expect("column_pair_values_a_to_be_greater_than_b", column_A="_offset", column_B="name"),
        expect("column_value_z_scores_to_be_less_than", column="NAME", threshold=1, double_sided=False),
        expect("column_values_to_be_in_set", column="_offset", value_set=[1], row_condition="cast(name AS INT) > 3",
               condition_parser="spark"),
    ]  # fmt: skip
    with caplog.at_level("INFO"):
        masked = judged(spark, tmp_path / "masked", *suite, more=", masked: [name]")
    own = [record.getMessage() for record in caplog.records if record.name == "sluice"]  # Spark's say what they like
    assert own, "or this shows nothing"
    assert "The value" not in json.dumps(masked.as_dict()) + "".join(own + pages(tmp_path / "masked"))
    broken = {r.expectation: r.exception for r in masked.results if not r.success}
    assert broken["expect_column_values_to_be_in_set"] == "[CAST_INVALID_INPUT] (masked)"
    assert (len(broken), masked.verdict) == (3, "failed")
    shown = json.dumps(judged(spark, tmp_path / "shown", *suite).as_dict())
    assert "The value 'fine'" in shown, "or this shows nothing"


def test_evidence_that_cannot_be_had_leaves_the_verdict(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("no memory for secret-a")

    monkeypatch.setattr("sluice_spark.quality.judge.look", breaks)
    judgement = judged(spark, tmp_path / "a", NAMES)
    (broken,) = [r for r in judgement.results if not r.success]
    assert (judgement.verdict, judgement.error, broken.unexpected_count, broken.values) == ("failed", None, 4, [])
    assert "is not shown: RuntimeError: «no memory for secret-a»" in caplog.text
    caplog.clear()
    assert judged(spark, tmp_path / "b", NAMES, more=", masked: [name]").verdict == "failed"
    assert SECRET not in caplog.text


@pytest.mark.long
def test_evidence_of_many_rows_is_a_sample_and_without_offsets_values(spark: SparkSession, tmp_path: Path) -> None:
    judgement = judged(spark, tmp_path / "a", expect("column_values_to_be_between", column="n", max_value=-1), rows=300)
    (broken,) = [r for r in judgement.results if not r.success]
    assert (broken.unexpected_count, broken.seen, len(broken.values), len(broken.records)) == (300, 100, 10, 10)
    assert "(the first 100 rows of 300)" in str(broken)
    assert str(broken).endswith(", …")

    bare = judged(spark, tmp_path / "b", NAMES, without="_topic _partition _offset")
    (broken,) = [r for r in bare.results if not r.success]
    assert (broken.examples, broken.records) == (["secret-a", "secret-b"], [])


@pytest.mark.long
def test_evidence_has_values_of_several_columns_and_of_any_type(spark: SparkSession, tmp_path: Path) -> None:
    suite = [expect("column_pair_values_to_be_equal", column_A="name", column_B="_topic"),
             expect("compound_columns_to_be_unique", column_list=["_topic", "_run"]),
             expect("column_values_to_be_null", column="many"),
             expect("column_values_to_be_between", column="_offset", max_value=18)]  # fmt: skip
    judgement = judged(spark, tmp_path, *suite)
    pair, compound, nested, offset = (r for r in judgement.results if not r.success)
    assert pair.values[0] == {"value": ["fine", "o"], "count": 15}
    assert compound.values == [{"value": {"_topic": "o", "_run": "r"}, "count": 20}]
    assert nested.examples[:2] == [[0], [1]]
    assert (offset.examples, offset.records) == ([19], [{"topic": "o", "partition": 1, "offset": 19}])
    assert judgement.data_docs is not None
