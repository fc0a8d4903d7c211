"""Event-driven runs: when a backlog is worth an event, what is remembered of it, and the watcher around that."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import BaseEventTrigger
from airflow.triggers.shared_stream import SharedStreamManager
from tests.airflow.conftest import SECRET

from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag, Status
from sluice.pipeline import load
from sluice_airflow.factory import build_all, build_dag
from sluice_airflow.operators.account import asset_of
from sluice_airflow.triggers import lag_watcher as module
from sluice_airflow.triggers.crossing import PATIENCE, Crossing, Runs
from sluice_airflow.triggers.lag_watcher import LagWatcher, lag_asset

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

NOW = datetime(2026, 11, 2, 5, tzinfo=UTC)
IDLE = Runs(7, 0)


def seen(
    position: int, end: int, *, limits: Limits | None = None, start: int = 0, age: float = 0.0, **more: Any
) -> Backlog:
    part = PartitionLag("demo", 0, position, start, end, age)
    return Backlog("demo", (part,), limits or Limits(10), **{"at": NOW, **more})


SILENT = Backlog(
    "demo",
    (PartitionLag("demo", 0, 0, None, None),),
    Limits(10),
    SourceUnreachableError("no broker answers"),
    at=NOW,
)


class Watch:
    """A crossing that is fed look by look, as the watcher does, and forgets what a restart forgets."""

    def __init__(self) -> None:
        self.crossing = Crossing()
        self.runs = IDLE
        self.sent: list[dict[str, Any]] = []

    def see(self, *looks: Backlog) -> int:
        """Return how many events these looks made."""
        before = len(self.sent)
        for found in looks:
            runs = self.runs if self.crossing.wants_runs(found) else None
            self.crossing, payload = self.crossing.step(found, runs)
            if payload is not None:
                self.sent.append(json.loads(json.dumps(payload)))
        return len(self.sent) - before

    def restart(self) -> None:
        self.crossing = Crossing.of(json.loads(json.dumps(self.crossing.state)))

    def a_run_begins(self) -> None:
        self.runs = Runs(self.runs.known + 1, 1)

    def it_ends(self) -> None:
        self.runs = Runs(self.runs.known, 0)


@pytest.fixture
def watch() -> Watch:
    return Watch()


# --- the crossing ----------------------------------------------------------------------------------------------------


def test_one_event_for_each_time_the_limit_is_crossed(watch: Watch) -> None:
    assert watch.see(seen(0, 0), seen(0, 5), seen(0, 10)) == 0, "at the limit is not over it"
    assert watch.see(seen(0, 11)) == 1
    watch.a_run_begins()
    assert watch.see(seen(0, 11), seen(0, 12, running="r"), seen(12, 14, running="r")) == 0
    watch.it_ends()
    assert watch.see(seen(12, 14), seen(12, 22)) == 0
    assert watch.see(seen(12, 23)) == 1


def test_growth_and_flutter_around_the_limit_add_nothing(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.a_run_begins()
    watch.it_ends()  # it failed: the position stands where it was
    ends = itertools.islice(itertools.cycle([12, 9, 11, 7, 400, 6]), 3 * PATIENCE)
    assert watch.see(*(seen(0, end) for end in ends)) == 0


def test_a_lag_that_fell_to_half_the_limit_can_cross_it_again(watch: Watch) -> None:
    assert watch.see(seen(0, 11), seen(0, 5), seen(0, 11)) == 2


def test_what_came_while_the_run_read_is_another_crossing(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(seen(11, 50)) == 1
    assert watch.sent[1]["positions"] == {"demo": {"0": 11}}


def test_a_run_that_read_a_part_only_settles_nothing(watch: Watch) -> None:
    def two(first: int, second: int) -> Backlog:
        parts = (PartitionLag("demo", 0, first, 0, 20, 0.0), PartitionLag("demo", 1, second, 0, 20, 0.0))
        return Backlog("demo", parts, Limits(10), at=NOW)

    assert watch.see(two(0, 0)) == 1
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(two(20, 7), two(20, 7)) == 0
    assert watch.see(two(20, 20)) == 0
    assert watch.crossing == Crossing()


def test_a_position_that_was_taken_back_is_another_backlog(watch: Watch) -> None:
    assert watch.see(seen(30, 50)) == 1
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(seen(0, 50)) == 1


@pytest.mark.parametrize(
    ("limits", "below", "over"),
    [
        (Limits(None, timedelta(minutes=10)), {"age": 600.0}, {"age": 601.0}),
        (Limits(None, max_retention_share=0.5), {"share": 0.5}, {"share": 0.51}),
        (Limits(10, timedelta(minutes=10), match="all"), {"age": 9.0}, {"age": 601.0}),
        (Limits(1000, timedelta(minutes=10)), {"age": 600.0}, {"age": 601.0}),
    ],
)
def test_every_limit_can_be_crossed(watch: Watch, limits: Limits, below: dict[str, Any], over: dict[str, Any]) -> None:
    def at(figures: dict[str, Any]) -> Backlog:
        found = seen(0, 20, limits=limits)
        return replace(found, partitions=tuple(replace(p, **figures) for p in found.partitions))

    assert watch.see(at(below)) == 0
    assert watch.see(at(over)) == 1
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(at(below), at(over)) == (1 if limits.match == "all" else 0), "a little below is no re-arming"


@pytest.mark.parametrize(
    "error", [SourceUnreachableError("silent"), AuthorizationError("refused"), ConfigError("none")]
)
def test_unknown_makes_no_event_settles_nothing_and_mends_itself(watch: Watch, error: SluiceError) -> None:
    unknown = replace(SILENT, error=error)
    assert watch.see(unknown, unknown) == 0
    assert watch.see(seen(0, 11)) == 1
    assert watch.see(unknown, *[unknown] * PATIENCE) == 0
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(seen(0, 11), unknown, seen(11, 11), unknown, seen(11, 30)) == 1


def test_a_part_that_is_unknown_is_no_crossing(watch: Watch) -> None:
    part = PartitionLag("demo", 1, 0, None, None, error="no leader")
    found = seen(0, 99)
    assert watch.see(replace(found, partitions=(*found.partitions, part))) == 0
    assert watch.see(found) == 1


def test_no_event_while_a_run_is_at_work_or_is_about_to_be(watch: Watch) -> None:
    assert watch.see(seen(0, 11, running="by hand")) == 0
    watch.a_run_begins()
    assert watch.see(seen(0, 11)) == 0
    watch.it_ends()
    assert watch.see(seen(11, 11)) == 0
    assert watch.see(seen(11, 22)) == 1


def test_what_only_a_run_can_report_is_an_event_once(watch: Watch) -> None:
    gone = seen(3, 12, start=9)
    assert (gone.over, gone.verdict) == (False, Status.LOST)
    assert watch.see(gone) == 1
    assert (watch.sent[0]["verdict"], watch.sent[0]["lost"]) == ("LOST", 6)
    watch.a_run_begins()
    watch.it_ends()
    beyond = seen(30, 12)
    assert watch.see(gone, gone, beyond, beyond) == 1, "the position moved past what was announced: that is news"
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(beyond, beyond) == 0


# --- restarts --------------------------------------------------------------------------------------------------------


def test_a_restart_repeats_nothing_that_a_run_answered(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.a_run_begins()
    watch.it_ends()
    watch.restart()
    assert watch.see(seen(0, 11), *[seen(0, 13)] * PATIENCE) == 0


def test_a_restart_while_the_run_is_at_work(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.a_run_begins()
    watch.restart()
    assert watch.see(seen(0, 11), seen(0, 11, running="r")) == 0
    watch.it_ends()
    assert watch.see(seen(0, 11)) == 0


def test_a_restart_between_remembering_and_sending_misses_nothing(watch: Watch) -> None:
    after, payload = Crossing().step(seen(0, 11), IDLE)
    watch.crossing = Crossing.of(json.loads(json.dumps(after.state)))  # and the triggerer died here
    assert watch.see(seen(0, 19)) == 1
    assert watch.sent == [payload], "word for word, so that it can be told to be the same"
    assert watch.see(seen(0, 19)) == 0


def test_a_crossing_during_the_restart_is_not_missed(watch: Watch) -> None:
    assert watch.see(seen(0, 3)) == 0
    watch.restart()
    assert watch.see(seen(0, 11)) == 1


def test_an_event_that_no_run_answers_is_sent_again_after_a_while(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    assert watch.see(*[seen(0, 11)] * PATIENCE) == 0
    assert watch.see(seen(0, 12)) == 1
    watch.a_run_begins()
    assert watch.see(*[seen(0, 12)] * 2 * PATIENCE) == 0
    assert watch.sent[0] == watch.sent[1]


def test_runs_that_were_deleted_are_no_answer(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.runs = Runs(3, 0)
    assert watch.see(*[seen(0, 11)] * (PATIENCE + 1)) == 1
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(*[seen(0, 11)] * (PATIENCE + 1)) == 0


def test_without_a_dag_to_ask_about_nothing_is_sent_twice(watch: Watch) -> None:
    crossing, payload = Crossing().step(seen(0, 11))
    assert payload is not None
    crossing = Crossing.of(crossing.state)
    assert crossing.step(seen(0, 11)) == (crossing, None)


@pytest.mark.parametrize("rubbish", [None, {}, "x", [1], {"announced": None}, {"announced": 3}])
def test_a_state_that_says_nothing_is_armed(rubbish: Any) -> None:
    assert Crossing.of(rubbish) == Crossing()


def test_the_payload_is_the_snapshot_and_knows_no_clock() -> None:
    looks = [seen(0, 11, age=60.0), replace(seen(0, 11, age=67.25), at=NOW + timedelta(seconds=7.25))]
    (first, second) = [Crossing().step(found, IDLE)[1] for found in looks]
    assert first == second == {
        "pipeline": "demo", "verdict": "BACKLOG", "records": 11, "lost": 0, "limits": "more than 10 records",
        "oldest": "2026-11-02T04:59:00.000+00:00", "positions": {"demo": {"0": 0}}, "ends": {"demo": {"0": 11}},
    }  # fmt: skip


# --- the watcher -----------------------------------------------------------------------------------------------------


class Store:
    """An asset's state store."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.down = False

    async def aget(self, key: str, default: Any = None) -> Any:
        if self.down:
            raise RuntimeError("the API server does not answer")
        return self.values.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        if self.down:
            raise RuntimeError("the API server does not answer")
        self.values[key] = json.loads(json.dumps(value))


