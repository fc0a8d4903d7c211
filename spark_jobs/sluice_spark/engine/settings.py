"""Settings that a pipeline file gives Spark, held to what Spark itself knows of them before a run does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["wrong_settings"]

_KNOWN = ("spark.sql.", "spark.databricks.delta.")
"""Prefixes of settings whose types Spark lists. It takes others as texts, and parses them when it uses them."""
_STATIC = ("CANNOT_MODIFY_CONFIG", "CANNOT_MODIFY_STATIC_CONFIG")
"""The error classes of settings that are known, and are for the start of an application."""


def wrong_settings(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with SQL settings: a value of the wrong type, or a name that is nearly that of another.

    A name that resembles none may be one of another package's, such as a catalog's, and is passed over. The session's
    own settings stay as they are.
    """
    asked = {key: value for key, value in conf.items() if key.startswith(_KNOWN)}
    if not asked:
        return
    session = spark.newSession()
    listed = [row["key"] for row in session.sql("SET -v").collect()]
    for key, value in asked.items():
        try:
            session.conf.set(key, value)
        except PySparkException as error:
            if error.getCondition() not in _STATIC:
                yield f"spark.conf: {key}: {str(error).splitlines()[0]}"
            continue
        near = get_close_matches(key, listed, n=1, cutoff=0.9)
        if near and not session.conf.isModifiable(key):
            yield f"spark.conf: Spark has no setting {key}; did you mean {near[0]}?"
