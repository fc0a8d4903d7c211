"""Waits for lag without a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from sluice.errors import SluiceError
from sluice_airflow import connections
from sluice_airflow.gate import OnIdle, decide, look, why_waiting

__all__ = ["KafkaLagTrigger"]


class KafkaLagTrigger(BaseTrigger):
    """Measures the lag every ``poll_interval`` seconds until there is a decision; yields exactly one event.

    All of its state is in its arguments: a restarted or another triggerer keeps the same deadline. It holds nothing
    open between two measurements, so there is nothing to clean up. The triggerer needs the ``SLUICE_HOME``
    and ``SLUICE_LEDGER_URL`` of the workers, and this package on its path (a plugin folder is).

    Parameters
    ----------
    pipeline
        Name or path.
    kafka_conn_id
        The connection's id; its secrets are read in the triggerer and not passed on.
    on_idle
        A value of :class:`~sluice_airflow.gate.OnIdle`.
    limits
        Limits that override the pipeline file's; see :func:`~sluice_airflow.gate.limits_of`.
    hold_while_running
        Wait while a run of the pipeline is at work.
    poll_interval, broker_timeout
        Seconds between two looks, and for one.
    deadline
        When to give up, in seconds since the epoch.

    Notes
    -----
    Events are ``{"status": "proceed" | "skip", "backlog": …}``, ``{"status": "timeout", "backlog": …, "why": …}``,
    or ``{"status": "error", "code": …, "what": …, "state": …, "next_step": …}`` with the exit code that names the type.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        kafka_conn_id: str,
        on_idle: str,
        poll_interval: float,
        broker_timeout: float,
        deadline: float,
        limits: Mapping[str, Any] | None = None,
        hold_while_running: bool = True,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.kafka_conn_id = kafka_conn_id
        self.on_idle = on_idle
        self.limits = dict(limits or {})
        self.hold_while_running = hold_while_running
        self.poll_interval = poll_interval
        self.broker_timeout = broker_timeout
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and plain values."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "pipeline": self.pipeline,
                "kafka_conn_id": self.kafka_conn_id,
                "on_idle": self.on_idle,
                "limits": self.limits,
                "hold_while_running": self.hold_while_running,
                "poll_interval": self.poll_interval,
                "broker_timeout": self.broker_timeout,
                "deadline": self.deadline,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield the event."""
        yield TriggerEvent(await self._wait())

    async def _wait(self) -> dict[str, Any]:
        while True:
            try:
                connection = await connections.aget(self.kafka_conn_id)
                found = await asyncio.to_thread(
                    look, self.pipeline, connection, limits=self.limits, timeout=self.broker_timeout
                )
                decision = decide(found, OnIdle(self.on_idle), hold_while_running=self.hold_while_running)
            except SluiceError as error:
                return _as_event(error)
            if decision is not OnIdle.WAIT:
                return {"status": decision.value, "backlog": found.brief()}
            why = why_waiting(found, hold_while_running=self.hold_while_running)
            self.log.info("%s waits: %s", found.pipeline, why or f"lag {found.records}, waiting for {found.limits}")
            left = self.deadline - time.time()
            if left <= 0:
                if found.error is not None:
                    return _as_event(found.error)
                return {"status": "timeout", "backlog": found.brief(), "why": why}
            await asyncio.sleep(min(self.poll_interval, left))


def _as_event(error: SluiceError) -> dict[str, Any]:
    return {
        "status": "error",
        "code": int(error.exit_code),
        "what": error.what,
        "state": error.state,
        "next_step": error.next_step,
    }