class Airflow:
    """What a watcher is given and asks for: a state store and the DAG's runs."""

    def __init__(self) -> None:
        self.store = Store()
        self.runs = IDLE

    def watcher(self, pipeline: str = "demo.yaml", **kwargs: Any) -> LagWatcher:
        kwargs = {"dag_id": "demo", "kafka_conn_id": "kafka_default", "poll_interval": 0.05, **kwargs}
        watcher = LagWatcher(pipeline=pipeline, **kwargs)
        watcher.asset_state_store = self.store  # type: ignore[assignment]
        watcher._runs = self._runs  # type: ignore[method-assign]
        return watcher

    async def _runs(self) -> Runs:
        return self.runs


@pytest.fixture
def airflow() -> Airflow:
    return Airflow()


def events(
    watcher: LagWatcher, looks: Iterable[Backlog | None], after: Callable[[int], None] = lambda _: None
) -> list[Any]:
    """Return what the watcher makes of these looks."""

    async def stream() -> AsyncIterator[dict[str, Backlog]]:
        for number, found in enumerate(looks):
            yield {} if found is None else {watcher.pipeline: found, "another.yaml": seen(0, 999)}
            after(number)

    async def collect() -> list[Any]:
        try:
            return [event.payload async for event in watcher.filter_shared_stream(stream())]
        finally:
            await watcher.cleanup()

    return asyncio.run(collect())


