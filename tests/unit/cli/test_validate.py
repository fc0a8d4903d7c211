"""``sluice validate``: what it starts, and what it refuses."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import Place, split
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.errors import ConfigError, ExitCode
from sluice.launch.launcher import Interrupted, LocalProcess
from sluice.launch.submit import SparkSubmit
from sluice.ledger import UnknownRunError


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.configure(quality={"on_failed": "hold"})
    place.commit("a", split(0, 5))
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={"reasons": ["x"]})
    return place


@pytest.fixture
def sluice(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SLUICE_HOME", str(place.root))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", '{"conn_type": "kafka", "extra": {"bootstrap.servers": "b:1"}}')
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    monkeypatch.setattr("sluice.launch.submit.jars.paths", lambda _set: [])
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("verdict", "on_failed", "code"),
    [("passed", "hold", ExitCode.DONE), ("failed", "hold", ExitCode.QUALITY_FAILED), ("failed", "warn", ExitCode.DONE)],
)
def test_the_verdict_of_now_counts(
    place: Place, sluice: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, verdict: str, on_failed: str, code: int
) -> None:
    place.configure(quality={"on_failed": on_failed})
    started: list[list[str]] = []

    def judge(submission: SparkSubmit) -> int:
        started.append(submission.argv())
        place.ledger.judged(None, "p", "a", verdict=verdict, judgement={})
        return int(ExitCode.DONE if verdict == "passed" else ExitCode.QUALITY_FAILED)

    monkeypatch.setattr(LocalProcess, "start", staticmethod(judge))
    done = sluice("validate", str(place.file), "a", "--json")
    assert (done.exit_code, json.loads(done.stdout)["verdict"]) == (code, verdict)
    assert started[0][-4:] == ["--pipeline", str(place.file), "--run", "a"]


def test_what_is_not_in_the_sink_is_not_judged(place: Place, sluice: Callable[..., Any]) -> None:
    assert isinstance(sluice("validate", str(place.file), "b").exception, UnknownRunError)
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={"waits": [1, 1]})
    refused = sluice("validate", str(place.file), "a").exception
    assert isinstance(refused, ConfigError)
    assert "batch 1 of run 'a' is not published" in str(refused)


def test_a_validation_that_is_interrupted_changes_no_verdict(
    place: Place, sluice: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_submission: SparkSubmit) -> int:
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(LocalProcess, "start", staticmethod(interrupt))
    done = sluice("validate", str(place.file), "a")
    assert (done.exit_code, done.stderr) == (
        130, "sluice: interrupted by SIGINT: the verdict of run a is as it was\n",
    )  # fmt: skip
    row = place.ledger.known_run("p", "a")
    assert (row.state, row.verdict) == ("done", "failed")
