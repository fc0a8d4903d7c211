"""Fails when a pipeline's table is not fresh."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from sluice.errors import SourceUnreachableError
from sluice.lag.current import active
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.text import length
from sluice_airflow import connections
from sluice_airflow.arguments import duration_of, is_known, refused
from sluice_airflow.failure_message import Hopeless, tells
from sluice_airflow.gate import look
from sluice_airflow.log_tables import lag_table
from sluice_airflow.window import refuse_unknown

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["FreshnessOperator"]


class FreshnessOperator(BaseOperator):
    """Compares the checkpoint with the broker: is a record that is older than ``max_age`` still unread?

    It looks at what waits, not at the newest row: while producers are silent a table is as fresh as its topic. It reads
    no data and starts no run.

    Parameters
    ----------
    pipeline
        Name or path of the pipeline (templated).
    max_age
        The largest age of an unread record, by Kafka's timestamp, such as ``2h`` (templated).
    broker_timeout
        Seconds for the look.

    Returns
    -------
    float
        The XCom ``return_value``: the age in seconds of the oldest unread record, 0 for none.

    Raises
    ------
    ConfigError
        When it is made with a ``max_age`` that is no duration.
    AirflowFailException
        When an unread record is older.
    SluiceError
        When the broker does not say: unknown is not fresh.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline", "max_age")

    def __init__(self, *, pipeline: str, max_age: timedelta | str, broker_timeout: float = 20.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if is_known(max_age):
            _age(max_age)
        self.pipeline = str(pipeline)
        self.max_age = max_age
        self.broker_timeout = broker_timeout

    @tells
    def execute(self, context: Context) -> float:
        """Look; fail if it is too old."""
        refuse_unknown(context, {"max_age"})
        pipeline = load(self.pipeline)
        connection = connections.get(active(pipeline, Ledger.open))
        max_age = _age(self.max_age)
        found = look(self.pipeline, connection, limits={"max_age": max_age}, timeout=self.broker_timeout)
        self.log.info("%s\n%s", found.verdict, lag_table(found.as_dict()))
        age, allowed = found.age or 0.0, max_age.total_seconds()
        too_old = age > allowed
        if too_old or any(p.late for p in found.partitions):
            old = f"{length(age)} old" if too_old else f"older than {length(allowed)}"
            at_work = f"; run {found.running!r} is at work" if found.running else ""
            raise Hopeless(
                f"{pipeline.name!r} is not fresh: a record that is {old} is not in the table, and may be "
                f"{length(allowed)} old",
                state=f"what is in the table is accounted for; {found.records or 0:,} records wait{at_work}",
                next_step=f"sluice status {pipeline.name}; once a run has read them, clear this task to check again",
            )
        if any(p.recreated for p in found.partitions):
            raise Hopeless(
                f"whether {pipeline.name!r} is fresh is not known: a topic was recreated since its records were read",
                state="what is in the table is accounted for; nothing of the new topic is",
                next_step=f"sluice lag {pipeline.name}; the next run says how to go on",
            )
        if found.incomplete:
            raise found.error or SourceUnreachableError(
                f"the lag of {pipeline.name!r} is unknown", state="nothing was read or written", next_step="try again"
            )
        return age


def _age(given: timedelta | str) -> timedelta:
    age = duration_of("max_age", given)
    if age is None:
        raise refused("max_age", "it is empty: write 30s, 15m, 2h or 7d")
    return age
