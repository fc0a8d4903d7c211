"""Judging: the verdict, what it rests on, and what it must never let pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.spec import load
from sluice_spark.quality.data_docs import prune
from sluice_spark.quality.judge import Judge
from sluice_spark.quality.judgement import Judgement
from sluice_spark.sinks.delta import DeltaSink

pytestmark = pytest.mark.spark

_PIPELINE = """\
pipeline: judged
source: {kafka: {topics: [judged]}}
decode: {text: {}}
sink: {delta: {path: judged}}
quality: {suite: suite.json}
"""


def _expect(kind: str, severity: str = "critical", scope: str = "slice", **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": kwargs, "severity": severity, "meta": {"scope": scope}}


class Court:
    """A table with rows of run ``old`` and of run ``new``, and a suite to judge them by."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.sink = DeltaSink(str(folder / "judged"), "court")
        self.write("old", [("a", 1), ("b", 2)])
        self.write("new", [("c", 3), (None, 4), ("e", 500)])

    def write(self, run: str, rows: list[tuple[str | None, int]]) -> None:
        frame = self.spark.createDataFrame([(*r, run) for r in rows], "name STRING, n INT, _run STRING").coalesce(1)
        staged = self.sink.stage(frame, run, offsets=False)
        self.sink.commit(staged, frame.schema, self.sink.version() + 1, {"run": run})

    def judge(self, *expectations: dict[str, Any], runs: tuple[str, ...] = ("new",)) -> Judgement:
        (self.folder / "suite.json").write_text(json.dumps({"name": "s", "expectations": list(expectations)}))
        (self.folder / "judged.yaml").write_text(_PIPELINE)
        judge = Judge(load(self.folder / "judged.yaml"), Home(str(self.folder)), runs[-1])
        return judge.judge(self.spark, self.sink, runs)


