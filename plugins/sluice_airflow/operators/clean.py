"""Cleans a pipeline's write-ahead log, as ``sluice clean`` does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.run.log_cleaning import clean_log
from sluice_airflow.arguments import duration_of, is_known
from sluice_airflow.failure_message import tells

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["CleanOperator"]


class CleanOperator(BaseOperator):
    """Removes applied segments of a pipeline's write-ahead log that are older than an age. It starts no Spark.

    Segments that are not applied yet, or hold an open lost range, stay. It needs the pipeline's lease: a live run that
    is active makes it fail, to be tried again later. Killed at any instruction, it is finished by the next cleaning.

    Parameters
    ----------
    pipeline
        Name or path of the pipeline (templated).
    older_than
        By record time, such as ``7d`` (templated); None for the pipeline file's ``wal.keep``.
    dry_run
        Only tell what would be removed.

    Returns
    -------
    dict
        The XCom ``return_value``: ``segments``, ``records`` and ``bytes`` that were removed.

    Raises
    ------
    ConfigError
        When it is made with an ``older_than`` that is no duration.
    LeaseHeldError
        When a run of the pipeline is active.
    SinkError
        When the log cannot be read or written.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline", "older_than")

    def __init__(
        self, *, pipeline: str, older_than: timedelta | str | None = None, dry_run: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = str(pipeline)
        if is_known(older_than):
            duration_of("older_than", older_than)
        self.older_than = older_than
        self.dry_run = dry_run

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Clean; return what was removed."""
        pipeline = load(self.pipeline)
        older_than = duration_of("older_than", self.older_than)
        threshold = datetime.now(UTC) - (pipeline.wal.keep if older_than is None else older_than)
        found = clean_log(Ledger.open(), pipeline, Home.from_env(), threshold, dry_run=self.dry_run).as_dict()
        self.log.info(
            "%s segments (%s records, %s bytes) with nothing newer than %s %s",
            f"{found['segments']:,}", f"{found['records']:,}", f"{found['bytes']:,}",
            threshold.isoformat("T", "seconds"), "would be removed" if self.dry_run else "were removed",
        )  # fmt: skip
        return {key: found[key] for key in ("segments", "records", "bytes")}
