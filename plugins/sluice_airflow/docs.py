"""The page of a pipeline's DAG."""

from __future__ import annotations

from sluice.lag import Limits
from sluice.pipeline import Pipeline, Rows
from sluice.pipeline.load import relative
from sluice.pipeline.schedule import Schedule
from sluice.shipped import CHECKOUT
from sluice.text import length
from sluice_airflow.triggers.lag_watcher import POLL_INTERVAL

__all__ = ["page"]

_ROWS = {
    Rows.ONE: "one sink row for each record",
    Rows.FILTER: "at most one sink row for each record",
    Rows.MANY: "any number of sink rows for each record",
    Rows.AGGREGATE: "sink rows that no longer belong to single records",
}

_ON_LAG = """
**On lag.** A watcher in the triggerer compares the checkpoint with the broker. Each time the backlog exceeds the
limits, it sends one event of the asset `x-sluice://{name}/lag`, which starts one run. The next event can follow when a
run has read what the event announced, or when the lag has fallen to half of the limits. No event is sent while a run of
this DAG or of this pipeline is active, or while the broker does not answer. If a run fails, the same backlog starts
another one after a delay that grows up to an hour. After a failure that is never retried it starts none: fix the cause,
then clear the run.
"""


def page(pipeline: Pipeline, *, poll_interval: float = POLL_INTERVAL) -> str:
    """Return the page in Markdown: what the pipeline reads, writes and promises, how it recovers, and its commands."""
    source, sink, quality = pipeline.source.config, pipeline.sink.config, pipeline.quality
    topics = ("" if source.streams else "topics by the pattern ") + ", ".join(f"`{t}`" for t in source.labels)
    parts = f", partitioned by {', '.join(f'`{c}`' for c in sink.partition_columns)}" if sink.partition_columns else ""
    watch = "*wait_for_lag* compares the checkpoint with the broker · " if pipeline.source.kafka else ""
    lag = f"\nsluice lag {pipeline.name}" if pipeline.source.kafka else ""
    table = "Delta table" if pipeline.sink.kind.delta else pipeline.sink.key
    also = "".join(f", also {further.key} `{further.config.shown}`" for further in pipeline.also)
    ours = CHECKOUT is not None and pipeline.file.is_relative_to(CHECKOUT)
    file = relative(pipeline.file) if ours else pipeline.file.name
    judged = f"`{quality.suite}`; a failed verdict means *{quality.on_failed}*" if quality.suite else "no suite"
    return f"""\
### {pipeline.name}

Each run reads what the source holds now, writes it to the sink, validates what it wrote, and ends. Every offset is
accounted for: `end - start = written + filtered + quarantined + absent + lost`.

| | |
|---|---|
| reads | {topics}{_how(pipeline)}, from `{source.starting_offsets}` |
| writes | {table} `{sink.shown}`{parts}{also}; refused records go to the quarantine `{pipeline.quarantine_path}` |
| promises | {_ROWS[pipeline.rows]}, exactly once |
| recovers by | `{pipeline.recovery}`: {pipeline.recovery.promise} |
| validated by | {judged} |
| runs | {_schedule(pipeline, poll_interval)} |
| file | `{file}` |

**Tasks.** {watch}*ingest* is the Spark application ·
*validate* shows its verdict; clear it to validate again · *account* prints the account, also of a run that failed (it
fails then, too), and sends an event of the asset `x-sluice://{pipeline.name}` if something was written.

A manual run and a scheduled run read what is *available now*. Clearing *ingest* continues the same run.
{_intervals(pipeline)}
{_ON_LAG.format(name=pipeline.name) if pipeline.schedule == "on_lag" else ""}
```{lag}
sluice status {pipeline.name}
sluice audit {pipeline.name}
```
"""


def _intervals(pipeline: Pipeline) -> str:
    if pipeline.no_intervals is not None:
        why = "its rows do not say which records they came from" if pipeline.aggregates else "see its source and sink"
        return f"It cannot reprocess intervals: {why}."
    if not isinstance(pipeline.schedule, Schedule):
        of = "record time" if pipeline.window is None else "event time: the windows that begin in it"
        return f"A run with mode *interval*, *start* and *end* reprocesses that interval of {of}."
    return (
        f"A backfill (`airflow backfill create --dag-id {pipeline.name} --from-date … --to-date … "
        "--max-active-runs 2`) reprocesses the interval of each of its runs, beside live runs; so does a run with mode "
        "*interval*, *start* and *end*."
    )


def _schedule(pipeline: Pipeline, poll_interval: float) -> str:
    match pipeline.schedule:
        case Schedule(cron=cron, timezone=zone):
            return f"at `{cron}` ({zone})"
        case "on_lag":
            return f"by itself, within {length(poll_interval)} of the backlog being *{Limits.of(pipeline.lag)}*"
        case _:
            return "by hand"


def _how(pipeline: Pipeline) -> str:
    kafka = pipeline.source.kafka
    return f" by connection `{kafka.active}`, {kafka.isolation_level}" if kafka else f" of `{pipeline.source.key}`"
