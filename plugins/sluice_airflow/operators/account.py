"""Closes a run: prints its account and tells Airflow that the sink has something new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Asset, AssetAlias, BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from sluice.errors import ConfigError, public
from sluice.facts import ChangedColumns
from sluice.ledger import Ledger, Unannounced
from sluice.ledger.events import Announced
from sluice.pipeline import Pipeline, load
from sluice.ranges import joined
from sluice.run.verdict import headed
from sluice_airflow import metrics
from sluice_airflow.failure_message import Hopeless, tells
from sluice_airflow.links.page import PageLink
from sluice_airflow.log_tables import account_table
from sluice_airflow.operators.bounded_run import run_before
from sluice_airflow.sink import version_of
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
    """Emits one event of the sink's asset when the sink changed, and none when it did not.

    The event covers everything that was committed and that no event covered before: rows of this run, of runs that
    failed later or whose verdict failed, and of redrives. Its ``extra`` holds

    - this run's counts and its verdict, as :meth:`sluice.ledger.runs.Runs.account` has them;
    - ``ranges``, ``[topic, partition, start, end]`` each: the offsets that are new;
    - ``runs``: for each run that wrote some of them, its id, its verdict and how many offsets it has ``written``;
    - ``version``: the version of the Delta table that holds them all; None for another sink;
    - ``evolved``: the columns that these runs added to the sink, ``column`` and ``type`` each, and those that they
      widened, which have ``was``, too;
    - for an interval run, the ``interval`` and how many offsets it ``replaced``: a consumer must recompute what it
      derived from these.

    The ledger records that an event was sent after Airflow has stored it. If the task dies in between, the next event
    repeats its ranges: events are delivered at least once. Several events may start one run of a consumer, so it should
    read from its own watermark.

    With a trigger rule such as ``all_done`` it also prints the account of a run in which a task failed. Then it sends
    no event and fails at the end, because the state of a DAG run is that of its last tasks.

    Parameters
    ----------
    pipeline, run_id
        As of :class:`~sluice_airflow.operators.submit.SubmitOperator`.

    Returns
    -------
    dict
        The XCom ``return_value``: the run's account.

    Raises
    ------
    AirflowFailException
        When a task before this one failed.
    SluiceError, LeaseHeldError
        When the run has not ended well: the task that runs it was marked as success.
    AirflowSkipException
        When all tasks before this one were skipped: there was no run.
    """

    operator_extra_links = (PageLink(),)
    template_fields: ClassVar[tuple[str, ...]] = ("pipeline", "run_id")

    def __init__(self, *, pipeline: str, name: str, run_id: str = "{{ run_id }}", **kwargs: Any) -> None:
        super().__init__(outlets=[alias_of(name)], **kwargs)
        self.pipeline = str(pipeline)
        self.run_id = run_id
        given: Any = getattr(self, "on_success_callback", None) or ()
        self.on_success_callback = [*given, _note]
        self._sent: tuple[str, Unannounced, int | None] | None = None

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Print the account; emit."""
        pipeline = load(self.pipeline)
        name = pipeline.name
        states = self._upstream(context)
        ended = [
            sorted(task for task, state in states.items() if state == bad) for bad in ("failed", "upstream_failed")
        ]
        failed = ended[0] or ended[1]  # what did not run, since another failed, did not fail itself
        if states and set(states.values()) == {"skipped"}:
            raise AirflowSkipException("the run was skipped")  # one that is held may have landed records, no more
        ledger = Ledger.open()
        try:
            self.run_id = run_window(context, pipeline, self.run_id).run_id
            account = ledger.runs.account(name, self.run_id) if failed else self._account(ledger, name)
        except ConfigError:
            if failed:
                raise Hopeless(
                    "the run failed before it was planned: there is no account, and this DAG run ends as failed",
                    state="the ledger has nothing of this run",
                    next_step="read the log of the first task that failed, then clear that task",
                ) from None
            raise
        accounts = ledger.offsets.accounts(name, self.run_id)
        self.log.info("Run %s, verdict %s\n%s", self.run_id, account["verdict"], account_table(accounts))
        for reason in headed(account["verdict"], account.get("reasons", [])):
            self.log.info("%s", reason)
        metrics.of_run(name, account["verdict"], sum(len(row.range) for row in ledger.offsets.lost(name)))
        if failed:
            raise Hopeless(
                f"{_and(failed)} failed: what the run did is above, and this DAG run ends as failed",
                state="what was committed is in the sink, accounted for; no event was sent of it",
                next_step=f"see the log of {failed[0]}; once it is cleared and succeeds, this task runs again",
            )
        self._announce(pipeline, account, ledger, context)
        return public(account)

    def _account(self, ledger: Ledger, name: str) -> dict[str, Any]:
        run_before(self, name, self.run_id, "account for")
        return ledger.runs.account(name, self.run_id)

    def _announce(self, pipeline: Pipeline, account: dict[str, Any], ledger: Ledger, context: Context) -> None:
        name, news = pipeline.name, ledger.runs.unannounced(pipeline.name, self.run_id)
        if not any(news.written.values()) and not news.replaced:
            self.log.info("Nothing was written that no event has told of: no event")
            return
        version = version_of(pipeline)
        rows = {run: ledger.runs.find(name, run) for run in news.written}
        changes = ledger.facts.told(name, ChangedColumns, runs=news.written)
        columns = {column["column"]: column for change in changes for column in change["added"]}
        extra = {
            **public(account),
            "ranges": [r.as_list() for r in joined(a.range for a in news.accounts)],
            "runs": [
                {"run": run, "verdict": row.verdict if (row := rows[run]) else None, "written": written}
                for run, written in news.written.items()
            ],
            "version": version,
            "evolved": list(columns.values()),
        }
        context["outlet_events"][alias_of(name)].add(asset_of(name), extra=extra)
        self._sent = (name, news, version)
        others = [run for run in news.written if run != self.run_id]
        also = f", also of {', '.join(others)}" if others else ""
        self.log.info("Event of %s: %s offsets%s", asset_of(name).uri, f"{sum(news.written.values()):,}", also)

    def note(self, context: Context) -> None:
        """Enter into the ledger that the event was sent, once Airflow says that it has it."""
        if self._sent is None:
            return
        found = context["ti"].get_task_states(
            dag_id=self.dag_id, task_ids=[self.task_id], run_ids=[str(context["run_id"])]
        )
        if {str(state) for run in found.values() for state in run.values()} != {"success"}:
            self.log.warning("Airflow does not say that it has the event: the next run sends it again")
            return
        pipeline, news, version = self._sent
        Ledger.open().decide(pipeline, self.run_id, Announced(upto=sorted(news.upto.items()), version=version))
        metrics.of_written(pipeline, sum(news.written.values()))

    def _upstream(self, context: Context) -> dict[str, str]:
        """Return the states of the tasks before this one."""
        if not self.upstream_task_ids:
            return {}
        found = context["ti"].get_task_states(
            dag_id=self.dag_id, task_ids=sorted(self.upstream_task_ids), run_ids=[str(context["run_id"])]
        )
        return {task: str(state) for run in found.values() for task, state in run.items()}


def _note(context: Context) -> None:
    context["ti"].task.note(context)


def _and(tasks: list[str]) -> str:
    return " and ".join(tasks)
