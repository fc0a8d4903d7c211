"""Takes rows out of the sink, and opens their offsets as lost, as ``sluice retract`` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException

from sluice.errors import public
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.run.actions import Retract
from sluice.run.decision import MAY_BE_OUT, check_unsettled, give_up
from sluice.run.redrive_plan import final
from sluice.run.retraction import possible, standing, wanted
from sluice_airflow.arguments import is_unset, refused
from sluice_airflow.failure_message import tells
from sluice_airflow.links.page import PageLink
from sluice_airflow.links.spark_ui import SparkUiLink
from sluice_airflow.operators.submit import SubmitOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["RetractOperator"]


class RetractOperator(SubmitOperator):
    """Retracts rows of one pipeline by Spark: takes the rows of a run, or of ranges, out of the sink.

    Their offsets are open as lost then: a :class:`RedriveOperator` writes them again, an :class:`AcknowledgeOperator`
    closes them. It needs the pipeline's lease: a live run that is active makes it fail, to be tried again later. Killed
    at any instruction, it leaves nothing that another attempt, or the next run, does not fix.

    Parameters
    ----------
    what
        The id of a run, or one or more ranges ``TOPIC:PARTITION:START-END`` (end exclusive), as a list or as one text
        with spaces between; empty, and the task is skipped. (Templated.)
    reason
        Why; the ledger keeps it. (Templated.)
    pipeline, run_id, conn_id, spark_binary, conf, driver_memory, …
        As of :class:`SubmitOperator`. The run's id must not be that of another run; by default it holds the ids of the
        DAG and of the DAG run.

    Returns
    -------
    dict
        The XCom ``return_value``: the run's account, with ``retracted``: how many ``written`` offsets left the sink,
        and how many were ``opened`` as lost. If a batch of the run waits (``quality.when: before_commit``), only that
        batch is given up: the ``run``, and the batch that was ``given_up``, as epoch and number.

    Raises
    ------
    ConfigError
        When the reason is empty, or rows of this pipeline, run or range cannot be retracted.
    SluiceError
        One class for each exit code.
    AirflowSkipException
        When nothing was asked for, or all of it was retracted before.
    """

    operator_extra_links = (PageLink(), SparkUiLink())
    template_fields: ClassVar[tuple[str, ...]] = (*SubmitOperator.template_fields, "what", "reason")

    def __init__(
        self,
        *,
        what: Sequence[str] | str,
        reason: str,
        run_id: str = "retract__{{ dag.dag_id }}__{{ run_id }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(run_id=run_id, **kwargs)
        self.what = what
        self.reason = reason

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Retract; return the account."""
        words = [] if is_unset(self.what) else self.what.split() if isinstance(self.what, str) else list(self.what)
        if not words:
            raise AirflowSkipException("nothing was asked for")
        if is_unset(self.reason):
            raise refused("reason", "it is empty: say why these rows are taken back")
        pipeline, ledger = load(self.pipeline), Ledger.open()
        of_run, ranges = wanted([str(word) for word in words], pipeline.source.config)
        if of_run is not None and (batch := give_up(ledger, pipeline.name, of_run, reason=str(self.reason))):
            self.log.info(
                "batch %d of run %s is given up: the next run counts its offsets as lost; what the run published "
                "before it stays in the sink", batch[1], of_run,
            )  # fmt: skip
            if ledger.verdicts.unfinished_since_judged(pipeline.name, of_run):
                self.log.warning(MAY_BE_OUT)
            if (why := final(pipeline)) is not None:
                self.log.warning("that is for good, unless it is accepted before that run: %s", why)
            return {"run": of_run, "given_up": list(batch)}
        possible(pipeline)
        if of_run is not None:
            check_unsettled(ledger, pipeline.name, of_run)
        # an attempt that died may have been the one that retracted
        known = ledger.runs.find(pipeline.name, self.run_id)
        if known is None and not standing(ledger, pipeline.name, run_id=of_run, ranges=ranges):
            raise AirflowSkipException("it was retracted before, or never written")
        self.carry_out(pipeline, Retract(self.run_id, str(self.reason), of_run, tuple(ranges)), context)
        account = ledger.runs.account(pipeline.name, self.run_id)
        self.log.info("%s offsets left the sink", f"{account['retracted']['written']:,}")
        self.log.info("%s offsets are open as lost", f"{account['retracted']['opened']:,}")
        return public(account)
