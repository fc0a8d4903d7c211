"""Judging: the verdict, what it rests on, what it must never let pass, and the pages that show it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import jinja2
import pytest
from pyspark.sql import SparkSession
from tests.spark.quality.conftest import PIPELINE, Court, expect, judge_of

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.ledger.events import RunPlanned, batch_committed
from sluice.pipeline import load
from sluice.pipeline.suite import Suite
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice.run.verdict import faults
from sluice_spark.quality.data_docs import prune
from sluice_spark.quality.gx_project import open_project, unevaluated
from sluice_spark.quality.judge import Judge
from sluice_spark.quality.shuffle import few_shares
from sluice_spark.runs import checks
from sluice_spark.sinks.delta.table import DeltaSink

pytestmark = pytest.mark.spark

BETWEEN, QUANTILE = "column_values_to_be_between", "column_quantile_values_to_be_between"
UNIQUE, NUL = "column_values_to_be_unique", expect("column_values_to_be_nul", column="value")


def test_judge_evaluates_each_expectation_on_the_rows_of_its_scope(court: Court) -> None:
    """The rows of the run have 3, 4 and 500, those of another one 1 and 2."""
    not_null = expect("column_values_to_not_be_null", column="name")
    judgement = court.judge(
        not_null,
        expect(BETWEEN, column="n", min_value=3),
        expect(BETWEEN, column="n", min_value=0, max_value=100),
        expect(BETWEEN, scope="table", column="n", min_value=3),
        *(expect(QUANTILE, column="n", quantile_ranges={"quantiles": [0.5], "value_ranges": [[None, most]]})
          for most in (500, 0)),
    )  # fmt: skip
    assert (judgement.verdict, judgement.error, judgement.rows) == ("failed", None, 3)
    found = Counter((r.scope, r.expectation.removeprefix("expect_"), r.success) for r in judgement.results)
    assert found == Counter(
        [("slice", "table_row_count_to_equal", True), ("slice", "column_values_to_not_be_null", False),
         ("slice", BETWEEN, True), ("slice", BETWEEN, False), ("table", BETWEEN, False), ("slice", QUANTILE, True),
         ("slice", QUANTILE, False)]
    )  # fmt: skip
    assert [r.unexpected_count for r in judgement.results if r.scope == "table"] == [2]
    (broken,) = (r for r in judgement.results if r.examples == [500])
    assert (broken.column, broken.unexpected_count) == ("n", 1)
    assert broken.unexpected_percent == pytest.approx(100 / 3)
    assert str(broken).endswith("on n (slice): between 0 and 100, 1 unexpected (33.33 %); values: 500")
    assert json.loads(json.dumps(judgement.as_dict()))["success"] is False
    old = court.judge(not_null, runs=("old",))
    assert (old.verdict, old.rows) == ("passed", 2)


def test_judge_recognizes_an_accepted_fault_by_the_arguments_of_the_suite(court: Court) -> None:
    """As many values break another bound: that is another fault."""
    suite = [expect(BETWEEN, column="n", max_value=most) for most in (100, 200)]
    before, again = (faults(court.judge(*suite).as_dict()) for _ in range(2))
    assert (list(before.values()), before) == ([1, 1], again)


def test_judge_fails_what_cannot_be_evaluated(court: Court) -> None:
    judgement = court.judge(expect("column_values_to_not_be_null", "warning", column="no_such_column"))
    assert judgement.verdict == "failed"
    assert any(r.exception for r in judgement.results)


_MISSPELT = [
    (expect("column_values_to_not_be_nul", column="name"), "expect_column_values_to_not_be_null"),
    (expect("column_values_to_not_be_null", column="name", mostyl=0.5), "'mostly'"),
    (expect("column_values_to_not_be_null", column="name", mostly=5), "1.0"),
    (expect("column_values_to_not_be_null"), "column"),
    (expect("column_values_to_be_between", column="n"), "min_value"),
    (expect("column_values_to_be_in_set", column="n", value_set="abc"), "value_set"),
]
_UNJUDGED = [
    (expect("column_values_to_match_like_pattern", column="name", like_pattern="a%"), "on Spark"),
    (expect("column_max_to_be_between", column="n", max_value="2026-01-01T20:00:00Z"), "without a zone"),
]


def test_judge_does_not_pass_an_expectation_that_cannot_be_built(court: Court) -> None:
    right = expect("column_values_to_not_be_null", column="n")
    for wrong, _ in _MISSPELT:
        judgement = court.judge(right, wrong)
        assert (judgement.verdict, bool(judgement.reasons)) == ("error", True), wrong
    every = [*_MISSPELT, *_UNJUDGED]
    with pytest.raises(ConfigError, match=r"suite\.json") as caught:
        court.judge_of(right, *(wrong for wrong, _ in every)).check()
    tokens = [token for n, (_, why) in enumerate(every, 2) for token in (f"expectation {n}", why)]
    assert [token for token in tokens if token not in caught.value.what] == []


def test_judge_builds_a_suite_once(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    right = expect("column_values_to_not_be_null", column="n", mostly=0.5)
    court.judge_of(right).check()
    with monkeypatch.context() as patched:
        patched.setattr("sluice_spark.quality.judge.problems_of", lambda suite: pytest.fail("was asked again"))
        court.judge_of(right).check()
    with pytest.raises(ConfigError):
        court.judge_of(right, expect("column_values_to_be_nothing", column="n")).check()


def test_judge_refuses_a_column_that_the_rows_do_not_have(court: Court) -> None:
    judge = court.judge_of(expect("column_values_to_not_be_null", scope="table", column="nmae"))
    judge.check_columns(["name", "nmae"])
    with pytest.raises(ConfigError, match="nmae"):
        judge.check_columns(["name", "n"])
    masking = court.judge_of(expect("column_values_to_not_be_null", column="n"), quality=", masked: [nmae]")
    with pytest.raises(ConfigError, match="masked"):
        masking.check_columns(["name", "n"])


def test_judge_judges_and_records_values_that_are_no_numbers(court: Court, tmp_path: Path) -> None:
    spark, sink = court.spark, DeltaSink(str(tmp_path / "judged"), "court")
    values = "array(double('NaN'), double('Infinity'), double('Infinity'), double('-Infinity'), 1.0D)"
    frame = spark.sql(
        f"SELECT explode({values}) AS n, 'a\\0b' AS name, X'00FF' AS raw, CAST('-0044-01-01' AS DATE) AS day, "
        "'new' AS _run"
    ).coalesce(1)  # fmt: skip
    sink.commit(sink.stage(frame, "new", offsets=False), frame.schema, 0, {"run": "new"})
    kinds = ["min", "max", "mean", "sum", "stdev", "median"]
    expectations = [expect(f"column_{kind}_to_be_between", column="n", min_value=5, max_value=6) for kind in kinds]
    expectations += [
        expect("column_values_to_be_between", column="n", min_value=5),
        expect("column_values_to_be_in_set", column="name", value_set=["x"]),
        expect("column_distinct_values_to_be_in_set", column="n", value_set=[1.0]),
        expect("column_values_to_be_null", column="raw"),
        expect("column_values_to_be_null", column="day"),
    ]  # fmt: skip
    judgement = judge_of(tmp_path, *expectations).judge(spark, sink, ["new"])
    assert judgement.verdict == "failed", judgement.error
    assert len(judgement.results) == len(expectations) + 1
    by_kind = {r.expectation: r for r in judgement.results}
    assert by_kind["expect_column_median_to_be_between"].observed == "Infinity"
    assert any("a\\x00b" in r.examples for r in judgement.results)
    json.dumps(judgement.as_dict(), allow_nan=False)


def _ledger(folder: Path, run: str, interval: int = 0, **counts: int) -> Ledger:
    ledger = Ledger.open(f"sqlite:///{folder}/ledger.db")
    with ledger.acquire("judged", run) as lease:
        account = RangeAccount(OffsetRange("t", 0, 0, sum(counts.values())), Counts(**counts))
        epoch, key = (-1, "2013-01-01T00:00:00Z/2013-01-02T00:00:00Z") if interval else (1, None)
        known: Any = {"kind": "live", "recovery": "replay", "topic_ids": {"t": "i"}, "interval": key}
        replaced = {account.range: (interval, 0)} if interval else None
        ledger.record(lease, RunPlanned(epoch=epoch, ranges=[account.range], **known))
        ledger.record(lease, *batch_committed(epoch, 0, [account], replaced=replaced))
    return ledger


@pytest.mark.parametrize(
    ("counts", "verdict"), [({"quarantined": 5}, "failed"), ({"lost": 5}, "warned"), ({"filtered": 5}, "empty")]
)
def test_judge_needs_no_spark_for_a_run_that_wrote_nothing(
    court: Court, tmp_path: Path, counts: dict[str, int], verdict: str
) -> None:
    judge = court.judge_of(expect("column_min_to_be_between", column="n", min_value=0))
    ledger = _ledger(tmp_path, "new", **counts)
    assert judge.settle(ledger, lambda: pytest.fail("a session"), court.sink, ["new"]).verdict == verdict


def test_judge_judges_an_interval_that_only_lost_rows_by_the_table(court: Court, tmp_path: Path) -> None:
    slice_alone = expect("column_min_to_be_between", column="n", min_value=0)  # cannot hold of no rows
    whole = expect("column_values_to_be_between", scope="table", column="n", max_value=100)
    ledger = _ledger(tmp_path, "none", interval=4, filtered=5)
    own = court.judge_of(slice_alone).settle(ledger, lambda: court.spark, court.sink, ["none"])
    assert (own.verdict, len(own.results)) == ("empty", 1)
    judged = court.judge_of(slice_alone, whole).settle(ledger, lambda: court.spark, court.sink, ["none"])
    assert (judged.verdict, len(judged.results)) == ("failed", 2)


def test_judge_reports_a_session_that_cannot_be_had_as_an_error(court: Court, tmp_path: Path) -> None:
    def gone() -> SparkSession:
        raise ConnectionRefusedError("no JVM")

    judgement = court.judge_of().settle(_ledger(tmp_path, "new", written=3), gone, court.sink, ["new"])
    assert (judgement.verdict, "no JVM" in judgement.reasons[0]) == ("error", True)


@pytest.mark.parametrize(
    ("keys", "suite", "problems"),
    [
        ({}, [], []),
        ({}, [expect("column_values_to_not_be_null", column="_run")], []),
        ({"transform": "{sql: SELEC * FROM source}"}, [NUL], ["PARSE_SYNTAX_ERROR", "expect_column_values_to_be_null"]),
        (
            {},
            [{"type": "expect_column_values_to_be_unique"}, NUL | {"severity": "fatal"}, expect(UNIQUE, column="valu")],
            ["line 1: expectation 1 ", "'fatal'", "expect_column_values_to_be_null", "'valu'"],
        ),
        ({}, [expect("column_values_to_be_between", column="value", min_value=5, max_value=1)], ["min_value 5 is"]),
        ({"sink": "{delta: {path: judged, partition_by: [valu]}}"}, [], ["sink.delta.partition_by"]),
        ({"also": "[{delta: {path: copied, partition_by: [valu]}}]"}, [], ["also[0].delta.partition_by"]),
        ({"transform": "{sql: 'SELECT *, 1 AS total FROM source'}"}, [expect(UNIQUE, column="totl")], ["'totl'"]),
        ({"quality": "{profiled: [value.a], history: {columns: {valu: [nulls]}}}"}, [], ["quality.history.columns"]),
    ],
)
def test_validate_spec_checks_a_pipeline_without_a_record(
    spark: SparkSession, tmp_path: Path, keys: dict[str, str], suite: list[dict[str, Any]], problems: list[str]
) -> None:
    (tmp_path / "suite.json").write_text(json.dumps({"expectations": suite}))
    lines = [line for line in PIPELINE.splitlines() if line.partition(":")[0] not in keys]
    (tmp_path / "judged.yaml").write_text("\n".join([*lines, *(f"{k}: {v}" for k, v in keys.items())]))
    found = list(checks.problems(spark, load(tmp_path / "judged.yaml")))
    assert len(found) == len(problems), found
    assert all(p in f for p, f in zip(problems, found, strict=True)), found


@pytest.mark.parametrize("damage", ["hollow", "gone"])
def test_judge_does_not_pass_rows_that_cannot_be_read(court: Court, tmp_path: Path, damage: str) -> None:
    own = Court(court.spark, tmp_path)
    (new,) = (tmp_path / "judged").glob("batches/new-*/*.parquet")
    (old,) = (tmp_path / "judged").glob("batches/old-*/*.parquet")
    if damage == "gone":
        new.unlink()
        old.unlink()
    else:
        new.write_bytes(old.read_bytes())  # the slice has gone; every map expectation passes on an empty batch
    assert own.judge(expect("column_values_to_not_be_null", column="name")).verdict in ("failed", "error")


def test_judge_reads_no_other_rows_without_an_expectation_on_the_table(spark: SparkSession, tmp_path: Path) -> None:
    own = Court(spark, tmp_path)
    for file in (tmp_path / "judged").glob("batches/old-*/*.parquet"):
        file.unlink()
    assert own.judge(expect("column_values_to_not_be_null", column="n")).verdict == "passed"


@pytest.mark.parametrize("text", ["", "[]", '{"expectations": [{"type": 1}]}', '{"name": "x"}'])
def test_judge_refuses_a_file_that_is_no_suite(text: str, tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text(text)
    (tmp_path / "judged.yaml").write_text(PIPELINE)
    with pytest.raises(ConfigError, match=r"suite\.json"):
        Judge(load(tmp_path / "judged.yaml"), Home(str(tmp_path)), "r")


def test_judge_reads_the_projects_file_of_variables_only_if_it_has_any(tmp_path: Path) -> None:
    """Great Expectations reads it for each of its own settings."""
    for _ in range(2):
        found = open_project(tmp_path)
        assert found.variables.config_variables_file_path is None
        assert found.variables.progress_bars == {"globally": False}
    (tmp_path / "gx/uncommitted/config_variables.yml").write_text("# own\nplace: here\n")
    found.variables.config_variables_file_path = "uncommitted/config_variables.yml"
    found.variables.save()
    assert [open_project(tmp_path).config_variables.get("place") for _ in range(2)] == ["here", "here"]


OWN = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"


@pytest.mark.parametrize(
    ("rows", "most", "own", "wanted"),
    [
        (10, "200", None, "8"),
        (500_000, "200", None, "20"),
        (5_000_000, "200", None, None),
        (10, "4", None, None),
        (10, "200", "50", "8"),
        (10, "200", "4", "4"),
    ],
)
def test_judge_shuffles_in_few_shares_and_restores_the_setting(
    spark: SparkSession, rows: int, most: str, own: str | None, wanted: str | None
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", most)
    if own is not None:
        session.conf.set(OWN, own)
    with few_shares(session, rows):
        assert session.conf.get(OWN, None) == wanted
    assert session.conf.get(OWN, None) == own


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


def test_expectation_that_spark_cannot_evaluate_is_named_alone_and_before_a_run(court: Court) -> None:
    regex = expect("column_values_to_match_regex", column="name", regex="([")
    when = expect("column_values_to_not_be_null", column="n", row_condition="n >", condition_parser="spark")
    sound = [expect("column_values_to_match_regex", column="name", regex="^."), expect(UNIQUE, column="n")]
    sound += [expect(QUANTILE, column="n", quantile_ranges={"quantiles": [0.5], "value_ranges": [[None, 500]]})]
    judgement = court.judge(regex, when, *sound)
    errors = {str(r.arguments): r.exception for r in judgement.results if r.exception}
    assert len(errors) == 2
    assert {text.partition(" ")[0] for text in errors.values()} == {
        "java.util.regex.PatternSyntaxException:", "[PARSE_SYNTAX_ERROR]",
    }  # fmt: skip
    suite = Suite(Path("s.json"), "s", tuple(json.loads(json.dumps([regex, when, *sound]))))
    schema = court.spark.createDataFrame([], "name STRING, n INT, _run STRING").schema
    told = [line.partition(" (")[0] for line in unevaluated(court.spark, suite, schema)]
    assert told == ["expectation 1", "expectation 2"]
