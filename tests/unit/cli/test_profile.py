"""``sluice profile``: columns of the rows of runs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.books import Place, split
from tests.fixtures.golden import Golden
from tests.unit.cli.conftest import Sluice

from sluice.errors import ConfigError
from sluice.ledger import UnknownRunError
from sluice.profile import NO_ROWS, ColumnProfile, Profile


def profile(rows: int, nulls: int) -> dict[str, Any]:
    amount = ColumnProfile(rows, nulls, "decimal", "-1.00", "99.50", 10.0 * rows, rows - nulls)
    at = ColumnProfile(rows, 0, "time", "2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.123456Z")
    name = ColumnProfile(rows, 0, sketch=(1, 2, 3))
    return Profile(rows, {"amount": amount, "placed_at": at, "name": name}).as_dict()


@pytest.fixture
def place(place: Place) -> Place:
    place.commit("old", split(0, 5))
    place.commit("a", split(5, 9), profile=profile(4, 1))
    place.commit("b", split(9, 13), profile=profile(4, 0))
    place.commit("c", split(13, 20, filtered=7), profile=NO_ROWS.as_dict())
    return place


def test_profile_shows_the_newest_run_that_wrote_rows_and_a_column_run_by_run(
    place: Place, sluice: Sluice, golden: Golden
) -> None:
    done = sluice("profile", "p")
    assert done.stderr.startswith("run b of p")
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80
    column = sluice("profile", "p", "--column", "amount").stdout
    assert [line.split()[:4] for line in column.splitlines()[1:]] == [["b", "4", "0", "0.00"], ["a", "4", "1", "25.00"]]
    for run in ("old", "c"):  # without a profile, and without rows
        assert sluice("profile", "p", run).exit_code == 0
    golden("profile", sluice.transcript)


def test_profile_prints_figures_without_sketches_as_json(place: Place, sluice: Sluice) -> None:
    (run,) = sluice("profile", "p", "a", "--json").json["runs"]
    assert (run["run"], run["rows"]) == ("a", 4)
    assert run["columns"]["amount"] == {
        "rows": 4, "nulls": 1, "null_share": 0.25, "low": "-1.00", "high": "99.50", "mean": 40 / 3, "distinct": None,
    }  # fmt: skip
    assert "sketch" not in run["columns"]["name"]


def test_profile_refuses_unknown_runs_and_columns(place: Place, sluice: Sluice, golden: Golden) -> None:
    assert isinstance(sluice("profile", "p", "nope").error, UnknownRunError)
    assert isinstance(sluice("profile", "p", "--column", "amuont").error, ConfigError)
    golden("profile", sluice.transcript)
