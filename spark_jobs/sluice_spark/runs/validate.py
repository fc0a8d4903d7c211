"""Validates a run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from pyspark.sql import SparkSession

from sluice.errors import QualityError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.ledger.events import Judged
from sluice.pipeline import Pipeline
from sluice.run.actions import Validate
from sluice.run.circuit_breaker import FAILED
from sluice.run.verdict import causes
from sluice_spark.quality.judge import Judge
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import ReadableSink

__all__ = ["validate"]


def validate(pipeline: Pipeline, action: Validate, open_session: Callable[[], SparkSession]) -> None:
    """Judge a run that has ended once more, and record the verdict. No data changes.

    Raises
    ------
    QualityError
        If the verdict is ``failed`` or ``error``.
    """
    home, ledger, run_id = Home.from_env(), Ledger.open(), action.run_id
    found = ledger.runs.ended(pipeline.name, run_id)
    judge = Judge(pipeline, home, run_id)
    judge.warm_up()
    judge.check()
    # the run may have been validated together with an earlier one whose driver died; both are validated again
    runs = (found.judgement or {}).get("runs") or [run_id]
    sink = Tables.of(pipeline, home, ledger.offsets.epoch(pipeline.name)).sink
    judgement = judge.settle(ledger, open_session, cast(ReadableSink, sink), runs)
    ledger.decide(pipeline.name, run_id, Judged(verdict=judgement.verdict, judgement=judgement.as_dict()))
    if judgement.verdict in FAILED:
        raise QualityError(
            f"run {run_id!r} of {pipeline.name!r}: verdict {judgement.verdict}: "
            f"{'; '.join(causes(judgement.reasons)[:5])}",
            state="the rows are in the sink; no data was changed",
            next_step=f"see {judgement.data_docs or 'the log above'}",
        )
