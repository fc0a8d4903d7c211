"""Vacuums a pipeline's tables, as ``sluice vacuum`` does."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.upkeep import vacuum
from sluice_airflow.arguments import duration_of, is_known
from sluice_airflow.failure_message import tells

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["VacuumOperator"]


class VacuumOperator(BaseOperator):
    """Removes files that a pipeline's sink and quarantine have not used for some time. It starts no Spark.

    Runs of the pipeline may be active: what they read or have staged is younger. Killed at any instruction, it is
    finished by the next one.

    Parameters
    ----------
    pipeline
        Name or path of the pipeline (templated).
    older_than
        Such as ``14d`` (templated); None for the pipeline file's ``vacuum.keep``. It must be longer than
        ``airflow.execution_timeout``.
    dry_run
        Only count the files.

    Returns
    -------
    list of dict
        The XCom ``return_value``: see :func:`sluice.upkeep.vacuum`.

    Raises
    ------
    ConfigError
        When it is made with an ``older_than`` that is no duration. When that is too short, or a table is another
        pipeline's.
    CheckpointError
        When the sink holds a batch that the ledger does not know: run the pipeline first.
    SinkError
        When a table cannot be read or written.
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
    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Vacuum; return how many files were removed."""
        older_than = duration_of("older_than", self.older_than)
        found = vacuum(Ledger.open(), load(self.pipeline), Home.from_env(), older_than, dry_run=self.dry_run)
        for row in found:
            self.log.info("%s", ", ".join(f"{key} {value}" for key, value in row.items()))
        return found
