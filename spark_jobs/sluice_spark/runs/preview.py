"""Decodes and transforms records without writing any: what a run would make of them, and what it would refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.decoders.config import JsonDecode
from sluice.decoders.explain import explained
from sluice.decoders.registry import ask
from sluice.fields import DELETED, TAKES_AWAY
from sluice.home import Home
from sluice.pipeline import Pipeline
from sluice.pipeline.suite import Suite
from sluice.ranges import OffsetRange
from sluice.run.actions import Preview, TryQuarantined
from sluice.sources.state import TopicState
from sluice_spark.batch.quarantine import held_records, opened, refused_records
from sluice_spark.batch.split import Split
from sluice_spark.batch.split import told as told_of_suite
from sluice_spark.batch.unknown_fields import told_of
from sluice_spark.columns import column
from sluice_spark.decoders.base import COLUMN, RULE, source_columns
from sluice_spark.rules.records import decoded
from sluice_spark.sinks.base import of_table
from sluice_spark.sinks.delta import shape
from sluice_spark.sinks.delta.evolution import difference, told, ways_out
from sluice_spark.sinks.delta.handle import Handle
from sluice_spark.transforms import transform as transforms
from sluice_spark.transforms.lookups import Lookups
from sluice_spark.transforms.sample import shape_of

__all__ = ["newest", "preview", "still_refused"]

_PREVIEW = "preview"
"""The run id that previewed rows have; there is no such run."""


def newest(states: Sequence[TopicState], records: int) -> list[OffsetRange]:
    """Return the ranges of about so many newest offsets, in equal parts of the partitions that have some; pure."""
    partitions = [
        (state.topic, number, part)
        for state in states
        for number, part in state.partitions.items()
        if part.end > part.start
    ]
    left, found = records, []
    waiting = sorted(partitions, key=lambda item: item[2].end - item[2].start)
    for n, (topic, number, part) in enumerate(waiting):
        size = min(-(-left // (len(waiting) - n)), part.end - part.start)
        left -= size
        if size:
            found.append(OffsetRange(topic, number, part.end - size, part.end))
    return sorted(found, key=lambda r: (r.topic, r.partition))


def preview(pipeline: Pipeline, action: Preview, open_session: Callable[[], SparkSession]) -> dict[str, Any]:
    """Return what a run would make of the newest records of a Kafka source, ready for JSON.

    Raises
    ------
    ConfigError
        If the transform does not fit.
    SluiceError
        If the source cannot be read.
    """
    spark, home = open_session(), Home.from_env()
    ask(pipeline.decode.needs)
    transform = transforms.transformer(pipeline, Lookups.of(pipeline, home))
    schema = shape_of(spark, pipeline, transform).schema
    split = Split.of(spark, pipeline, schema)
    with pipeline.source.kind.opened(pipeline.source.config, home, pipeline.name) as source:
        ranges = newest(source.snapshot(), action.records)
        reader = pipeline.source.kind.read_with(spark, pipeline.source.config, source)
        try:
            found = decoded(reader.read(ranges), pipeline)
            frame = (found if split is None else split.off(found, transform)).persist()
            count = frame.count()
            refused = refused_records(frame, _PREVIEW, pipeline.decode).toArrow().to_pylist()
            good = source_columns(frame.where(F.col(RULE).isNull()))
            config = pipeline.decode.config
            given = (row.value for row in reader.read(ranges).select("value").toLocalIterator())
            unknown = told_of(config, given) if isinstance(config, JsonDecode) and not config.rescue else None
            rows = transforms.apply(transform, good).withColumn("_run", F.lit(_PREVIEW))
            rows = rows.withColumnRenamed(TAKES_AWAY, DELETED).persist()
            made = rows.count()
            shown = [row.row for row in rows.limit(action.records).select(_as_json(rows)).collect()]
        except Exception as error:
            found_out = reader.diagnose(error, ranges)
            found_out.state = "nothing was written"  # other than of a run, which this is not
            raise found_out from error
    return {
        "pipeline": pipeline.name,
        "ranges": [r.as_list() for r in ranges],
        "records": count,
        "refused": [_refused(row, explained(pipeline.decode.key, pipeline.decode.config)) for row in refused],
        "rows": made,
        "unknown_fields": unknown,
        "shown": shown,
        "columns": [{"name": f.name, "type": f.dataType.simpleString()} for f in of_table(schema).fields],
        "table": _beside_table(pipeline, home, of_table(schema)),
        "suite": told_of_suite(spark, pipeline, schema) if split is not None else [],
    }


def still_refused(
    pipeline: Pipeline, action: TryQuarantined, open_session: Callable[[], SparkSession]
) -> dict[str, Any]:
    """Return how many quarantined records decode and pass all row rules now, and why the others do not.

    ``table`` tells whether their rows would fit the sink, as in :func:`preview`.
    """
    spark, home = open_session(), Home.from_env()
    quarantine = opened(home.resolve(pipeline.quarantine_path), "")
    found = {"pipeline": pipeline.name, "records": 0, "decodable": 0, "still": [], "table": {}}
    if quarantine.table() is None:
        return found
    transform = transforms.transformer(pipeline, Lookups.of(pipeline, home))
    schema = shape_of(spark, pipeline, transform).schema
    held = decoded(held_records(spark, quarantine, of_run=action.of_run, ranges=action.ranges or None), pipeline)
    suite = Suite.of(pipeline)
    if suite is not None and suite.splitting(pipeline.quality.split):
        split = Split.of(spark, pipeline, schema)
        held = held if split is None else split.off(held, transform)
    groups = held.groupBy(F.col(RULE).alias("rule"), F.col(COLUMN).alias("column")).count().collect()
    still = [{"rule": g.rule, "column": g.column, "records": g["count"]} for g in groups if g.rule is not None]
    return found | {
        "records": sum(g["count"] for g in groups),
        "decodable": sum(g["count"] for g in groups if g.rule is None),
        "still": sorted(still, key=lambda group: (-group["records"], group["rule"], group["column"] or "")),
        "table": _beside_table(pipeline, home, of_table(schema)),
    }


def _as_json(rows: DataFrame) -> Any:
    return F.to_json(F.struct(*map(column, rows.columns)), {"ignoreNullFields": "false"}).alias("row")


def _refused(row: dict[str, Any], explain: Callable[[Mapping[str, Any]], str | None]) -> dict[str, Any]:
    error = row["_errors"][0]
    value = row["value"]
    detail = explain(row) or error["detail"]
    return {
        "topic": row["_topic"],
        "partition": row["_partition"],
        "offset": row["_offset"],
        "rule": error["rule"],
        "column": error["column"],
        "detail": detail,
        "value": None if value is None else value[:300].decode(errors="backslashreplace"),
    }


def _beside_table(pipeline: Pipeline, home: Home, schema: Any) -> dict[str, Any]:
    """Return what of these columns the sink lacks or has otherwise; only looks, and only into Delta tables."""
    if not pipeline.sink.kind.delta:
        return {}
    path = home.resolve(pipeline.sink.config.location)
    table = Handle(path).table()
    if table is None:
        return {"differences": [], "ways_out": []}
    found, evolve = difference(shape.columns_of(table), schema), getattr(pipeline.sink.config, "evolve", "refuse")
    return {"differences": told(found), "ways_out": ways_out(found, path, evolve)}
