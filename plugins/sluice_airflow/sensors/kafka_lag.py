"""Waits until a pipeline has enough to read."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

from sluice.errors import SourceUnreachableError, error_for_exit_code
from sluice.spec import load
from sluice_airflow.gate import OnIdle, decide, look
from sluice_airflow.hooks.kafka import KafkaHook
from sluice_airflow.tables import lag_table
from sluice_airflow.triggers.kafka_lag import KafkaLagTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["KafkaLagSensor"]

_GRACE = timedelta(minutes=2)
"""What Airflow grants beyond the trigger's own deadline, whose message says more."""


class KafkaLagSensor(BaseSensorOperator):
    """Compares the checkpoint's committed positions with the broker's end offsets, per partition.

    Done when more records wait than the pipeline's ``lag.max_records``, or when something is amiss that only a run can
    report (offsets that retention removed, a position beyond the end). A broker that does not answer means that the
    lag is *unknown*, never zero: the sensor goes on waiting and says so.

    Parameters
    ----------
    pipeline
        Name or path (templated).
    on_idle
        What to do when too little waits, a value of :class:`~sluice_airflow.gate.OnIdle`.
    deferrable
        Wait in the triggerer; the first look is the worker's. False: in the worker, as ``mode`` says.
    broker_timeout
        Seconds for one look.
    poke_interval, timeout, soft_fail, mode
        As of ``BaseSensorOperator``.

    Raises
    ------
    SourceUnreachableError
        When the broker is still silent at ``timeout``.
    AuthorizationError, ConfigError
        At once: waiting does not mend them.
    AirflowSensorTimeout
        When the broker answers, ``on_idle`` is ``wait``, and too little waits at ``timeout``.
    AirflowSkipException
        When too little waits and ``on_idle`` is ``skip``.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline", "on_idle")

    _unreachable: SourceUnreachableError | None = None

    def __init__(
        self,
        *,
        pipeline: str,
        on_idle: OnIdle | str = OnIdle.WAIT,
        deferrable: bool = True,
        broker_timeout: float = 20.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = str(pipeline)
        self.on_idle = str(on_idle)
        self.deferrable = deferrable
        self.broker_timeout = broker_timeout

    def execute(self, context: Context) -> None:
        """Look once, then wait where ``deferrable`` says."""
        if self.deferrable:
            if not self.poke(context):
                self._defer()
            return
        try:
            super().execute(context)
        except AirflowSensorTimeout:
            if self._unreachable is not None:
                raise self._unreachable from None
            raise

    def poke(self, context: Context) -> bool:
        """Look once; False means to go on waiting."""
        settings = KafkaHook(load(self.pipeline).kafka.connection).settings()
        try:
            found, limit = look(self.pipeline, settings, timeout=self.broker_timeout)
        except SourceUnreachableError as error:
            self._unreachable = error
            self.log.warning("The lag is unknown, still waiting: %s", error.what)
            return False
        self._unreachable = None
        self._show(found.as_dict(), limit)
        return self._act(decide(found, limit, OnIdle(self.on_idle)))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Turn the trigger's event into success, a skip, or the typed error."""
        if event["status"] == "error":
            kind = error_for_exit_code(event["code"])
            raise kind(event["what"], state=event["state"], next_step=event["next_step"])
        self._show(event["backlog"], event["limit"])
        if event["status"] == "timeout":
            raise AirflowSensorTimeout(
                f"after {self.timeout:.0f} s the lag of {self.pipeline} is {event['backlog']['lag']}, "
                f"not over the limit of {event['limit']}"
            )
        self._act(OnIdle(event["status"]))

    def _defer(self) -> None:
        self.defer(
            trigger=KafkaLagTrigger(
                pipeline=self.pipeline,
                kafka_conn_id=load(self.pipeline).kafka.connection,
                on_idle=self.on_idle,
                poll_interval=self.poke_interval,
                broker_timeout=self.broker_timeout,
                deadline=time.time() + self.timeout,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout) + _GRACE,
        )

    def _act(self, decision: OnIdle) -> bool:
        if decision is OnIdle.SKIP:
            raise AirflowSkipException("too little to read, and on_idle is skip")
        return decision is OnIdle.PROCEED

    def _show(self, backlog: dict[str, Any], limit: int) -> None:
        self.log.info(
            "%s: %s records wait, limit %s, on_idle %s\n%s",
            backlog["pipeline"], f"{backlog['lag']:,}", f"{limit:,}", self.on_idle, lag_table(backlog),
        )  # fmt: skip