@pytest.fixture(scope="module")
def court(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Court:
    return Court(spark, tmp_path_factory.mktemp("court"))


def test_it_judges_exactly_the_rows_of_the_run(court: Court) -> None:
    assert court.judge(_expect("column_values_to_not_be_null", column="name"), runs=("old",)).verdict == "passed"
    failed = court.judge(_expect("column_values_to_not_be_null", column="name"))
    assert (failed.verdict, failed.rows) == ("failed", 3)
    both = court.judge(_expect("column_values_to_be_between", column="n", max_value=1000), runs=("old", "new"))
    assert (both.verdict, both.rows) == ("passed", 5)


def test_a_failure_comes_with_counts_and_examples(court: Court) -> None:
    judgement = court.judge(_expect("column_values_to_be_between", column="n", min_value=0, max_value=100))
    (broken,) = [r for r in judgement.results if not r.success]
    assert (broken.column, broken.unexpected_count, broken.examples) == ("n", 1, [500])
    assert broken.unexpected_percent == pytest.approx(100 / 3)
    assert str(broken).endswith("on n (slice): 1 unexpected (33.33 %), such as 500")
    assert json.loads(json.dumps(judgement.as_dict()))["success"] is False


def test_a_warning_warns(court: Court) -> None:
    judgement = court.judge(_expect("column_values_to_not_be_null", "warning", column="name"))
    assert judgement.verdict == "warned"


def test_table_level_expectations_see_all_rows(court: Court) -> None:
    slice_only = court.judge(_expect("column_values_to_be_between", column="n", min_value=3))
    assert slice_only.verdict == "passed"
    whole = court.judge(_expect("column_values_to_be_between", scope="table", column="n", min_value=3))
    (broken,) = [r for r in whole.results if not r.success]
    assert (whole.verdict, broken.scope, broken.unexpected_count) == ("failed", "table", 2)


def test_an_expectation_that_cannot_be_evaluated_fails_even_as_a_warning(court: Court) -> None:
    judgement = court.judge(_expect("column_values_to_not_be_null", "warning", column="no_such_column"))
    assert judgement.verdict == "failed"
    assert any(r.exception for r in judgement.results)


def test_rows_that_the_log_counts_and_nobody_can_read_are_no_pass(court: Court, tmp_path: Path) -> None:
    hollow = Court(court.spark, tmp_path)
    (file,) = (tmp_path / "judged").glob("batches/new-*/*.parquet")
    (other,) = (tmp_path / "judged").glob("batches/old-*/*.parquet")
    file.write_bytes(other.read_bytes())  # the slice has gone; every map expectation passes on an empty batch
    judgement = hollow.judge(_expect("column_values_to_not_be_null", column="name"))
    assert judgement.verdict in ("failed", "error")


def test_judging_that_breaks_is_an_error_not_a_pass(court: Court, tmp_path: Path) -> None:
    gone = Court(court.spark, tmp_path)
    for file in (tmp_path / "judged").glob("batches/*/*.parquet"):
        file.unlink()
    judgement = gone.judge(_expect("column_values_to_not_be_null", column="name"))
    assert judgement.verdict in ("failed", "error")


def test_data_docs_are_built(court: Court) -> None:
    judgement = court.judge(_expect("column_values_to_not_be_null", column="n"))
    assert judgement.data_docs is not None
    assert Path(judgement.data_docs).is_file()


def test_data_docs_gain_the_pages_of_the_run_alone(spark: SparkSession, tmp_path: Path) -> None:
    own = Court(spark, tmp_path)
    site = tmp_path / "quality" / "judged" / "gx" / "uncommitted" / "data_docs" / "local_site"
    expectation = _expect("column_values_to_not_be_null", column="n")
    own.judge(expectation, runs=("old",))
    (first,) = site.glob("validations/judged-slice/old/**/*.html")
    first.write_text("as it was")
    own.judge(expectation, _expect("column_values_to_not_be_null", scope="table", column="n"), runs=("new",))
    assert first.read_text() == "as it was"
    for page in ("validations/judged-slice/new", "validations/judged-table/new"):
        assert len(list((site / page).glob("**/*.html"))) == 1
    assert {p.stem for p in (site / "expectations").glob("*.html")} == {"judged-slice", "judged-table"}
    index = (site / "index.html").read_text()
    assert all(f"{name}/{run}/" in index for name, run in (("judged-slice", "old"), ("judged-slice", "new")))


def test_a_failed_run_has_a_page_that_shows_examples(court: Court) -> None:
    judgement = court.judge(_expect("column_values_to_be_between", column="n", max_value=100), runs=("old", "new"))
    site = Path(str(judgement.data_docs)).parent
    assert any("500" in page.read_text() for page in site.glob("validations/judged-slice/new/**/*.html"))


def test_without_an_expectation_on_the_table_its_other_rows_are_not_looked_at(
    spark: SparkSession, tmp_path: Path
) -> None:
    own = Court(spark, tmp_path)
    for file in (tmp_path / "judged").glob("batches/old-*/*.parquet"):
        file.unlink()
    assert own.judge(_expect("column_values_to_not_be_null", column="n")).verdict == "passed"


def test_data_docs_do_not_grow_without_end(tmp_path: Path) -> None:
    results = tmp_path / "gx" / "uncommitted" / "validations" / "suite"
    for number in range(5):
        (results / f"run-{number}").mkdir(parents=True)
    prune(tmp_path, keep=2)
    assert len(list(results.iterdir())) == 2


@pytest.mark.parametrize("text", ["", "[]", '{"expectations": [{"type": 1}]}', '{"name": "x"}'])
def test_a_file_that_is_no_suite_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text(text)
    (tmp_path / "judged.yaml").write_text(_PIPELINE)
    with pytest.raises(ConfigError, match=r"suite\.json is not a Great Expectations suite"):
        Judge(load(tmp_path / "judged.yaml"), Home(str(tmp_path)), "r")
