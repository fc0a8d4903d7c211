"""Shows the verdict of a run, and fails by it; judges again when asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException

from sluice.errors import QualityError, SluiceError, public
from sluice.ledger import Ledger, RunRow
from sluice.pipeline import Pipeline, load
from sluice.run.actions import Validate
from sluice.run.circuit_breaker import FAILED, settling
from sluice.run.redrive_plan import way_out
from sluice.run.verdict import line, title, told
from sluice_airflow.arguments import flag_of, is_known
from sluice_airflow.failure_message import tells
from sluice_airflow.links.data_docs import DataDocsLink, address_of
from sluice_airflow.links.page import PageLink
from sluice_airflow.links.spark_ui import SparkUiLink
from sluice_airflow.log_tables import table
from sluice_airflow.operators.bounded_run import run_before
from sluice_airflow.operators.submit import SubmitOperator
from sluice_airflow.window import run_window

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["ValidateOperator"]


class ValidateOperator(SubmitOperator):
    """Takes the verdict of its run from the ledger, where the run's own application wrote it: no Spark is started.

    It does judge again, by Spark, when there is no verdict yet, when this task is
    cleared or tried again, and when ``rejudge`` says so. Judging reads the sink and changes no data.

    Parameters
    ----------
    rejudge
        Judge again in any case.
    pipeline, run_id, conn_id, spark_binary, conf, driver_memory, …
        As of :class:`SubmitOperator`.

    Returns
    -------
    str
        ``passed``, ``warned`` or ``empty``; also ``failed`` and ``error`` where the file says ``on_failed: warn``, or
        after ``sluice accept``.
        The XCom ``judgement`` holds the verdict with the failed expectations, whether the task succeeds or fails.

    Raises
    ------
    SluiceError, LeaseHeldError
        When the run has not ended well, and has no verdict: the task that runs it was marked as success.
    QualityError
        When the verdict is ``failed`` or ``error``, it was not accepted, and the file does not say ``on_failed: warn``.
    AirflowSkipException
        When the DAG's param ``validate`` is false.
    """

    operator_extra_links = (PageLink(), DataDocsLink(), SparkUiLink())
    template_fields: ClassVar[tuple[str, ...]] = (*SubmitOperator.template_fields, "rejudge")

    def __init__(self, *, rejudge: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if is_known(rejudge):
            flag_of("rejudge", rejudge)
        self.rejudge = rejudge

    @tells
    def execute(self, context: Context) -> str:
        """Show the verdict."""
        if (context.get("params") or {}).get("validate") is False:
            self.log.info("This run was started with validate = false: its slice is not judged")
            raise AirflowSkipException("validate is false")
        pipeline = load(self.pipeline)
        self.run_id = run_window(context, pipeline, self.run_id).run_id
        row = self._row(pipeline)
        failed: QualityError | None = None
        if self._must_judge(row, context):
            failed = self._judge(pipeline, context)
            row = self._row(pipeline)
        verdict, judgement = row.verdict, row.judgement or {}
        if verdict is None:
            raise failed or SluiceError(
                f"run {self.run_id!r} of {pipeline.name!r} was judged, and the ledger has no verdict",
                state="the sink holds what the run committed; it was not judged",
                next_step="clear this task to judge again",
            )
        context["ti"].xcom_push(key="judgement", value=_summary(verdict, judgement))
        self._show(verdict, judgement)
        if verdict in FAILED:
            error = _quality_error(pipeline, row, judgement)
            accepted = Ledger.open().verdicts.acceptance(pipeline.name, self.run_id)
            if accepted is None and pipeline.quality.on_failed != "warn":
                raise error
            why = "quality.on_failed is warn" if accepted is None else f"the verdict was accepted ({accepted})"
            self.log.warning("%s\n%s: the task goes on", error, why)
        return verdict

    def get_openlineage_facets_on_complete(self, _ti: Any) -> Any:
        """Return a run's lineage, whatever the verdict; its provider calls this where it is installed."""
        from sluice_airflow import lineage

        pipeline = load(self.pipeline)
        row = Ledger.open().runs.find(pipeline.name, self.run_id)
        return lineage.of_validate(pipeline, (row.judgement if row else None) or {})

    def _row(self, pipeline: Pipeline) -> RunRow:
        return run_before(self, pipeline.name, self.run_id, "judge")

    def _must_judge(self, row: RunRow, context: Context) -> bool:
        if row.verdict is None:
            self.log.info("Run %s has no verdict yet: judging now", self.run_id)
        elif flag_of("rejudge", self.rejudge) or context["ti"].try_number > 1:
            self.log.info("Run %s was judged %s: judging again", self.run_id, row.verdict)
        else:
            return False
        return True

    def _judge(self, pipeline: Pipeline, context: Context) -> QualityError | None:
        """Judge again by Spark; a verdict ``failed`` is an answer, not a failure."""
        try:
            self.carry_out(pipeline, Validate(self.run_id), context)
        except QualityError as error:
            return error
        return None

    def _show(self, verdict: str, judgement: Mapping[str, Any]) -> None:
        results = judgement.get("results") or []
        report = self.log.info if verdict in ("passed", "empty") else self.log.warning
        lines = [f"Verdict of run {self.run_id}: {verdict}"]
        if judgement.get("suite"):
            lines[0] += f" (suite {judgement['suite']}, {judgement.get('rows') or 0:,} rows)"
        if results:
            rows = [line(result) for result in results]
            lines.append(table(list(rows[0]), (list(row.values()) for row in rows)))
        for result in _failed(judgement):
            if result.get("exception"):
                lines.append(f"{title(result)}: {result['exception']}")
            elif shown := told(result):
                lines.append(f"{title(result)}: {'; '.join(shown)}")
        lines += [f"{e['limit']}: {e['why']}" for e in judgement.get("excesses") or []]
        if judgement.get("error"):
            lines.append(f"judging failed: {judgement['error']}")
        if judgement.get("data_docs"):
            lines.append(f"Data Docs: {address_of(judgement['data_docs']) or judgement['data_docs']}")
        report("%s", "\n".join(lines))


