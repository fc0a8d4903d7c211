"""Starts DAGs when a backlog is worth a run: the event trigger behind ``schedule: on_lag``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Hashable
from typing import Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from sluice.connections import Connection
from sluice.errors import ConfigError, SluiceError, described
from sluice.home import Home
from sluice.lag import Backlog
from sluice.lag.current import Known, backlogs
from sluice.ledger import Ledger
from sluice.ledger.cache import Cache
from sluice.pipeline import Pipeline
from sluice.sources.measurable import Measurable
from sluice_airflow import connections, metrics
from sluice_airflow.files import Files
from sluice_airflow.triggers.crossing import RETRY_AFTER, Crossing, Runs

__all__ = ["POLL_INTERVAL", "LagWatcher", "lag_asset"]

POLL_INTERVAL = 15.0
"""Seconds within which a run starts once the limits are passed."""

_TOGETHER = 250
"""Pipelines for which a broker is asked at once."""
_HEADROOM = 3.0
"""The part of these seconds that Airflow needs to create a run from an event."""

_JOINING = 0.5
"""Seconds that the first look waits for watchers that start together."""

_KEY = "crossing"

_log = logging.getLogger(__name__)

_watching: dict[Hashable, dict[int, str]] = {}
"""The pipelines of each shared stream, by watcher; a triggerer process has one event loop for all of them."""


def lag_asset(
    pipeline: Pipeline,
    reference: str,
    *,
    poll_interval: float = POLL_INTERVAL,
    retry_after: float = RETRY_AFTER,
) -> Asset:
    """Return the asset of a pipeline's backlog, with its watcher; a DAG that is scheduled on it runs on lag.

    It is another asset than the sink's, whose events announce what was written.

    Raises
    ------
    ConfigError
        If the pipeline reads several clusters: a watcher cannot follow to another one.
    """
    if pipeline.kafka.clusters is not None:
        raise ConfigError(
            f"pipeline {pipeline.name!r} has source.kafka.clusters: what watches the lag cannot follow to another "
            "cluster yet",
            state="nothing was read or written",
            next_step="give its DAG a cron schedule",
        )
    watcher = LagWatcher(
        pipeline=reference,
        dag_id=pipeline.name,
        kafka_conn_id=pipeline.kafka.active,
        poll_interval=poll_interval,
        retry_after=retry_after,
    )
    return Asset(
        name=f"sluice/{pipeline.name}/lag",
        uri=f"x-sluice://{pipeline.name}/lag",
        watchers=[AssetWatcher(name=f"sluice/{pipeline.name}/lag", trigger=watcher)],
    )


class LagWatcher(BaseEventTrigger):
    """Yields one event each time a pipeline's lag rises above the limits of its file, and again after a run that failed
    and may be retried; never while a run is active.

    :class:`~sluice_airflow.triggers.crossing.Crossing` decides when an event is due. Its state is kept in the asset's
    state store, so that a restarted or another triggerer continues where this one stopped. All watchers of one
    connection share one look at the broker. Each look reads the pipeline's file again, so edited limits count from the
    next one on. A broker, ledger or file that cannot be read causes no event and ends no watcher: the next look tries
    again.

    Parameters
    ----------
    pipeline
        Name or path.
    dag_id
        The DAG that the event starts: while a run of it is queued or running there is no event, and an event that no
        run answered is sent again. None: only the ledger says whether a run is at work.
    kafka_conn_id
        The connection; its secrets are read here, not handed over.
    poll_interval
        Seconds within which the event and its run follow the crossing.
    broker_timeout
        Seconds for one look at one pipeline.
    retry_after
        Seconds after the first failed run until the same backlog starts another; see
        :data:`~sluice_airflow.triggers.crossing.RETRY_AFTER`.

    Notes
    -----
    The payload holds ``pipeline``, ``verdict``, ``records``, ``lost``, ``oldest`` (the time of the first unread
    record), ``limits``, ``positions`` and ``ends``. It depends only on the limits and on what is in Kafka and read, so
    two triggerers with the same measurement send the same payload.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        kafka_conn_id: str,
        dag_id: str | None = None,
        poll_interval: float = POLL_INTERVAL,
        broker_timeout: float = 10.0,
        retry_after: float = RETRY_AFTER,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.dag_id = dag_id
        self.kafka_conn_id = kafka_conn_id
        self.poll_interval = poll_interval
        self.broker_timeout = broker_timeout
        self.retry_after = retry_after
        self._said = ""
        self._warned = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and plain values."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "pipeline": self.pipeline,
                "dag_id": self.dag_id,
                "kafka_conn_id": self.kafka_conn_id,
                "poll_interval": self.poll_interval,
                "broker_timeout": self.broker_timeout,
                "retry_after": self.retry_after,
            },
        )

    # --- one look for all ----------------------------------------------------------------------------------------

    def shared_stream_key(self) -> Hashable:
        """Return the key that is equal for watchers that share their measurements."""
        return _key(self.serialize()[1])

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[dict[str, Backlog]]:
        """Measure the pipelines of all watchers repeatedly; yield the backlogs by the pipeline's reference."""
        key, conn_id = _key(kwargs), kwargs["kafka_conn_id"]
        interval = max(kwargs["poll_interval"] - _HEADROOM, kwargs["poll_interval"] / 2)
        lookout = _Lookout(kwargs["broker_timeout"])
        await asyncio.sleep(_JOINING)
        try:
            while True:
                began = time.monotonic()
                pipelines = sorted(set(_watching.get(key, {}).values()))
                try:
                    connection = await connections.aget(conn_id)
                    found = await asyncio.to_thread(lookout.look, pipelines, connection, interval)
                except Exception as error:  # raised, it would end every watcher of the connection
                    lookout.say(conn_id, error)
                    found = {}
                yield found
                await asyncio.sleep(max(0.1, interval - (time.monotonic() - began)))
        finally:
            await asyncio.to_thread(lookout.close)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[dict[str, Backlog]]
    ) -> AsyncIterator[TriggerEvent]:
        """Yield this pipeline's events."""
        _watching.setdefault(self.shared_stream_key(), {})[id(self)] = self.pipeline
        crossing: Crossing | None = None
        async for found in shared_stream:
            mine = found.get(self.pipeline)
            if mine is None:
                continue
            self._say(mine)
            try:
                if crossing is None:
                    crossing = Crossing.of(await self._remembered())
                runs = await self._runs() if crossing.wants_runs(mine) else None
                after, payload = crossing.step(mine, runs, retry_after=self.retry_after)
                if after.state != crossing.state:
                    await self._remember(after.state)
            except Exception as error:  # Airflow does not answer: send no event whose state is not stored
                self.log.warning("%s: the next look tries again: %s: %s", self.pipeline, type(error).__name__, error)
                continue
            crossing = after
            self._warn(crossing.outlook(mine, self.retry_after))
            if payload is not None:
                yield TriggerEvent(payload)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the events without a shared stream."""
        async for event in self.filter_shared_stream(self.open_shared_stream(self.serialize()[1])):
            yield event

    async def cleanup(self) -> None:
        """Leave the shared stream."""
        key = self.shared_stream_key()
        if key in _watching:
            _watching[key].pop(id(self), None)
            if not _watching[key]:
                del _watching[key]

    # --- Airflow -------------------------------------------------------------------------------------------------

    async def _remembered(self) -> Any:
        return None if self.asset_state_store is None else await self.asset_state_store.aget(_KEY)

    async def _remember(self, state: dict[str, Any]) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(_KEY, state)

    async def _runs(self) -> Runs | None:
        if self.dag_id is None:
            return None
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        count = RuntimeTaskInstance.get_dr_count
        active = await asyncio.to_thread(count, dag_id=self.dag_id, states=["queued", "running"])
        return Runs(await asyncio.to_thread(count, dag_id=self.dag_id), active)

    def _say(self, found: Backlog) -> None:
        """Log the pipeline's state whenever it changes."""
        unknown = f": {found.error.what}" if found.error else ""
        running = f"; run {found.running!r} is at work" if found.running else ""
        held = f"; the verdict of run {found.held!r} holds it" if found.held else ""
        state = f"{found.verdict}{', over the limits' if found.over else ''}{unknown}{running}{held}"
        if state != self._said:
            self.log.info("%s: %s (lag %s, limits: %s)", found.pipeline, state, found.records, found.limits)
            self._said = state

    def _warn(self, outlook: str) -> None:
        """Log what follows a failed run, whenever that changes."""
        if outlook and outlook != self._warned:
            self.log.warning("%s: %s", self.pipeline, outlook)
        self._warned = outlook


