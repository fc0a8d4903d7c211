"""Audits a pipeline, as ``sluice audit`` does."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.audit import audit, deep_audit
from sluice.audit.windows import Plan, Verdict, possible
from sluice.errors import CheckpointError, ConfigError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.run.actions import AuditWindows
from sluice_airflow.failure_message import tells
from sluice_airflow.operators.submit import SubmitOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["AuditOperator"]

_SHOWN = 50
_NOTHING = "nothing was read or changed"


class AuditOperator(SubmitOperator):
    """Proves that each offset of a pipeline is accounted for once. It changes nothing.

    It starts Spark for ``windows`` only.

    Parameters
    ----------
    deep
        Also compare sink and quarantine offset by offset with the ledger, and check each segment of the write-ahead
        log. The worker reads the tables' metadata columns.
    windows
        Also make closed windows or sessions once more from their records, by Spark, and compare them; only with
        ``deep``.
    pipeline, conn_id, spark_binary, conf, driver_memory, …
        As of :class:`SubmitOperator`.

    Returns
    -------
    dict
        The XCom ``return_value``: ``balanced``, the number of ``problems``, and the offsets that are ``lost``.

    Raises
    ------
    CheckpointError
        When the account does not balance; with the first problems. Never tried again.
    ConfigError
        When it is made with ``windows`` and without ``deep``, or the pipeline has no windows.
    SluiceError
        One class for each exit code of the application.
    """

    def __init__(self, *, deep: bool = True, windows: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if windows and not deep:
            raise ConfigError("windows=True goes with deep=True", state=_NOTHING, next_step="leave deep out")
        self.deep = deep
        self.windows = windows

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Audit; fail if it does not balance."""
        pipeline, ledger = load(self.pipeline), Ledger.open()
        if self.windows:
            possible(pipeline)
        if self.deep:
            found = (lambda plan: self._recomputed(pipeline, plan, context)) if self.windows else None
            report = deep_audit(ledger, pipeline, Home.from_env(), self.log.info, found)
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
                next_step=f"sluice audit {pipeline.name}{self._options()} --json has all of them",
            )
        self.log.info("Balanced")
        return {"balanced": True, "problems": 0, "lost": lost}

    def _options(self) -> str:
        return f"{' --deep' if self.deep else ''}{' --windows' if self.windows else ''}"

    def _recomputed(self, pipeline: Pipeline, plan: Plan, context: Context) -> Verdict:
        with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
            asked, result = Path(folder) / "plan.json", Path(folder) / "result.json"
            asked.write_text(json.dumps(plan.as_dict()), encoding="utf-8")
            self.carry_out(pipeline, AuditWindows(asked, result), context)
            return Verdict(**json.loads(result.read_text(encoding="utf-8")))
