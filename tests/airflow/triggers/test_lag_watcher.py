"""The watcher around the crossing: its looks, its state and its events, and that pipelines share its looks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import BaseEventTrigger
from airflow.triggers.shared_stream import SharedStreamManager
from tests.airflow.conftest import SECRET
from tests.airflow.triggers.conftest import IDLE, SILENT, seen

from sluice.errors import ConfigError, SluiceError
from sluice.lag import Backlog
from sluice.pipeline import load
from sluice.sources.base import SourceKind
from sluice_airflow.triggers import lag_watcher as module
from sluice_airflow.triggers.crossing import Runs
from sluice_airflow.triggers.lag_watcher import LagWatcher

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


class Store:
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
    """Surroundings of a watcher: a state store and the DAG's runs."""

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


def test_watcher_survives_serialization_as_the_same_trigger(pipeline_file: Any) -> None:
    path, values = LagWatcher(pipeline=str(pipeline_file()), dag_id="demo", kafka_conn_id="kafka_default").serialize()
    again = import_string(path)(**values)
    assert again.serialize() == (path, values)
    assert json.loads(json.dumps(values)) == values
    assert BaseEventTrigger.hash(*again.serialize()) == BaseEventTrigger.hash(path, values)
    assert SECRET not in repr(values)


def test_watcher_sends_the_snapshot_and_keeps_its_state(airflow: Airflow) -> None:
    (payload,) = events(airflow.watcher(), [None, seen(0, 3), seen(0, 11), seen(0, 12), SILENT])
    assert (payload["records"], payload["pipeline"]) == (11, "demo")
    assert airflow.store.values["crossing"]["announced"] == payload
    airflow.runs = Runs(8, 0)
    assert events(airflow.watcher(), [seen(0, 12), SILENT, seen(0, 13)]) == [], "another triggerer knows what was sent"
    assert events(airflow.watcher(), [seen(13, 13), seen(13, 24)])[0]["positions"] == {"demo": {"0": 13}}
    airflow.runs = IDLE
    forgetful = airflow.watcher()
    forgetful.asset_state_store = None
    assert len(events(forgetful, [seen(0, 11), seen(0, 12)])) == 1, "it remembers for itself"


def test_watcher_sends_nothing_that_it_could_not_remember(airflow: Airflow) -> None:
    def outage(look: int) -> None:
        airflow.store.down = look < 2

    airflow.store.down = True
    assert len(events(airflow.watcher(), [seen(0, 11)] * 5, outage)) == 1


def test_watcher_asks_again_when_airflow_does_not_count_runs(airflow: Airflow) -> None:
    watcher, answers = airflow.watcher(), iter([RuntimeError("no answer"), IDLE])

    async def runs() -> Runs:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watcher._runs = runs  # type: ignore[method-assign]
    assert len(events(watcher, [seen(0, 11), seen(0, 12)])) == 1


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

    def backlogs(self, pipelines: Any, cluster: Any, **_: Any) -> dict[str, Backlog | SluiceError]:
        names = [pipeline.name for pipeline in pipelines]
        self.looks += names
        return {
            name: SluiceError("the checkpoint cannot be read")
            if name in self.broken
            else replace(seen(0, self.ends.get(name, 0)), pipeline=name)
            for name in names
        }


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka()
    monkeypatch.setattr(
        SourceKind, "cluster", lambda _, connection, timeout: kafka.cluster(connection, timeout=timeout)
    )
    monkeypatch.setattr(module, "backlogs", kafka.backlogs)
    monkeypatch.setattr(module, "_JOINING", 0.01)
    return kafka


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        await asyncio.sleep(0.01)


def test_watchers_of_one_connection_share_one_look(airflow: Airflow, kafka: Kafka, pipeline_file: Any) -> None:
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


def test_watcher_of_another_connection_or_interval_looks_for_itself(airflow: Airflow) -> None:
    key = airflow.watcher("a.yaml").shared_stream_key()
    assert airflow.watcher("b.yaml", dag_id="b").shared_stream_key() == key
    for other in ({"kafka_conn_id": "kafka_2"}, {"poll_interval": 7.0}):
        assert airflow.watcher("a.yaml", **other).shared_stream_key() != key


def test_watcher_outlives_a_missing_connection(
    airflow: Airflow, kafka: Kafka, pipeline_file: Any, monkeypatch: pytest.MonkeyPatch
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


def test_watcher_of_a_slow_broker_gives_each_pipeline_its_turn(
    kafka: Kafka, pipeline_file: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_TOGETHER", 1)
    lookout, files = module._Lookout(1.0), sorted(str(pipeline_file(n)) for n in ("one", "two", "three"))
    settings: Any = object()
    in_turn = [list(lookout.look(files, settings, seconds=0)) for _ in range(4)]
    assert in_turn == [[files[0]], [files[1]], [files[2]], [files[0]]]
    assert caplog.text.count("a look reached 1 of 3 pipelines") == 1, "once, until that changes"
    assert len(lookout.look(files, settings, seconds=60)) == 3
    assert len(kafka.clients) == 1


def test_watcher_leaves_out_a_pipeline_without_lag_and_none_follows_clusters(kafka: Kafka, pipeline_file: Any) -> None:
    def reading(name: str, source: dict[str, Any]) -> str:
        path = pipeline_file(name)
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "source": source}))
        return str(path)

    other, healthy = reading("a_other", {"rate": {"rows_per_second": 1}}), str(pipeline_file("z"))
    connection: Any = object()
    assert list(module._Lookout(1.0).look([other, healthy], connection, seconds=9)) == [healthy]
    two = reading("two", {"kafka": {"clusters": ["a", "b"], "topics": ["t"], "origin_header": "o"}})
    with pytest.raises(ConfigError, match="clusters"):
        module.lag_asset(load(two), two)


def test_watcher_makes_a_new_client_for_new_credentials(kafka: Kafka, pipeline_file: Any) -> None:
    lookout, file = module._Lookout(1.0), str(pipeline_file())
    for settings in ("old", "old", "new"):
        lookout.look([file], settings, seconds=1)  # type: ignore[arg-type]
    assert ([c.settings for c in kafka.clients], kafka.closed) == (["old", "new"], 1)