class _Lookout:
    """Measures pipelines with one client and one ledger. It blocks, so it is called from a thread."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._connection: Connection | None = None
        self._cluster: Measurable | None = None
        self._ledger: Ledger | None = None
        self._last = ""
        self._reached = (0, 0)
        self._files = Files()
        self._known: Cache[Known] = Cache()
        self._said: dict[str, str] = {}

    def look(self, pipelines: list[str], connection: Connection, seconds: float) -> dict[str, Backlog]:
        """Return the backlogs that can be measured in about ``seconds``; the next call starts with the others."""
        if self._connection != connection:
            self.close()
            self._connection = connection
        until = time.monotonic() + seconds
        found: dict[str, Backlog] = {}
        turn = [p for p in pipelines if p > self._last] + [p for p in pipelines if p <= self._last]
        reached = 0
        while reached < len(turn) and (reached == 0 or time.monotonic() < until):
            some = turn[reached : reached + _TOGETHER]
            reached += len(some)
            self._last = some[-1]
            found |= self._measured(some, connection)
        if (found_of := (reached, len(turn))) != self._reached and reached < len(turn):
            _log.warning(
                "a look reached %d of %d pipelines in %.0f s: the others are looked at first next time, so a run may "
                "start later; a longer poll_interval, or a connection id of their own for some, gives them time",
                *found_of,
                seconds,
            )
        self._reached = found_of
        return found

    def _measured(self, references: list[str], connection: Connection) -> dict[str, Backlog]:
        """Return the backlogs of some pipelines, and log why others are unknown."""
        specs: dict[str, Pipeline] = {}
        for reference in references:
            try:
                spec = self._files.load(reference)
                if spec.source.kind.measured is None:
                    self.say(reference, ConfigError(f"it reads from source.{spec.source.key} now, which has no lag"))
                    continue
                specs[reference] = spec
            except Exception as error:
                self.say(reference, error)
        found: dict[str, Backlog] = {}
        if not specs:
            return found
        try:
            self._ledger = self._ledger or Ledger.open()
            for spec in specs.values():
                self._cluster = self._cluster or spec.source.kind.cluster(connection, timeout=self._timeout)
            assert self._cluster is not None
            answers = backlogs(
                list(specs.values()), self._cluster, home=Home.from_env(), ledger=self._ledger, remembered=self._known
            )
        except Exception as error:
            self._ledger = None
            for reference in specs:
                self.say(reference, error)
            return found
        for reference, spec in specs.items():
            answer = answers.get(spec.name)
            if isinstance(answer, Backlog):
                found[reference] = answer
                metrics.of_backlog(answer)
                self._said.pop(reference, None)
            elif answer is not None:
                self.say(reference, answer)
        return found

    def say(self, about: str, error: Exception) -> None:
        """Log an error, unless the same one was logged before."""
        text = error.what if isinstance(error, SluiceError) else described(error)
        if self._said.get(about) != text:
            self._said[about] = text
            _log.warning("%s: the lag is unknown, the next look tries again: %s", about, text)

    def close(self) -> None:
        """Close the client."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


def _key(kwargs: dict[str, Any]) -> Hashable:
    return "sluice lag", kwargs["kafka_conn_id"], kwargs["poll_interval"], kwargs["broker_timeout"]
