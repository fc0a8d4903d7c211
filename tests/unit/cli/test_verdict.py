"""``sluice verdict``, ``accept``, ``validate`` and ``profile``: judgements of runs, holds, and their rows."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from tests.fixtures.books import Place, span, split
from tests.fixtures.ledgers import attempt
from tests.unit.cli.conftest import Sluice

from sluice.cli.run import ended
from sluice.errors import ConfigError, ExitCode, HeldError, QualityError
from sluice.facts.profile import NO_ROWS, ColumnProfile, Profile
from sluice.launch.launcher import Interrupted, LocalProcess
from sluice.launch.submit import SparkSubmit
from sluice.ledger import UnknownRunError
from sluice.ledger.events import Judged
from sluice.pipeline import load
from sluice.run.actions import Validate
from sluice.run.baseline import Check, Finding

JUDGEMENT: dict[str, Any] = {
    "suite": "demo", "rows": 7, "data_docs": "/docs/index.html", "error": None, "reasons": ["id: 3 unexpected"],
    "results": [
        {"expectation": "expect_warned", "column": "w", "severity": "warning", "success": False, "scope": "slice",
         "unexpected_count": 1, "unexpected_percent": 10.0, "examples": ["maybe"], "exception": None},
        {"expectation": "expect_failed", "column": "id", "severity": "critical", "success": False, "scope": "slice",
         "unexpected_count": 3, "unexpected_percent": 42.857, "examples": ["<a>"], "exception": None, "seen": 3,
         "values": [{"value": "<a>", "count": 3}], "records": [{"topic": "t", "partition": 0, "offset": 4}]},
        {"expectation": "expect_fine", "column": None, "severity": "critical", "success": True, "scope": "table",
         "unexpected_count": None, "unexpected_percent": None, "examples": [], "exception": None},
    ],
    "excesses": [{"limit": "max_quarantined", "verdict": "failed", "why": "98 of 100 records are in quarantine"}],
}  # fmt: skip


@pytest.fixture
def judged(place: Place) -> Place:
    """Run ``a`` failed; run ``b``, the newest, has no verdict."""
    place.commit("a", split(0, 5))
    place.ledger.decide("p", "a", Judged(verdict="failed", judgement=JUDGEMENT))
    place.commit("b", split(5, 9))
    return place


def test_verdict_shows_failures_before_warnings(judged: Place, sluice: Sluice) -> None:
    said = sluice("verdict", "p")
    assert said.stderr.index("expect_failed") < said.stderr.index("expect_warned")
    assert [line.split()[0] for line in said.stdout.splitlines()[1:]] == [
        "expect_warned", "expect_failed", "expect_fine",
    ]  # fmt: skip
    sluice("accept", "p", "a", "--reason", "known gap", "--json")
    found = sluice("verdict", str(judged.file), "a", "--json").json
    assert (found["run"], found["verdict"], found["accepted"]) == ("a", "failed", "known gap")
    assert found["results"] == JUDGEMENT["results"]
    assert "known gap" in sluice("verdict", "p").stderr
    sluice.recorded("verdict")


def test_verdict_shows_a_history_and_its_unjudged_figures(judged: Place, sluice: Sluice) -> None:
    checks = [Check("nulls", "amount", 0.5, 0, -0.003, 0.003, 20), Check("max", "amount", 9.5, 9, 8, 10, 20)]
    unknown = {"history.mean(tax)": "3 accepted runs have it, and 10 are needed"}
    history = Finding(20, 10, tuple(checks), unknown).as_dict()
    excess = {"limit": "history.nulls(amount)", "verdict": "warned", "why": checks[0].why}
    judged.ledger.decide("p", "a", Judged(verdict="warned", judgement={"excesses": [excess], "history": history}))
    assert sluice("verdict", "p", "a").exit_code == 0
    sluice.recorded("verdict")


def test_verdict_of_a_run_without_one_is_no_error(judged: Place, sluice: Sluice) -> None:
    done = sluice("verdict", "p", "b")
    assert (done.exit_code, "sluice validate p b" in done.stderr) == (0, True)
    assert isinstance(sluice("verdict", "p", "c").error, UnknownRunError)
    assert sluice("verdict", "p", "b", "--json").json["verdict"] is None


def test_verdict_outlives_an_attempt_that_dies_before_it_is_judged(judged: Place, sluice: Sluice) -> None:
    with attempt(judged.ledger, "a", state="failed"):
        pass
    for asked in (("p",), ("p", "a")):
        found = sluice("verdict", *asked, "--json").json
        assert (found["run"], found["verdict"]) == ("a", "failed")


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections, and no jars, for applications that are not started."""
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", '{"conn_type": "kafka", "extra": {"bootstrap.servers": "b:1"}}')
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    monkeypatch.setattr("sluice.launch.submit.jars.paths", lambda _set: [])


