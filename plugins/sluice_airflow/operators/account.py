"""Closes a run: prints its account and tells Airflow that the sink has something new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Asset, AssetAlias, BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sluice.errors import ConfigError, SluiceError
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice_airflow.log_tables import account_table
from sluice_airflow.operators.bounded_run import joined
from sluice_airflow.window import run_window

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["AccountOperator", "alias_of", "asset_of"]


def asset_of(pipeline: str) -> Asset:
    """Return the asset that is a pipeline's sink; DAGs that read it schedule on this.

    ``x-`` marks a scheme of one's own: Airflow leaves such a URI as it is.
    """
    return Asset(name=f"sluice/{pipeline}", uri=f"x-sluice://{pipeline}")


def alias_of(pipeline: str) -> AssetAlias:
    """Return the alias through which the account task emits: an outlet of its own would emit after every success."""
    return AssetAlias(f"sluice/{pipeline}")


class AccountOperator(BaseOperator):
    """Emits one event of the sink's asset when the run changed the sink, and none when it did not.

    The event's ``extra`` holds the run's counts, its verdict and its ``ranges``, so that a consumer knows exactly which
    offsets are new; of an interval also the ``interval`` and how many offsets it ``replaced``: what a consumer made of
    these is to be made anew. Several events may make one consumer run: let it drain from its own watermark.

    With a trigger rule such as ``all_done`` it also prints the account of a run of which a task failed. It sends no
    event then and fails as well, at the end: the state of a DAG run is that of its last tasks.

    Parameters
    ----------
    pipeline, run
        As of :class:`~sluice_airflow.operators.submit.SubmitOperator`.

    Returns
    -------
    dict
        The XCom ``return_value``: the run's account.

    Raises
    ------
    AirflowFailException
        When a task before this one failed.
    AirflowSkipException
        When all tasks before this one were skipped: there was no run.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline", "run")

    def __init__(self, *, pipeline: str, name: str, run: str = "{{ run_id }}", **kwargs: Any) -> None:
        super().__init__(outlets=[alias_of(name)], **kwargs)
        self.pipeline = str(pipeline)
        self.run = run

    def execute(self, context: Context) -> dict[str, Any]:
        """Print the account; emit."""
        pipeline = load(self.pipeline)
        name = pipeline.name
        states = self._upstream(context)
        failed = sorted(task for task, state in states.items() if state in ("failed", "upstream_failed"))
        ledger = Ledger.open()
        try:
            self.run = run_window(context, pipeline, self.run).run
            account = ledger.account(name, self.run)
        except (KeyError, ConfigError) as error:
            if failed:
                raise AirflowFailException("the run failed before it read anything: see the tasks before") from None
            if isinstance(error, ConfigError):
                raise
            if states and set(states.values()) == {"skipped"}:
                raise AirflowSkipException("the run was skipped") from None
            raise SluiceError(
                f"the ledger has no run {self.run!r} of {name!r}",
                state="there is nothing to account for",
                next_step="clear the ingest task of this DAG run first",
            ) from None
        accounts = ledger.accounts(name, self.run)
        self.log.info("Run %s, verdict %s\n%s", self.run, account["verdict"], account_table(accounts))
        for reason in account.get("reasons", []):
            self.log.info("%s: %s", account["verdict"], reason)
        if failed:
            raise AirflowFailException(
                f"{_and(failed)} failed: what the run did is told above, and this DAG run ends as failed\n"
                f"  data: what was committed is in the sink, accounted for; no event was sent of it\n"
                f"  next: see the log of {failed[0]}; once it is cleared and succeeds, this task runs again"
            )
        if account["written"] or account.get("replaced"):
            ranges = [[r.topic, r.partition, r.start, r.end] for r in joined(accounts)]
            context["outlet_events"][alias_of(name)].add(asset_of(name), extra={**account, "ranges": ranges})
        else:
            self.log.info("Nothing was written: no event")
        return account

    def _upstream(self, context: Context) -> dict[str, str]:
        """Return the states of the tasks before this one."""
        if not self.upstream_task_ids:
            return {}
        found = context["ti"].get_task_states(
            dag_id=self.dag_id, task_ids=sorted(self.upstream_task_ids), run_ids=[str(context["run_id"])]
        )
        return {task: str(state) for run in found.values() for task, state in run.items()}


def _and(tasks: list[str]) -> str:
    return " and ".join(tasks)
