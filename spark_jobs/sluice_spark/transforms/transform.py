"""Applies the user's transform, and checks its columns."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from sluice.errors import ConfigError, described
from sluice.fields import DELETED, METADATA_COLUMNS, TAKES_AWAY
from sluice.kinds import not_leaving
from sluice.pipeline import Pipeline, Rows
from sluice.pipeline.sections import EVERYTHING
from sluice.pipeline.suite import nearest
from sluice_spark.transforms.arrow_function import ArrowFunction, on_spark
from sluice_spark.transforms.lookups import NO_LOOKUPS, Lookups

__all__ = ["Transformer", "apply", "check", "hands_through", "transformer"]

Transformer = Callable[[DataFrame], DataFrame]

_UNTOUCHED = "nothing was read or written; the position stays where it was"


def transformer(pipeline: Pipeline, lookups: Lookups = NO_LOOKUPS) -> Transformer:
    """Return the transform as a function of the decoded batch.

    With ``tombstone: delete``, its result has the column ``TAKES_AWAY`` in place of ``DELETED``.

    Parameters
    ----------
    lookups
        The tables that it joins.

    Raises
    ------
    ConfigError
        If the module cannot be imported.
    """
    made = lookups.around(_written(pipeline))
    return (lambda source: _marked(made(source))) if pipeline.decode.deletes else made


def _marked(out: DataFrame) -> DataFrame:
    # what the user's function returned may be anything; check() tells
    return out.withColumnRenamed(DELETED, TAKES_AWAY) if isinstance(out, DataFrame) else out


def _written(pipeline: Pipeline) -> Transformer:
    """Return the transform that the pipeline file names."""
    spec = pipeline.transform
    if spec.python is not None:
        module, _, name = spec.python.partition(":")
        try:
            with not_leaving():
                function: Transformer = getattr(importlib.import_module(module), name)
        except Exception as error:
            raise _wrong(pipeline, f"transform.python: {spec.python}: {described(error)}") from error
        return not_leaving()(function)
    if spec.arrow is not None:
        made = ArrowFunction(spec.arrow)
        try:
            with not_leaving():
                made.load()
        except Exception as error:
            raise _wrong(pipeline, f"transform.arrow: {spec.arrow}: {described(error)}") from error
        return on_spark(made)
    sql = spec.sql or ""
    if sql == EVERYTHING:
        return _unchanged

    def run_sql(source: DataFrame) -> DataFrame:
        source.createOrReplaceTempView("source")
        return source.sparkSession.sql(sql)

    return run_sql


def _unchanged(source: DataFrame) -> DataFrame:
    """Return the decoded batch: the transform of a pipeline file that has none."""
    return source


def apply(transform: Transformer, source: DataFrame) -> DataFrame:
    """Call the transform on a decoded batch. Runs call it only here: a traceback shows its failures by this."""
    return transform(source)


def check(pipeline: Pipeline, transform: Transformer, sample: DataFrame) -> DataFrame:
    """Apply the transform to an empty batch and check its columns; return the result (also empty).

    Raises
    ------
    ConfigError
        If Spark cannot analyse it, or its result lacks or changes a metadata column, has a column ``_run``, or lacks a
        partition column.
    """
    try:
        out = transform(sample)
        if not isinstance(out, DataFrame):
            raise _wrong(pipeline, f"transform returned {type(out).__name__}, not a DataFrame")
        types = {f.name: f.dataType.simpleString() for f in out.schema.fields}
    except ConfigError:
        raise
    except PySparkException as error:
        raise _wrong(pipeline, f"transform: {_first_line(error)}") from error
    except Exception as error:
        raise _wrong(pipeline, f"transform: {described(error)}") from error
    lowered = [name.lower() for name in types]
    doubled = sorted({n for n in lowered if lowered.count(n) > 1})
    if doubled or len(out.columns) != len(types):
        raise _wrong(pipeline, f"transform: a column appears twice in its result: {doubled or out.columns}")
    if "_run" in lowered:
        raise _wrong(pipeline, "transform: its result has a column _run, which Sluice adds itself")
    if pipeline.rows is not Rows.AGGREGATE:
        kept = {f.name: f.dataType.simpleString() for f in sample.schema.fields if f.name in METADATA_COLUMNS}
        for name, kind in kept.items():
            if types.get(name) != kind:
                found = f"has the type {types[name]}" if name in types else "is gone"
                raise _wrong(
                    pipeline,
                    f"transform: the metadata column {name} ({kind}) must survive, but {found}: select it, too, such "
                    "as by SELECT *, …",
                )
    if pipeline.decode.deletes and types.get(TAKES_AWAY) != "boolean":
        raise _wrong(
            pipeline,
            f"transform: with tombstone: delete its result must have the column {DELETED} (boolean), which says of a "
            "row that it deletes the one of its key: pass it through",
        )
    for key, sink in pipeline.sinks.items():
        missing = [name for name in sink.config.partition_columns if name not in types]
        if missing and not (pipeline.stateful and pipeline.stateful.combines):  # the model knows the columns of these
            hint = nearest(missing[0], types, "its columns are")
            raise _wrong(pipeline, f"{key}.partition_by: the transform's result has no column {missing[0]!r}; {hint}")
    return out


def hands_through(sample: DataFrame, out: DataFrame) -> bool:
    """Return whether Spark's plan shows that a transform keeps the metadata columns unchanged.

    A recreated column (by an expression or a Python function) is another attribute with the same name, so that the
    column of ``sample`` cannot be selected from ``out``. A union is an exception: all of its rows get the attributes of
    its first input.

    Parameters
    ----------
    sample, out
        The transform's input and output.
    """
    if out is sample:
        return True
    try:
        out.select(*(sample[name] for name in METADATA_COLUMNS if name in sample.columns))
    except PySparkException:
        return False
    with contextlib.redirect_stdout(io.StringIO()) as plan:
        out.explain(True)
    return "Union" not in plan.getvalue()


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")


def _wrong(pipeline: Pipeline, what: str) -> ConfigError:
    return ConfigError(
        f"pipeline {pipeline.name!r}: {what}", state=_UNTOUCHED, next_step=f"fix {pipeline.file.name}, then run again"
    )
