"""``sluice verdict``: what a run was judged by, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import Place, split
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.ledger import UnknownRunError
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
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.commit("a", split(0, 5))
    place.ledger.judged(None, "p", "a", verdict="failed", judgement=JUDGEMENT)
    place.commit("b", split(5, 9))
    return place


@pytest.fixture
def sluice(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SLUICE_HOME", str(place.root))
    monkeypatch.setenv("SLUICE_PIPELINES", str(place.root))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_the_newest_verdict_says_what_failed_before_what_only_warns(sluice: Callable[..., Any]) -> None:
    done = sluice("verdict", "p")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "run a of p: verdict failed (suite demo, 7 rows)",
        "failed: max_quarantined: 98 of 100 records are in quarantine",
        "failed: expect_failed(id); values: '<a>' × 3; offsets: t-0 4, …",
        "warned: expect_warned(w); values: 'maybe'",
        "Data Docs: /docs/index.html",
    ]
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == [
        "expect_warned",
        "expect_failed",
        "expect_fine",
    ]


def test_as_json_it_is_what_the_ledger_has(place: Place, sluice: Callable[..., Any]) -> None:
    sluice("accept", "p", "a", "--reason", "known gap")
    told = json.loads(sluice("verdict", str(place.file), "a", "--json").stdout)
    assert (told["run"], told["verdict"], told["accepted"]) == ("a", "failed", "known gap")
    assert told["results"] == JUDGEMENT["results"]
    assert "the verdict was accepted: known gap" in sluice("verdict", "p").stderr


def test_a_history_is_shown_with_all_figures_and_with_what_was_not_judged(
    place: Place, sluice: Callable[..., Any]
) -> None:
    checks = [Check("nulls", "amount", 0.5, 0, -0.003, 0.003, 20), Check("max", "amount", 9.5, 9, 8, 10, 20)]
    unknown = {"history.mean(tax)": "3 accepted runs have it, and 10 are needed"}
    history = Finding(20, 10, tuple(checks), unknown).as_dict()
    excess = {"limit": "history.nulls(amount)", "verdict": "warned", "why": checks[0].why}
    place.ledger.judged(None, "p", "a", verdict="warned", judgement={"excesses": [excess], "history": history})
    done = sluice("verdict", "p", "a")
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["nulls(amount)", "FAILED", "50", "%", "0", "%", "to", "0.3", "%", "20"],
        ["max(amount)", "ok", "9.5", "8", "to", "10", "20"],
    ]
    assert done.stderr.splitlines()[1:] == [
        "warned: history.nulls(amount): 50 %; in the last 20 accepted runs 0 %, so 0 % to 0.3 % is expected",
        "not judged: history.mean(tax): 3 accepted runs have it, and 10 are needed",
    ]


def test_a_run_without_a_verdict_is_no_error(place: Place, sluice: Callable[..., Any]) -> None:
    done = sluice("verdict", "p", "b")
    assert (done.exit_code, done.stderr) == (0, "run b of p has no verdict: sluice validate p b judges\n")
    assert isinstance(sluice("verdict", "p", "c").exception, UnknownRunError)
    assert json.loads(sluice("verdict", "p", "b", "--json").stdout)["verdict"] is None


def test_a_verdict_outlives_an_attempt_that_dies_before_it_is_judged(place: Place, sluice: Callable[..., Any]) -> None:
    with place.ledger.acquire("p", "a") as lease:
        place.ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        place.ledger.run_closed(lease, state="failed")
    for asked in (("p",), ("p", "a")):
        assert sluice("verdict", *asked).stderr.startswith("run a of p: verdict failed (suite demo, 7 rows)")
