"""What a pipeline's DAG page says about it."""

from __future__ import annotations

from sluice.home import PROJECT
from sluice.spec import Pipeline, Rows
from sluice.spec.model import Schedule
from sluice_airflow.params import MEANING

__all__ = ["page"]

_ROWS = {
    Rows.ONE: "one sink row for each record",
    Rows.FILTER: "at most one sink row for each record",
    Rows.MANY: "any number of sink rows for each record",
    Rows.AGGREGATE: "sink rows that no longer belong to single records",
}


def page(pipeline: Pipeline) -> str:
    """Return the page in Markdown: what it reads, writes and promises, how it recovers, what to type."""
    kafka, delta, quality = pipeline.kafka, pipeline.sink.delta, pipeline.quality
    topics = ", ".join(f"`{t}`" for t in kafka.topics)
    parts = f", partitioned by {', '.join(f'`{c}`' for c in delta.partition_by)}" if delta.partition_by else ""
    file = pipeline.file.relative_to(PROJECT) if pipeline.file.is_relative_to(PROJECT) else pipeline.file.name
    judged = f"`{quality.suite}`; a failed verdict means *{quality.on_failed}*" if quality.suite else "no suite"
    return f"""\
### {pipeline.name}

Opens the gate once per run: lets through what Kafka holds now, closes, judges what came out. Every offset is accounted
for: `end - start = written + filtered + quarantined + absent + lost`.

| | |
|---|---|
| reads | {topics} by connection `{kafka.connection}`, {kafka.isolation_level}, from `{kafka.starting_offsets}` |
| writes | Delta table `{delta.path}`{parts}; what cannot be written goes to `{delta.path}_quarantine` |
| promises | {_ROWS[pipeline.rows]}, exactly once |
| recovers by | `{pipeline.recovery}`: {MEANING[pipeline.recovery]} |
| judged by | {judged} |
| runs | {_schedule(pipeline)} |
| file | `{file}` |

**Tasks.** *wait_for_lag* compares the checkpoint with the broker · *ingest* is the Spark application ·
*validate* shows its verdict; clear it to judge again · *account* emits the asset `x-sluice://{pipeline.name}` when
something was written.

A manual run and a scheduled run mean *available now*. Clearing *ingest* goes on with the same run.

```
sluice lag {pipeline.name}
sluice status {pipeline.name}
sluice audit {pipeline.name}
```
"""


def _schedule(pipeline: Pipeline) -> str:
    match pipeline.schedule:
        case Schedule(cron=cron, timezone=zone):
            return f"at `{cron}` ({zone})"
        case "on_lag":
            return "by hand for now: this version does not start runs by lag (`schedule: on_lag`) yet"
        case _:
            return "by hand"