@pytest.mark.parametrize(
    ("verdict", "on_failed", "code"),
    [("passed", "hold", ExitCode.DONE), ("failed", "hold", ExitCode.QUALITY_FAILED), ("failed", "warn", ExitCode.DONE)],
)
def test_validate_ends_with_the_code_of_the_new_verdict(
    held: Place, sluice: Sluice, spark: None, monkeypatch: pytest.MonkeyPatch, verdict: str, on_failed: str, code: int
) -> None:
    held.configure(quality={"on_failed": on_failed})
    started: list[list[str]] = []

    def judge(submission: SparkSubmit) -> int:
        started.append(submission.argv())
        held.ledger.decide("p", "a", Judged(verdict=verdict, judgement={}))
        return int(ExitCode.DONE if verdict == "passed" else ExitCode.QUALITY_FAILED)

    monkeypatch.setattr(LocalProcess, "start", staticmethod(judge))
    done = sluice("validate", str(held.file), "a", "--json")
    assert (done.exit_code, done.json["verdict"]) == (code, verdict)
    assert started[0][-3:] == [str(held.file), *Validate("a").arguments()]


def test_validate_refuses_unknown_runs_and_batches_that_wait(held: Place, sluice: Sluice, spark: None) -> None:
    assert isinstance(sluice("validate", str(held.file), "b").error, UnknownRunError)
    held.ledger.decide("p", "a", Judged(verdict="failed", judgement={"waits": [1, 1]}))
    assert isinstance(sluice("validate", str(held.file), "a").error, ConfigError)
    with attempt(held.ledger, "dead", span(20, 30), state="abandoned"):
        pass
    assert "committed nothing" in str(sluice("validate", str(held.file), "dead").error)
    assert "judges" not in sluice("verdict", str(held.file), "dead").stderr
    sluice.recorded("validate")


def test_validate_that_is_interrupted_changes_no_verdict(
    held: Place, sluice: Sluice, spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_submission: SparkSubmit) -> int:
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(LocalProcess, "start", staticmethod(interrupt))
    assert sluice("validate", str(held.file), "a").exit_code == 130
    row = held.ledger.runs.known("p", "a")
    assert (row.state, row.verdict) == ("done", "failed")
    sluice.recorded("validate")


def test_run_refuses_a_held_pipeline_before_spark_starts(held: Place, sluice: Sluice) -> None:
    assert isinstance(sluice("run", str(held.file)).error, HeldError)
    assert [run.run for run in held.ledger.runs.newest("p")] == ["a"], "each hour's refusal is no run"
    sluice.recorded("run")