def test_the_watcher_can_be_made_again_and_is_the_same_to_airflow(pipeline_file: Callable[..., Path]) -> None:
    path, values = LagWatcher(pipeline=str(pipeline_file()), dag_id="demo", kafka_conn_id="kafka_default").serialize()
    again = import_string(path)(**values)
    assert again.serialize() == (path, values)
    assert json.loads(json.dumps(values)) == values
    assert BaseEventTrigger.hash(*again.serialize()) == BaseEventTrigger.hash(path, values)
    assert SECRET not in repr(values)


def test_events_carry_the_snapshot_and_the_state_is_kept(airflow: Airflow) -> None:
    (payload,) = events(airflow.watcher(), [None, seen(0, 3), seen(0, 11), seen(0, 12), SILENT])
    assert (payload["records"], payload["pipeline"]) == (11, "demo")
    assert airflow.store.values["crossing"]["announced"] == payload
    airflow.runs = Runs(8, 0)
    assert events(airflow.watcher(), [seen(0, 12), SILENT, seen(0, 13)]) == [], "another triggerer knows what was sent"
    assert events(airflow.watcher(), [seen(13, 13), seen(13, 24)])[0]["positions"] == {"demo": {"0": 13}}


def test_nothing_is_sent_that_could_not_be_remembered(airflow: Airflow) -> None:
    def outage(look: int) -> None:
        airflow.store.down = look < 2

    airflow.store.down = True
    assert len(events(airflow.watcher(), [seen(0, 11)] * 5, outage)) == 1


