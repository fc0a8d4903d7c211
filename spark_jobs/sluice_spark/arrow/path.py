"""The driver's side of the Arrow path: which pipelines can take it, and how a batch is divided and put together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import fsspec
import pyarrow as pa
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from sluice.pipeline import Pipeline, Rows
from sluice.pipeline.sections import Decode, Rule
from sluice.ranges import OffsetRange, Times
from sluice.recovery import Recovery
from sluice_spark.arrow.base import ChunkDecoder
from sluice_spark.arrow.columns import arrow_type, unsupported
from sluice_spark.arrow.json import JsonChunks
from sluice_spark.arrow.maps import ESCAPED_NAME
from sluice_spark.arrow.plain import BytesChunks, TextChunks
from sluice_spark.arrow.select import Condition, NotInSubsetError, Select, broken, missing, parse
from sluice_spark.arrow.worker import METADATA, Done, Work, work
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.base import Staged, Tally
from sluice_spark.sinks.delta.attempts import new_folder
from sluice_spark.sinks.delta.staged import staged_file

__all__ = ["ArrowPath", "NotArrowError", "Outcome", "Plan", "divided", "plan_of"]

_HERE = 100_000
"""A batch of at most so many offsets is processed in the driver: a Spark job takes longer to start."""
_SHARES = 2
"""Shares of a batch for each core, so that one slow share does not leave the other cores idle."""
_CELLS = 16
_FINEST = 5_000
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
    transform: Select | None
    schema: pa.Schema
    codec: str


@dataclass(frozen=True)
class Outcome:
    """What the Arrow path did with the ranges of a batch.

    Attributes
    ----------
    staged
        The rows that it wrote.
    read
        The number of records that were read, per topic and partition; those set aside are among them.
    aside
        The number of records that were set aside.
    aside_files
        The files with these records, verbatim.
    declined
        The ranges that it did not process.
    why
        Why it did not process the first of them.
    """

    staged: Staged
    read: dict[tuple[str, int], int]
    aside: dict[tuple[str, int], int]
    aside_files: tuple[str, ...]
    times: list[Times]
    declined: list[OffsetRange]
    why: str | None

    def remove_aside(self) -> None:
        """Remove the files of the records that were set aside."""
        _remove(*{os.path.dirname(file) for file in self.aside_files})


def plan_of(spark: SparkSession, pipeline: Pipeline, recovery: Recovery, schema: T.StructType) -> Plan:
    """Return how a pipeline's records become rows on the Arrow path, in live runs.

    Parameters
    ----------
    spark
        The session of the run; it may have settings of the pipeline file, the connection or the machine.
    schema
        The sink's columns according to Spark, which the result must have.

    Raises
    ------
    NotArrowError
        If they take the Spark path, with the reason.
    """
    if pipeline.engine == "spark":
        raise NotArrowError("the pipeline file says engine: spark")
    if recovery is Recovery.HOT:
        raise NotArrowError("strategy hot keeps each batch on two Spark executors")
    if recovery is Recovery.WAL:
        raise NotArrowError("strategy wal lands records in the write-ahead log first")
    if pipeline.source.kafka is None:
        raise NotArrowError(f"source.{pipeline.source.key} is not Kafka")
    if not pipeline.sink.kind.delta or pipeline.sink.config.partition_columns:
        raise NotArrowError(
            "sink.delta.partition_by is set" if pipeline.sink.kind.delta else f"the sink is {pipeline.sink.key}"
        )
    if "://" in pipeline.delta_path:
        raise NotArrowError("sink.delta.path is a URL")
    if pipeline.rows is Rows.AGGREGATE:
        raise NotArrowError("it has rows: aggregate")
    if pipeline.transform.python is not None:
        raise NotArrowError("transform.python works on a Spark DataFrame")
    for key in _DIALECT:
        if _setting(spark, pipeline, key, "false") != "false":
            raise NotArrowError(f"Spark has the setting {key}")
    codec = _setting(spark, pipeline, "spark.sql.parquet.compression.codec", "snappy")
    if codec not in _CODECS:
        raise NotArrowError(f"Spark compresses Parquet with {codec}")
    decoder = _decoder(pipeline.decode)
    source = pa.schema([*decoder.columns, *METADATA])
    rules = tuple(condition for rule in pipeline.rules for condition in _conditions(rule, source))
    try:
        transform = parse(pipeline.transform.sql or "", source)
    except NotInSubsetError as error:
        raise NotArrowError(f"transform.sql: {error}") from error
    made = transform.schema.append(pa.field("_run", pa.string()))
    theirs = [_known(f.dataType) for f in schema.fields]
    if made.types != theirs:
        raise NotArrowError("transform.sql: Spark gives its result other types")
    whole = transform.where is None and transform.schema.names == source.names
    named = pa.schema([field.with_name(f.name) for field, f in zip(made, schema.fields, strict=True)])
    return Plan(decoder, rules, None if whole else transform, named, _CODECS[codec])


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
    if decode.text is not None:
        return TextChunks()
    if decode.bytes is not None:
        return BytesChunks()
    if decode.json_ is None:
        raise NotArrowError(f"decode.{decode.key} is decoded by Spark alone")
    columns = T.StructType.fromDDL(decode.json_.ddl)
    for column in columns.fields:
        if (kind := unsupported(column.dataType)) is not None:
            raise NotArrowError(f"column {column.name} is {kind}")
        if isinstance(column.dataType, T.MapType) and ESCAPED_NAME.search(column.name):
            raise NotArrowError(f"column {column.name!r} is a MAP, and JSON escapes its name")
    return JsonChunks(columns)


@dataclass
class ArrowPath:
    """Processes the ranges of batches on the Arrow path, as far as it can.

    Parameters
    ----------
    settings
        Of librdkafka; they hold secrets.
    committed
        Whether records of aborted transactions are left out.
    """

    spark: SparkSession
    plan: Plan
    settings: Mapping[str, str] = field(repr=False)
    committed: bool
    run_id: str
    _off: bool = False

    def stage(self, root: str, name: str, ranges: Sequence[OffsetRange]) -> Outcome | None:
        """Read, decode and write ranges; commit nothing.

        Parameters
        ----------
        root
            The path of the sink.
        name
            The name of the batch, by which files of earlier attempts are found.

        Returns
        -------
        Outcome or None
            None if nothing was processed: everything has to take the Spark path.
        """
        total = sum(map(len, ranges))
        if self._off or not total:
            return None
        fs, base = fsspec.core.url_to_fs(root)
        folders = [new_folder(name), new_folder(name)]
        rows, aside = (f"{base}/{folder}" for folder in folders)
        task = Work(
            self.settings,
            self.committed,
            self.plan.decoder,
            self.plan.rules,
            self.plan.transform,
            self.plan.schema,
            self.run_id,
            self.plan.codec,
            rows,
            aside,
            max(_FINEST, -(-total // _CELLS)),
        )
        try:
            for folder in (rows, aside):
                fs.makedirs(folder, exist_ok=True)
            done = self._run(task, ranges, total)
            _tidy(rows, {item.file for item in done})
            outcome = _outcome(root, folders[0], aside, done)
        except Exception as error:
            # whatever it is, the Spark path meets it again, and knows its name; or it works there
            logger.warning("the Arrow path failed, and the run goes on without it: %s", _cause(error))
            self._off = True
            outcome = None
        if outcome is None or not outcome.staged.files:
            _remove(rows)
        if outcome is None or not outcome.aside_files:
            _remove(aside)
        if outcome is None:
            return None
        if 2 * sum(map(len, outcome.declined)) > total:
            logger.info("the Arrow path is not used from here on: %s", outcome.why)
            self._off = True
        return outcome if outcome.read or not outcome.declined else None

    def _run(self, task: Work, ranges: Sequence[OffsetRange], total: int) -> list[Done]:
        if total <= _HERE:
            return work(task, ranges)
        shares = divided(ranges, _cores(self.spark) * _SHARES)

        def process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                found = [item for n in batch.column(0).to_pylist() for item in work(task, shares[n])]
                yield pa.RecordBatch.from_pydict({"done": [json.dumps(item.as_dict()) for item in found]})

        frame = self.spark.range(0, len(shares), 1, len(shares)).mapInArrow(process, "done STRING")
        return [Done.from_dict(json.loads(row["done"])) for row in frame.collect()]


def _cause(error: Exception) -> str:
    """Return the line of an error that says why: of a Python worker's, the last; of Spark's, the second."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    if isinstance(error, PythonException):
        lines = lines[-1:]
    elif len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        lines = lines[1:]
    return lines[0].lstrip(": ") if lines else type(error).__name__


