"""Compacts a pipeline's tables, as ``sluice compact`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from sluice.home import Home
from sluice.pipeline import load
from sluice.upkeep import compact
from sluice_airflow.failure_message import tells

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["CompactOperator"]


class CompactOperator(BaseOperator):
    """Merges the small files of a pipeline's sink and quarantine (``OPTIMIZE``). No row changes; it starts no Spark.

    Runs of the pipeline may be active. Killed at any instruction, it has changed a table as a whole or not at all.

    Parameters
    ----------
    pipeline
        Name or path of the pipeline (templated).
    dry_run
        Only count the files that are small.

    Returns
    -------
    list of dict
        The XCom ``return_value``: see :func:`sluice.upkeep.compact`.

    Raises
    ------
    ConfigError
        When a table is another pipeline's.
    SinkError
        When a table cannot be read or written, or others kept replacing the same files.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline",)

    def __init__(self, *, pipeline: str, dry_run: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = str(pipeline)
        self.dry_run = dry_run

    @tells
    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Compact; return what was merged."""
        found = compact(load(self.pipeline), Home.from_env(), dry_run=self.dry_run)
        for row in found:
            self.log.info("%s", ", ".join(f"{key} {value}" for key, value in row.items()))
        return found
