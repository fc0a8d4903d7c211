"""What every run refuses before it does anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from tests.fixtures.books import Place, span, split

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.ledger import Lease
from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice_spark.quality.judgement import Judgement
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.run import Run


class Driven(RuntimeError):
    """The run was let in."""


class Retraction(Run):
    """A run of another kind than the ledger's."""

    kind: ClassVar[str] = "retract"

    def _drive(self, lease: Lease) -> str | None:
        raise Driven


def test_a_verdict_is_not_lost_to_a_run_of_another_kind_under_its_id(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.commit("a", split(0, 5))

    def run() -> Any:
        never = cast(Any, None)
        context = RunContext(load(str(place.file)), "a", place.ledger, place.home, never, Recovery.REPLAY, None)
        return Retraction(context).execute()

    with pytest.raises(Driven):
        run()  # without a verdict there is nothing to lose
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={"reasons": ["x"]})
    with pytest.raises(ConfigError, match="'a' is the id of another run of 'p', of the kind live"):
        run()
    row = place.ledger.known_run("p", "a")
    assert (row.kind, row.verdict) == ("live", "failed")


class Unlucky(Run):
    """A live run that finds no broker."""

    kind: ClassVar[str] = "live"

    def _drive(self, lease: Lease) -> str | None:
        raise SourceUnreachableError("no broker answers", state="nothing was read", next_step="start it")


def test_an_attempt_that_never_began_leaves_the_verdict_of_the_one_before(tmp_path: Path) -> None:
    """It may hold the pipeline; and without it, the next run would answer for the rows."""
    place = Place(tmp_path)
    never = cast(Any, None)
    for run, verdict, kept in (("a", "failed", "failed"), ("dead", "passed", "passed"), ("b", "empty", None)):
        place.commit(run, *([split(0, 5)] if run == "a" else []))
        if run == "dead":
            place.execute("UPDATE sluice_run SET state = 'open', seconds = NULL WHERE run = 'dead'")
        place.ledger.judged(None, "p", run, verdict=verdict, judgement={"reasons": ["x"]})
        context = RunContext(load(str(place.file)), run, place.ledger, place.home, never, Recovery.REPLAY, None)
        with pytest.raises(SourceUnreachableError):
            Unlucky(context).execute()
        row = place.ledger.known_run("p", run)
        assert (row.verdict, row.state) == (kept, "failed")
        assert (row.error or {})["exit_code"] == 20
    assert place.ledger.unjudged("p", "live") == []


class Validating:
    """Judges behind the commit, by rote."""

    name = "s"

    def __init__(self, error: str | None) -> None:
        self.error, self.asked = error, list[list[str]]()

    def settle(self, ledger: Any, open_session: Any, sink: Any, runs: list[str]) -> Judgement:
        self.asked.append(runs)
        return Judgement("s", 5, runs=tuple(runs), error=self.error)


class Gated(Run):
    """A live run whose one batch passed the gate."""

    kind: ClassVar[str] = "live"

    def _drive(self, lease: Lease) -> str | None:
        self._plan(lease, [span(10, 15)], [], epoch=1)
        self.context.gate._judgements.append(Judgement("s", 5))
        self.ledger.batch_committed(lease, epoch=1, batch=2, accounts=[split(10, 15)])
        return self._judge(lease, cast(Any, None))


@pytest.mark.parametrize(
    ("error", "verdicts"),
    [(None, ("passed", "passed", "passed")), ("half is null", ("error", "failed", "failed"))],
)
def test_what_the_gate_let_through_says_nothing_of_rows_that_nobody_judged(
    tmp_path: Path, error: str | None, verdicts: tuple[str, ...]
) -> None:
    place = Place(tmp_path)
    place.configure(quality={"when": "before_commit"})
    never = cast(Any, None)
    for number, (run, gated) in enumerate((("unjudged", False), ("died", True))):
        with place.ledger.acquire("p", run) as lease:
            place.ledger.run_planned(
                lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={}, gated=gated
            )
            place.ledger.batch_committed(lease, epoch=1, batch=number, accounts=[split(number * 5, number * 5 + 5)])
            place.ledger.run_closed(lease, state="failed")
    judge: Any = Validating(error)
    context = RunContext(load(str(place.file)), "own", place.ledger, place.home, never, Recovery.REPLAY, judge)
    account = Gated(context).execute()
    assert judge.asked == [["unjudged"]]
    assert tuple(place.ledger.known_run("p", run).verdict for run in ("unjudged", "died", "own")) == verdicts
    assert account["verdict"] == verdicts[-1]
    if error is not None:
        assert account["reasons"] == ["earlier_runs: unjudged, not judged before: judging failed: half is null"]
