"""Audits a pipeline, as ``sluice audit`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from sluice.audit import audit, deep_audit
from sluice.errors import CheckpointError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice_airflow.last_words import tells

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["AuditOperator"]

_SHOWN = 50


class AuditOperator(BaseOperator):
    """Proves that each offset of a pipeline is accounted for once. It changes nothing and starts no Spark.

    Parameters
    ----------
    pipeline
        Name or path of the pipeline (templated).
    deep
        Also compare sink and quarantine offset by offset with the ledger, and check each segment of the write-ahead
        log. The worker reads the tables' metadata columns.

    Returns
    -------
    dict
        The XCom ``return_value``: ``balanced``, the number of ``problems``, and the offsets that are ``lost``.

    Raises
    ------
    CheckpointError
        When the account does not balance; with the first problems. Never tried again.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline",)

    def __init__(self, *, pipeline: str, deep: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = str(pipeline)
        self.deep = deep

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Audit; fail if it does not balance."""
        pipeline, ledger = load(self.pipeline), Ledger.open()
        if self.deep:
            report = deep_audit(ledger, pipeline, Home.from_env(), self.log.info)
        else:
            report = audit(ledger, pipeline.name)
        for text in report.unproved:
            self.log.info("Not proved: %s", text)
        lost = sum(row["offsets"] for row in report.lost)
        if lost:
            self.log.warning("%s offsets are lost and can be redriven", f"{lost:,}")
        for problem in report.problems[:_SHOWN]:
            self.log.error("Problem: %s", problem)
        if not report.balanced:
            raise CheckpointError(
                f"the account of {pipeline.name!r} does not balance: {len(report.problems)} problems, such as: "
                f"{'; '.join(report.problems[:3])}",
                state="nothing was changed",
                next_step=f"sluice audit {pipeline.name}{' --deep' if self.deep else ''} --json has all of them",
            )
        self.log.info("Balanced")
        return {"balanced": True, "problems": 0, "lost": lost}
