"""Verdicts: how faults are shown, the verdict that holds a pipeline, and the decision or change that ends that."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import Place, span, split
from tests.fixtures.ledgers import attempt
from tests.unit.run.conftest import take_back

from sluice.errors import ConfigError, ExitCode, HeldError, LeaseHeldError, error_for_exit_code
from sluice.ledger import REDRIVEN, UnknownRunError
from sluice.ledger.events import BatchStarted, Judged, PipelineReset, VerdictAccepted, batch_committed
from sluice.ledger.verdicts import Decision, LateDecision
from sluice.pipeline import load
from sluice.ranges import LostRange
from sluice.recovery import Route
from sluice.run.circuit_breaker import FRESHNESS, refuse_held, settling, surely_held, waiting
from sluice.run.decision import accept, check_unsettled, give_up
from sluice.run.reset_plan import Reset
from sluice.run.verdict import MASKED, accepted_faults, faults, line, title, told, worse


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.configure(quality={"on_failed": "hold"})
    return place


@pytest.fixture
def gated(place: Place) -> Place:
    place.let_wait("a", "e")
    return place


def said(decision: Decision | None) -> tuple[str, str] | None:
    return None if decision is None else (decision.event, decision.reason)


FAULT = {"expectation": "e", "column": "id", "scope": "slice", "success": False}


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
    assert f"sluice accept {place.file} b --reason TEXT" in error.next_step
    assert error_for_exit_code(ExitCode.HELD) is HeldError
    for _ in range(2):
        assert accept(place.ledger, "p", "b", reason="known gap") == name
    assert place.holds() is None
    refuse_held(place.ledger, load(str(place.file)), "next")
    events = [e["payload"] for e in place.ledger.events("p") if e["type"] == "VerdictAccepted"]
    assert events == [{"verdict": name, "reason": "known gap"}]
    before = place.ledger.runs.account("p", "b")
    place.ledger.rebuild()
    assert (place.ledger.runs.account("p", "b"), place.holds()) == (before, None)
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
    assert (f"sluice accept {place.file} a" in way_out, "sluice retract" in way_out) == (True, False)
    assert settling(load(str(place.file)), "a") == [f"sluice accept {place.file} a --reason TEXT"]
    (command,) = settling(load(str(place.file)), "it's 5 o'clock")
    assert shlex.split(command)[3] == "it's 5 o'clock"


@pytest.mark.parametrize(("upto", "held"), [(3, "a"), (5, None)])
def test_held_pipeline_goes_on_after_a_retraction_of_all_rows(place: Place, upto: int, held: str | None) -> None:
    place.judged("a", "failed")
    take_back(place, "a", 0, upto)
    assert [row.range for row in place.ledger.offsets.lost("p")] == [span(0, upto)]
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
def test_hold_ends_by_a_reset_if_what_was_judged_is_gone(place: Place, truncated: bool, waits: Any, held: Any) -> None:
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
    assert place.ledger.runs.known("p", "a").verdict is None
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
        return waiting(gated.ledger, "p", gated.ledger.runs.known("p", "a"))

    assert (gated.holds(), waits()) == ("a", (1, 1))
    refuse_held(gated.ledger, load(str(gated.file)), "a")
    error = refused(gated, "b")
    assert "batch 1" in error.state
    assert f"sluice run {gated.file} --run a" in error.next_step
    again(gated, "a")
    assert (gated.holds(), waits()) == ("a", (1, 1))
    decide(gated.ledger, "p", "a", reason="x")
    assert gated.ledger.verdicts.decision("p", 1, 1) is not None
    assert gated.holds() is None
    again(gated, "a")
    assert gated.holds() is None


def test_lost_offsets_of_a_batch_that_was_given_up_are_found_by_its_run(gated: Place) -> None:
    give_up(gated.ledger, "p", "a", reason="wrong")
    gated.ends["sluice:p:1"] = 0
    gated.commit("b", split(5, 9, lost=4), lost=[LostRange(span(5, 9), "retracted: wrong")])
    gated.commit("c", split(9, 12, lost=3), lost=[LostRange(span(9, 12), "poison")])
    found = {run: [row.range for row in gated.ledger.offsets.lost("p", run_id=run)] for run in ("a", "b", "c")}
    assert found == {"a": [span(5, 9)], "b": [span(5, 9)], "c": [span(9, 12)]}


def test_accepted_faults_are_on_record(gated: Place) -> None:
    result = FAULT | {"unexpected_count": 2}
    limits = [{"limit": "max_lost", "verdict": name, "why": "3 of 4"} for name in ("failed", "warned")]
    results = [result, result | {"expectation": "f", "success": True}]
    judgement = {"results": results, "excesses": limits, "error": None}
    assert faults(judgement) == {"e on id (slice)": 2, "max_lost: 3 of 4": None}
    assert faults({"error": "TypeError: x"}) == {"error: TypeError": None}
    twice = faults({"results": [result, result | {"unexpected_count": 1000}, result | {"unexpected_count": 5}]})
    assert twice == {"e on id (slice)": 1007}, "with other bounds, say: none hides another"
    verdict(gated, "a", **judgement, waits=[1, 1])
    accept(gated.ledger, "p", "a", reason="x")
    found = gated.ledger.verdicts.decision("p", 1, 1)
    assert found is not None
    assert found.faults == accepted_faults([found]) == faults(judgement)


def test_accept_refuses_a_run_without_a_failed_verdict_and_a_redrive_for_the_new_normal(place: Place) -> None:
    place.commit("redrive", split(0, 5), epoch=REDRIVEN)
    verdict(place, "redrive", "warned")
    with pytest.raises(ConfigError, match="live runs"):
        accept(place.ledger, "p", "redrive", reason="x", new_normal=True)
    place.judged("a", "passed")
    place.commit("b", split(5, 10))
    long = ("a", "x" * 2001, "2,001")
    for run, reason, named in (("a", "x", "passed"), ("b", "x", "no verdict"), ("a", " ", "empty"), long):
        with pytest.raises(ConfigError, match=named):
            accept(place.ledger, "p", run, reason=reason)
    with pytest.raises(UnknownRunError, match="'aa'"):
        accept(place.ledger, "p", "aa", reason="x")
    assert not [e for e in place.ledger.events("p") if e["type"] == "VerdictAccepted"]


def test_waiting_batch_is_accepted_or_given_up_and_the_last_word_counts(gated: Place) -> None:
    ledger = gated.ledger
    assert ledger.verdicts.decision("p", 1, 1) is None
    for _ in range(2):
        assert give_up(ledger, "p", "a", reason="wrong") == (1, 1)
    assert said(ledger.verdicts.decision("p", 1, 1)) == ("BatchGivenUp", "wrong")
    assert gated.holds() is None
    accept(ledger, "p", "a", reason="right after all")
    assert said(ledger.verdicts.decision("p", 1, 1)) == ("VerdictAccepted", "right after all")
    assert ledger.verdicts.decision("p", 1, 0) is None
    assert ledger.runs.account("p", "a")["notes"] == [
        "batch 1 was given up: wrong", "the verdict failed was accepted: right after all"
    ]  # fmt: skip
    gated.commit("b", split(5, 10))
    gated.ends["sluice:p:1"] = 0
    gated.commit("b", split(5, 10))
    assert waiting(gated.ledger, "p", gated.ledger.runs.known("p", "a")) is None, "another run published it"
    assert give_up(ledger, "p", "a", reason="too late") is None


def test_acceptance_does_not_cover_more_faults_of_a_later_run(gated: Place) -> None:
    for _ in range(2):
        accept(gated.ledger, "p", "a", reason="fine")
    gated.let_wait("b", "e", "f")
    with pytest.raises(ConfigError, match=r"run 'b'.* run 'a'") as caught:
        accept(gated.ledger, "p", "a", reason="fine")
    assert "sluice accept p b --reason TEXT" in caught.value.next_step
    assert accept(gated.ledger, "p", "b", reason="fine, too") == "failed"
    gated.let_wait("c", "e")
    assert gated.holds() == "c", "it was judged since the decision"
    assert accept(gated.ledger, "p", "b", reason="c found no more than b") == "failed"
    assert (gated.holds(), gated.ledger.verdicts.is_decided("p", "c")) == (None, True)


def test_decision_on_a_batch_waits_for_the_run_at_work(gated: Place) -> None:
    with gated.ledger.acquire("p", "at work"):
        for decide in (accept, give_up):
            with pytest.raises(LeaseHeldError, match="at work"):
                decide(gated.ledger, "p", "a", reason="x")
    assert gated.ledger.verdicts.decision("p", 1, 1) is None
    gated.judged("b", "failed", 10, epoch=2)
    with gated.ledger.acquire("p", "at work"):
        assert accept(gated.ledger, "p", "b", reason="no batch of it waits") == "failed"


def test_decision_is_found_behind_many_others(gated: Place) -> None:
    give_up(gated.ledger, "p", "a", reason="wrong")
    for _ in range(120):
        gated.ledger.decide("p", "old", VerdictAccepted(verdict="failed", reason="x"))
    assert said(gated.ledger.verdicts.decision("p", 1, 1)) == ("BatchGivenUp", "wrong")
    assert gated.ledger.verdicts.settled_of("p", ["a"]) == []


def test_decision_on_a_batch_settles_each_verdict_that_waits_for_it(gated: Place) -> None:
    accept(gated.ledger, "p", "a", reason="fine")
    gated.let_wait("b", "e", "f")
    assert (gated.holds(), gated.ledger.verdicts.is_decided("p", "b")) == ("b", False)
    for run in "ab":
        assert give_up(gated.ledger, "p", run, reason=f"wrong, by {run}") == (1, 1)
        assert (gated.holds(), gated.ledger.verdicts.is_decided("p", "b")) == (None, True), (
            "whichever run it was called by"
        )
    assert said(gated.ledger.verdicts.decision("p", 1, 1)) == ("BatchGivenUp", "wrong, by a")
    for decide, run in ((accept, "b"), (give_up, "a"), (accept, "b")):
        decide(gated.ledger, "p", run, reason="again")
    assert said(gated.ledger.verdicts.decision("p", 1, 1)) == ("VerdictAccepted", "again"), "the last word counts"


@pytest.mark.parametrize("published", [True, False])
def test_retraction_and_acceptance_refuse_a_run_whose_batch_waits_no_more(gated: Place, published: bool) -> None:
    """A second request meant the batch; the rows that the run published before it had passed."""
    check_unsettled(gated.ledger, "p", "a")
    if not published:
        give_up(gated.ledger, "p", "a", reason="wrong")
    check_unsettled(gated.ledger, "p", "a")
    gated.ends["sluice:p:1"] = 0
    gated.commit("b", split(5, 9) if published else split(5, 9, lost=4))
    with pytest.raises(ConfigError, match="published" if published else "given up") as caught:
        check_unsettled(gated.ledger, "p", "a")
    assert "sluice retract p TOPIC:PARTITION:START-END" in caught.value.next_step
    check_unsettled(gated.ledger, "p", "b")
    if not published:
        with pytest.raises(ConfigError, match="batch 1 of run 'a'") as caught:
            accept(gated.ledger, "p", "a", reason="fine")
        assert "sluice redrive p" in caught.value.next_step
        assert gated.ledger.verdicts.acceptance("p", "a") is None


def test_batch_published_by_a_dead_driver_before_it_was_given_up_is_published(gated: Place) -> None:
    accept(gated.ledger, "p", "a", reason="fine")
    with attempt(gated.ledger, "pub", state="abandoned") as lease:
        gated.ledger.record(lease, BatchStarted(epoch=1, batch=1, ranges=[span(5, 9)]))
    assert give_up(gated.ledger, "p", "a", reason="wrong") == (1, 1)
    with gated.ledger.acquire("p", "next") as lease:  # it finds the batch in the sink
        gated.ledger.record(lease, *batch_committed(1, 1, [split(5, 9)]), run_id="pub")
    assert [said(each) for each in gated.ledger.verdicts.settled_of("p", ["pub"])] == [("VerdictAccepted", "fine")]
    for runs in (["pub"], None):
        assert gated.ledger.verdicts.too_late("p", runs) == [LateDecision((1, 1), "pub", "BatchGivenUp", "wrong")]
    assert gated.ledger.verdicts.too_late("p", ["a"]) == []
    with pytest.raises(ConfigError, match="run 'pub'") as caught:
        check_unsettled(gated.ledger, "p", "a")
    assert "sluice retract p pub --reason TEXT" in caught.value.next_step


@pytest.mark.parametrize("last", ["accepted", "given up again"])
def test_batch_left_out_by_a_dead_driver_before_it_was_accepted_is_lost(gated: Place, last: str) -> None:
    give_up(gated.ledger, "p", "a", reason="wrong")
    with attempt(gated.ledger, "out", state="abandoned") as lease:
        gated.ledger.record(lease, BatchStarted(epoch=1, batch=1, ranges=[span(5, 9)]))
    accept(gated.ledger, "p", "a", reason="fine")
    if last != "accepted":
        give_up(gated.ledger, "p", "a", reason="no")
    with gated.ledger.acquire("p", "next") as lease:
        gated.ledger.record(lease, *batch_committed(1, 1, [split(5, 9, lost=4)]), run_id="out")
    assert [said(each) for each in gated.ledger.verdicts.settled_of("p", ["out"])] == [("BatchGivenUp", "wrong")]
    late = [LateDecision((1, 1), "out", "VerdictAccepted", "fine")] if last == "accepted" else []
    assert gated.ledger.verdicts.too_late("p") == late
    with pytest.raises(ConfigError, match=r"batch 1 of run 'a' .*\(wrong\)"):
        accept(gated.ledger, "p", "a", reason="fine")
    with pytest.raises(ConfigError, match="given up"):
        check_unsettled(gated.ledger, "p", "a")


def test_decision_on_other_records_is_void(gated: Place) -> None:
    """After a power cut Spark may plan another batch under the number, which is judged again."""
    give_up(gated.ledger, "p", "a", reason="wrong")
    assert said(gated.ledger.verdicts.decision("p", 1, 1, of=[span(5, 9)])) == ("BatchGivenUp", "wrong")
    assert gated.ledger.verdicts.decision("p", 1, 1, of=[span(5, 12)]) is None
    gated.let_wait("a", "e")
    assert gated.holds() == "a"
    give_up(gated.ledger, "p", "a", reason="still wrong")
    assert said(gated.ledger.verdicts.decision("p", 1, 1)) == ("BatchGivenUp", "still wrong")


RESULT: dict[str, Any] = {
    "expectation": "expect_column_values_to_be_in_set", "column": "name", "severity": "critical", "scope": "slice",
    "success": False, "unexpected_count": 12, "unexpected_percent": 1.23456, "exception": None,
}  # fmt: skip


def test_verdict_shows_values_with_counts_and_offsets_by_partition() -> None:
    places = [("o", 1, 7), ("o", 0, 9), ("o", 1, 3), ("a", 0, 1)]
    records = [{"topic": topic, "partition": partition, "offset": offset} for topic, partition, offset in places]
    values = [{"value": "x", "count": 10}, {"value": None, "count": 1}]
    found = {**RESULT, "values": values, "seen": 11, "records": records}
    assert told(found) == ["values: 'x' × 10, null (the first 11 rows of 12)", "offsets: a-0 1; o-0 9; o-1 3, 7, …"]
    assert told(found, most=1) == ["values: 'x' × 10, … (the first 11 rows of 12)", "offsets: o-1 7, …"]
    assert told({**RESULT, "examples": ["a", 1]}) == ["values: 'a', 1"], "of an older ledger"
    assert told(RESULT) == []


def test_result_without_column_or_percentage_has_a_title_and_a_line() -> None:
    assert title({**RESULT, "column": None}) == "expect_column_values_to_be_in_set"
    assert [line({**RESULT, **more})["result"] for more in ({"success": True}, {"exception": "x"})] == ["ok", "error"]
    assert line({**RESULT, "unexpected_percent": None})["percent"] is None


def test_accepted_fault_of_the_history_is_its_figure() -> None:
    def known(value: float, runs: int) -> dict[str, int | None]:
        excess = {"limit": "history.nulls(a)", "verdict": "failed", "why": f"{value}; in the last {runs} accepted runs"}
        checks = [{"figure": "nulls", "column": "a", "value": value}]
        return faults({"excesses": [excess], "history": {"checks": checks}})

    assert known(0.1 + 0.2, 20) == known(0.3, 19)
    assert known(0.3, 20) != known(0.4, 20)


@pytest.mark.parametrize(
    ("known", "now", "more"),
    [
        ({"unexpected_count": 3}, {"unexpected_count": 3}, 0),
        ({"unexpected_count": 3}, {"unexpected_count": 2}, 0),
        ({"unexpected_count": 3}, {"unexpected_count": 4}, 1),
        ({"unexpected_count": 3}, {"unexpected_count": 1, "exception": "TypeError"}, 1),
        ({"observed": 9.5}, {"observed": 9.5 + 1e-12}, 0),
        ({"observed": 9.5}, {"observed": 9500000.0}, 1),
        ({"observed": {"values": [1.0, 2.0]}}, {"observed": {"values": [1.0, 3.0]}}, 1),
        ({"observed": 9.5}, {"observed": 9.6, "severity": "warning"}, 0),
        ({"observed": 3e-17}, {"observed": -2e-17}, 0),
        ({"observed": None, "missing_count": 1}, {"observed": None, "missing_count": 2}, 1),
        ({"unexpected_count": 0, "missing_count": 1}, {"unexpected_count": 0, "missing_count": 50}, 1),
        ({"unexpected_count": 3, "arguments": "a"}, {"unexpected_count": 3, "arguments": "a"}, 0),
        ({"unexpected_count": 3, "arguments": "a"}, {"unexpected_count": 1, "arguments": "b"}, 1),
    ],
)
def test_verdict_is_worse_than_the_accepted_one(known: dict[str, Any], now: dict[str, Any], more: int) -> None:
    found = [faults({"results": [FAULT | item]}) for item in (known, now)]
    assert len(worse(*found)) == more


@pytest.mark.parametrize("found", [{"observed": MASKED}, {"unexpected_count": 3}])
def test_accepted_faults_do_not_cover_rows_made_in_another_way(found: dict[str, Any]) -> None:
    wrong = FAULT | found
    known, again, other = (faults({"results": [wrong], "made_by": made}) for made in ("a", "a", "b"))
    assert worse(known, again) == []
    assert worse(known, other) == ["rows made by another decode, rules or transform (b)"]
    assert faults({"results": [wrong | {"success": True}], "made_by": "a"}) == {}


def test_accepted_error_of_the_history_does_not_cover_the_suite() -> None:
    known = faults({"error": "quality.history: KeyError: 'x'"})
    assert worse(known, faults({"error": "ValueError: no suite"})) == ["error: ValueError"]


@pytest.mark.parametrize(("count", "why", "more"), [(3, "3 of 7, and 20% may be", 0), (4, "4 of 7, and 10% may be", 1)])
def test_accepted_limit_is_known_by_its_number_of_records(count: int, why: str, more: int) -> None:
    limit = {"limit": "max_quarantined", "verdict": "failed", "count": 3, "why": "3 of 7, and 10% may be"}
    found = faults({"excesses": [limit | {"count": count, "why": why}]})
    assert len(worse(faults({"excesses": [limit]}), found)) == more
