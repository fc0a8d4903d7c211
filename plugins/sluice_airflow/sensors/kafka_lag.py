"""Waits until a pipeline has enough to read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

from sluice.errors import LeaseHeldError, SluiceError, error_for_exit_code
from sluice.lag.current import active
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.text import length
from sluice_airflow import connections
from sluice_airflow.arguments import choice_of, is_known
from sluice_airflow.failure_message import WaitedTooLong, tells
from sluice_airflow.gate import OnIdle, check, decide, given, limits_of, look, why_waiting
from sluice_airflow.log_tables import lag_table
from sluice_airflow.triggers.kafka_lag import KafkaLagTrigger
from sluice_airflow.window import run_window

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["KafkaLagSensor"]

_GRACE = timedelta(minutes=2)
"""What Airflow grants beyond the trigger's own deadline, whose message says more."""


class KafkaLagSensor(BaseSensorOperator):
    """Compares the checkpoint's committed positions with the broker's end offsets, per partition.

    Done when the limits are exceeded, or when there is a problem that only a run can report (offsets that retention
    removed, a topic that was recreated). A broker that does not answer means that the lag is *unknown*, never zero:
    the sensor goes on waiting and says so. It also waits while another run of the pipeline is active: that run reads
    the backlog, and a second driver would not get the lease.

    For an interval run (:func:`~sluice_airflow.window.run_window`) it succeeds at once.

    Parameters
    ----------
    pipeline
        Name or path (templated).
    on_idle
        What to do when too little waits, a value of :class:`~sluice_airflow.gate.OnIdle` (templated).
    max_records, max_age, max_retention_share, match
        Limits instead of those in the pipeline's file, written as there (templated): ``max_age="15m"``,
        ``match="all"``. None, or a template that renders to nothing, leaves the file's.
    hold_while_running
        Wait while a run of this pipeline is at work, by the ledger: a driver that is alive holds the lease.
    deferrable
        Wait in the triggerer, after a first measurement in the worker. False: wait in the worker, as ``mode`` says.
    broker_timeout
        Seconds for one measurement.
    poke_interval, timeout, soft_fail, mode
        As of ``BaseSensorOperator``.

    Raises
    ------
    SourceUnreachableError
        When the broker is still silent at ``timeout``.
    AuthorizationError, ConfigError
        At once: waiting does not fix them. Also when the run's params contradict each other, and when it is made with
        limits or an ``on_idle`` that mean nothing.
    LeaseHeldError
        When another run of the pipeline was active until the sensor gave up.
    AirflowSensorTimeout
        When the broker answers and, at ``timeout``, too little waits and ``on_idle`` is ``wait``; with what was
        measured last.
    AirflowSkipException
        When too little waits and ``on_idle`` is ``skip``.
    """

    template_fields: ClassVar[tuple[str, ...]] = (
        "pipeline",
        "on_idle",
        "max_records",
        "max_age",
        "max_retention_share",
        "match",
    )

    _unknown: SluiceError | None = None
    _measured: Mapping[str, Any] = MappingProxyType({})
    _held_by: str | None = None

    def __init__(
        self,
        *,
        pipeline: str,
        on_idle: OnIdle | str = OnIdle.WAIT,
        max_records: int | str | None = None,
        max_age: timedelta | str | None = None,
        max_retention_share: float | str | None = None,
        match: str | None = None,
        hold_while_running: bool = True,
        deferrable: bool = True,
        broker_timeout: float = 20.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if is_known(on_idle):
            choice_of("on_idle", on_idle, OnIdle)
        check(max_records=max_records, max_age=max_age, max_retention_share=max_retention_share, match=match)
        self.pipeline = str(pipeline)
        self.on_idle = str(on_idle)
        self.max_records = max_records
        self.max_age = max_age
        self.max_retention_share = max_retention_share
        self.match = match
        self.hold_while_running = hold_while_running
        self.deferrable = deferrable
        self.broker_timeout = broker_timeout

    @tells
    def execute(self, context: Context) -> None:
        """Measure once, then wait where ``deferrable`` says. An interval run does not wait."""
        interval = run_window(context, load(self.pipeline)).interval
        if interval is not None:
            self.log.info("This run reprocesses the interval %s: it does not wait for lag", interval)
            return
        if self.deferrable:
            if not self.poke(context):
                self._defer()
            return
        try:
            super().execute(context)
        except AirflowSensorTimeout:
            if self._unknown is not None:
                raise self._unknown from None
            self._give_up(self._measured, self._held_by)

    def poke(self, context: Context) -> bool:
        """Measure once; False means to go on waiting."""
        connection = connections.get(active(load(self.pipeline), Ledger.open))
        found = look(self.pipeline, connection, limits=self._limits(), timeout=self.broker_timeout)
        decision = decide(found, self._on_idle(), hold_while_running=self.hold_while_running)
        self._unknown, self._measured = found.error, found.brief()
        self._held_by = why_waiting(found, hold_while_running=self.hold_while_running)
        if self._held_by:
            self.log.warning("Still waiting: %s", self._held_by)
        self._show(self._measured, str(found.limits))
        return self._act(decision)

    @tells
    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Turn the trigger's event into success, a skip, or the typed error."""
        if event["status"] == "error":
            kind = error_for_exit_code(event["code"])
            raise kind(event["what"], state=event["state"], next_step=event["next_step"])
        limits = str(limits_of(load(self.pipeline), self._limits()))
        self._show(event["backlog"], limits)
        if event["status"] == "timeout":
            self._give_up(event["backlog"], event.get("why"))
        self._act(OnIdle(event["status"]))

    def _give_up(self, measured: Mapping[str, Any], held_by: str | None) -> NoReturn:
        """Fail with what was measured last, and why that is not enough."""
        waited = length(self.timeout)
        if held_by:  # another run is active: a requested run must not look like a skipped one
            raise LeaseHeldError(
                f"{held_by}, after {waited} of waiting",
                state="nothing was read or written",
                next_step="clear this task when that run has ended",
            )
        lag, age, limits = measured["lag"], measured["age"], limits_of(load(self.pipeline), self._limits())
        oldest = f", the oldest {length(age)} old" if age is not None else ""
        raise WaitedTooLong(
            f"no run of {measured['pipeline']!r} was due within {waited}: {lag or 0:,} records wait{oldest}, and a run "
            f"is due when there are {limits}",
            state="nothing was read or written; what waits is for the next run",
            next_step="clear this task to wait again; if such a run should not fail, give the sensor soft_fail, "
            "on_idle skip or proceed, a longer timeout, or lower limits",
        )

    def _on_idle(self) -> OnIdle:
        return choice_of("on_idle", self.on_idle, OnIdle) or OnIdle.WAIT

    def _limits(self) -> dict[str, Any]:
        return given(
            max_records=self.max_records,
            max_age=self.max_age,
            max_retention_share=self.max_retention_share,
            match=self.match,
        )

    def _defer(self) -> None:
        self.defer(
            trigger=KafkaLagTrigger(
                pipeline=self.pipeline,
                kafka_conn_id=active(load(self.pipeline), Ledger.open),
                on_idle=self._on_idle().value,
                limits=self._limits(),
                hold_while_running=self.hold_while_running,
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

    def _show(self, backlog: Mapping[str, Any], limits: str) -> None:
        lag = "an unknown number of" if backlog["lag"] is None else f"{backlog['lag']:,}"
        self.log.info(
            "%s: %s; %s records wait; a run is due when there are %s; on_idle %s\n%s",
            backlog["pipeline"], backlog["verdict"], lag, limits, self.on_idle, lag_table(backlog),
        )  # fmt: skip
