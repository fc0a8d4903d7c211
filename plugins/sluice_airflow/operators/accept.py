"""Accepts what a run wrote although its verdict failed, as ``sluice accept`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.run.decision import accept
from sluice_airflow.arguments import is_unset, refused
from sluice_airflow.failure_message import tells

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["AcceptOperator"]


class AcceptOperator(BaseOperator):
    """Accepts a run whose verdict is ``failed`` or ``error``: live runs that it holds go on. No data changes.

    Tried again, it changes nothing more.

    Parameters
    ----------
    pipeline
        Name or path of the pipeline (templated).
    of_run
        The id of the run (templated). Empty: the task is skipped.
    reason
        Why its rows may stay; the ledger keeps it (templated).
    new_normal
        Whether what ``quality.history`` compares with begins with this run, which may have warned only, too.

    Returns
    -------
    dict
        The XCom ``return_value``: ``run`` and its ``verdict``, which stays as it is.

    Raises
    ------
    ConfigError
        When the reason is empty, the ledger does not have the run, or its verdict did not fail.
    LeaseHeldError
        When a batch of it waits (``quality.when: before_commit``) and a run is at work; it is tried again.
    AirflowSkipException
        When no run is named.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline", "of_run", "reason")

    def __init__(
        self, *, pipeline: str, of_run: str | None, reason: str, new_normal: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = str(pipeline)
        self.of_run = of_run
        self.reason = reason
        self.new_normal = new_normal

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Accept; return what was accepted."""
        if is_unset(self.of_run):
            raise AirflowSkipException("no run is named")
        if is_unset(self.reason):
            raise refused("reason", "it is empty: say why these rows may stay")
        name, run = load(self.pipeline).name, str(self.of_run)
        verdict = accept(Ledger.open(), name, run, reason=str(self.reason), new_normal=self.new_normal)
        self.log.info("The verdict %s of run %s is accepted: %s", verdict, run, self.reason)
        return {"run": run, "verdict": verdict}
