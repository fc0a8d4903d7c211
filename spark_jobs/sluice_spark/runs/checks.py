"""Checks pipeline files by Spark and Great Expectations, without records."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.home import Home
from sluice.kinds import imported
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

__all__ = ["IMPORT_SECONDS", "checked", "path", "problems", "suite", "windows"]

IMPORT_SECONDS = 60.0
"""How long the import of a pipeline's module may take: one that does not end must not hide the mistakes of others."""


def checked(_: Pipeline, action: Check, open_session: Callable[[], SparkSession]) -> dict[str, Any]:
    """Return, by file, the problems of pipelines, the path of their records, and what becomes of their expectations.

    The result file gets each pipeline once it is checked, so that the caller knows at which one a process ended.
    """
    pipelines = [load(name) for name in action.files]
    if any(pipeline.suite_file for pipeline in pipelines):
        warm_up()
    spark, found = open_session(), dict[str, Any]()
    for pipeline in pipelines:
        action.result.write_text(json.dumps(found), encoding="utf-8")
        late = _never_imported(pipeline)
        found[str(pipeline.file)] = {
            "problems": [late] if late else list(problems(spark, pipeline)),
            "path": None if late else path(spark, pipeline),
            "suite": [] if late else suite(spark, pipeline),
            "windows": None if late else windows(spark, pipeline),
        }
    return found


class _TooLongError(BaseException):
    """An import that does not end: no ``except Exception`` of the module keeps it."""


def _never_imported(pipeline: Pipeline) -> str | None:
    """Import the modules that a pipeline names; return which one does not end; None if each does, or fails."""
    named = {"transform.python": pipeline.transform.python, "transform.arrow": pipeline.transform.arrow}
    named["processor.python"] = None if pipeline.processor is None else pipeline.processor.python

    def end(*_: object) -> None:
        raise _TooLongError

    for key, target in named.items():
        if target is None:
            continue
        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, IMPORT_SECONDS, 1)  # again each second, if it is caught
        try:
            with suppress(ConfigError):  # which is reported where it is used
                imported(target)
        except _TooLongError:
            return f"{key}: {target}: its module was still being imported after {IMPORT_SECONDS:.0f} s"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    return None


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
