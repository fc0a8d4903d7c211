"""Every kind of run: its session, its source, its verdict, and the messages of its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest import mock

import pytest
from tests.fixtures.books import Place, span, split
from tests.fixtures.ledgers import attempt
from tests.fixtures.pipelines import modelled

from sluice.errors import ConfigError, QualityError, SinkError, SluiceError, SourceUnreachableError, TopicRecreatedError
from sluice.ledger import Lease
from sluice.ledger.events import Judged, batch_committed
from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice_spark.quality.judgement import Judgement
from sluice_spark.runs import batches, source_check
from sluice_spark.runs.batches import MicroBatches
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.log_route import _unapplied
from sluice_spark.runs.run import Run, commands_for
from sluice_spark.runs.source_check import SourceCheck
from sluice_spark.runs.state_size import operators_of


def context(place: Place, run: str = "a", session: Any = None, judge: Any = None) -> RunContext:
    return RunContext(load(str(place.file)), run, place.ledger, place.home, session, Recovery.REPLAY, judge)


def test_run_waits_for_its_session_which_becomes_that_of_the_thread(place: Place) -> None:
    began, go_on, threads = threading.Event(), threading.Event(), list[int]()
    there = object()

    def open_session() -> Any:
        threads.append(threading.get_ident())
        if len(threads) == 1:
            began.set()
            assert go_on.wait(30)
        return there

    own = context(place, session=open_session)
    own.begin_session()
    own.begin_session()
    assert began.wait(30)
    threading.Timer(0.1, go_on.set).start()
    assert own.session() is cast(Any, there)
    assert len(threads) == 2
    assert threads[0] != threads[1] == threading.get_ident()


def test_run_raises_the_error_of_its_session_when_it_needs_it(place: Place) -> None:
    own = context(place, session=mock.Mock(side_effect=OSError("no JVM")))
    own.begin_session()
    with pytest.raises(OSError, match="no JVM"):
        own.session()


class Scripted(Run):
    """A live run whose work is a function of its lease."""

    kind: ClassVar[str] = "live"
    script: Callable[[Any, Lease], str | None]

    def _drive(self, lease: Lease) -> str | None:
        return type(self).script(self, lease)


class Unlucky(Scripted):
    """A live run that never begins."""

    script = mock.Mock(side_effect=SourceUnreachableError("no broker answers", state="unread", next_step="start it"))


def test_run_of_another_kind_does_not_take_the_id_of_a_run_with_a_verdict(place: Place) -> None:
    class Retraction(Unlucky):
        kind = "retract"

    place.commit("a", split(0, 5))
    with pytest.raises(SourceUnreachableError):  # without a verdict there is nothing to lose
        Retraction(context(place)).execute()
    place.ledger.decide("p", "a", Judged(verdict="failed", judgement={"reasons": ["x"]}))
    with pytest.raises(ConfigError, match="'a'"):
        Retraction(context(place)).execute()
    row = place.ledger.runs.known("p", "a")
    assert (row.kind, row.verdict) == ("live", "failed")


@pytest.mark.parametrize(
    ("run", "verdict", "kept"), [("a", "failed", "failed"), ("dead", "passed", "passed"), ("b", "empty", None)]
)
def test_run_that_never_began_leaves_the_former_verdict(place: Place, run: str, verdict: str, kept: str | None) -> None:
    """It may hold the pipeline; and without it, the next run would answer for the rows."""
    place.commit(run, *([split(0, 5)] if run == "a" else []))
    if run == "dead":
        place.execute("UPDATE sluice_run SET state = 'open', seconds = NULL WHERE run = 'dead'")
    place.ledger.decide("p", run, Judged(verdict=verdict, judgement={"reasons": ["x"]}))
    with pytest.raises(SourceUnreachableError):
        Unlucky(context(place, run)).execute()
    row = place.ledger.runs.known("p", run)
    assert (row.verdict, row.state) == (kept, "failed")
    assert (row.error or {})["exit_code"] == 20
    assert place.ledger.verdicts.unjudged("p", "live") == []


@pytest.mark.parametrize(
    ("error", "verdicts"),
    [(None, ("passed", "passed", "passed")), ("half is null", ("error", "failed", "failed"))],
)
def test_run_verdict_of_gated_batches_is_not_that_of_rows_that_were_not_judged(
    place: Place, error: str | None, verdicts: tuple[str, ...]
) -> None:
    class Gated(Scripted):
        def script(self, lease: Lease) -> str | None:
            self._plan(lease, [span(10, 15)], [], epoch=1)
            self.context.gate.admit(
                lease, mock.Mock(), mock.Mock(), mock.MagicMock(accounts=(), fact=lambda kind: None)
            )
            self.ledger.record(lease, *batch_committed(1, 2, [split(10, 15)]))
            return self._judge(lease, mock.Mock())

    def settle(_ledger: Any, _session: Any, _sink: Any, runs: list[str]) -> Judgement:
        return Judgement("s", 5, runs=tuple(runs), error=error)

    place.configure(quality={"when": "before_commit"})
    for number, (run, gated) in enumerate((("unjudged", False), ("died", True))):
        with attempt(place.ledger, run, gated=gated, state="failed") as lease:
            place.ledger.record(lease, *batch_committed(1, number, [split(number * 5, number * 5 + 5)]))
    judge = mock.Mock(settle=mock.Mock(side_effect=settle), inspect=lambda *_: Judgement("s", 5))
    judge.name = "s"
    account = Gated(context(place, "own", judge=judge)).execute()
    assert [call.args[3] for call in judge.settle.call_args_list] == [["unjudged"]]
    assert tuple(place.ledger.runs.known("p", run).verdict for run in ("unjudged", "died", "own")) == verdicts
    assert account["verdict"] == verdicts[-1]
    if error is not None:
        (reason,) = account["reasons"]
        assert "unjudged" in reason
        assert "half is null" in reason


@pytest.mark.parametrize(
    ("error", "logged"),
    [(ValueError("no rate for EUR"), True), (QualityError("judged failed", state="nothing", next_step="fix"), False)],
)
def test_run_logs_the_traceback_of_a_query_that_ends_with_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception, logged: bool
) -> None:
    logger = mock.Mock()
    monkeypatch.setattr(batches, "logger", logger)
    anything: Any = mock.MagicMock(signs=())
    stream = anything.stream.return_value.writeStream.outputMode.return_value.foreachBatch.return_value
    started = stream.queryName.return_value.option.return_value.trigger.return_value.start.return_value
    started.awaitTermination.side_effect = error
    made = MicroBatches(*[anything] * 7, max_records=5)
    with pytest.raises(SluiceError, match=str(error.args[0]).split("\n")[0]):
        made.stream(anything, batches.QueryShape(lambda *_: None), max_records=5)
    assert [call.kwargs["exc_info"] for call in logger.error.call_args_list] == [error] * logged


@pytest.mark.parametrize(
    ("base", "arrow", "wanted", "paces", "limit"),
    [
        ("kafka", True, None, [], 5_000_000),
        ("kafka", False, None, [], 500_000),
        ("kafka", True, 7, [(60, 1e6)], 7),
        ("kafka", True, None, [(60, 1e6)], 1000),
        ("delta-upsert", True, None, [], 500_000),  # merged by the driver
        ("postgres-upsert", True, None, [], 5_000_000),  # and by the database
    ],
)
def test_batch_is_as_large_as_memory_and_pace_allow(
    base: str, arrow: bool, wanted: int | None, paces: list[tuple[int, float]], limit: int
) -> None:
    ledger = SimpleNamespace(runs=SimpleNamespace(paces=lambda *_, **__: paces))
    context: Any = SimpleNamespace(pipeline=modelled(base=base), ledger=ledger)
    nothing = cast(Any, None)
    made = MicroBatches(context, nothing, nothing, nothing, nothing, [], nothing, wanted)
    assert made.limit(arrow=arrow) == limit


def test_run_names_a_sink_and_a_source_that_both_fail() -> None:
    source = SourceUnreachableError("Kafka does not answer", state="nothing was read", next_step="start it")
    for trouble in (source, None):
        sink = SinkError("the sink cannot be read", state="unchanged", next_step="fix it")
        assert _unapplied(sink, [], 0, 0, trouble) is sink
        assert (sink.state == "unchanged") is (trouble is None)
        assert trouble is None or trouble.what in str(sink.state)


def test_run_state_of_operators_is_that_of_the_last_batch_and_its_changes_those_of_all() -> None:
    def said(*operators: tuple[str, int, int, int]) -> Any:
        found = [
            SimpleNamespace(
                operatorName=name, numRowsUpdated=updated, numRowsRemoved=removed, memoryUsedBytes=10 * live,
                customMetrics={"rocksdbTotalBytesReadThroughIterator": live},
            )
            for name, live, updated, removed in operators
        ]  # fmt: skip
        return SimpleNamespace(stateOperators=found)

    found = operators_of([said(("save", 5, 5, 0)), said(("save", 7, 3, 1)), said(("save", 4, 0, 3))])
    assert found == [{"operator": "save", "live": 4, "updated": 8, "removed": 4, "memory": 40}]
    assert operators_of([]) == operators_of([said()]) == []


KNOWN = {"orders": "cluster/one", "returns": "cluster/two"}


def topics(**now: str) -> mock.Mock:
    """Return a source that answers with these ids."""
    return mock.Mock(stream_ids=mock.Mock(side_effect=lambda names: {n: now[n] for n in names if n in now}))


def check(source: object) -> SourceCheck:
    context: Any = SimpleNamespace(pipeline=SimpleNamespace(name="p"))
    return SourceCheck(context, source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "now", [KNOWN, {}, {"orders": "cluster/one"}, {"orders": "/one", "returns": ""}, {"orders": "cluster/"}]
)
def test_source_check_passes_the_same_topics_and_unknown_ids(now: dict[str, str]) -> None:
    check(topics(**now)).unchanged(KNOWN)


@pytest.mark.parametrize(
    ("now", "named"), [({**KNOWN, "returns": "cluster/three"}, "'returns'"), ({"orders": "other/one"}, "cluster")]
)
def test_source_check_refuses_a_recreated_topic_and_another_cluster(now: dict[str, str], named: str) -> None:
    with pytest.raises(TopicRecreatedError, match=named) as refused:
        check(topics(**now)).unchanged(KNOWN)
    assert refused.value.state


def test_source_check_asks_a_silent_source_again_after_a_minute() -> None:
    source = topics(**KNOWN | {"orders": "cluster/another"})
    answer, source.stream_ids.side_effect = source.stream_ids.side_effect, SourceUnreachableError("no answer")
    with mock.patch.object(source_check.time, "monotonic", return_value=1000.0) as clock:
        own = check(source)
        own.unchanged(KNOWN)
        source.stream_ids.side_effect = answer
        clock.return_value = 1059.0
        own.unchanged(KNOWN)
        assert source.stream_ids.call_count == 1
        clock.return_value = 1061.0
        with pytest.raises(TopicRecreatedError):
            own.unchanged(KNOWN)


def test_source_check_asks_nothing_if_no_id_is_known_or_the_source_has_none() -> None:
    source = topics(**KNOWN)
    check(source).unchanged({})
    source.stream_ids.assert_not_called()
    check(SimpleNamespace(ids=("a",))).unchanged(KNOWN)


def test_run_names_commands_that_find_a_file_outside_of_the_folder() -> None:
    spec = modelled()
    assert commands_for("sluice reset PIPELINE --reason TEXT", spec) == "sluice reset p --reason TEXT"
    spec._called = "'my p.yaml'"
    step = "sluice reset p --reason TEXT; or sluice status p, or sluice run p2, and p stays"
    wanted = "sluice reset 'my p.yaml' --reason TEXT; or sluice status 'my p.yaml', or sluice run p2, and p stays"
    assert commands_for(step, spec) == wanted