def test_an_airflow_that_does_not_count_runs_is_asked_again(airflow: Airflow) -> None:
    watcher, answers = airflow.watcher(), iter([RuntimeError("no answer"), IDLE])

    async def runs() -> Runs:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watcher._runs = runs  # type: ignore[method-assign]
    assert len(events(watcher, [seen(0, 11), seen(0, 12)])) == 1


def test_a_watcher_without_a_store_remembers_for_itself(airflow: Airflow) -> None:
    watcher = airflow.watcher()
    watcher.asset_state_store = None
    airflow.runs = IDLE
    assert len(events(watcher, [seen(0, 11), seen(0, 12)])) == 1


# --- one look for all ------------------------------------------------------------------------------------------------


class Kafka:
    """Stands in for the broker, and counts clients and looks."""

    def __init__(self) -> None:
        self.clients: list[Any] = []
        self.closed = 0
        self.looks: list[str] = []
        self.ends: dict[str, int] = {}
        self.broken: set[str] = set()

    def cluster(self, settings: Any, *, timeout: float) -> Any:
        kafka = self

        class Cluster:
            def __init__(self) -> None:
                self.settings = settings

            def close(self) -> None:
                kafka.closed += 1

        self.clients.append(Cluster())
        return self.clients[-1]

    def backlog(self, pipeline: Any, cluster: Any, *, home: Any, ledger: Any) -> Backlog:
        self.looks.append(pipeline.name)
        if pipeline.name in self.broken:
            raise SluiceError("the checkpoint cannot be read")
        return replace(seen(0, self.ends.get(pipeline.name, 0)), pipeline=pipeline.name)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka()
    monkeypatch.setattr(module, "Cluster", kafka.cluster)
    monkeypatch.setattr(module, "backlog", kafka.backlog)
    monkeypatch.setattr(module, "_JOINING", 0.01)
    return kafka


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        await asyncio.sleep(0.01)


def test_any_number_of_pipelines_of_one_connection_share_one_look(
    airflow: Airflow, kafka: Kafka, pipeline_file: Callable[..., Path]
) -> None:
    names = ["one", "two", "three"]
    watchers = {n: airflow.watcher(str(pipeline_file(n))) for n in names}
    fired: list[str] = []

    async def scenario() -> None:
        manager = SharedStreamManager()

        async def run_trigger(number: int, name: str) -> None:  # as Airflow's triggerer does
            watcher = watchers[name]
            watcher.asset_state_store = Store()  # type: ignore[assignment]
            key = watcher.shared_stream_key()
            stream = manager.subscribe(trigger_id=number, trigger=watcher, key=key)
            try:
                async for event in watcher.filter_shared_stream(stream):
                    fired.append(event.payload["pipeline"])
            finally:
                await manager.unsubscribe(number, key)
                await watcher.cleanup()

        tasks = [asyncio.create_task(run_trigger(i, name)) for i, name in enumerate(names)]
        await until(lambda: len(kafka.looks) >= 6)
        kafka.ends = {"two": 11}
        await until(lambda: fired)
        kafka.broken = {"one"}  # neither ends the look nor disturbs the others
        kafka.ends = {"two": 11, "three": 12}
        await until(lambda: len(fired) == 2)
        kafka.broken, kafka.ends = set(), {"one": 13, "two": 11, "three": 12}
        await until(lambda: len(fired) == 3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())
    assert fired == ["two", "three", "one"]
    assert (len(kafka.clients), kafka.closed) == (1, 1)
    assert module._watching == {}


