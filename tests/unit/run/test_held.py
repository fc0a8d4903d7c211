"""What holds a pipeline, and what lets it go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.books import Place, span, split

from sluice.errors import ExitCode, HeldError, error_for_exit_code
from sluice.ledger import REDRIVEN
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


@pytest.mark.parametrize("verdict", ["failed", "error"])
def test_a_verdict_that_failed_holds_until_it_is_accepted(place: Place, verdict: str) -> None:
    assert place.holds() is None
    place.judged("a", "passed")
    assert place.holds() is None
    place.judged("b", verdict, 5)
    assert place.holds() == "b"
    with pytest.raises(HeldError, match=f"run 'b' has the verdict {verdict}: id: 3 unexpected") as caught:
        refuse_held(place.ledger, load(str(place.file)), "next")
    assert "sluice accept p b --reason TEXT" in caught.value.next_step
    assert error_for_exit_code(ExitCode.HELD) is HeldError
    for _ in range(2):
        assert accept(place.ledger, "p", "b", reason="known gap") == verdict
    assert place.holds() is None
    refuse_held(place.ledger, load(str(place.file)), "next")
    events = [e["payload"] for e in place.ledger.events("p") if e["type"] == "VerdictAccepted"]
    assert events == [{"verdict": verdict, "reason": "known gap"}]
    assert place.ledger.account("p", "b")["notes"] == [f"the verdict {verdict} was accepted: known gap"]
    place.judged("c", "failed", 10)
    assert place.holds() == "c", "only that run was accepted"


def test_an_older_run_that_is_tried_again_holds_by_its_new_verdict(place: Place) -> None:
    place.judged("a", "passed")
    place.judged("b", "passed", 5)
    place.judged("a", "failed", 10)
    assert place.holds() == "a", "it read what came last"
    place.judged("c", "empty", 15)
    assert place.holds() == "a"


def test_a_table_that_is_not_fresh_holds_nothing_and_other_faults_beside_it_do(place: Place) -> None:
    late = {"limit": FRESHNESS, "verdict": "failed", "why": "the newest row is old"}
    place.judged("a", "failed")
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={"excesses": [late]})
    assert place.holds() is None
    few = {"limit": "history.volume", "verdict": "failed", "why": "3; in the last 20 accepted runs 900"}
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={"excesses": [late, few]})
    assert place.holds() == "a"


@pytest.mark.parametrize("on_failed", ["fail", "warn"])
def test_only_a_file_that_says_so_is_held(place: Place, on_failed: str) -> None:
    place.judged("a", "failed")
    place.configure(quality={"on_failed": on_failed})
    assert place.holds() is None


def test_another_verdict_of_the_same_run_lets_it_go_on(place: Place) -> None:
    place.judged("a", "failed")
    place.ledger.judged(None, "p", "a", verdict="warned", judgement={})
    assert place.holds() is None


@pytest.mark.parametrize(
    "keys", [{"sink": {"console": {}}}, {"dedupe": {"keys": ["id"], "within": "1h"}}], ids=["console", "dedupe"]
)
def test_a_retraction_that_would_be_refused_is_no_way_on(place: Place, keys: dict[str, object]) -> None:
    place.judged("a", "failed")
    assert [command.split()[1] for command in settling(load(str(place.file)), "a")] == ["accept", "retract"]
    place.configure(quality={"on_failed": "hold"}, **keys)
    spec = load(str(place.file))
    with pytest.raises(HeldError) as caught:
        refuse_held(place.ledger, spec, "next")
    assert "sluice accept p a" in caught.value.next_step
    assert "sluice retract" not in caught.value.next_step
    assert settling(spec, "a") == ["sluice accept p a --reason TEXT"]


def test_a_later_verdict_counts_and_a_run_that_found_nothing_has_none(place: Place) -> None:
    place.judged("a", "failed")
    place.judged("b", "empty", 5)
    assert place.holds() == "a"
    place.judged("c", "passed", 5)
    assert place.holds() is None


def test_a_redrive_holds_nothing(place: Place) -> None:
    place.judged("a", "passed")
    place.judged("again", "failed", epoch=REDRIVEN)
    assert place.holds() is None


def test_another_attempt_of_the_run_is_not_accepted_yet(place: Place) -> None:
    place.judged("a", "failed")
    accept(place.ledger, "p", "a", reason="fine")
    place.judged("a", "failed", 5)
    assert place.holds() == "a"


def take_back(place: Place, run: str, upto: int) -> None:
    """Retract the first rows of a run that began with the first batch."""
    moved = [{
        "epoch": 1, "batch": 0, "run": run, "topic": "t", "partition": 0, "start": 0, "ranges": [[0, upto]],
        "written": upto, "filtered": 0, "absent": 0,
    }]  # fmt: skip
    with place.ledger.acquire("p", "back") as lease:
        place.ledger.run_planned(lease, kind="retract", recovery="replay", epoch=REDRIVEN, ranges=[], topic_ids={})
        place.ledger.retracted(lease, epoch=REDRIVEN, batch=0, moved=moved, reason="wrong")


@pytest.mark.parametrize(("upto", "held"), [(3, "a"), (5, None)])
def test_rows_that_were_all_taken_back_hold_nothing(place: Place, upto: int, held: str | None) -> None:
    place.judged("a", "failed")
    take_back(place, "a", upto)
    assert [row.range for row in place.ledger.lost("p")] == [span(0, upto)]
    assert place.holds() == held


def test_what_a_dead_run_may_have_taken_back_is_for_a_driver_to_find_out(place: Place) -> None:
    spec = load(str(place.file))
    place.judged("a", "failed")
    for state, surely in (("abandoned", False), ("failed", False), ("done", True)):
        with place.ledger.acquire("p", "back") as lease:
            place.ledger.run_planned(lease, kind="retract", recovery="replay", epoch=REDRIVEN, ranges=[], topic_ids={})
            place.ledger.run_closed(lease, state=state)
        assert (surely_held(place.ledger, spec) is not None) == surely
        with contextlib.nullcontext() if not surely else pytest.raises(HeldError):
            refuse_held(place.ledger, spec, "next")
        with pytest.raises(HeldError):
            refuse_held(place.ledger, spec, "next", driver=True)
    again(place, "older")
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={})
    assert surely_held(place.ledger, spec) is not None, "it ended before the verdict"


def test_what_another_attempt_wrote_after_a_retraction_is_held_by_its_own_verdict(place: Place) -> None:
    place.judged("a", "failed")
    take_back(place, "a", 5)
    place.commit("a", split(5, 10))
    again(place, "a")
    assert place.holds() is None
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={})
    assert place.holds() == "a"


def test_the_ledger_is_the_same_when_it_is_rebuilt(place: Place) -> None:
    place.judged("a", "failed")
    accept(place.ledger, "p", "a", reason="fine")
    before = place.ledger.account("p", "a")
    place.ledger.rebuild()
    assert (place.ledger.account("p", "a"), place.holds()) == (before, None)


def waits(place: Place, run: str) -> tuple[int, int] | None:
    return waiting(place.ledger, "p", place.ledger.known_run("p", run))


@pytest.fixture
def gated(place: Place) -> Place:
    place.let_wait("a")
    return place


def test_the_run_whose_batch_waits_may_be_tried_again(gated: Place) -> None:
    spec = load(str(gated.file))
    assert (gated.holds(), waits(gated, "a")) == ("a", (1, 1))
    refuse_held(gated.ledger, spec, "a")
    with pytest.raises(HeldError) as caught:
        refuse_held(gated.ledger, spec, "b")
    assert "its batch 1 is not published" in caught.value.state
    assert "sluice run p --run a" in caught.value.next_step


def test_a_run_that_is_done_is_no_way_past(place: Place) -> None:
    place.judged("a", "failed")
    with pytest.raises(HeldError):
        refuse_held(place.ledger, load(str(place.file)), "a")


def test_rows_of_a_dead_run_that_were_judged_with_it_hold_it_too(place: Place) -> None:
    place.commit("dead", split(0, 5))
    place.commit("b", split(5, 10))
    for run in ("dead", "b"):
        place.ledger.judged(None, "p", run, verdict="failed", judgement={"reasons": ["x"], "runs": ["dead", "b"]})
    for run, start, held in (("b", 5, "b"), ("dead", 0, None)):
        moved = {
            "epoch": 1, "batch": 0 if run == "dead" else 1, "run": run, "topic": "t", "partition": 0, "start": start,
            "ranges": [[start, start + 5]], "written": 5, "filtered": 0, "absent": 0,
        }  # fmt: skip
        with place.ledger.acquire("p", "retract") as lease:
            place.ledger.retracted(lease, epoch=REDRIVEN, batch=start, moved=[moved], reason="x")
        assert place.holds() == held


@pytest.mark.parametrize(
    ("truncated", "waits", "held"), [(False, None, "a"), (True, None, None), (False, [1, 1], None)]
)
def test_a_reset_lets_it_go_on_if_the_rows_or_the_batch_that_waits_are_gone(
    place: Place, truncated: bool, waits: list[int] | None, held: str | None
) -> None:
    place.commit("a", split(0, 5))
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={"reasons": ["x"], "waits": waits})
    assert place.holds() == "a"
    reset = Reset(2, Route.DIRECT, {"t": {0: 5}}, (), truncated, (), {}, "another suite")
    with place.ledger.acquire("p", "reset") as lease:
        place.ledger.run_planned(lease, kind="reset", recovery="replay", epoch=1, ranges=[], topic_ids={})
        place.ledger.reset(lease, reset.as_dict())
        place.ledger.run_closed(lease, state="done")
    assert place.holds() == held


def again(place: Place, run: str, *, epoch: int = 1) -> None:
    """Begin another attempt, which dies at once."""
    with place.ledger.acquire("p", run) as lease:
        place.ledger.run_planned(lease, kind="live", recovery="replay", epoch=epoch, ranges=[], topic_ids={})
        place.ledger.run_closed(lease, state="abandoned")


def test_a_verdict_holds_whatever_becomes_of_the_attempts_after_it(place: Place) -> None:
    spec = load(str(place.file))
    place.judged("a", "failed")
    again(place, "a")
    assert place.ledger.known_run("p", "a").verdict is None
    assert place.holds() == "a"
    with pytest.raises(HeldError, match="run 'a' has the verdict failed: id: 3 unexpected"):
        refuse_held(place.ledger, spec, "b", driver=True)
    refuse_held(place.ledger, spec, "a", driver=True)
    assert accept(place.ledger, "p", "a", reason="known gap") == "failed"
    assert place.holds() is None
    again(place, "a")
    assert place.holds() is None, "what was accepted is"
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={})
    assert place.holds() == "a", "another verdict is not"
    again(place, "a")
    place.judged("b", "passed", 5)
    assert place.holds() is None


def test_a_verdict_of_an_earlier_attempt_is_gone_with_its_rows(place: Place) -> None:
    place.judged("a", "failed")
    reset = Reset(2, Route.DIRECT, {"t": {0: 5}}, (), True, (), {}, "another suite")
    with place.ledger.acquire("p", "reset") as lease:
        place.ledger.run_planned(lease, kind="reset", recovery="replay", epoch=1, ranges=[], topic_ids={})
        place.ledger.reset(lease, reset.as_dict())
        place.ledger.run_closed(lease, state="done")
    again(place, "a", epoch=2)
    assert place.holds() is None


@pytest.mark.parametrize("decide", [accept, give_up])
def test_a_batch_waits_whatever_becomes_of_the_attempts_after_it(gated: Place, decide: Callable[..., object]) -> None:
    again(gated, "a")
    assert (gated.holds(), waits(gated, "a")) == ("a", (1, 1))
    decide(gated.ledger, "p", "a", reason="x")
    assert gated.ledger.settled_batch("p", 1, 1) is not None
    assert gated.holds() is None
    again(gated, "a")
    assert gated.holds() is None


def test_what_was_lost_as_a_batch_was_given_up_is_found_by_the_run_of_the_batch(gated: Place) -> None:
    give_up(gated.ledger, "p", "a", reason="wrong")
    gated.ends["sluice:p:1"] = 0
    gone = LostRange(span(5, 9), "retracted: wrong")
    gated.commit("b", split(5, 9, lost=4), lost=[gone])
    gated.commit("c", split(9, 12, lost=3), lost=[LostRange(span(9, 12), "poison")])
    found = {run: [row.range for row in gated.ledger.lost("p", run_id=run)] for run in ("a", "b", "c")}
    assert found == {"a": [span(5, 9)], "b": [span(5, 9)], "c": [span(9, 12)]}


def test_what_has_no_rows_need_not_be_retracted(place: Place) -> None:
    for run, start in (("dead", 0), ("idle", 0), ("b", 5)):
        place.commit(run, *([] if run == "idle" else [split(start, start + 5)]))
    together = {"reasons": ["x"], "runs": ["dead", "idle", "b"]}
    place.ledger.judged(None, "p", "b", verdict="failed", judgement=together)
    with pytest.raises(HeldError) as caught:
        refuse_held(place.ledger, load(str(place.file)), "next")
    assert "and the same of what was judged with it: dead; or" in caught.value.next_step


def test_what_is_accepted_is_on_record(gated: Place) -> None:
    result = {"expectation": "e", "column": "id", "scope": "slice", "success": False, "unexpected_count": 2}
    good = result | {"expectation": "f", "success": True}
    limits = [{"limit": "max_lost", "verdict": verdict, "why": "3 of 4"} for verdict in ("failed", "warned")]
    told = {"results": [result, good], "excesses": limits, "error": None}
    assert faults(told) == {"e on id (slice)": 2, "max_lost: 3 of 4": None}
    assert faults({"error": "TypeError: x"}) == {"error: TypeError": None}
    twice = faults({"results": [result, result | {"unexpected_count": 1000}, result | {"unexpected_count": 5}]})
    assert twice == {"e on id (slice)": 1007}, "with other bounds, say: none hides another"
    gated.ledger.judged(None, "p", "a", verdict="failed", judgement={**told, "waits": [1, 1]})
    accept(gated.ledger, "p", "a", reason="x")
    assert gated.ledger.accepted_faults("p", 1, 1) == faults(told)
