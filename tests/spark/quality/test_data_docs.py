"""Data Docs: pages of the run, with examples, and not without end."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import jinja2
import pytest
from pyspark.sql import SparkSession
from tests.spark.quality.conftest import Court, expect

from sluice_spark.quality.data_docs import prune

pytestmark = pytest.mark.spark


def test_data_docs_get_the_pages_of_the_run_alone_and_compile_templates_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Court(spark, tmp_path)
    site = tmp_path / "quality" / "judged" / "gx" / "uncommitted" / "data_docs" / "local_site"
    expectation = expect("column_values_to_not_be_null", column="n")
    table = expect("column_values_to_not_be_null", scope="table", column="n")
    own.judge(expectation, runs=("old",))
    (first,) = site.glob("validations/judged-slice/old/**/*.html")
    first.write_text("as it was")
    monkeypatch.setattr(jinja2.Environment, "compile", mock.Mock(side_effect=AssertionError("compiled again")))
    assert own.judge(expectation, table, runs=("new",)).data_docs is not None
    assert first.read_text() == "as it was"
    for page in ("validations/judged-slice/new", "validations/judged-table/new"):
        assert len(list((site / page).glob("**/*.html"))) == 1
    assert {p.stem for p in (site / "expectations").glob("*.html")} == {"judged-slice", "judged-table"}
    index = (site / "index.html").read_text()
    assert all(f"{name}/{run}/" in index for name, run in (("judged-slice", "old"), ("judged-slice", "new")))
    (project,) = tmp_path.glob("quality/*/gx/great_expectations.yml")
    assert "sluice" not in project.read_text(), "readers of the project need not have this package"


def test_data_docs_are_built_without_a_folder_for_templates(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja2.FileSystemBytecodeCache, "_get_default_cache_dir", mock.Mock(side_effect=RuntimeError))
    assert court.judge(expect("column_values_to_not_be_null", column="n")).data_docs is not None


def test_data_docs_show_examples_of_a_failed_run(court: Court) -> None:
    judgement = court.judge(expect("column_values_to_be_between", column="n", max_value=100), runs=("old", "new"))
    assert judgement.rows == 5
    site = Path(str(judgement.data_docs)).parent
    assert any("500" in page.read_text() for page in site.glob("validations/judged-slice/new/**/*.html"))


def test_data_docs_keep_a_number_of_runs(tmp_path: Path) -> None:
    results = tmp_path / "gx" / "uncommitted" / "validations" / "suite"
    for number in range(5):
        (results / f"run-{number}").mkdir(parents=True)
    prune(tmp_path, keep=2)
    assert len(list(results.iterdir())) == 2
