"""Spark's Python processes: the daemon that forks workers, and the PySpark that they import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import py4j
import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from sluice.shipped import CHECKOUT
from sluice_spark.daemon import MODULES
from sluice_spark.installed_pyspark import prefer_installed


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


HOME = Path(pyspark.__file__).parent
ZIPS = [HOME / "python" / "lib" / "pyspark.zip", *(HOME / "python" / "lib").glob("py4j-*-src.zip")]
MAINS = sorted(Path(str(CHECKOUT), "spark_jobs").glob("*.py"))


def test_installed_pyspark_is_preferred_to_the_zip_files_of_spark_submit() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ZIPS))}

    def taken(also: str) -> list[str]:
        asked = f"import {also}pyspark, py4j; print(pyspark.__file__); print(py4j.__file__)"
        done = subprocess.run([sys.executable, "-c", asked], env=env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert all(".zip" in file for file in taken(""))  # or there is nothing to prefer any more
    assert taken("sluice_spark, ") == [pyspark.__file__, py4j.__file__]


def test_each_main_imports_sluice_spark_before_pyspark() -> None:
    for main in MAINS:
        first = re.findall(r"(?m)^(?:from|import) (pyspark|py4j|sluice_spark)\b", main.read_text())
        assert first[:1] == ["sluice_spark"], main


def test_zip_files_are_left_out_beside_an_installed_pyspark_with_the_same_py4j_alone(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for folder in ("pyspark/python/lib", "py4j", "py4j-0.10.9.9.dist-info"):
        (site / folder).mkdir(parents=True)
    for package in ("pyspark", "py4j"):
        (site / package / "__init__.py").touch()
    spark, py4j = f"{site}/pyspark/python/lib/pyspark.zip", f"{site}/pyspark//python/lib/py4j-0.10.9.9-src.zip"
    other, rest = py4j.replace("9.9-src", "9.8-src"), ["/others.zip", str(site)]
    elsewhere = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip", str(site)]
    alone = [*map(str, ZIPS), str(tmp_path)]  # where nothing is installed
    cases = (
        ([spark, py4j, *rest], rest),
        ([spark, other, *rest], [other, *rest]),
        (elsewhere, elsewhere),
        (alone, alone),
    )
    for given, left in cases:
        path = list(given)
        prefer_installed(path)
        assert path == left
