"""The verdict of a run whose batches were each judged before their commit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from tests.fixtures.books import Place, span, split
from tests.fixtures.ledgers import attempt

from sluice.errors import QualityError
from sluice.facts import Profile
from sluice.ledger.events import BatchGivenUp, BatchStarted, VerdictAccepted
from sluice.pipeline import load
from sluice.ranges import RangeAccount
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.engine.failures import EngineError
from sluice_spark.quality.judgement import Judgement
from sluice_spark.runs.gate import Gate
from sluice_spark.sinks.base import NOTHING

WRITER = mock.Mock(sink=None, schema=None)
"""Gives a batch up as a batch's writer does, and has staged nothing."""
WRITER.give_up = lambda ranges, lost: BatchWriter.give_up(WRITER, ranges, lost)


def gate(place: Place, run: str, error: str | None = None, judged: list[Judgement] | None = None) -> Any:
    """Return the gate of a run whose judge has this error."""
    judge: Any = SimpleNamespace(name="s", inspect=lambda *_: Judgement("s", 0, error=error))
    return Gate(load(str(place.file)), run, place.ledger, judge, judged or [])


def verdict(own: Any, run: str) -> tuple[str, list[str]]:
    found = own.summary([run])
    return found.verdict, [excess.limit for excess in found.excesses]


def batch(*accounts: RangeAccount) -> PreparedBatch:
    return PreparedBatch(accounts, NOTHING)


def test_gate_sums_up_offsets_that_an_earlier_attempt_of_the_run_lost(place: Place) -> None:
    place.commit("r", split(0, 5))
    own = gate(place, "r", judged=[Judgement("s", 5, wrote=True)])
    assert verdict(own, "r") == ("passed", [])
    place.commit("r", split(5, 9, lost=4))
    assert verdict(own, "r") == ("warned", ["max_lost"])
    assert "4 offsets" in str(own.summary(["r"]).excesses[0])


def test_gate_gives_a_batch_up_also_in_a_run_that_judges_nothing(place: Place) -> None:
    place.ledger.decide("p", "r", BatchGivenUp(reason="wrong unit", batch=(1, 1)))
    own = Gate(load(str(place.file)), "r2", place.ledger, None)
    assert own.given_up(WRITER, (1, 0), [span(0, 5)]) is None
    prepared = own.given_up(WRITER, (1, 1), [span(5, 9), span(0, 0, 1)])
    assert prepared is not None
    assert [(item.range, item.reason) for item in prepared.lost] == [(span(5, 9), "retracted: wrong unit")]
    assert prepared.fact(Profile) is None, "that it has no rows is not usual, and is judged by nothing"
    own.admit(mock.Mock(), mock.Mock(), WRITER, prepared, (1, 0))
    assert own.summary(["r2"]) is None


def test_gate_applies_a_decision_to_its_records_and_not_to_a_batch_number(place: Place) -> None:
    """A power cut took the plan of a batch away, and Spark planned more under its number."""
    own, spark = gate(place, "r2", "it broke"), mock.MagicMock()
    with attempt(place.ledger, "r") as lease:
        for number in (0, 1):
            place.ledger.record(lease, BatchStarted(epoch=1, batch=number, ranges=[span(5, 9), span(0, 0, 1)]))
    place.ledger.decide("p", "r", BatchGivenUp(reason="wrong unit", batch=(1, 0)))
    place.ledger.decide("p", "r", VerdictAccepted(verdict="error", reason="fine", batch=(1, 1)))
    with attempt(place.ledger, "r2") as lease:
        more = [span(5, 12), span(0, 2, 1)]
        place.ledger.record(lease, BatchStarted(epoch=1, batch=0, ranges=more))
        assert own.given_up(WRITER, (1, 0), more) is None
        assert own.given_up(WRITER, (1, 0), [span(5, 9)]) is not None
        with pytest.raises(QualityError):
            own.admit(lease, spark, WRITER, batch(split(5, 12)), (1, 1))
        own.admit(lease, spark, WRITER, batch(split(5, 7), split(7, 9)), (1, 1))


def test_gate_does_not_take_a_batch_for_accepted_that_is_given_up_while_it_is_prepared(place: Place) -> None:
    own, spark = gate(place, "r2", "it broke"), mock.MagicMock()
    place.ledger.decide("p", "r", BatchGivenUp(reason="wrong unit", batch=(1, 0)))
    with attempt(place.ledger, "r2") as lease:
        with pytest.raises(QualityError, match="it broke"):
            own.admit(lease, spark, WRITER, batch(split(0, 5)), (1, 0))
        place.ledger.decide("p", "r2", VerdictAccepted(verdict="error", reason="fine", batch=(1, 0)))
        own.admit(lease, spark, WRITER, batch(split(0, 5)), (1, 0))
    assert verdict(own, "r2") == ("warned", ["accepted"])


def test_gate_gives_no_verdict_when_spark_ends(place: Place) -> None:
    """With quality.on_failed: hold, an operator would have to settle a batch that was not judged."""
    spark = mock.MagicMock()
    spark.range.side_effect = ConnectionRefusedError("Connection refused")
    with attempt(place.ledger, "r") as lease, pytest.raises(EngineError):
        gate(place, "r", "Connection refused").admit(lease, spark, WRITER, batch(split(0, 5)), (1, 0))
    assert place.ledger.runs.known("p", "r").verdict is None
