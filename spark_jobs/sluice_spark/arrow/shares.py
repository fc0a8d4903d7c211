"""Divides the ranges of a batch into shares, and lets Spark's Python workers do them."""

from __future__ import annotations

import importlib
import json
import posixpath
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from sluice.ranges import OffsetRange, divided
from sluice.storage import file_system
from sluice_spark.arrow.worker import Done, Task, work
from sluice_spark.engine.cores import cores
from sluice_spark.sources.inputs import Input

__all__ = ["Job", "cause_of", "do", "in_workers", "tidy", "warm_up"]

_HERE = 100_000
"""A batch of at most so many offsets is processed in the driver: a Spark job takes longer to start."""
_SHARES = 2
"""Shares of a batch for each core, so that one slow share does not leave the other cores idle."""


@dataclass(frozen=True)
class Job:
    """A task, and what it is done on.

    Parameters
    ----------
    parts
        Where the records are, each with the ranges that are read there.
    most
        Maximum number of offsets in a range; longer ones are split.
    """

    task: Task
    parts: Sequence[tuple[Input, Sequence[OffsetRange]]]
    most: int | None = None

    @property
    def offsets(self) -> int:
        """The number of offsets of all ranges."""
        return sum(len(r) for _, ranges in self.parts for r in ranges)


def do(spark: SparkSession, jobs: Sequence[Job]) -> list[list[Done]]:
    """Do tasks on all of their ranges: in the driver if they are small, otherwise in one Spark job.

    Ranges of one partition that follow on each other are read one after another, whichever tasks they belong to.

    Returns
    -------
    For each task, what was done.

    Raises
    ------
    OSError
        If files cannot be written.
    PySparkException
        If the job failed.
    """
    tasks = [job.task for job in jobs]
    total = sum(job.offsets for job in jobs)
    size = max(1, -(-total // (cores(spark) * _SHARES))) if in_workers(total) else max(1, total)
    shares = list(_shares(jobs, size))
    if not in_workers(total):
        return _by_task(len(jobs), (found for source, share in shares for found in work(tasks, source, share)))

    def process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [item for n in batch.column(0).to_pylist() for item in work(tasks, *shares[n])]
            told = [json.dumps(item.as_dict()) for _, item in found]
            yield pa.RecordBatch.from_pydict({"task": [number for number, _ in found], "done": told})

    frame = spark.range(0, len(shares), 1, len(shares)).mapInArrow(process, "task BIGINT, done STRING")
    told = ((row["task"], Done.from_dict(json.loads(row["done"]))) for row in frame.collect())
    return _by_task(len(jobs), told)


def _shares(jobs: Sequence[Job], size: int) -> Iterator[tuple[Input, list[tuple[int, OffsetRange]]]]:
    """Divide the work into shares of so many offsets, each of one input, in the order of partitions and offsets."""
    inputs: list[tuple[Input, list[tuple[OffsetRange, int]]]] = []
    for number, job in enumerate(jobs):
        for source, ranges in job.parts:
            mine = next((m for known, m in inputs if known is source or known == source), None)
            if mine is None:
                inputs.append((source, mine := []))
            mine += [(span, number) for span in ranges if len(span)]
    for source, mine in inputs:
        mine.sort()
        for share in divided((span for span, _ in mine), size):
            owned = [
                (mine[bisect_right(mine, _begin(piece), key=lambda m: _begin(m[0])) - 1][1], piece) for piece in share
            ]
            yield source, [(number, part) for number, piece in owned for part in _split([piece], jobs[number].most)]


def _begin(span: OffsetRange) -> tuple[str, int, int]:
    return span.topic, span.partition, span.start


def _by_task(count: int, found: Iterable[tuple[int, Done]]) -> list[list[Done]]:
    done: list[list[Done]] = [[] for _ in range(count)]
    for number, item in found:
        done[number].append(item)
    return done


def in_workers(offsets: int) -> bool:
    """Return whether a batch of so many offsets is processed in Spark's Python workers, not in the driver."""
    return offsets > _HERE


def warm_up(spark: SparkSession) -> None:
    """Start Spark's Python workers in the background; return at once.

    They import what they need, or :mod:`sluice_spark.daemon` does so for all of them. Meanwhile the driver plans.
    """
    count = cores(spark)

    def start() -> None:
        with suppress(Exception):  # the first batch will raise what is wrong
            spark.range(0, count, 1, count).mapInArrow(_ready, "done BOOLEAN").collect()

    threading.Thread(target=start, name="sluice-warm-up", daemon=True).start()


def _ready(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    importlib.import_module("sluice_spark.arrow.json")
    importlib.import_module("sluice_spark.sources.kafka_input")
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"done": [True]})


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
    fs, base = file_system(folder)
    named = {posixpath.basename(file) for file in files}
    for path in fs.find(base):
        if posixpath.basename(path) not in named:
            with suppress(OSError):
                fs.rm_file(path)
