"""Divides the ranges of a batch into shares, and lets Spark's Python workers do them."""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from sluice.ranges import OffsetRange, divided
from sluice_spark.arrow.worker import Done, Task, work
from sluice_spark.sources.inputs import Input

__all__ = ["cause_of", "do", "in_workers", "tidy", "warm_up"]

_HERE = 100_000
"""A batch of at most so many offsets is processed in the driver: a Spark job takes longer to start."""
_SHARES = 2
"""Shares of a batch for each core, so that one slow share does not leave the other cores idle."""


def do(
    spark: SparkSession, task: Task, parts: Sequence[tuple[Input, Sequence[OffsetRange]]], most: int | None = None
) -> list[Done]:
    """Do a task on all ranges: in the driver if they are small, otherwise in a Spark job.

    Parameters
    ----------
    parts
        Where the records are, each with the ranges that are read there.
    most
        Maximum number of offsets in a range; longer ones are split.

    Raises
    ------
    OSError
        If files cannot be written.
    PySparkException
        If the job failed.
    """
    total = sum(len(r) for _, ranges in parts for r in ranges)
    if not in_workers(total):
        return [item for source, ranges in parts for item in work(task, source, _split(ranges, most))]
    size = max(1, -(-total // (_cores(spark) * _SHARES)))
    shares = [(source, _split(share, most)) for source, ranges in parts for share in divided(ranges, size)]

    def process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [item for n in batch.column(0).to_pylist() for item in work(task, *shares[n])]
            yield pa.RecordBatch.from_pydict({"done": [json.dumps(item.as_dict()) for item in found]})

    frame = spark.range(0, len(shares), 1, len(shares)).mapInArrow(process, "done STRING")
    return [Done.from_dict(json.loads(row["done"])) for row in frame.collect()]


def in_workers(offsets: int) -> bool:
    """Return whether a batch of so many offsets is processed in Spark's Python workers, not in the driver."""
    return offsets > _HERE


def warm_up(spark: SparkSession) -> None:
    """Start Spark's Python workers in the background; return at once.

    A worker needs about two seconds to start and to import what it needs. Meanwhile the driver plans.
    """
    count = _cores(spark)

    def start() -> None:
        with suppress(Exception):  # what is wrong will be told by the first batch
            spark.range(0, count, 1, count).mapInArrow(_ready, "done BOOLEAN").collect()

    threading.Thread(target=start, name="sluice-warm-up", daemon=True).start()


def _ready(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    importlib.import_module("sluice_spark.arrow.json")
    importlib.import_module("sluice_spark.sources.kafka_input")
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"done": [True]})


def _cores(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:  # over Spark Connect there is no context to ask
        return 4


def _split(ranges: Sequence[OffsetRange], most: int | None) -> list[OffsetRange]:
    if most is None:
        return list(ranges)
    return [replace(r, start=n, end=min(n + most, r.end)) for r in ranges for n in range(r.start, r.end, most)]


def cause_of(error: Exception) -> str:
    """Return the line of an error that says why: of a Python worker's, the last; of Spark's, the second."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    if isinstance(error, PythonException):
        lines = lines[-1:]
    elif len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        lines = lines[1:]
    return lines[0].lstrip(": ") if lines else type(error).__name__


def tidy(folder: str, files: set[str]) -> None:
    """Remove files that no task names: a cluster may have tried one twice."""
    there = {os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names}
    for name in there - files:
        with suppress(OSError):
            os.unlink(os.path.join(folder, name))
