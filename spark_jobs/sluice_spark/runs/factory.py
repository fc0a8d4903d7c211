"""Makes the run that a request asks for."""

from __future__ import annotations

from sluice.run.actions import RunRequest
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.run import Run

__all__ = ["requested"]


def requested(context: RunContext, request: RunRequest) -> Run:
    """Return a live run or that of an interval, not started yet; only its modules are imported.

    Raises
    ------
    ConfigError
        If the pipeline cannot do that.
    """
    pipeline = context.pipeline
    request.check(pipeline)
    if request.interval is None:
        from sluice_spark.runs.live import LiveRun

        return LiveRun(context, request.max_records_per_batch or pipeline.source.config.max_records_per_batch)
    from sluice_spark.runs.interval import IntervalRun
    from sluice_spark.runs.window_interval import WindowIntervalRun

    kind = IntervalRun if pipeline.window is None else WindowIntervalRun
    return kind(context, request.interval)