def test_another_connection_or_interval_is_another_look(airflow: Airflow) -> None:
    key = airflow.watcher("a.yaml").shared_stream_key()
    assert airflow.watcher("b.yaml", dag_id="b").shared_stream_key() == key
    assert airflow.watcher("a.yaml", kafka_conn_id="kafka_2").shared_stream_key() != key
    assert airflow.watcher("a.yaml", poll_interval=7.0).shared_stream_key() != key


def test_a_connection_that_is_missing_ends_no_watcher(
    airflow: Airflow, kafka: Kafka, pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = airflow.watcher(str(pipeline_file()), kafka_conn_id="kafka_later")
    kafka.ends = {"demo": 11}

    async def scenario() -> Any:
        first = asyncio.create_task(anext(watcher.run()))  # type: ignore[arg-type]
        await asyncio.sleep(0.2)
        assert not first.done()
        extra = {"bootstrap.servers": "broker:9092"}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_LATER", json.dumps({"conn_type": "kafka", "extra": extra}))
        return (await asyncio.wait_for(first, 10)).payload

    assert asyncio.run(scenario())["records"] == 11
    asyncio.run(watcher.cleanup())


def test_a_slow_broker_makes_nobody_wait_for_ever(kafka: Kafka, pipeline_file: Callable[..., Path]) -> None:
    lookout, files = module._Lookout(1.0), sorted(str(pipeline_file(n)) for n in ("one", "two", "three"))
    settings: Any = object()
    in_turn = [list(lookout.look(files, settings, seconds=0)) for _ in range(4)]
    assert in_turn == [[files[0]], [files[1]], [files[2]], [files[0]]]
    assert len(lookout.look(files, settings, seconds=60)) == 3
    assert len(kafka.clients) == 1


def test_new_credentials_make_a_new_client(kafka: Kafka, pipeline_file: Callable[..., Path]) -> None:
    lookout, file = module._Lookout(1.0), str(pipeline_file())
    for settings in ("old", "old", "new"):
        lookout.look([file], settings, seconds=1)  # type: ignore[arg-type]
    assert ([c.settings for c in kafka.clients], kafka.closed) == (["old", "new"], 1)


# --- the DAG ---------------------------------------------------------------------------------------------------------


def test_a_pipeline_on_lag_is_a_dag_on_an_asset_of_its_own(pipeline_file: Callable[..., Path]) -> None:
    file = pipeline_file(more="schedule: on_lag\n")
    (asset,) = build_dag(file).timetable.asset_condition.objects
    assert asset.uri == "x-sluice://demo/lag"
    assert (asset.name, asset.uri) != (asset_of("demo").name, asset_of("demo").uri)
    ((watcher, other),) = zip(asset.watchers, lag_asset(load(file), str(file)).watchers, strict=True)
    assert BaseEventTrigger.hash(*watcher.trigger.serialize()) == BaseEventTrigger.hash(*other.trigger.serialize())
    assert watcher.trigger.dag_id == "demo"
    assert build_dag(file, poll_interval=4).timetable.asset_condition.objects[0].watchers[0].trigger.poll_interval == 4


def test_the_page_says_when_it_runs(pipeline_file: Callable[..., Path]) -> None:
    page = build_dag(pipeline_file(more="schedule: on_lag\n")).doc_md
    assert "more than 10 records" in page
    assert "x-sluice://demo/lag" in page
    assert "15 s" in page
    assert "On lag" not in build_dag(pipeline_file()).doc_md


def test_a_file_on_lag_is_built_with_the_others(pipeline_file: Callable[..., Path]) -> None:
    folder = pipeline_file("one", more="schedule: on_lag\n").parent
    pipeline_file("two")
    assert set(build_all(folder)) == {"one", "two"}
