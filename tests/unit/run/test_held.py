"""A verdict that holds a pipeline, and the decision, verdict, retraction or reset that ends that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import Place, span, split
from tests.fixtures.ledgers import attempt
from tests.unit.run.conftest import take_back

from sluice.errors import ExitCode, HeldError, error_for_exit_code
from sluice.ledger import REDRIVEN
from sluice.ledger.events import Judged, PipelineReset
from sluice.pipeline import load
from sluice.ranges import LostRange
from sluice.recovery import Route
from sluice.run.decision import accept, give_up
from sluice.run.held import FRESHNESS, refuse_held, settling, surely_held, waiting
from sluice.run.resetting import Reset
from sluice.run.verdict import faults


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.configure(quality={"on_failed": "hold"})
    return place


@pytest.fixture
def gated(place: Place) -> Place:
    place.let_wait("a")
    return place


def refused(place: Place, run: str, **how: bool) -> HeldError:
    with pytest.raises(HeldError) as caught:
        refuse_held(place.ledger, load(str(place.file)), run, **how)
    return caught.value


def verdict(place: Place, run: str, name: str = "failed", **judgement: Any) -> None:
    place.ledger.decide("p", run, Judged(verdict=name, judgement=judgement))


def again(place: Place, run: str, *, epoch: int = 1) -> None:
    """Begin another attempt, which dies at once."""
    with attempt(place.ledger, run, epoch=epoch, state="abandoned"):
        pass


@pytest.mark.parametrize("name", ["failed", "error"])
def test_failed_verdict_holds_until_it_is_accepted(place: Place, name: str) -> None:
    assert place.holds() is None
    place.judged("a", "passed")
    assert place.holds() is None
    place.judged("b", name, 5)
    assert place.holds() == "b"
    error = refused(place, "next")
    assert all(part in error.what for part in ("run 'b'", name))
    assert "sluice accept p b --reason TEXT" in error.next_step
    assert error_for_exit_code(ExitCode.HELD) is HeldError
    for _ in range(2):
        assert accept(place.ledger, "p", "b", reason="known gap") == name
    assert place.holds() is None
    refuse_held(place.ledger, load(str(place.file)), "next")
    events = [e["payload"] for e in place.ledger.events("p") if e["type"] == "VerdictAccepted"]
    assert events == [{"verdict": name, "reason": "known gap"}]
    before = place.ledger.account("p", "b")
    place.ledger.rebuild()
    assert (place.ledger.account("p", "b"), place.holds()) == (before, None)
    place.judged("c", "failed", 10)
    assert place.holds() == "c", "only that run was accepted"


def test_newest_verdict_holds_whichever_run_has_it(place: Place) -> None:
    place.judged("a", "passed")
    place.judged("b", "passed", 5)
    place.judged("a", "failed", 10)
    assert place.holds() == "a", "an older run that was tried again read what came last"
    refused(place, "a")
    place.judged("c", "empty", 15)
    assert place.holds() == "a", "a run that found nothing has no verdict"
    place.judged("again", "failed", epoch=REDRIVEN)
    assert place.holds() == "a", "nor has a redrive"
    place.judged("d", "passed", 15)
    assert place.holds() is None
    verdict(place, "d")
    assert place.holds() == "d"
    verdict(place, "d", "warned")
    assert place.holds() is None


def test_stale_table_holds_nothing_unless_other_faults_are_beside_it(place: Place) -> None:
    late = {"limit": FRESHNESS, "verdict": "failed", "why": "the newest row is old"}
    few = {"limit": "history.volume", "verdict": "failed", "why": "3; in the last 20 accepted runs 900"}
    place.judged("a", "failed")
    verdict(place, "a", excesses=[late])
    assert place.holds() is None
    verdict(place, "a", excesses=[late, few])
    assert place.holds() == "a"


@pytest.mark.parametrize("on_failed", ["fail", "warn"])
def test_pipeline_is_held_only_if_its_file_says_so(place: Place, on_failed: str) -> None:
    place.judged("a", "failed")
    place.configure(quality={"on_failed": on_failed})
    assert place.holds() is None


@pytest.mark.parametrize(
    "keys", [{"sink": {"console": {}}}, {"dedupe": {"keys": ["id"], "within": "1h"}}], ids=["console", "dedupe"]
)
def test_held_pipeline_names_a_retraction_only_if_it_is_possible(place: Place, keys: dict[str, object]) -> None:
    place.judged("a", "failed")
    assert [command.split()[1] for command in settling(load(str(place.file)), "a")] == ["accept", "retract"]
    place.configure(quality={"on_failed": "hold"}, **keys)
    way_out = refused(place, "next").next_step
    assert ("sluice accept p a" in way_out, "sluice retract" in way_out) == (True, False)
    assert settling(load(str(place.file)), "a") == ["sluice accept p a --reason TEXT"]


@pytest.mark.parametrize(("upto", "held"), [(3, "a"), (5, None)])
def test_held_pipeline_goes_on_after_a_retraction_of_all_rows(place: Place, upto: int, held: str | None) -> None:
    place.judged("a", "failed")
    take_back(place, "a", 0, upto)
    assert [row.range for row in place.ledger.lost("p")] == [span(0, upto)]
    assert place.holds() == held
    place.commit("a", split(5, 10))
    again(place, "a")
    assert place.holds() == held
    verdict(place, "a")
    assert place.holds() == "a", "another verdict is one on other rows"


def test_held_pipeline_with_a_dead_retraction_is_checked_by_the_driver(place: Place) -> None:
    spec = load(str(place.file))
    place.judged("a", "failed")
    for state, surely in (("abandoned", False), ("failed", False), ("done", True)):
        with attempt(place.ledger, "back", kind="retract", epoch=REDRIVEN, state=state):
            pass
        assert (surely_held(place.ledger, spec) is not None) == surely
        refused(place, "next") if surely else refuse_held(place.ledger, spec, "next")
        refused(place, "next", driver=True)
    again(place, "older")
    verdict(place, "a")
    assert surely_held(place.ledger, spec) is not None, "it ended before the verdict"


def test_runs_that_were_judged_together_hold_until_the_rows_of_all_are_gone(place: Place) -> None:
    place.commit("dead", split(0, 5))
    place.commit("idle")
    place.commit("b", split(5, 10))
    for run in ("dead", "b"):
        verdict(place, run, reasons=["x"], runs=["dead", "idle", "b"])
    assert "judged with it: dead;" in refused(place, "next").next_step, "a run without rows need not be retracted"
    take_back(place, "b", 5, 10, batch=2)
    assert place.holds() == "b"
    take_back(place, "dead", 0, 5)
    assert place.holds() is None


@pytest.mark.parametrize(
    ("truncated", "waits", "held"), [(False, None, "a"), (True, None, None), (False, [1, 1], None)]
)
def test_held_pipeline_goes_on_after_a_reset_if_rows_or_the_waiting_batch_are_gone(
    place: Place, truncated: bool, waits: list[int] | None, held: str | None
) -> None:
    place.commit("a", split(0, 5))
    verdict(place, "a", reasons=["x"], waits=waits)
    assert place.holds() == "a"
    found = Reset(2, Route.DIRECT, {"t": {0: 5}}, (), truncated, (), {}, "another suite")
    with attempt(place.ledger, "reset", kind="reset", state="done") as lease:
        place.ledger.record(lease, PipelineReset(**found.as_dict()))
    assert place.holds() == held
    if held is None:
        again(place, "a", epoch=2)
        assert place.holds() is None


def test_verdict_holds_whatever_becomes_of_later_attempts(place: Place) -> None:
    place.judged("a", "failed")
    again(place, "a")
    assert place.ledger.known_run("p", "a").verdict is None
    assert place.holds() == "a"
    assert "run 'a'" in refused(place, "b", driver=True).what
    refuse_held(place.ledger, load(str(place.file)), "a", driver=True)
    assert accept(place.ledger, "p", "a", reason="known gap") == "failed"
    assert place.holds() is None
    again(place, "a")
    assert place.holds() is None, "its verdict stays accepted"
    verdict(place, "a")
    assert place.holds() == "a", "another verdict is not accepted"
    again(place, "a")
    place.judged("b", "passed", 5)
    assert place.holds() is None


@pytest.mark.parametrize("decide", [accept, give_up])
def test_waiting_batch_holds_other_runs_until_a_decision(gated: Place, decide: Callable[..., object]) -> None:
    def waits() -> tuple[int, int] | None:
        return waiting(gated.ledger, "p", gated.ledger.known_run("p", "a"))

    assert (gated.holds(), waits()) == ("a", (1, 1))
    refuse_held(gated.ledger, load(str(gated.file)), "a")
    error = refused(gated, "b")
    assert "batch 1" in error.state
    assert "sluice run p --run a" in error.next_step
    again(gated, "a")
    assert (gated.holds(), waits()) == ("a", (1, 1))
    decide(gated.ledger, "p", "a", reason="x")
    assert gated.ledger.settled_batch("p", 1, 1) is not None
    assert gated.holds() is None
    again(gated, "a")
    assert gated.holds() is None


def test_lost_offsets_of_a_batch_that_was_given_up_are_found_by_its_run(gated: Place) -> None:
    give_up(gated.ledger, "p", "a", reason="wrong")
    gated.ends["sluice:p:1"] = 0
    gated.commit("b", split(5, 9, lost=4), lost=[LostRange(span(5, 9), "retracted: wrong")])
    gated.commit("c", split(9, 12, lost=3), lost=[LostRange(span(9, 12), "poison")])
    found = {run: [row.range for row in gated.ledger.lost("p", run_id=run)] for run in ("a", "b", "c")}
    assert found == {"a": [span(5, 9)], "b": [span(5, 9)], "c": [span(9, 12)]}


def test_accepted_faults_are_on_record(gated: Place) -> None:
    result = {"expectation": "e", "column": "id", "scope": "slice", "success": False, "unexpected_count": 2}
    limits = [{"limit": "max_lost", "verdict": name, "why": "3 of 4"} for name in ("failed", "warned")]
    results = [result, result | {"expectation": "f", "success": True}]
    judgement = {"results": results, "excesses": limits, "error": None}
    assert faults(judgement) == {"e on id (slice)": 2, "max_lost: 3 of 4": None}
    assert faults({"error": "TypeError: x"}) == {"error: TypeError": None}
    twice = faults({"results": [result, result | {"unexpected_count": 1000}, result | {"unexpected_count": 5}]})
    assert twice == {"e on id (slice)": 1007}, "with other bounds, say: none hides another"
    verdict(gated, "a", **judgement, waits=[1, 1])
    accept(gated.ledger, "p", "a", reason="x")
    assert gated.ledger.accepted_faults("p", 1, 1) == faults(judgement)
