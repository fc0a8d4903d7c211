"""Past runs of the ledger, as the lag judges them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.books import Place, split
from tests.fixtures.ledgers import attempt

from sluice.errors import SourceUnreachableError
from sluice.lag.current import _history, backlog
from sluice.ledger import REDRIVEN
from sluice.ledger.events import Judged, PipelineReset
from sluice.pipeline import load
from sluice.recovery import Route
from sluice.run.decision import accept, give_up
from sluice.run.reset_plan import Reset

WAITS = {"reasons": ["id: 3 unexpected"], "waits": [1, 1]}


def fails(place: Place, code: int) -> None:
    """Record a failed run; one of a batch that is not published is judged, as by the gate."""
    with attempt(place.ledger, "r", state="failed", closed={"error": {"exit_code": code}}) as lease:
        if code == 50:
            place.ledger.record(lease, Judged(verdict="failed", judgement=WAITS), run_id="r")


def resets(place: Place) -> None:
    reset = Reset(2, Route.DIRECT, {"t": {0: 5}}, (), False, (), {}, "recreated")
    with attempt(place.ledger, "reset", kind="reset", state="done") as lease:
        place.ledger.record(lease, PipelineReset(**reset.as_dict()))


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
def test_lag_counts_a_failed_run_as_settled_after_a_decision(place: Place, code: int, decide: Any) -> None:
    place.commit("earlier", split(0, 5))
    fails(place, code)
    assert [(run.code, run.settled) for run in _history(place.ledger, "p")] == [(code, False), (None, False)]
    decide(place)
    assert [run.settled for run in _history(place.ledger, "p")] == [True, False]
    fails(place, code)
    assert not _history(place.ledger, "p")[0].settled, "another attempt is not decided on yet"


class Silent:
    """A cluster that does not answer."""

    def topics_of(self, _: object) -> set[str]:
        raise SourceUnreachableError("silent", state="", next_step="")


def test_lag_is_not_held_if_a_dead_retraction_may_have_released_the_pipeline(place: Place) -> None:
    place.configure(quality={"on_failed": "hold"})
    cluster: Any = Silent()

    def held() -> str | None:
        return backlog(load(place.file), cluster, home=place.home, ledger=place.ledger).held

    place.judged("bad", "failed")
    assert held() == "bad"
    with attempt(place.ledger, "back", kind="retract", epoch=REDRIVEN, state="abandoned"):
        pass
    assert held() is None, "a run is started, and finds out"