def _tidy(folder: str, files: set[str | None]) -> None:
    """Remove files that no task names: a cluster may have tried one twice."""
    for name in set(os.listdir(folder)) - files:
        with suppress(OSError):
            os.unlink(os.path.join(folder, name))


def _remove(*folders: str) -> None:
    # a worker of a failed job may still write there; what stays is removed like after a crash
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _cores(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:  # over Spark Connect there is no context to ask
        return 4


def divided(ranges: Sequence[OffsetRange], shares: int) -> list[list[OffsetRange]]:
    """Divide ranges into at most so many shares of about the same number of offsets, in order; pure."""
    total = sum(map(len, ranges))
    size = max(1, -(-total // shares))
    found: list[list[OffsetRange]] = [[]]
    room = size
    for item in ranges:
        start = item.start
        while start < item.end:
            if not room:
                found.append([])
                room = size
            end = min(item.end, start + room)
            found[-1].append(replace(item, start=start, end=end))
            room -= end - start
            start = end
    return [share for share in found if share]


def _outcome(root: str, folder: str, aside: str, done: Sequence[Done]) -> Outcome:
    """Put the ranges together, after comparing each file's footer with what its worker counted.

    Raises
    ------
    OSError
        If they differ.
    """
    read: dict[tuple[str, int], int] = {}
    doubtful: dict[tuple[str, int], int] = {}
    tallies: dict[tuple[str, int], Tally] = {}
    files, times = [], []
    for item in done:
        key = (item.range.topic, item.range.partition)
        read[key] = read.get(key, 0) + item.read
        doubtful[key] = doubtful.get(key, 0) + item.aside
        times += item.times
        if item.file is None:
            continue
        file = staged_file(root, f"{folder}/{item.file}")
        if file.rows != item.rows:
            raise OSError(f"{file.path} has {file.rows} rows, where {item.rows} were written")
        files.append(file)
        own = Tally(item.rows, item.rows, item.first, item.last)
        tallies[key] = own if key not in tallies else tallies[key] | own
    staged = Staged(folder, tuple(sorted(files, key=lambda f: f.path)), tallies)
    kept = tuple(os.path.join(aside, item.aside_file) for item in done if item.aside_file)
    declined = [item for item in done if item.declined is not None]
    return Outcome(
        staged,
        {key: n for key, n in read.items() if n},
        {key: n for key, n in doubtful.items() if n},
        kept,
        sorted(times),
        [item.range for item in declined],
        declined[0].declined if declined else None,
    )
