"""The daemon that forks Spark's Python workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice_spark.daemon import MODULES


def test_daemon_forks_workers_that_have_their_imports(spark: SparkSession) -> None:
    modules = list(MODULES)

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc
        import os

        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
        for _ in batches:
            yield pa.RecordBatch.from_pydict(
                {
                    "parent": [b" ".join(parent).decode()],
                    "lacking": [sorted(set(modules) - sys.modules.keys())],
                    "frozen": [gc.get_freeze_count()],
                }
            )

    kind = "parent STRING, lacking ARRAY<STRING>, frozen BIGINT"
    (found,) = spark.range(0, 1, 1, 1).mapInArrow(ask, kind).collect()
    assert "-m sluice_spark.daemon pyspark.worker" in found["parent"]
    assert found["lacking"] == []
    assert found["frozen"] > 10_000


def test_daemon_gives_each_worker_its_own_random_numbers(spark: SparkSession) -> None:
    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        import numpy as np
        from pyspark import BarrierTaskContext

        for _ in batches:
            BarrierTaskContext.get().barrier()  # or one worker does both tasks
            yield pa.RecordBatch.from_pydict({"worker": [os.getpid()], "drawn": [float(np.random.random())]})

    rows = spark.range(0, 2, 1, 2).mapInArrow(ask, "worker BIGINT, drawn DOUBLE", barrier=True).collect()
    assert len({row["worker"] for row in rows}) == len({row["drawn"] for row in rows}) == 2


def test_daemon_keeps_prints_of_imports_from_the_pipe_of_the_jvm() -> None:
    script = """
import sluice_spark.daemon as d, sys
print("before", flush=True)
with d._silent():
    print("printed by an import")
print("after")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["before", "after"]
    assert done.stderr.split("\n")[0] == "printed by an import"
