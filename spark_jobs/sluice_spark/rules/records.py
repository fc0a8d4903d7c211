"""Decodes records and judges them by the pipeline's row rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.errors import ConfigError
from sluice.fields import DELETED
from sluice.pipeline import Pipeline
from sluice_spark.decoders.base import COLUMN, DATA, RULE, decode, source_columns
from sluice_spark.rules import origin
from sluice_spark.rules.base import Rule
from sluice_spark.rules.not_null import NotNull

__all__ = ["check", "decoded"]

_FIRST = "__sluice_first_broken"


def decoded(records: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Return the records decoded, as :func:`~sluice_spark.decoders.base.decode` does, and judged.

    A record that decodes and breaks a row rule has the rule's name in ``RULE``: that of the first one that it breaks,
    in the order of the pipeline file. All columns and rows stay.
    """
    found = decode(records, pipeline.decode)
    if pipeline.source.kafka is not None:
        found = origin.judged(found, pipeline.source.kafka)
    if not pipeline.rules:
        return found
    violations = {rule.name: rule.made().violation() for rule in pipeline.rules}
    if pipeline.decode.deletes:
        violations |= {rule.name: _of_tombstones(rule, pipeline, violations[rule.name]) for rule in pipeline.rules}
    return _judged(found, violations)


def _of_tombstones(rule: Any, pipeline: Pipeline, violation: Column) -> Column:
    """Return a rule that asks no record without a value for columns of the value."""
    if rule.not_null is None:
        return violation
    beside = [name for name in rule.not_null.columns if name not in pipeline.decode.names]
    asked = NotNull(rule.not_null.model_copy(update={"columns": beside})).violation() if beside else F.lit(None)
    return F.when(F.col(DELETED), asked).otherwise(violation)


def check(sample: DataFrame, pipeline: Pipeline) -> None:
    """Check that Spark can evaluate each rule.

    Parameters
    ----------
    sample
        What a transform sees as ``source``; it may be empty.

    Raises
    ------
    ConfigError
        With the name of the first rule that it cannot, and the reason.
    """
    for rule in pipeline.rules:
        try:
            judged: Rule = rule.made()
            kind = sample.select("*", judged.violation().alias("violation")).schema.fields[-1].dataType.typeName()
            why = "" if kind == "string" else f"its violation is a {kind}, not a string"
        except PySparkException as error:
            why = str(error).strip().splitlines()[0]
        if why:
            raise ConfigError(
                f"pipeline {pipeline.name!r}: rule {rule.name}: {why}",
                state="nothing was read or written; the position stays where it was",
                next_step=f"fix {pipeline.file.name}, then run again",
            )


def _judged(found: DataFrame, violations: Mapping[str, Column]) -> DataFrame:
    # A rule sees what a transform sees: the record's own columns may have the same names, and stand aside meanwhile.
    names = found.columns
    aside = {name: f"__sluice_aside_{n}" for n, name in enumerate(names)}
    visible = source_columns(found).columns
    moved = found.toDF(*aside.values())
    meta = {"_topic": "topic", "_partition": "partition", "_offset": "offset", "_timestamp": "timestamp"}
    shown = [
        (F.col(aside[meta[n]]) if n in meta else F.col(aside[DATA]).getField(n)).alias(n) for n in visible
    ]  # fmt: skip
    # the first rule that is broken, in one expression of the length of all rules; nesting them would double with each
    broken = [
        F.when(
            violation.isNotNull(), F.struct(F.lit(name).alias("rule"), F.nullif(violation, F.lit("")).alias("column"))
        )
        for name, violation in violations.items()
    ]
    undecodable = F.col(aside[RULE]).isNotNull()
    judged = moved.select("*", *shown).select(*aside.values(), F.when(~undecodable, F.coalesce(*broken)).alias(_FIRST))
    split = {
        RULE: F.coalesce(F.col(aside[RULE]), F.col(_FIRST)["rule"]),
        COLUMN: F.when(undecodable, F.col(aside[COLUMN])).otherwise(F.col(_FIRST)["column"]),
    }
    return judged.select(*(split.get(name, F.col(aside[name])).alias(name) for name in names))
