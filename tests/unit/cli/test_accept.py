"""``sluice accept``: rows whose verdict failed may stay, and a pipeline that is held goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import Place, split
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.errors import ConfigError, HeldError


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.configure(quality={"on_failed": "hold"})
    place.commit("a", split(0, 5))
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={"reasons": ["id: 3 unexpected"]})
    return place


@pytest.fixture
def sluice(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SLUICE_HOME", str(place.root))
    monkeypatch.setenv("SLUICE_PIPELINES", str(place.root))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_a_run_that_is_held_starts_no_spark_and_says_what_to_do(place: Place, sluice: Callable[..., Any]) -> None:
    done = sluice("run", str(place.file))
    assert isinstance(done.exception, HeldError)
    assert "pipeline 'p' is held: run 'a' has the verdict failed: id: 3 unexpected" in str(done.exception)
    assert [run.run for run in place.ledger.runs("p")] == ["a"], "each hour's refusal is no run"


def test_a_file_that_no_folder_of_pipelines_has_is_told_to_be_held(
    place: Place, sluice: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_PIPELINES")
    monkeypatch.chdir("/")
    assert "p is held: live runs wait" in sluice("status", str(place.file)).stderr


def test_what_is_accepted_no_longer_holds(place: Place, sluice: Callable[..., Any]) -> None:
    held = "p is held: live runs wait until the verdict failed of run a is settled by sluice accept or sluice retract"
    assert held in sluice("status", "p").stderr
    done = sluice("accept", "p", "a", "--reason", "known gap")
    assert (done.exit_code, done.stderr) == (0, "run a of p: the verdict failed is accepted (known gap)\n")
    shown = sluice("status", "p").stderr
    assert held not in shown
    assert "a: the verdict failed was accepted: known gap" in shown
    again = sluice("accept", "p", "a", "--reason", "another reason", "--json")
    assert json.loads(again.stdout) == {"pipeline": "p", "run": "a", "verdict": "failed", "accepted": "known gap"}


def test_what_becomes_of_a_batch_that_waits_is_told(place: Place, sluice: Callable[..., Any]) -> None:
    told = {"reasons": ["id: 3 unexpected"], "waits": [1, 7]}
    place.ledger.judged(None, "p", "a", verdict="failed", judgement=told)
    done = sluice("accept", "p", "a", "--reason", "fine")
    assert done.stderr.splitlines()[1:] == ["the next run publishes its batch 7, unless more is wrong with it by then"]


def test_a_new_normal_is_said_and_on_record(place: Place, sluice: Callable[..., Any]) -> None:
    done = sluice("accept", "p", "a", "--reason", "a new shop", "--new-normal")
    assert done.stderr.splitlines()[1] == "what quality.history compares with begins with this run"
    assert place.ledger.normal_since("p") == ("a", "a new shop")
    assert "what is normal begins with this run: a new shop" in sluice("status", "p").stderr
    told = json.loads(sluice("accept", "p", "a", "--reason", "a new shop", "--new-normal", "--json").stdout)
    assert told["new_normal"] is True


def test_a_retraction_that_would_be_refused_is_not_named(place: Place, sluice: Callable[..., Any]) -> None:
    place.configure(quality={"on_failed": "hold"}, sink={"console": {}})
    assert sluice("status", "p").stderr.endswith("is settled by sluice accept\n")


def test_only_a_failed_verdict_can_be_accepted(place: Place, sluice: Callable[..., Any]) -> None:
    place.ledger.judged(None, "p", "a", verdict="passed", judgement={})
    done = sluice("accept", "p", "a", "--reason", "x")
    assert isinstance(done.exception, ConfigError)
    assert "only a failed verdict can be accepted" in str(done.exception)
