"""``sluice profile``: what the rows of runs look like."""

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
from sluice.profile import NO_ROWS, ColumnProfile, Profile


def profile(rows: int, nulls: int) -> dict[str, Any]:
    amount = ColumnProfile(rows, nulls, "decimal", "-1.00", "99.50", 10.0 * rows, rows - nulls)
    at = ColumnProfile(rows, 0, "time", "2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.123456Z")
    name = ColumnProfile(rows, 0, sketch=(1, 2, 3))
    return Profile(rows, {"amount": amount, "placed_at": at, "name": name}).as_dict()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.commit("old", split(0, 5))
    place.commit("a", split(5, 9), profile=profile(4, 1))
    place.commit("b", split(9, 13), profile=profile(4, 0))
    place.commit("c", split(13, 20, filtered=7), profile=NO_ROWS.as_dict())
    return place


@pytest.fixture
def sluice(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SLUICE_HOME", str(place.root))
    monkeypatch.setenv("SLUICE_PIPELINES", str(place.root))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_without_a_run_it_shows_the_newest_that_wrote_rows_in_eighty_columns(sluice: Callable[..., Any]) -> None:
    done = sluice("profile", "p")
    assert done.exit_code == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["column", "nulls", "null", "%", "low", "high", "mean", "distinct"],
        ["amount", "0", "0.00", "-1.00", "99.50", "10", "–"],
        ["placed_at", "0", "0.00", "2026-01-01", "00:00Z", "2026-01-02", "00:00Z", "–", "–"],
        ["name", "0", "0.00", "–", "–", "–", "3"],
    ]
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80
    assert done.stderr == "run b of p: 4 rows\n"


def test_a_column_is_shown_run_by_run_newest_first(sluice: Callable[..., Any]) -> None:
    done = sluice("profile", "p", "--column", "amount")
    assert [line.split()[:4] for line in done.stdout.splitlines()[1:]] == [
        ["b", "4", "0", "0.00"],
        ["a", "4", "1", "25.00"],
    ]


def test_json_has_the_figures_and_no_sketch(sluice: Callable[..., Any]) -> None:
    told = json.loads(sluice("profile", "p", "a", "--json").stdout)
    (run,) = told["runs"]
    assert (run["run"], run["rows"]) == ("a", 4)
    assert run["columns"]["amount"] == {
        "rows": 4, "nulls": 1, "null_share": 0.25, "low": "-1.00", "high": "99.50", "mean": 40 / 3, "distinct": None,
    }  # fmt: skip
    assert "sketch" not in run["columns"]["name"]


def test_runs_without_a_profile_say_so_and_unknown_ones_are_refused(sluice: Callable[..., Any]) -> None:
    assert "has no profile" in sluice("profile", "p", "old").stderr
    assert sluice("profile", "p", "c").stderr == "run c of p: 0 rows\n"
    assert isinstance(sluice("profile", "p", "nope").exception, UnknownRunError)
    refused = sluice("profile", "p", "--column", "amuont").exception
    assert "choose one of: amount, name, placed_at" in str(refused)
