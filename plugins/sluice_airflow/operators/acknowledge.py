"""Closes losses that will not be recovered, as ``sluice acknowledge`` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.run.acknowledgement import acknowledge
from sluice_airflow.arguments import is_unset, ranges_of, refused, refused_ranges
from sluice_airflow.failure_message import tells

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["AcknowledgeOperator"]


class AcknowledgeOperator(BaseOperator):
    """Closes open lost ranges: they stay counted as lost, and are no longer open. It starts no Spark.

    It needs the pipeline's lease: a live run that is active makes it fail, to be tried again later. Tried again, it
    changes nothing more.

    Parameters
    ----------
    pipeline
        Name or path of the pipeline (templated).
    reason
        Why they will not be recovered; the ledger keeps it (templated).
    ranges
        Only these, each as ``TOPIC:PARTITION:START-END`` (end exclusive), as a list or as one text with spaces between;
        empty for all. (Templated.)
    of_run
        Only what the run with this id lost. (Templated.)

    Returns
    -------
    dict
        The XCom ``return_value``: ``offsets`` and ``ranges`` that were closed.

    Raises
    ------
    ConfigError
        When it is made with ranges that mean nothing; when the reason is empty, or the ledger does not have ``of_run``.
    LeaseHeldError
        When a run of the pipeline is active.
    AirflowSkipException
        When there is no such lost range.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline", "reason", "ranges", "of_run")

    def __init__(
        self,
        *,
        pipeline: str,
        reason: str,
        ranges: Sequence[str] | str = (),
        of_run: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = str(pipeline)
        refused_ranges("ranges", ranges)
        self.reason = reason
        self.ranges = ranges
        self.of_run = of_run

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Acknowledge; return what was closed."""
        if is_unset(self.reason):
            raise refused("reason", "it is empty: say why these records will not be recovered")
        pipeline = load(self.pipeline)
        closed = acknowledge(
            Ledger.open(),
            pipeline.name,
            reason=str(self.reason),
            ranges=ranges_of("ranges", self.ranges),
            of_run=None if is_unset(self.of_run) else str(self.of_run),
        )
        if not closed:
            raise AirflowSkipException("there is no such lost range")
        self.log.info(
            "%s offsets are acknowledged: they stay lost, and are no longer open", f"{sum(map(len, closed)):,}"
        )
        return {"offsets": sum(map(len, closed)), "ranges": [span.as_list() for span in closed]}
