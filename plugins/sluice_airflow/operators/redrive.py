"""Redrives lost ranges, or quarantined records, as ``sluice redrive`` does."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException

from sluice.errors import public
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.run.actions import Redrive
from sluice.run.redrive_plan import check_ranges
from sluice_airflow.arguments import choice_of, is_known, ranges_of, refused, refused_ranges
from sluice_airflow.failure_message import tells
from sluice_airflow.links.page import PageLink
from sluice_airflow.links.spark_ui import SparkUiLink
from sluice_airflow.log_tables import account_table
from sluice_airflow.operators.submit import SubmitOperator
from sluice_airflow.window import refuse_unknown

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["RedriveOperator"]


class _What(StrEnum):
    LOST = "lost"
    QUARANTINED = "quarantined"
    NOTHING = "nothing"


class RedriveOperator(SubmitOperator):
    """Redrives one pipeline by Spark: writes what can be read, or decoded, by now, exactly once.

    It needs the pipeline's lease: a live run that is active makes it fail, to be tried again later. Killed at any
    instruction, it leaves nothing that another attempt, or the next run, does not fix.

    Parameters
    ----------
    what
        ``lost``: open lost ranges, from Kafka or the write-ahead log. ``quarantined``: records of the quarantine that
        decode and pass the row rules by now. ``nothing``: the task is skipped. (Templated.)
    ranges
        Only these, each as ``TOPIC:PARTITION:START-END`` (end exclusive), as a list or as one text with spaces between;
        empty for all. (Templated.)
    of_run
        Only what the run with this id lost or quarantined. (Templated.)
    pipeline, run_id, conn_id, spark_binary, conf, driver_memory, …
        As of :class:`SubmitOperator`. The run's id must not be that of another run; by default it holds the ids of the
        DAG and of the DAG run.

    Returns
    -------
    dict
        The XCom ``return_value``: the run's account, and ``still_lost``, the offsets of ranges that are open after it.

    Raises
    ------
    ConfigError
        When it is made with ``what`` or ``ranges`` that mean nothing; when the ledger does not have ``of_run``, a range
        was never read, or something was chosen to redrive nothing of.
    SluiceError
        One class for each exit code.
    AirflowSkipException
        When there is nothing to redrive.
    """

    operator_extra_links = (PageLink(), SparkUiLink())
    template_fields: ClassVar[tuple[str, ...]] = (*SubmitOperator.template_fields, "what", "ranges", "of_run")

    def __init__(
        self,
        *,
        what: str = "lost",
        ranges: Sequence[str] | str = (),
        of_run: str | None = None,
        run_id: str = "redrive__{{ dag.dag_id }}__{{ run_id }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(run_id=run_id, **kwargs)
        if is_known(what):
            choice_of("what", what, _What)
        refused_ranges("ranges", ranges)
        self.what = what
        self.ranges = ranges
        self.of_run = of_run

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Redrive; return the account."""
        refuse_unknown(context, {"redrive", "ranges", "of_run"})
        pipeline = load(self.pipeline)
        what = choice_of("what", self.what, _What) or _What.NOTHING
        if what is _What.NOTHING:
            if self.ranges or self.of_run:
                raise refused("what", "it is 'nothing', and ranges or a run were chosen: say lost or quarantined")
            raise AirflowSkipException("nothing was asked for")
        ranges = ranges_of("ranges", self.ranges)
        ledger = Ledger.open()
        if self.of_run:
            ledger.runs.known(pipeline.name, self.of_run)
        check_ranges(ledger, pipeline.name, ranges)
        if what is _What.LOST and not ledger.offsets.lost(pipeline.name, run_id=self.of_run or None):
            raise AirflowSkipException("the pipeline has no open lost range")
        action = Redrive(self.run_id, tuple(ranges), self.of_run or None, quarantined=what is _What.QUARANTINED)
        self.carry_out(pipeline, action, context)
        account = ledger.runs.account(pipeline.name, self.run_id)
        still = sum(len(row.range) for row in ledger.offsets.lost(pipeline.name))
        self.log.info(
            "Account of run %s\n%s", self.run_id, account_table(ledger.offsets.accounts(pipeline.name, self.run_id))
        )
        self.log.info("%s offsets are still lost", f"{still:,}")
        return {**public(account), "still_lost": still}
