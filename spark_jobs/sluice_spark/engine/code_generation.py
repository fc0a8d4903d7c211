"""Leaves out the code that Spark generates for the frame of each micro-batch, if it is never executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

__all__ = ["compiled", "not_compiled"]

_GENERATES = "spark.sql.codegen.wholeStage"


@contextmanager
def not_compiled(spark: SparkSession) -> Iterator[None]:
    """Let a query that starts in the block generate no code for the frames that it passes.

    A query has a copy of the session's settings. What is planned in another thread meanwhile is slower, and right.
    """
    before = spark.conf.get(_GENERATES)
    spark.conf.set(_GENERATES, "false")
    try:
        yield
    finally:
        spark.conf.set(_GENERATES, str(before))


def compiled(frame: DataFrame, spark: SparkSession) -> None:
    """Let what a query passes be executed as frames of the run's session are, after all.

    Parameters
    ----------
    frame
        What it passed. The query has a session of its own.
    spark
        The run's session.
    """
    frame.sparkSession.conf.set(_GENERATES, str(spark.conf.get(_GENERATES)))
