from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice_spark.daemon import MODULES


def test_workers_are_forked_from_a_process_that_has_imported_what_they_need(spark: SparkSession) -> None:
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
