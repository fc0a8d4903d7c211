"""What Sluice adds to Airflow's metrics. The pipeline is in the name: plain StatsD knows no tags.

| name | kind | |
|---|---|---|
| `sluice.lag.PIPELINE` | gauge | readable offsets that no run has read |
| `sluice.lag_age.PIPELINE` | gauge | the age in seconds of the oldest of them |
| `sluice.lost.PIPELINE` | gauge | offsets of lost ranges that are still open |
| `sluice.written.PIPELINE` | counter | offsets that were written, when their asset event was sent |
| `sluice.verdict.PIPELINE.VERDICT` | counter | runs with this verdict |
"""

from __future__ import annotations

from airflow.sdk.observability import stats

from sluice.lag import Backlog

__all__ = ["of_backlog", "of_run", "of_written"]


def of_backlog(found: Backlog) -> None:
    """Send the lag that a look found; nothing where a part of it is unknown, which is not zero."""
    if found.incomplete or found.records is None:
        return
    _gauge("lag", found.pipeline, found.records)
    _gauge("lag_age", found.pipeline, found.age or 0)


def of_run(pipeline: str, verdict: str | None, lost: int) -> None:
    """Send the verdict of a run that has ended, and how many offsets of its pipeline are lost."""
    _gauge("lost", pipeline, lost)
    if verdict is not None:
        stats.incr(f"sluice.verdict.{pipeline}.{verdict}", tags={"pipeline": pipeline, "verdict": verdict})


def of_written(pipeline: str, written: int) -> None:
    """Send how many offsets were written since the last time."""
    stats.incr(f"sluice.written.{pipeline}", count=written, tags={"pipeline": pipeline})


def _gauge(name: str, pipeline: str, value: float) -> None:
    stats.gauge(f"sluice.{name}.{pipeline}", value, tags={"pipeline": pipeline})
