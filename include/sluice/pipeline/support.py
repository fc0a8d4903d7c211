"""Which features of a pipeline do not go together: one table.

Files are checked by it, commands and forms refuse by it, and ``docs/support.md`` is written from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sluice.pipeline.schedule import Schedule
from sluice.pipeline.sections import EVERYTHING, Rows
from sluice.pipeline.window import START
from sluice.recovery import Recovery
from sluice.storage import in_arrows_reach, is_url

if TYPE_CHECKING:
    from sluice.pipeline.model import Pipeline

__all__ = [
    "ARROW",
    "FILE",
    "INTERVAL",
    "REBUILDING",
    "RECOMPUTING",
    "SINK",
    "SPLITTING",
    "STRATEGY",
    "Limit",
    "documented",
    "refuse",
    "why_not",
]


@dataclass(frozen=True)
class Limit:
    """Two features that do not go together.

    Parameters
    ----------
    feature, beside
        Both, as the documentation names them.
    applies
        Whether a pipeline has both. Its second argument is the sink or the strategy in question, if the group has one.
    told
        Why not, and the way out: a format of the pipeline ``p``, of the second argument ``x``, and of its ``key``.
    """

    feature: str
    beside: str
    applies: Callable[[Pipeline, Any], object]
    told: str


def why_not(limits: Sequence[Limit], pipeline: Pipeline, x: Any = None, key: str = "") -> str | None:
    """Return why a pipeline cannot have or do what a group is about: the first limit that applies; None if it can."""
    found = (limit.told.format(p=pipeline, x=x, key=key) for limit in limits if limit.applies(pipeline, x))
    return next(found, None)


def refuse(limits: Sequence[Limit], pipeline: Pipeline, x: Any = None, key: str = "") -> None:
    """Refuse a pipeline file.

    Raises
    ------
    ValueError
        With the first limit that applies.
    """
    if (told := why_not(limits, pipeline, x, key)) is not None:
        raise ValueError(told)


class _Any:
    """Stands for the values of a pipeline in the documentation."""

    def __getattr__(self, name: str) -> _Any:
        return self

    def __getitem__(self, number: int) -> _Any:
        return self

    def __str__(self) -> str:
        return "…"

    __repr__ = __str__


def documented() -> Iterator[tuple[str, str, str]]:
    """Yield each limit as a user reads it: the two features, and why not."""
    for limit in dict.fromkeys((*SINK, *FILE, *STRATEGY, *INTERVAL, *REBUILDING, *RECOMPUTING, *ARROW)):
        yield limit.feature, limit.beside, limit.told.format(p=_Any(), x=_Any(), key="sink.…")


def _opaque(p: Pipeline) -> bool:
    """Return whether it has an operator whose state may follow from each record that was ever read."""
    return p.keeps not in (None, "window", "dedupe")


def _identity(p: Pipeline) -> tuple[str, ...]:
    return () if p.stateful is None else p.stateful.identity


def _by_record(p: Pipeline) -> bool:
    return p.rows in (Rows.ONE, Rows.FILTER)


def _merging(p: Pipeline) -> bool:
    return p.sink.config.keyed and p.sink.kind.delta


def _splitting(limit: Limit, p: Pipeline, x: Any) -> object:
    return p.quality.split != "none" and limit.applies(p, x)


SINK = (
    Limit(
        "a sink", "no transactions", lambda _, sink: not sink.kind.transactional and not sink.kind.at_least_once,
        "{key} cannot commit a batch atomically with its batch number, so a crash would lose or duplicate rows: choose "
        "a sink that can, such as sink.delta",
    ),
    Limit(
        "mode: upsert", "rows: many, aggregate", lambda p, sink: sink.config.keyed and not _by_record(p),
        "{key}.mode: upsert finds the newer of two rows by their offsets, and rows: {p.rows} does not give each row "
        "its own: choose rows: one or filter, or mode: append",
    ),
    Limit(
        "mode: upsert", "source.kafka.clusters", lambda p, sink: sink.config.keyed and p.origins is not None,
        "source.kafka.clusters beside {key}.mode: upsert: offsets decide which row of a key is the newest, and "
        "each cluster counts its own: choose mode: append, or name one connection",
    ),
    Limit(
        "mode: upsert", "aggregate, window, dedupe, processor", lambda p, sink: sink.config.keyed and p.keeps,
        "{key}.mode: upsert finds the newer of two rows by their records, and {p.keeps} decides itself which rows "
        "there are: choose mode: append",
    ),
)  # fmt: skip
"""Limits of a sink; asked once for each sink, with it and its key."""


SPLITTING = (
    Limit(
        "quality.split", "rows: many, aggregate", lambda p, _: not _by_record(p),
        "rows: {p.rows} does not say which record a row came from, and a record is quarantined or written: write rules "
        "instead, which judge records",
    ),
    Limit(
        "quality.split", "aggregate, window, dedupe, processor", lambda p, _: p.keeps,
        "beside {p.keeps} rows cannot be split yet, because they are judged behind what it keeps: write rules instead, "
        "which judge records",
    ),
)  # fmt: skip
"""Limits of expectations that quarantine single rows."""

FILE = (
    # further sinks
    Limit(
        "also", "output: update, complete", lambda p, _: p.also and p.output != "append",
        "also beside {p.keeps}.output: {p.output} is not supported: a further sink would get rows that take the "
        "place of others. Choose output: append, or let a pipeline of its own read the sink",
    ),
    Limit(
        "also", "tombstone: delete", lambda p, _: p.also and p.decode.deletes,
        "also beside decode.{p.decode.key}.tombstone: delete is not supported yet: leave also out, or choose "
        "tombstone: row or quarantine",
    ),
    # tables
    Limit(
        "tables", "transform.arrow", lambda p, _: p.tables and p.transform.arrow is not None,
        "tables: transform.arrow gets the records alone: write transform.sql or transform.python",
    ),
    Limit(
        "tables", "no transform", lambda p, _: p.tables and p.transform.sql == EVERYTHING,
        "tables: no transform reads them: join them in transform.sql or transform.python, or leave tables out",
    ),
    Limit(
        "tables", "a transform.sql that does not name them",
        lambda p, _: p.unread_tables,
        "tables: transform.sql does not name {p.unread_tables}: join it, or leave it out",
    ),
    # decode
    Limit(
        "decode: headers", "source.rate, source.socket",
        lambda p, _: p.source.key in ("rate", "socket") and p.decode.asks_headers and p.decode.chosen is None,
        "decode.{p.decode.key}.headers: the records of source.{p.source.key} have none, so the columns would be empty: "
        "leave it out",
    ),
    Limit(
        "decode: csv, avro, protobuf, xml", "source.jdbc, source.rate",
        lambda p, _: p.source.config.objects and p.decode.key in ("csv", "avro", "protobuf", "xml"),
        "decode.{p.decode.key}: this source.{p.source.key} gives each row as a JSON object: choose decode.json",
    ),
    Limit(
        "tombstone: delete", "a sink without mode: upsert",
        lambda p, _: p.decode.deletes and not p.sink.config.deletes,
        "decode.{p.decode.key}.tombstone: delete: sink.{p.sink.key} has no rows that a key finds again: choose "
        "tombstone: row or quarantine, or sink.delta or sink.postgres with mode: upsert",
    ),
    Limit(
        "tombstone: delete", "transform.arrow", lambda p, _: p.decode.deletes and p.transform.arrow is not None,
        "decode.{p.decode.key}.tombstone: delete beside transform.arrow is not supported yet: write transform.sql or "
        "python",
    ),
    Limit(
        "decode: by_topic, by_header", "a source without messages",
        lambda p, _: p.decode.chosen is not None and not p.source.kind.messages,
        "decode.{p.decode.key}: the records of source.{p.source.key} {p.decode.chosen.lacks}, so nothing chooses their "
        "format: name the one format, such as decode.json, and write a pipeline for each of several",
    ),
    Limit(
        "rows: aggregate; aggregate, window, processor", "transform.arrow",
        lambda p, _: p.aggregates and p.transform.arrow is not None,
        "rows: aggregate needs a whole batch, and transform.arrow gets a part of it at a time: write transform.sql or "
        "transform.python",
    ),
    # lag
    Limit(
        "schedule: on_lag", "a source but Kafka", lambda p, _: p.schedule == "on_lag" and p.source.kafka is None,
        "schedule: on_lag cannot watch source.{p.source.key}: give it a cron schedule",
    ),
    Limit(
        "lag.on_idle", "a source but Kafka", lambda p, _: p.lag.on_idle != "proceed" and p.source.kafka is None,
        "lag.on_idle: the lag of source.{p.source.key} is not known: leave it out",
    ),
    Limit(
        "lag: max_records, max_age, max_retention_share", "a source but Kafka",
        lambda p, _: p.lag.limits_given and p.source.kind.measured is None,
        "lag: the lag of source.{p.source.key} is not known, so no limit of it is ever passed: remove the key",
    ),
    Limit(
        "lag.on_idle", "a schedule but cron",
        lambda p, _: p.lag.on_idle != "proceed" and not isinstance(p.schedule, Schedule),
        "lag.on_idle: {p.lag.on_idle} is for runs of a cron schedule, and the schedule is {p.schedule}: give a cron, "
        "or leave it out",
    ),
    Limit(
        "lag.mirror_group", "a source but Kafka",
        lambda p, _: p.lag.mirror_group is not None and p.source.kafka is None,
        "lag.mirror_group is a consumer group, and source.{p.source.key} has none: remove the key",
    ),
    Limit(
        "airflow.freshness", "a source but Kafka",
        lambda p, _: p.airflow.freshness is not None and p.source.kafka is None,
        "airflow.freshness: how old the unread records of source.{p.source.key} are is not known: remove the key",
    ),
    # quality
    Limit(
        "quality.suite", "a sink that is not read back",
        lambda p, _: p.quality.suite is not None and not p.sink.kind.readable,
        "quality.suite validates rows that are read back, and sink.{p.sink.key} cannot do that: remove the suite, or "
        "choose sink.delta",
    ),
    # what is kept from run to run
    Limit(
        "output: update, complete", "a sink that cannot replace rows",
        lambda p, _: p.output not in p.sink.kind.outputs,
        "{p.keeps}.output: {p.output} replaces rows that were written before, and sink.{p.sink.key} cannot: choose "
        "another sink, such as sink.delta, or windows with output: append",
    ),
    Limit(
        "output: update", "sink.kafka whose key does not identify a row",
        lambda p, _: p.output == "update" and p.sink.key == "kafka"
        and (getattr(p.sink.config, "key", None),) != _identity(p),
        "{p.keeps}.output: update writes a record for each row that changed, and of those of a key the newest counts: "
        "sink.kafka.key must be the one column that tells rows apart ({p.keeps}.by has one, or none beside "
        "window_start). Make one column of several in the transform, or choose another sink, such as sink.delta",
    ),
    Limit(
        "aggregate, window, processor", "rows: aggregate",
        lambda p, _: p.rows is Rows.AGGREGATE and p.keeps not in (None, "dedupe"),
        "{p.keeps}: rows: aggregate does not say which record a row came from, and each record is counted as absorbed "
        "or late: the transform before it must have rows: one, filter or many",
    ),
    Limit(
        "aggregate, window", "spark.sql.ansi.enabled: false",
        lambda p, _: (p.window or p.aggregate) and p.spark.conf.get("spark.sql.ansi.enabled", "").lower() == "false",
        "spark.conf: spark.sql.ansi.enabled: false beside {p.keeps}: a sum that does not fit would become another "
        "number without a word. Leave it out; write try_sum(…) or try_cast(…) where a NULL is wanted",
    ),
    Limit(
        "window.flush", "schedule: on_lag, lag.on_idle",
        lambda p, _: p.window and p.window.flush is not None and p.waits,
        "window.flush closes windows in a run that finds no records, and with {p.waits} there is none: give a cron "
        "schedule whose runs go ahead, or leave flush out",
    ),
    Limit(
        "output: update, complete", "partition_by",
        lambda p, _: p.output != "append" and p.sink.config.partition_columns,
        "sink.{p.sink.key}.partition_by: {p.keeps}.output: {p.output} cannot replace rows of a partitioned table: "
        "leave partition_by out, or choose windows with output: append",
    ),
    Limit(
        "aggregate, window, dedupe, processor", "each other", lambda p, _: len(p.operators) > 1,
        "{p.operators[0]} beside {p.operators[1]}: Sluice cannot do both in one pipeline yet: put one into a pipeline "
        "of its own, whose sink is the source of the other",
    ),
    Limit(
        "dedupe", "a sink that is not read back as a whole", lambda p, _: p.dedupe and not p.sink.kind.whole,
        "dedupe: after a crash, which row of a key came first is read from the sink, and sink.{p.sink.key} cannot be "
        "read: choose sink.delta, iceberg, files or postgres",
    ),
    Limit(
        "dedupe", "rows: many, aggregate", lambda p, _: p.dedupe and not _by_record(p),
        "dedupe: rows: {p.rows} does not say which record a row came from, and each record is counted as written, late "
        "or a duplicate: the transform must have rows: one or filter",
    ),
    Limit(
        "processor.flush", "schedule: on_lag, lag.on_idle",
        lambda p, _: p.processor and p.processor.flush is not None and p.waits,
        "processor.flush fires timers in a run that finds no records, and with {p.waits} there is none: give a cron "
        "schedule whose runs go ahead, or leave flush out",
    ),
    Limit(
        "processor", "state.max_bytes",
        lambda p, _: p.stateful and not p.stateful.measures and p.state.max_bytes is not None,
        "state.max_bytes: Spark does not say how large the state of {p.kept_by} is: leave it out; sluice state "
        "{p.name} --history has the size of its files",
    ),
    # several clusters
    Limit(
        "source.kafka.clusters", "aggregate, window, dedupe, processor", lambda p, _: p.origins is not None and p.keeps,
        "source.kafka.clusters beside {p.keeps}: what {p.keeps} keeps from run to run cannot follow to another "
        "cluster: name one connection, or leave the key out",
    ),
    Limit(
        "source.kafka.clusters", "rows: aggregate", lambda p, _: p.origins is not None and p.rows is Rows.AGGREGATE,
        "source.kafka.clusters beside rows: aggregate: its rows do not say which records they came from, so a mirrored "
        "record cannot be told from a new one: name one connection",
    ),
    Limit(
        "source.kafka.clusters", "schedule: on_lag", lambda p, _: p.origins is not None and p.schedule == "on_lag",
        "source.kafka.clusters beside schedule: on_lag: what watches the lag cannot follow to another cluster yet: "
        "give a cron schedule",
    ),
    # quality, again: of what the pipeline keeps
    Limit(
        "quality.history.freshness", "rows: aggregate; aggregate, window, processor",
        lambda p, _: p.quality.history is not None and p.quality.history.freshness is not None and p.aggregates,
        "quality.history.freshness goes by the rows' _timestamp, and aggregated rows have none: remove it",
    ),
    Limit(
        "quality.when: before_commit", "aggregate, window, dedupe, processor",
        lambda p, _: p.quality.when == "before_commit" and p.keeps,
        "quality.when: before_commit beside {p.keeps}: a batch that is held back would hold back the state behind it: "
        "remove the key when, and choose on_failed: hold",
    ),
    Limit(
        "quality.split", "no quality.suite", lambda p, _: p.quality.split != "none" and p.quality.suite is None,
        "quality.split splits rows by a suite, and there is none: add quality.suite, or remove it",
    ),
    *(
        replace(limit, applies=partial(_splitting, limit), told=f"quality.split: {limit.told}") for limit in SPLITTING
    ),
)  # fmt: skip
"""Limits of a pipeline file, in the order in which they are checked."""

STRATEGY = (
    Limit(
        "recovery: all but wal", "a source that cannot be read again",
        lambda p, r: not p.source.kind.replayable and r is not Recovery.WAL,
        "recovery: {x} reads records again, and source.{p.source.key} cannot: choose recovery: wal",
    ),
    Limit(
        "recovery: wal", "source.kafka.clusters", lambda p, r: p.origins is not None and r is Recovery.WAL,
        "recovery: wal beside source.kafka.clusters is not supported yet: choose recovery: replay; the mirror keeps "
        "what the first cluster loses",
    ),
    Limit(
        "recovery: ignore_range, ignore_batch", "window", lambda p, r: r.ignores and p.window,
        "recovery: {x} would skip records of windows that are open, whose rows would then be silently wrong: choose "
        "recovery: replay, wal or hot",
    ),
    Limit(
        "recovery: ignore_range, ignore_batch", "aggregate, processor", lambda p, r: r.ignores and _opaque(p),
        "recovery: {x} would skip records that the {p.keeps} needs, whose rows would then be silently wrong: choose "
        "recovery: replay, wal or hot",
    ),
    Limit(
        "recovery: ignore_range, ignore_batch", "dedupe", lambda p, r: r.ignores and p.dedupe,
        "recovery: {x} would skip records whose duplicates would then be taken for the first ones: choose recovery: "
        "replay, wal or hot",
    ),
    Limit(
        "recovery: ignore_batch", "rows: aggregate", lambda p, r: r is Recovery.IGNORE_BATCH and p.aggregates,
        "recovery: ignore_batch is for stateless pipelines: with rows: aggregate a row combines many records, and "
        "skipping a batch would silently leave such rows wrong. Choose replay or ignore_range",
    ),
)  # fmt: skip
"""Limits of a recovery strategy; asked with it."""

INTERVAL = (
    Limit(
        "an interval", "window.output: complete", lambda p, _: p.window and p.window.output == "complete",
        "pipeline {p.name!r} has window.output: complete: no window is ever closed, and each batch of a live run "
        "writes all of them",
    ),
    Limit(
        "an interval", "window and a sink that does not find rows by their values",
        lambda p, _: p.window and not p.sink.kind.by_value,
        "pipeline {p.name!r} has a window, and sink.{p.sink.key} does not find windows by their times",
    ),
    Limit(
        "an interval", "window and rows: many", lambda p, _: p.window and p.rows is Rows.MANY,
        "pipeline {p.name!r} has a window and rows: many: of a record that was refused for one of its rows, other rows "
        "may be in windows, so what an interval would make again is not known",
    ),
    Limit(
        "an interval", "sessions and partition_by",
        lambda p, _: p.window and p.window.gap is not None and p.sink.config.partition_columns,
        "pipeline {p.name!r} has sessions and sink.{p.sink.key}.partition_by: sessions of an interval are found by "
        "their columns in the files, which lack those of partitions",
    ),
    Limit(
        "an interval", "partition_by the start of windows",
        lambda p, _: p.window and START in p.sink.config.partition_columns,
        "pipeline {p.name!r} has sink.{p.sink.key}.partition_by: " + START + ": windows of an interval are found by "
        "that column in the files, which do not have it then",
    ),
    Limit(
        "an interval", "window and also", lambda p, _: p.window and p.also,
        "pipeline {p.name!r} has a window and further sinks (also): an interval cannot make windows again in several "
        "sinks yet",
    ),
    Limit(
        "an interval", "dedupe", lambda p, _: p.dedupe,
        "pipeline {p.name!r} has dedupe: which of an interval's records are duplicates also depends on those before "
        "it, which Sluice cannot judge yet",
    ),
    Limit(
        "an interval", "aggregate, processor", lambda p, _: _opaque(p),
        "pipeline {p.name!r} has {p.kept_by}: which rows the records of an interval give also depends on those before "
        "it",
    ),
    Limit(
        "an interval", "rows: aggregate", lambda p, _: p.rows is Rows.AGGREGATE,
        "pipeline {p.name!r} has rows: aggregate: its rows do not say which records they came from, so the rows of an "
        "interval cannot be replaced",
    ),
    Limit(
        "an interval", "source.kafka.clusters", lambda p, _: p.origins is not None,
        "pipeline {p.name!r} has source.kafka.clusters: records of an interval may be rows by way of another cluster, "
        "which an interval cannot replace yet",
    ),
    Limit(
        "an interval", "a source that cannot be read again", lambda p, _: not p.source.kind.replayable,
        "pipeline {p.name!r} has no intervals: source.{p.source.key} cannot be read again",
    ),
    Limit(
        "an interval", "a source that finds no offsets by time", lambda p, _: not p.source.kind.seek_by_time,
        "pipeline {p.name!r} has no intervals: source.{p.source.key} cannot find records by their time",
    ),
    Limit(
        "an interval", "a sink that cannot replace rows", lambda p, _: p.irreplaceable,
        "pipeline {p.name!r} has no intervals: {p.irreplaceable} cannot replace rows",
    ),
)  # fmt: skip
"""Limits of runs over an interval."""

REBUILDING = (
    Limit(
        "reset --rebuild-state", "no window and no dedupe", lambda p, _: p.stateful is None,
        "pipeline {p.name!r} has no window and no dedupe: there is no state to rebuild",
    ),
    Limit(
        "reset --rebuild-state", "aggregate, processor", lambda p, _: _opaque(p),
        "the state of pipeline {p.name!r} cannot be rebuilt: what {p.kept_by} keeps may follow from each record that "
        "it ever read",
    ),
    Limit(
        "reset --rebuild-state", "window and rows: many", lambda p, _: p.window and p.rows is Rows.MANY,
        "the state of pipeline {p.name!r} cannot be rebuilt: with rows: many, of a record that was refused for one of "
        "its rows, other rows may be in windows",
    ),
    Limit(
        "reset --rebuild-state", "window.output: complete", lambda p, _: p.window and p.window.output == "complete",
        "the state of pipeline {p.name!r} cannot be rebuilt: with window.output: complete, each window is kept for "
        "ever, and all records would be read again",
    ),
    Limit(
        "reset --rebuild-state", "sessions", lambda p, _: p.window and p.window.gap is not None,
        "the state of pipeline {p.name!r} cannot be rebuilt: sessions have no bound: what is open may have begun at "
        "any time",
    ),
)  # fmt: skip
"""Limits of ``sluice reset --rebuild-state``."""

RECOMPUTING = (
    Limit(
        "audit --windows", "no window", lambda p, _: p.window is None,
        "pipeline {p.name!r} has no windows",
    ),
    Limit(
        "audit --windows", "rows: many", lambda p, _: p.rows is Rows.MANY,
        "pipeline {p.name!r} has rows: many: of a record that was refused for one of its rows, other rows may be in "
        "windows, so these cannot be made again exactly",
    ),
)  # fmt: skip
"""Limits of ``sluice audit --windows``."""

ARROW = (
    Limit("the Arrow path", "engine: spark", lambda p, _: p.engine == "spark", "the pipeline file says engine: spark"),
    Limit(
        "the Arrow path", "source.kafka.clusters", lambda p, _: p.origins is not None,
        "source.kafka.clusters: only Spark recognises copies of records",
    ),
    Limit(
        "the Arrow path", "decode: by_topic, by_header", lambda p, _: p.decode.chosen is not None,
        "decode.{p.decode.key} chooses a format for each record, which Spark alone does",
    ),
    Limit(
        "the Arrow path", "tombstone: delete", lambda p, _: p.decode.deletes,
        "tombstones delete rows, and only Spark recognises them",
    ),
    Limit(  # its batches are large, and their keys are in memory
        "the Arrow path", "mode: upsert of sink.delta", lambda p, _: _merging(p),
        "sink.{p.sink.key} merges rows by a key",
    ),
    Limit(
        "the Arrow path", "window", lambda p, _: p.window,
        "it has a window, and Spark alone keeps what is open between runs",
    ),
    Limit(
        "the Arrow path", "dedupe", lambda p, _: p.dedupe,
        "it has dedupe, and Spark alone remembers keys between runs",
    ),
    Limit(
        "the Arrow path", "aggregate, processor", lambda p, _: _opaque(p),
        "it has {p.kept_by}, and Spark alone keeps its state between runs",
    ),
    Limit(  # the log can be read, whatever it holds
        "the Arrow path", "a source but Kafka, without recovery: wal",
        lambda p, r: not p.source.kind.by_range and r is not Recovery.WAL,
        "source.{p.source.key} can be read by Spark alone",
    ),
    Limit(
        "the Arrow path", "a sink that stages no Parquet", lambda p, _: not p.sink.kind.stages_parquet,
        "the sink is {p.sink.key}",
    ),
    Limit(
        "the Arrow path", "a sink at a URL, but a Delta table at s3a://",
        lambda p, _: is_url(p.sink.config.location)
        and not (p.sink.kind.delta and in_arrows_reach(p.sink.config.location)),
        "sink.{p.sink.key} is at a URL; only a Delta table at s3a:// can be written to without Spark",
    ),
    Limit(
        "the Arrow path", "rows: aggregate", lambda p, _: p.rows is Rows.AGGREGATE, "it has rows: aggregate",
    ),
    Limit("the Arrow path", "tables", lambda p, _: p.tables, "tables: Spark alone joins them"),
    Limit(
        "the Arrow path", "transform.python", lambda p, _: p.transform.python is not None,
        "transform.python works on a Spark DataFrame",
    ),
)  # fmt: skip
"""Limits of the Arrow path; asked with the strategy of a live run, or ``replay``.

Expressions, types and Spark's settings may speak against it, too.
"""
