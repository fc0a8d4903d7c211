"""Checks pipeline files by Spark and Great Expectations, without records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.home import Home
from sluice.pipeline import Pipeline, load
from sluice.pipeline.suite import Suite, missing_columns, with_lines
from sluice.run.actions import Check
from sluice_spark.arrow.plan import NotArrowError, plan_of
from sluice_spark.batch.split import Split, told
from sluice_spark.engine.settings import wrong_settings
from sluice_spark.quality.gx_project import problems_of, unevaluated, warm_up
from sluice_spark.transforms import transform as transforms
from sluice_spark.transforms.lookups import Lookups
from sluice_spark.transforms.sample import Shape, shape_of
from sluice_spark.windows.decomposition import told as way_of

__all__ = ["checked", "path", "problems", "suite", "windows"]


def checked(_: Pipeline, action: Check, open_session: Callable[[], SparkSession]) -> dict[str, Any]:
    """Return, by file, the problems of pipelines, the path of their records, and what becomes of their expectations."""
    pipelines = [load(name) for name in action.files]
    if any(pipeline.suite_file for pipeline in pipelines):
        warm_up()
    spark = open_session()
    return {
        str(pipeline.file): {
            "problems": list(problems(spark, pipeline)),
            "path": path(spark, pipeline),
            "suite": suite(spark, pipeline),
            "windows": windows(spark, pipeline),
        }
        for pipeline in pipelines
    }


def problems(spark: SparkSession, pipeline: Pipeline) -> Iterator[str]:
    """Yield the problems of a pipeline's settings of Spark, transform and suite."""
    yield from wrong_settings(spark, pipeline.spark.conf)
    schema = None
    try:
        schema = _shape(spark, pipeline).schema
    except ConfigError as error:
        yield error.what.removeprefix(f"pipeline {pipeline.name!r}: ")
    if schema is not None:
        yield from (f"quality.{key}: {wrong}" for key, wrong in missing_columns(pipeline.quality, schema.names))
    if pipeline.suite_file is not None:
        try:
            suite, wrong = Suite.read(pipeline.suite_file)
        except ConfigError as error:
            yield f"quality.suite: {error.what}"
            return
        wrong += [*problems_of(suite), *suite.out_of_reach(pipeline)]
        wrong += suite.unknown_columns(schema.names) if schema is not None else []
        if schema is not None and not wrong:
            wrong += unevaluated(spark, suite, schema)
        yield from (
            f"quality.suite: {pipeline.suite_file.name}: {text}" for text in with_lines(pipeline.suite_file, wrong)
        )
        if schema is not None and not wrong:
            try:
                Split.of(spark, pipeline, schema)
            except ConfigError as error:
                yield f"quality.suite: {error.what}"


def path(spark: SparkSession, pipeline: Pipeline) -> str | None:
    """Return which path the records of live runs take, and why if it is Spark's; None if the transform is wrong."""
    try:
        schema = _shape(spark, pipeline).schema
        split = Split.of(spark, pipeline, schema)
        plan_of(spark, pipeline, pipeline.recovery, schema, split.rules if split is not None else ())
    except NotArrowError as why:
        return f"Spark path: {why}"
    except ConfigError:
        return None
    return "Arrow path"


def windows(spark: SparkSession, pipeline: Pipeline) -> str | None:
    """Return how a new epoch makes sliding windows, and why; None for other pipelines, or if the file has a mistake."""
    if pipeline.window is None or pipeline.window.slide is None:
        return None
    try:
        taken = _shape(spark, pipeline).rows
    except ConfigError:
        return None
    return way_of(spark, pipeline.window, taken)


def suite(spark: SparkSession, pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return of each expectation whether it splits rows, and why not; none if the file has a mistake."""
    try:
        schema = _shape(spark, pipeline).schema
        Split.of(spark, pipeline, schema)
    except ConfigError:
        return []
    return told(spark, pipeline, schema)


def _shape(spark: SparkSession, pipeline: Pipeline) -> Shape:
    try:
        lookups = Lookups.of(pipeline, Home.from_env())
    except SourceUnreachableError as error:  # the other checks and the other files go on
        raise ConfigError(error.what, state=error.state, next_step=error.next_step) from error
    return shape_of(spark, pipeline, transforms.transformer(pipeline, lookups))
