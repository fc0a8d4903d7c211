"""Renames a pipeline, as ``sluice adopt`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from sluice.adopt import Adoption
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice_airflow.arguments import is_unset, refused
from sluice_airflow.failure_message import tells

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["AdoptOperator"]


class AdoptOperator(BaseOperator):
    """Transfers a pipeline's ledger, checkpoints, log and tables to a new name. It starts no Spark.

    No run of either name may be active: that makes it fail, to be tried again later. Killed at any point, it goes on
    where it stopped when it is tried again; until then runs of both names are refused.

    Parameters
    ----------
    pipeline
        Name or path of the pipeline file with the new name; it names the same sink. (Templated.)
    former
        The name under which the pipeline ran before. (Templated.)

    Returns
    -------
    dict
        The XCom ``return_value``: ``pipeline`` and ``former``.

    Raises
    ------
    ConfigError
        When ``former`` is empty, the ledger does not have it, its last run is not settled, or the file names another
        sink.
    LeaseHeldError
        When a run of either name is active.
    AirflowSkipException
        When the former name already goes on as this pipeline.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline", "former")

    def __init__(self, *, pipeline: str, former: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = str(pipeline)
        self.former = former

    @tells
    def execute(self, context: Context) -> dict[str, Any]:
        """Rename; return the names."""
        if is_unset(self.former):
            raise refused("former", "it is empty: give the name under which the pipeline ran before")
        pipeline = load(self.pipeline)
        if not Adoption(Ledger.open(), Home.from_env(), str(self.former), pipeline).carry_out():
            raise AirflowSkipException(f"{self.former} already goes on as {pipeline.name}")
        self.log.info("%s goes on as %s", self.former, pipeline.name)
        return {"pipeline": pipeline.name, "former": str(self.former)}
