"""Runs a pipeline once and returns the account of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException

from sluice.errors import ConfigError, HeldError, SluiceError, public
from sluice.home import Home
from sluice.lag.current import waiting
from sluice.launch.submit import is_small
from sluice.ledger import Ledger, RunRow, UnknownRunError
from sluice.pipeline import load
from sluice.ranges import joined
from sluice.recovery import Recovery, Route
from sluice.run.actions import RunRequest, interval_recovery
from sluice.run.circuit_breaker import refuse_held
from sluice_airflow import connections
from sluice_airflow.arguments import choice_of, count_of, flag_of, is_known, is_unset
from sluice_airflow.failure_message import tells
from sluice_airflow.links.page import PageLink
from sluice_airflow.links.spark_ui import SparkUiLink
from sluice_airflow.log_tables import account_table
from sluice_airflow.operators.submit import SubmitOperator
from sluice_airflow.window import run_window

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

__all__ = ["BoundedRunOperator", "ingest_before", "run_before"]


class BoundedRunOperator(SubmitOperator):
    """Runs one pipeline by Spark: what is available now, or the interval of a backfill or of
    the form; see :func:`~sluice_airflow.window.run_window`.

    Killed at any instruction, it leaves nothing that another attempt, or the next run, does not fix: the checkpoint
    and the sink's own transaction say what was committed, the ledger is reconciled with them.

    Parameters
    ----------
    recovery, max_records_per_batch, validate
        What this task asks for (templated). None, or a template that renders to nothing, leaves it to the DAG's param
        of the same name, and without one to the pipeline's file.
    pipeline, run_id, conn_id, spark_binary, conf, driver_memory, …
        As of :class:`SubmitOperator`.

    Returns
    -------
    dict
        The XCom ``return_value``: the run's account (see :meth:`sluice.ledger.runs.Runs.account`) and its ``ranges``,
        ``[topic, partition, start, end]`` each.

    Raises
    ------
    ConfigError
        When it is made with a strategy, or a number of records, that means nothing.
    AirflowSkipException
        When the pipeline is held by the failed verdict of an earlier run: that run failed, so this one need not.
    SluiceError
        One class for each exit code; :class:`~sluice_airflow.retry.TypedRetryPolicy` reads from it whether to retry.
    """

    operator_extra_links = (PageLink(), SparkUiLink())
    template_fields: ClassVar[tuple[str, ...]] = (
        *SubmitOperator.template_fields,
        "recovery",
        "max_records_per_batch",
        "validate",
    )

    def __init__(
        self,
        *,
        recovery: Recovery | str | None = None,
        max_records_per_batch: int | str | None = None,
        validate: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if is_known(recovery):
            choice_of("recovery", recovery, Recovery)
        if is_known(max_records_per_batch):
            count_of("max_records_per_batch", max_records_per_batch)
        self.recovery = None if recovery is None else str(recovery)
        self.max_records_per_batch = max_records_per_batch
        if is_known(validate):
            flag_of("validate", validate)
        self.validate = validate

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Run, and return the account."""
        pipeline = load(self.pipeline)
        self.spark_connection(pipeline)
        self.spark_settings(pipeline)
        window = run_window(context, pipeline, self.run_id)
        self.run_id = window.run_id
        recovery = choice_of("recovery", self._asked("recovery", context), Recovery)
        limit = count_of("max_records_per_batch", self._asked("max_records_per_batch", context))
        if window.interval is not None:
            # a strategy of the task, as one of the file, is that of live runs, and so is a limit
            own = None if is_unset(self.recovery) else recovery
            recovery, limit = window.recovery if own is None else interval_recovery(pipeline, own), None
        validate = self._asked("validate", context)
        request = RunRequest(
            self.run_id,
            recovery,
            limit,
            window.interval,
            window.reason,
            is_unset(validate) or flag_of("validate", validate),
        )
        ledger = Ledger.open()
        epoch = ledger.offsets.epoch(pipeline.name)
        waits = None if request.interval else waiting(pipeline, connections.get, home=Home.from_env(), epoch=epoch)
        small = is_small(pipeline, request, waiting=waits, engine=ledger.runs.engine(pipeline.name))
        PageLink().show(self, context)
        try:
            if window.interval is None and (request.recovery or pipeline.recovery).route is not Route.LOG:
                refuse_held(Ledger.open(), pipeline, self.run_id)  # with the log, the driver lands records first
            self.carry_out(pipeline, request, context, small=small)
        except HeldError as held:
            self.log.warning("%s", held)
            raise AirflowSkipException(held.what) from None
        return self._account(pipeline.name)

    def get_openlineage_facets_on_complete(self, _ti: Any) -> Any:
        """Return a run's lineage, also that of a run that failed; its provider calls this where it is installed."""
        from sluice_airflow import lineage

        return lineage.of_ingest(load(self.pipeline), self.run_id)

    def _asked(self, name: str, context: Context) -> Any:
        own = getattr(self, name)
        return own if not is_unset(own) else (context.get("params") or {}).get(name)

    def _account(self, pipeline: str) -> dict[str, Any]:
        ledger = Ledger.open()
        try:
            account = ledger.runs.account(pipeline, self.run_id)
        except UnknownRunError:
            raise SluiceError(
                f"the application ended well, and the ledger has no run {self.run_id!r} of {pipeline!r}",
                state="the sink holds what the run committed",
                next_step="give the worker and Spark the same SLUICE_HOME and SLUICE_LEDGER_URL, then clear this task",
            ) from None
        accounts = ledger.offsets.accounts(pipeline, self.run_id)
        self.log.info("Account of run %s\n%s", self.run_id, account_table(accounts))
        return {**public(account), "ranges": [r.as_list() for r in joined(a.range for a in accounts)]}


def run_before(task: BaseOperator, pipeline: str, run_id: str, doing: str) -> RunRow:
    """Return the run of the ingest task before this one, which must have ended well: others are not judged.

    A person may have marked a task that was running, or had failed, as success.

    Parameters
    ----------
    doing
        What this task does, as "there is nothing to DOING".

    Raises
    ------
    LeaseHeldError
        If its driver is at work.
    SluiceError
        If the ledger does not have it, or it failed or never ended.
    """
    clear = f"clear {ingest_before(task)} of this DAG run first"
    try:
        row = Ledger.open().runs.ended(pipeline, run_id)
    except ConfigError as error:
        raise SluiceError(error.what, state=f"there is nothing to {doing}", next_step=clear) from None
    if row.state != "done" and row.verdict is None:
        raise SluiceError(
            f"run {run_id!r} of {pipeline!r} ended as {row.state}",
            state=f"there is nothing to {doing}: records that it did not read still wait",
            next_step=clear,
        )
    return row


def ingest_before(task: BaseOperator) -> str:
    """Return, in words, the task directly before this one that runs the pipeline: it may lie in a group."""
    before = task.upstream_list if task.has_dag() else []
    names = sorted(t.task_id for t in before if isinstance(t, BoundedRunOperator))
    return f"the task {names[0]!r}" if names else "the ingest task"