def test_status_knows_a_held_pipeline_by_its_file(held: Place, sluice: Sluice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_PIPELINES")
    monkeypatch.chdir("/")
    assert "p is held" in sluice("status", str(held.file)).stderr


@pytest.mark.parametrize("kind", ["live", "interval", "redrive"])
def test_failed_verdict_says_that_live_runs_wait_only_where_they_do(judged: Place, sluice: Sluice, kind: str) -> None:
    judged.configure(quality={"on_failed": "hold"})
    with attempt(judged.ledger, "c", span(20, 30), kind=kind, state="done"):
        pass
    judged.ledger.decide("p", "c", Judged(verdict="failed", judgement=JUDGEMENT))
    with pytest.raises(QualityError) as failed:
        ended(load(judged.file), "c", ExitCode.DONE, as_json=False)
    assert ("live runs wait" in failed.value.state, "sluice accept" in failed.value.next_step) == (kind == "live",) * 2


def test_accept_ends_the_hold(held: Place, sluice: Sluice) -> None:
    assert (held.holds(), "is held" in sluice("status", "p").stderr) == ("a", True)
    assert sluice("accept", "p", "a", "--reason", "known gap").exit_code == 0
    assert (held.holds(), "is held" in sluice("status", "p").stderr) == (None, False)
    again = sluice("accept", "p", "a", "--reason", "another reason", "--json").json
    assert again == {"pipeline": "p", "run": "a", "verdict": "failed", "accepted": "known gap"}
    sluice.recorded("accept")


def test_accept_says_that_a_waiting_batch_is_published_next(held: Place, sluice: Sluice) -> None:
    judgement = {"reasons": ["id: 3 unexpected"], "waits": [1, 7]}
    held.ledger.decide("p", "a", Judged(verdict="failed", judgement=judgement))
    assert "batch 7" in sluice("accept", "p", "a", "--reason", "fine").stderr
    sluice.recorded("accept")


def test_accept_begins_a_new_normal(held: Place, sluice: Sluice) -> None:
    asked = ("accept", "p", "a", "--reason", "a new shop", "--new-normal")
    assert sluice(*asked).exit_code == 0
    assert held.ledger.profiles.normal_since("p") == ("a", "a new shop")
    assert "a new shop" in sluice("status", "p").stderr
    assert sluice(*asked, "--json").json["new_normal"] is True
    sluice.recorded("accept")


def test_status_does_not_name_a_retraction_that_the_sink_refuses(held: Place, sluice: Sluice) -> None:
    assert "sluice retract" in sluice("status", "p").stderr
    held.configure(quality={"on_failed": "hold"}, sink={"console": {}})
    said = sluice("status", "p").stderr
    assert ("sluice accept" in said, "sluice retract" in said) == (True, False)


def test_accept_refuses_a_verdict_that_did_not_fail(held: Place, sluice: Sluice) -> None:
    held.ledger.decide("p", "a", Judged(verdict="passed", judgement={}))
    assert sluice("accept", "p", "a", "--reason", "x").exit_code == ExitCode.CONFIG
    sluice.recorded("accept")


def profile(rows: int, nulls: int) -> Profile:
    amount = ColumnProfile(rows, nulls, "decimal", "-1.00", "99.50", 10.0 * rows, rows - nulls)
    at = ColumnProfile(rows, 0, "time", "2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.123456Z")
    name = ColumnProfile(rows, 0, sketch=(1, 2, 3))
    return Profile(rows, {"amount": amount, "placed_at": at, "name": name})


@pytest.fixture
def profiled(place: Place) -> Place:
    place.commit("old", split(0, 5))
    place.commit("a", split(5, 9), facts=[profile(4, 1)])
    place.commit("b", split(9, 13), facts=[profile(4, 0)])
    place.commit("c", split(13, 20, filtered=7), facts=[NO_ROWS])
    return place


def test_profile_shows_the_newest_run_that_wrote_rows_and_a_column_run_by_run(profiled: Place, sluice: Sluice) -> None:
    done = sluice("profile", "p")
    assert done.stderr.startswith("run b of p")
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80
    column = sluice("profile", "p", "--column", "amount").stdout
    assert [line.split()[:4] for line in column.splitlines()[1:]] == [["b", "4", "0", "0.00"], ["a", "4", "1", "25.00"]]
    for run in ("old", "c"):  # without a profile, and without rows
        assert sluice("profile", "p", run).exit_code == 0
    sluice.recorded("profile")


def test_profile_prints_figures_without_sketches_as_json(profiled: Place, sluice: Sluice) -> None:
    (run,) = sluice("profile", "p", "a", "--json").json["runs"]
    assert (run["run"], run["rows"]) == ("a", 4)
    assert run["columns"]["amount"] == {
        "rows": 4, "nulls": 1, "null_share": 0.25, "low": "-1.00", "high": "99.50", "mean": 40 / 3, "distinct": None,
    }  # fmt: skip
    assert "sketch" not in run["columns"]["name"]


def test_profile_refuses_unknown_runs_and_columns(profiled: Place, sluice: Sluice) -> None:
    assert isinstance(sluice("profile", "p", "nope").error, UnknownRunError)
    assert isinstance(sluice("profile", "p", "--column", "amuont").error, ConfigError)
    sluice.recorded("profile")
