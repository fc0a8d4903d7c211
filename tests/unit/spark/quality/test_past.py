"""A run's history as a part of its verdict, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.fixtures.books import Place, split

from sluice.pipeline import load
from sluice.profile import ColumnProfile, Profile
from sluice_spark.quality import past
from sluice_spark.quality.judgement import Judgement
from sluice_spark.quality.limits import Excess
from sluice_spark.quality.past import with_past

FINE = Judgement("s", 5, excesses=(Excess("max_lost", "warned", "3 are lost"),))


def profile(rows: int, nulls: int = 0) -> Profile:
    return Profile(rows, {"id": ColumnProfile(rows, nulls)})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    for number, rows in enumerate((1000, 1000, 1000, 100)):
        place.commit(f"r{number}", split(10 * number, 10 * number + 10), profile=profile(rows).as_dict())
        place.ledger.judged(None, "p", f"r{number}", verdict="passed", judgement={})
    return place


def seen(
    place: Place, *, found: Judgement = FINE, batch: Profile | None = None, of: Any = past.ALL, **keys: Any
) -> Any:
    history = {"at_least": 3, "volume": True, "columns": {"id": ["nulls"]}, **keys}
    place.configure(quality={"history": history})
    return with_past(found, load(str(place.file)), place.ledger, ["r3"], batch, of=of)


@pytest.mark.parametrize(("severity", "verdict"), [("warning", "warned"), ("critical", "failed")])
def test_history_limit_is_exceeded_by_a_figure_that_is_far_off(place: Place, severity: str, verdict: str) -> None:
    found = seen(place, severity=severity)
    assert found.verdict == verdict
    assert [(e.limit, e.verdict) for e in found.excesses] == [("max_lost", "warned"), ("history.volume", verdict)]
    assert "850 to 1,150" in "\n".join(found.reasons)
    checks = found.as_dict()["history"]["checks"]
    assert [(c["figure"], c["ok"]) for c in checks] == [("volume", False), ("nulls", True)]


def test_history_is_not_judged_without_its_key_and_too_few_runs_only_warn(place: Place) -> None:
    assert with_past(FINE, load(str(place.file)), place.ledger, ["r3"]) is FINE
    found = seen(place, at_least=4, severity="critical")
    assert (found.verdict, found.history["checks"]) == ("warned", [])
    assert found.history["unknown"] == {"history": "there are 3 accepted runs before this one, and 4 are needed"}


def test_history_judges_a_batch_by_its_columns_and_the_run_later_by_the_rest(place: Place) -> None:
    batch = seen(place, batch=profile(30, nulls=30), of=["columns"])
    assert [e.limit for e in batch.excesses][1:] == ["history.nulls(id)"]
    whole = seen(place, found=batch, of=["volume", "freshness"], freshness="1h")
    assert [c["figure"] for c in whole.history["checks"]] == ["nulls", "volume"]
    assert whole.history["unknown"] == {"history.freshness": "no row with a known time was written yet"}


def test_history_that_cannot_be_judged_is_an_error_and_no_pass(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "judge", mock.Mock(side_effect=ValueError("odd")))
    found = seen(place)
    assert (found.verdict, found.error) == ("error", "quality.history: ValueError: odd")