def _failed(judgement: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [r for r in judgement.get("results") or [] if not r.get("success")]


def _summary(verdict: str, judgement: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an XCom may hold: no examples, they are the data's."""
    keys = ("expectation", "column", "severity", "unexpected_count", "unexpected_percent")
    return {
        "verdict": verdict,
        "suite": judgement.get("suite"),
        "rows": judgement.get("rows"),
        "failed": [{k: r.get(k) for k in keys} for r in _failed(judgement)],
        "exceeded": [public(f"{e['limit']}: {e['why']}") for e in judgement.get("excesses") or []],
        "data_docs": judgement.get("data_docs"),
    }


def _refused(judgement: Mapping[str, Any]) -> bool:
    return any(e["limit"] == "max_quarantined" for e in judgement.get("excesses") or [])


def _quality_error(pipeline: Pipeline, row: RunRow, judgement: Mapping[str, Any]) -> QualityError:
    run_id, verdict = row.run, row.verdict
    failed = [r for r in _failed(judgement) if r.get("exception") or r.get("severity", "critical") == "critical"]
    if verdict == "error":
        what = (
            f"run {run_id!r} of {pipeline.name!r} could not be judged: {judgement.get('error') or 'see the log above'}"
        )
    else:
        names = [
            ": ".join([title(r), *([r["expected"]] if r.get("expected") else [])])
            + (f", {r['unexpected_count']:,} unexpected" if r.get("unexpected_count") is not None else "")
            for r in failed[:5]
        ]
        excesses = judgement.get("excesses") or []
        exceeded = [f"{e['limit']}: {e['why']}" for e in excesses if e.get("verdict", "failed") == "failed"]
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        what = f"run {run_id!r} of {pipeline.name!r} is judged {verdict}: {'; '.join([*exceeded, *names])}{more}"
    held = f". Live runs wait until then, or until: {', or '.join(settling(pipeline, run_id))}"
    return QualityError(
        what,
        state="every row of the run is in the sink, accounted for; readers should wait for the next passed verdict",
        next_step="fix the data, the suite or the limits, then clear this task to judge again"
        + (held if pipeline.quality.on_failed == "hold" and row.kind == "live" else "")
        + (f". Refused records: {way_out(pipeline)}" if _refused(judgement) else ""),
    )
