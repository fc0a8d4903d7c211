"""The verdict of a run whose batches were each judged before their commit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from tests.fixtures.books import Place, span, split

from sluice.errors import QualityError
from sluice.pipeline import load
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.engine.failures import EngineError
from sluice_spark.quality.judgement import Judgement
from sluice_spark.runs.gate import Gate
from sluice_spark.sinks.base import NOTHING


def test_what_an_earlier_attempt_of_the_run_lost_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.configure()
    place.commit("r", split(0, 5))
    judge: Any = SimpleNamespace(name="s")
    gate = Gate(load(str(place.file)), "r", place.ledger, judge, [Judgement("s", 5, wrote=True)])
    found = gate.summary(["r"])
    assert found is not None
    assert (found.verdict, found.excesses) == ("passed", ())
    place.commit("r", split(5, 9, lost=4))
    found = gate.summary(["r"])
    assert found is not None
    assert (found.verdict, [str(e) for e in found.excesses]) == (
        "warned", ["max_lost: 4 offsets are lost, by an earlier attempt"],
    )  # fmt: skip


class Writer:
    """Gives up, as a batch's writer does, and has staged nothing."""

    sink = schema = None
    give_up = BatchWriter.give_up


def test_what_was_decided_counts_also_in_a_run_that_judges_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.configure()
    place.ledger.batch_given_up("p", "r", reason="wrong unit", batch=(1, 1))
    gate, writer = Gate(load(str(place.file)), "r2", place.ledger, None), cast(Any, Writer())
    assert gate.given_up(writer, (1, 0), [span(0, 5)]) is None
    prepared = gate.given_up(writer, (1, 1), [span(5, 9), span(0, 0, 1)])
    assert prepared is not None
    assert [(item.range, item.reason) for item in prepared.lost] == [(span(5, 9), "retracted: wrong unit")]
    assert prepared.profiled is None, "that it has no rows is not what is normal, and is judged by nothing"
    gate.admit(cast(Any, None), cast(Any, None), writer, prepared, (1, 0))
    assert gate.summary(["r2"]) is None


def test_a_decision_is_about_records_and_not_about_a_number(tmp_path: Path) -> None:
    """A power cut took the plan of a batch away, and Spark planned more under its number."""
    place = Place(tmp_path)
    place.configure()
    judge: Any = SimpleNamespace(name="s", inspect=lambda *_: Judgement("s", 0, error="it broke"))
    gate, writer = Gate(load(str(place.file)), "r2", place.ledger, judge), cast(Any, Writer())
    with place.ledger.acquire("p", "r") as lease:
        place.ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        for batch in (0, 1):
            place.ledger.batch_started(lease, epoch=1, batch=batch, ranges=[span(5, 9), span(0, 0, 1)])
    place.ledger.batch_given_up("p", "r", reason="wrong unit", batch=(1, 0))
    place.ledger.verdict_accepted("p", "r", verdict="error", reason="fine", batch=(1, 1))
    with place.ledger.acquire("p", "r2") as lease:
        place.ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        more = [span(5, 12), span(0, 2, 1)]
        place.ledger.batch_started(lease, epoch=1, batch=0, ranges=more)
        assert gate.given_up(writer, (1, 0), more) is None
        assert gate.given_up(writer, (1, 0), [span(5, 9)]) is not None
        with pytest.raises(QualityError, match="judged error"):
            gate.admit(lease, mock.MagicMock(), writer, PreparedBatch((split(5, 12),), NOTHING), (1, 1))
        gate.admit(lease, mock.MagicMock(), writer, PreparedBatch((split(5, 7), split(7, 9)), NOTHING), (1, 1))


def test_what_is_given_up_while_it_is_prepared_is_not_taken_for_accepted(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.configure()
    judge: Any = SimpleNamespace(name="s", inspect=lambda *_: Judgement("s", 0, error="it broke"))
    gate = Gate(load(str(place.file)), "r2", place.ledger, judge)
    prepared = PreparedBatch((split(0, 5),), NOTHING)
    place.ledger.batch_given_up("p", "r", reason="wrong unit", batch=(1, 0))
    with place.ledger.acquire("p", "r2") as lease:
        place.ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        with pytest.raises(QualityError, match="judged error before it is published: judging failed: it broke"):
            gate.admit(lease, mock.MagicMock(), cast(Any, Writer()), prepared, (1, 0))
        place.ledger.verdict_accepted("p", "r2", verdict="error", reason="fine", batch=(1, 0))
        gate.admit(lease, mock.MagicMock(), cast(Any, Writer()), prepared, (1, 0))
    found = gate.summary(["r2"])
    assert found is not None
    assert (found.verdict, [e.limit for e in found.excesses]) == ("warned", ["accepted"])


def test_the_end_of_spark_is_no_verdict(tmp_path: Path) -> None:
    """With quality.on_failed: hold, somebody would have to settle a batch that nobody judged."""
    place = Place(tmp_path)
    place.configure()
    judge: Any = SimpleNamespace(name="s", inspect=lambda *_: Judgement("s", 0, error="Connection refused"))
    gate = Gate(load(str(place.file)), "r", place.ledger, judge)
    spark = mock.MagicMock()
    spark.range.side_effect = ConnectionRefusedError("Connection refused")
    with place.ledger.acquire("p", "r") as lease:
        place.ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        with pytest.raises(EngineError, match="does not answer any more"):
            gate.admit(lease, spark, cast(Any, Writer()), PreparedBatch((split(0, 5),), NOTHING), (1, 0))
    assert place.ledger.known_run("p", "r").verdict is None
