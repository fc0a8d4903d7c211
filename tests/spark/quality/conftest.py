"""A sink with the rows of runs, and their judge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.home import Home
from sluice.pipeline import load
from sluice_spark.quality.judge import Judge
from sluice_spark.quality.judgement import Judgement
from sluice_spark.sinks.delta.table import DeltaSink

PIPELINE = """\
pipeline: judged
source: {kafka: {topics: [judged]}}
decode: {text: {}}
sink: {delta: {path: judged}}
quality: {suite: suite.json}
"""


def expect(kind: str, severity: str = "critical", scope: str = "slice", **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": kwargs, "severity": severity, "meta": {"scope": scope}}


def judge_of(folder: Path, *expectations: Mapping[str, Any], run: str = "new", quality: str = "") -> Judge:
    """Return the judge of a pipeline with this suite, and with more keys of ``quality``."""
    (folder / "suite.json").write_text(json.dumps({"name": "s", "expectations": list(expectations)}))
    (folder / "judged.yaml").write_text(PIPELINE.replace("suite.json", f"suite.json{quality}"))
    return Judge(load(folder / "judged.yaml"), Home(str(folder)), run)


class Court:
    """A table with rows of run ``old`` and of run ``new``, and a suite to judge them by."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.sink = DeltaSink(str(folder / "judged"), "court")
        self.write("old", [("a", 1), ("b", 2)])
        self.write("new", [("c", 3), (None, 4), ("e", 500)])

    def write(self, run: str, rows: list[tuple[str | None, int]]) -> None:
        frame = self.spark.createDataFrame([(*r, run) for r in rows], "name STRING, n INT, _run STRING").coalesce(1)
        staged = self.sink.stage(frame, run, offsets=False)
        self.sink.commit(staged, frame.schema, self.sink.version() + 1, {"run": run})

    def judge(self, *expectations: dict[str, Any], runs: tuple[str, ...] = ("new",)) -> Judgement:
        return self.judge_of(*expectations, run=runs[-1]).judge(self.spark, self.sink, runs)

    def judge_of(self, *expectations: dict[str, Any], **more: str) -> Judge:
        return judge_of(self.folder, *expectations, **more)


@pytest.fixture(scope="module")
def court(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Court:
    return Court(spark, tmp_path_factory.mktemp("court"))
