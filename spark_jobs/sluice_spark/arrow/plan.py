"""Which pipelines take the Arrow path, and how their records become rows there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from sluice.decoders.config import Keyed
from sluice.kinds import imported
from sluice.pipeline import Pipeline
from sluice.pipeline.sections import Decode, Rule
from sluice.recovery import Recovery
from sluice_spark.arrow.base import METADATA, ChunkDecoder, Transform
from sluice_spark.arrow.columns import arrow_type, unsupported
from sluice_spark.arrow.csv import CsvChunks
from sluice_spark.arrow.expectations import RowRules
from sluice_spark.arrow.files import can_partition
from sluice_spark.arrow.json import JsonChunks
from sluice_spark.arrow.maps import ESCAPED_NAME
from sluice_spark.arrow.rescued import WithRescued
from sluice_spark.arrow.select import Condition, NotInSubsetError, Select, broken, missing, parse
from sluice_spark.arrow.user_function import UserFunction
from sluice_spark.arrow.verbatim import BytesChunks, TextChunks, WithKeys
from sluice_spark.arrow.wire_format import RegisteredChunks
from sluice_spark.decoders.avro import reader_of
from sluice_spark.decoders.conversions import SINCE_1901
from sluice_spark.rules.expectations import RowRule
from sluice_spark.transforms.arrow_function import ArrowFunction

__all__ = ["NotArrowError", "Plan", "plan_of", "sketch"]

_DIALECT = (
    "spark.sql.ansi.doubleQuotedIdentifiers",
    "spark.sql.caseSensitive",
    "spark.sql.parser.escapedStringLiterals",
)
"""Settings with which Spark reads the text of a statement in another way; they are false by default."""

_CODECS = {"snappy": "snappy", "zstd": "zstd", "gzip": "gzip", "none": "none", "uncompressed": "none"}
"""Compressions of Parquet by their names in Spark, with those in Arrow."""


class NotArrowError(ValueError):
    """A pipeline that cannot take the Arrow path; the text is the reason."""


@dataclass(frozen=True)
class Plan:
    """How the records of a pipeline become rows on the Arrow path."""

    decoder: ChunkDecoder
    rules: tuple[Condition, ...]
    transform: Transform | None
    schema: pa.Schema
    codec: str
    partition_by: tuple[str, ...]
    rescues: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    split: RowRules | None = None


def plan_of(
    spark: SparkSession, pipeline: Pipeline, recovery: Recovery, schema: T.StructType, rules: Sequence[RowRule]
) -> Plan:
    """Return how a pipeline's records become rows on the Arrow path, if its source can be read there.

    Parameters
    ----------
    spark, recovery
        As for :func:`sketch`.
    schema
        The sink's columns according to Spark, which the result must have.
    rules
        The expectations that split its rows; empty if there are none.

    Raises
    ------
    NotArrowError
        If they take the Spark path, with the reason.
    """
    plan = sketch(spark, pipeline, recovery)
    if plan.schema.types != [_known(f.dataType) for f in schema.fields]:
        raise NotArrowError(f"transform.{pipeline.transform.key}: Spark gives its result other types")
    named = pa.schema([own.with_name(f.name) for own, f in zip(plan.schema, schema.fields, strict=True)])
    return replace(plan, schema=named, split=_split(rules, named) if rules else None)


def _split(rules: Sequence[RowRule], schema: pa.Schema) -> RowRules:
    try:
        return RowRules.of([rule.item for rule in rules], schema.remove(schema.get_field_index("_run")))
    except NotInSubsetError as error:
        raise NotArrowError(f"quality.suite: {error}") from error


def sketch(spark: SparkSession, pipeline: Pipeline, recovery: Recovery) -> Plan:
    """Return the plan as far as it can be known without Spark's analysis of the transform, which takes seconds.

    Parameters
    ----------
    spark
        The session of the run; it may have settings of the pipeline file, the connection or the machine.
    recovery
        The strategy of a live run; ``replay`` for any other run.

    Raises
    ------
    NotArrowError
        If they take the Spark path, with the reason.
    """
    if (why := pipeline.spark_alone(recovery)) is not None:
        raise NotArrowError(why)
    for key in _DIALECT:
        if _setting(spark, pipeline, key, "false") != "false":
            raise NotArrowError(f"Spark has the setting {key}")
    codec = _setting(spark, pipeline, "spark.sql.parquet.compression.codec", "snappy")
    if codec not in _CODECS:
        raise NotArrowError(f"Spark compresses Parquet with {codec}")
    decoder = _decoder(pipeline.decode)
    headers = pipeline.decode.headers
    beside = [pa.field(column, pa.string()) for column in headers]
    source = pa.schema([*decoder.columns, *beside, *METADATA])
    rules = tuple(condition for rule in pipeline.rules for condition in _conditions(rule, source))
    transform = _transform(spark, pipeline, source)
    made = transform.schema.append(pa.field("_run", pa.string()))
    whole = isinstance(transform, Select) and transform.whole
    partition_by = tuple(pipeline.sink.config.partition_columns)
    for name in partition_by:
        if name in made.names and not can_partition(made.field(name).type):
            raise NotArrowError(f"sink.delta.partition_by: {name} is {made.field(name).type}")
    return Plan(
        decoder,
        rules,
        None if whole else transform,
        made,
        _CODECS[codec],
        partition_by,
        pipeline.decode.rescues,
        headers,
    )


def _transform(spark: SparkSession, pipeline: Pipeline, source: pa.Schema) -> Transform:
    if pipeline.transform.arrow is None:
        try:
            return parse(pipeline.transform.sql or "", source)
        except NotInSubsetError as error:
            raise NotArrowError(f"transform.sql: {error}") from error
    function = ArrowFunction(pipeline.transform.arrow)
    try:
        made = function(source.empty_table())
        kinds = {f.name: _known(f.dataType) for f in spark.createDataFrame(made.slice(0, 0)).schema.fields}
    except Exception as error:  # the user's own, which Spark's analysis of the transform tells
        raise NotArrowError(f"transform.arrow: {error}") from error
    nested = [name for name, kind in kinds.items() if kind is not None and pa.types.is_nested(kind) and _has_time(kind)]
    if nested:
        raise NotArrowError(f"transform.arrow: column {nested[0]} has times in a nested type")
    if None in kinds.values():
        name = next(name for name, kind in kinds.items() if kind is None)
        raise NotArrowError(f"transform.arrow: column {name} has a type that Spark alone writes")
    return UserFunction(function, pa.schema(list(kinds.items())))


def _has_time(kind: pa.DataType) -> bool:
    parts = [kind.field(n).type for n in range(kind.num_fields)]
    return pa.types.is_temporal(kind) or any(map(_has_time, parts))


def _setting(spark: SparkSession, pipeline: Pipeline, key: str, default: str) -> str:
    """Return a setting of the pipeline file, or else of the session, in lower case."""
    return str(pipeline.spark.conf.get(key, spark.conf.get(key, default))).lower()


def _conditions(rule: Rule, source: pa.Schema) -> list[Condition]:
    """Return where a decoded record breaks a row rule."""
    try:
        if rule.sql is not None:
            return [broken(rule.sql.passes, source)]
        if rule.not_null is not None:
            return [missing(column, source) for column in rule.not_null.columns]
    except NotInSubsetError as error:
        raise NotArrowError(f"rule {rule.name}: {error}") from error
    raise NotArrowError(f"rule {rule.name} is judged by Spark alone")


def _known(kind: T.DataType) -> pa.DataType | None:
    if isinstance(kind, T.BinaryType):  # a key or a value as it is
        return pa.binary()
    return arrow_type(kind) if unsupported(kind) is None else None


def _decoder(decode: Decode) -> ChunkDecoder:
    values = _values(decode)
    key = decode.config.key if isinstance(decode.config, Keyed) else None
    return values if key is None else WithKeys(values, key)


def _values(decode: Decode) -> ChunkDecoder:
    if decode.text is not None:
        return TextChunks()
    if decode.bytes is not None:
        return BytesChunks()
    typed = decode.json_ or decode.csv or decode.avro or decode.protobuf
    if typed is None:
        raise NotArrowError(f"decode.{decode.key} is decoded by Spark alone")
    columns = T.StructType.fromDDL(typed.ddl)
    for column in columns.fields:
        if (kind := unsupported(column.dataType)) is not None:
            raise NotArrowError(f"column {column.name} is {kind}")
    if decode.csv is not None:
        return CsvChunks(decode.csv, columns)
    if decode.avro is not None:
        return RegisteredChunks(reader_of(decode.avro, columns, SINCE_1901), columns)
    if decode.protobuf is not None:
        reader = imported("sluice_spark.decoders.protobuf:reader_of")  # its package need not be there
        return RegisteredChunks(reader(decode.protobuf, columns, SINCE_1901), columns)
    for column in columns.fields:
        if isinstance(column.dataType, T.MapType) and ESCAPED_NAME.search(column.name):
            raise NotArrowError(f"column {column.name!r} is a MAP, and JSON escapes its name")
    chunks = JsonChunks(columns)
    return WithRescued(chunks, columns) if decode.json_ is not None and decode.json_.rescue else chunks
