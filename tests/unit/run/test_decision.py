"""Decisions on a failed verdict, and on the batch that waits for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.books import Place, span, split
from tests.fixtures.ledgers import attempt

from sluice.errors import ConfigError, LeaseHeldError
from sluice.ledger import REDRIVEN, UnknownRunError
from sluice.ledger.events import BatchStarted, Judged, VerdictAccepted, batch_committed
from sluice.ledger.verdicts import LateDecision
from sluice.run.decision import accept, check_unsettled, decided, give_up
from sluice.run.held import waiting


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.configure(quality={"on_failed": "hold"})
    return place


@pytest.fixture
def gated(place: Place) -> Place:
    place.let_wait("a", "e")
    return place


def test_accept_takes_only_a_live_run_for_the_new_normal(place: Place) -> None:
    place.commit("r", split(0, 5), epoch=REDRIVEN)
    place.ledger.decide("p", "r", Judged(verdict="warned", judgement={}))
    with pytest.raises(ConfigError, match=r"quality\.history compares live runs"):
        accept(place.ledger, "p", "r", reason="x", new_normal=True)


def test_accept_refuses_a_run_without_a_failed_verdict(place: Place) -> None:
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
    assert ledger.settled_batch("p", 1, 1) is None
    for _ in range(2):
        assert give_up(ledger, "p", "a", reason="wrong") == (1, 1)
    assert ledger.settled_batch("p", 1, 1) == ("BatchGivenUp", "wrong")
    assert gated.holds() is None
    accept(ledger, "p", "a", reason="right after all")
    assert ledger.settled_batch("p", 1, 1) == ("VerdictAccepted", "right after all")
    assert ledger.settled_batch("p", 1, 0) is None
    assert ledger.account("p", "a")["notes"] == [
        "batch 1 was given up: wrong", "the verdict failed was accepted: right after all"
    ]  # fmt: skip
    gated.commit("b", split(5, 10))
    gated.ends["sluice:p:1"] = 0
    gated.commit("b", split(5, 10))
    assert waiting(gated.ledger, "p", gated.ledger.known_run("p", "a")) is None, "another run published it"
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
    assert gated.holds() is None


def test_decision_on_a_batch_waits_for_the_run_at_work(gated: Place) -> None:
    with gated.ledger.acquire("p", "at work"):
        for decide in (accept, give_up):
            with pytest.raises(LeaseHeldError, match="at work"):
                decide(gated.ledger, "p", "a", reason="x")
    assert gated.ledger.settled_batch("p", 1, 1) is None
    gated.judged("b", "failed", 10, epoch=2)
    with gated.ledger.acquire("p", "at work"):
        assert accept(gated.ledger, "p", "b", reason="no batch of it waits") == "failed"


def test_decision_is_found_behind_many_others(gated: Place) -> None:
    give_up(gated.ledger, "p", "a", reason="wrong")
    for _ in range(120):
        gated.ledger.decide("p", "old", VerdictAccepted(verdict="failed", reason="x"))
    assert gated.ledger.settled_batch("p", 1, 1) == ("BatchGivenUp", "wrong")
    assert gated.ledger.settled_of("p", ["a"]) == []


def test_decision_on_a_batch_settles_each_verdict_that_waits_for_it(gated: Place) -> None:
    accept(gated.ledger, "p", "a", reason="fine")
    gated.let_wait("b", "e", "f")
    assert gated.holds() == "b"
    assert give_up(gated.ledger, "p", "a", reason="wrong") == (1, 1)
    assert gated.holds() is None, "whichever run it was called by"
    assert give_up(gated.ledger, "p", "b", reason="twice") == (1, 1)
    assert gated.ledger.settled_batch("p", 1, 1) == ("BatchGivenUp", "wrong")


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
        assert gated.ledger.acceptance("p", "a") is None


def test_batch_published_by_a_dead_driver_before_it_was_given_up_is_published(gated: Place) -> None:
    accept(gated.ledger, "p", "a", reason="fine")
    with attempt(gated.ledger, "pub", state="abandoned") as lease:
        gated.ledger.record(lease, BatchStarted(epoch=1, batch=1, ranges=[span(5, 9)]))
    assert give_up(gated.ledger, "p", "a", reason="wrong") == (1, 1)
    with gated.ledger.acquire("p", "next") as lease:  # it finds the batch in the sink
        gated.ledger.record(lease, *batch_committed(1, 1, [split(5, 9)]), run_id="pub")
    assert gated.ledger.settled_of("p", ["pub"]) == [((1, 1), "VerdictAccepted", "fine")]
    for runs in (["pub"], None):
        assert gated.ledger.too_late("p", runs) == [LateDecision((1, 1), "pub", "BatchGivenUp", "wrong")]
    assert gated.ledger.too_late("p", ["a"]) == []
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
    assert gated.ledger.settled_of("p", ["out"]) == [((1, 1), "BatchGivenUp", "wrong")]
    late = [LateDecision((1, 1), "out", "VerdictAccepted", "fine")] if last == "accepted" else []
    assert gated.ledger.too_late("p") == late
    with pytest.raises(ConfigError, match=r"batch 1 of run 'a' .*\(wrong\)"):
        accept(gated.ledger, "p", "a", reason="fine")
    with pytest.raises(ConfigError, match="given up"):
        check_unsettled(gated.ledger, "p", "a")


@pytest.mark.parametrize("decide", [accept, give_up])
def test_decision_by_the_name_of_an_earlier_run_is_on_the_newest(gated: Place, decide: Callable[..., object]) -> None:
    gated.let_wait("b", "e")
    assert not gated.ledger.is_decided("p", "b")
    decide(gated.ledger, "p", "a", reason="x")
    assert gated.ledger.is_decided("p", "b")
    for word in (accept, give_up, accept):
        word(gated.ledger, "p", "b" if word is accept else "a", reason="again")
    assert gated.ledger.settled_batch("p", 1, 1) == ("VerdictAccepted", "again"), "the last word counts"


def test_decision_on_other_records_is_void(gated: Place) -> None:
    """After a power cut Spark may plan another batch under the number, which is judged again."""
    give_up(gated.ledger, "p", "a", reason="wrong")
    assert decided(gated.ledger, "p", (1, 1), [span(5, 9)]) == ("BatchGivenUp", "wrong")
    assert decided(gated.ledger, "p", (1, 1), [span(5, 12)]) is None
    gated.let_wait("a", "e")
    assert gated.holds() == "a"
    give_up(gated.ledger, "p", "a", reason="still wrong")
    assert gated.ledger.settled_batch("p", 1, 1) == ("BatchGivenUp", "still wrong")
