"""Begins a pipeline again in a new epoch, with a fresh checkpoint, as ``sluice reset`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException

from sluice.errors import public
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.run.actions import Reset
from sluice.run.reset_plan import possible
from sluice_airflow.arguments import flag_of, is_known, is_unset, refused
from sluice_airflow.failure_message import tells
from sluice_airflow.links.page import PageLink
from sluice_airflow.links.spark_ui import SparkUiLink
from sluice_airflow.operators.submit import SubmitOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["ResetOperator"]


class ResetOperator(SubmitOperator):
    """Resets one pipeline by Spark: closes its epoch, and opens the next one with a fresh checkpoint.

    What it skips is open as lost: a :class:`RedriveOperator` writes it, an :class:`AcknowledgeOperator` closes it. It
    needs the pipeline's lease: a live run that is active makes it fail, to be tried again later. Killed at any
    instruction, it has not begun, or another attempt or the next run finishes it. A task that is cleared after it
    succeeded does not reset again, because its run did already; trigger the DAG once more for that.

    Parameters
    ----------
    reason
        Why; the ledger keeps it. (Templated.)
    begin
        ``earliest``, ``latest``, a time in ISO 8601, or nothing for the position. (Templated.)
    truncate
        Whether all rows of the pipeline leave the sink and the quarantine first. (Templated.)
    rebuild_state
        Whether the state of windows or ``dedupe`` is kept: the next live run makes it again. (Templated.)
    agreed
        Whether to do it also if something does not come back. (Templated.)
    pipeline, run_id, conn_id, spark_binary, conf, driver_memory, …
        As of :class:`SubmitOperator`. The run's id must not be that of another run; by default it holds the ids of the
        DAG and of the DAG run.

    Returns
    -------
    dict
        The XCom ``return_value``: the run's account, with ``reset``: the new ``epoch``, the ``positions`` where it
        begins, whether rows were ``truncated``, and how many offsets' rows were ``removed``.

    Raises
    ------
    ConfigError
        When the reason is empty, the pipeline cannot be reset in this way, or something would not come back.
    SluiceError
        One class for each exit code.
    AirflowSkipException
        When the pipeline stands there already, and nothing was read since.
    """

    operator_extra_links = (PageLink(), SparkUiLink())
    template_fields: ClassVar[tuple[str, ...]] = (
        *SubmitOperator.template_fields, "reason", "begin", "truncate", "rebuild_state", "agreed",
    )  # fmt: skip

    def __init__(
        self,
        *,
        reason: str,
        begin: str | None = None,
        truncate: bool | str = False,
        rebuild_state: bool | str = False,
        agreed: bool | str = False,
        run_id: str = "reset__{{ dag.dag_id }}__{{ run_id }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(run_id=run_id, **kwargs)
        self.reason = reason
        self.begin = begin
        self.truncate = truncate
        self.rebuild_state = rebuild_state
        self.agreed = agreed
        for name, value in (("truncate", truncate), ("rebuild_state", rebuild_state), ("agreed", agreed)):
            if is_known(value):
                flag_of(name, value)

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Reset; return the account."""
        if is_unset(self.reason):
            raise refused("reason", "it is empty: say why the pipeline begins again")
        pipeline, ledger = load(self.pipeline), Ledger.open()
        begin = None if is_unset(self.begin) else str(self.begin).strip()
        truncate, agreed = flag_of("truncate", self.truncate), flag_of("agreed", self.agreed)
        rebuild = flag_of("rebuild_state", self.rebuild_state)
        possible(pipeline, begin, truncate=truncate, rebuild=rebuild)
        self.carry_out(pipeline, Reset(self.run_id, str(self.reason), begin, truncate, agreed, rebuild), context)
        account = ledger.runs.account(pipeline.name, self.run_id)
        if account["reset"]["epoch"] is None:
            raise AirflowSkipException("the pipeline stands there already, and nothing was read since")
        for note in account.get("notes", []):
            self.log.info("%s", note)
        return public(account)
