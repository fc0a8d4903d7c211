"""Past runs of the ledger, as the lag judges them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import Place, split

from sluice.errors import SourceUnreachableError
from sluice.lag.current import _history, backlog
from sluice.ledger import REDRIVEN
from sluice.pipeline import load
from sluice.recovery import Route
from sluice.run.decision import accept, give_up
from sluice.run.resetting import Reset

WAITS = {"reasons": ["id: 3 unexpected"], "waits": [1, 1]}


def fails(place: Place, run: str, code: int = 50) -> None:
    """Judge a batch that is not published, as the gate does."""
    with place.ledger.acquire("p", run) as lease:
        place.ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        if code == 50:
            place.ledger.judged(lease, "p", run, verdict="failed", judgement=WAITS)
        place.ledger.run_closed(lease, state="failed", error={"exit_code": code})


def resets(place: Place) -> None:
    reset = Reset(2, Route.DIRECT, {"t": {0: 5}}, (), False, (), {}, "recreated")
    with place.ledger.acquire("p", "reset") as lease:
        place.ledger.run_planned(lease, kind="reset", recovery="replay", epoch=1, ranges=[], topic_ids={})
        place.ledger.reset(lease, reset.as_dict())
        place.ledger.run_closed(lease, state="done")


@pytest.mark.parametrize(
    ("code", "decide"),
    [
        (50, lambda place: accept(place.ledger, "p", "r", reason="known gap")),
        (50, lambda place: give_up(place.ledger, "p", "r", reason="wrong unit")),
        (50, resets),
        (22, resets),
        (41, resets),
    ],
)
@pytest.mark.parametrize("on_failed", ["fail", "hold"])
def test_failed_run_is_settled_by_a_decision(
    tmp_path: Path, on_failed: str, code: int, decide: Callable[[Place], object]
) -> None:
    place = Place(tmp_path)
    place.configure(quality={"when": "before_commit", "on_failed": on_failed})
    load(str(place.file))
    place.commit("earlier", split(0, 5))
    fails(place, "r", code)
    assert [(run.code, run.settled) for run in _history(place.ledger, "p")] == [(code, False), (None, False)]
    decide(place)
    assert [run.settled for run in _history(place.ledger, "p")] == [True, False]
    fails(place, "r", code)
    assert not _history(place.ledger, "p")[0].settled, "another attempt is not decided on yet"


class Silent:
    """A cluster that does not answer."""

    def topics_of(self, _: object) -> set[str]:
        raise SourceUnreachableError("silent", state="", next_step="")


def test_pipeline_that_a_dead_retraction_may_have_released_is_not_held(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.configure(quality={"on_failed": "hold"})

    def held() -> str | None:
        cluster: Any = Silent()
        return backlog(load(str(place.file)), cluster, home=place.home, ledger=place.ledger).held

    place.judged("bad", "failed")
    assert held() == "bad"
    with place.ledger.acquire("p", "back") as lease:
        place.ledger.run_planned(lease, kind="retract", recovery="replay", epoch=REDRIVEN, ranges=[], topic_ids={})
        place.ledger.run_closed(lease, state="abandoned")
    assert held() is None, "a run is started, and finds out"
