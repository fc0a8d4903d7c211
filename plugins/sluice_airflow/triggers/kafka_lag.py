"""Waits for lag without a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from sluice.errors import SluiceError, SourceUnreachableError
from sluice.kafka import KafkaSettings
from sluice_airflow import connections
from sluice_airflow.gate import OnIdle, decide, look

__all__ = ["KafkaLagTrigger"]


class KafkaLagTrigger(BaseTrigger):
    """Looks every ``poll_interval`` seconds until there is an answer; yields exactly one event.

    All of its state is in its arguments: a triggerer that starts again, or another one, goes on to the same deadline.
    It holds nothing open between two looks, so there is nothing to clean up. The triggerer needs the ``SLUICE_HOME``
    and ``SLUICE_LEDGER_URL`` of the workers, and this package on its path (a plugin folder is).

    Parameters
    ----------
    pipeline
        Name or path.
    kafka_conn_id
        The connection; its secrets are read here, not handed over.
    on_idle
        A value of :class:`~sluice_airflow.gate.OnIdle`.
    poll_interval, broker_timeout
        Seconds between two looks, and for one.
    deadline
        When to give up, in seconds since the epoch.

    Notes
    -----
    Events are ``{"status": "proceed" | "skip", "backlog": …, "limit": …}``,
    ``{"status": "timeout", "backlog": …, "limit": …}``, or ``{"status": "error", "code": …, "what": …, "state": …,
    "next_step": …}`` with the exit code that names the type.
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
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.kafka_conn_id = kafka_conn_id
        self.on_idle = on_idle
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
            unreachable: SourceUnreachableError | None = None
            seen: dict[str, Any] = {}
            try:
                settings = KafkaSettings.from_connection(await connections.aget(self.kafka_conn_id))
                found, limit = await asyncio.to_thread(look, self.pipeline, settings, timeout=self.broker_timeout)
            except SourceUnreachableError as error:
                unreachable = error
                self.log.warning("The lag is unknown, still waiting: %s", error.what)
            except SluiceError as error:
                return _as_event(error)
            else:
                seen = {"backlog": found.as_dict(), "limit": limit}
                decision = decide(found, limit, OnIdle(self.on_idle))
                if decision is not OnIdle.WAIT:
                    return {"status": decision.value, **seen}
                self.log.info("%s waits: lag %d, limit %d", found.pipeline, found.records, limit)
            left = self.deadline - time.time()
            if left <= 0:
                return _as_event(unreachable) if unreachable else {"status": "timeout", **seen}
            await asyncio.sleep(min(self.poll_interval, left))


def _as_event(error: SluiceError) -> dict[str, Any]:
    return {
        "status": "error",
        "code": int(error.exit_code),
        "what": error.what,
        "state": error.state,
        "next_step": error.next_step,
    }
