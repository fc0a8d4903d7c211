"""Spark main: a run's rows are judged by Sluice and by plain Great Expectations in turn, in one session."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from sluice.cli.output import print_json
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.pipeline.suite import Suite
from sluice_spark.engine.logs import set_up
from sluice_spark.engine.session import run_main, session
from sluice_spark.quality import judge as judging
from sluice_spark.quality.building import import_gx
from sluice_spark.runs.tables import Tables


def plain(rows: DataFrame, expectations: list[dict[str, Any]]) -> bool:
    """Validate rows by plain Great Expectations."""
    from tests.bench.bare_gx import validate

    with tempfile.TemporaryDirectory() as folder:
        return validate(rows, expectations, folder)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call, and what it returned."""
    began = time.monotonic()
    found = call()
    return time.monotonic() - began, found


def store(folder: Path, runs: int) -> None:
    """Store the newest result under the names of so many earlier runs, with their pages."""
    uncommitted = folder / "gx" / "uncommitted"
    for parent in (uncommitted / "validations", uncommitted / "data_docs" / "local_site" / "validations"):
        for suite in parent.glob("*/"):
            model = max((p for p in suite.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
            for number in range(runs):
                shutil.copytree(model, suite / f"earlier-{number:06d}")


def main() -> None:
    set_up()
    asked = json.loads(sys.argv[1])
    pipeline, home, ledger, spark = load(asked["pipeline"]), Home.from_env(), Ledger.open(), session()
    import_gx()
    sink = Tables.of(pipeline, home, ledger.epoch(pipeline.name)).sink
    suite = Suite.of(pipeline)
    assert suite is not None
    expectations = list(suite.expectations)

    def ours() -> bool:
        return judging.Judge(pipeline, home, asked["run"]).judge(spark, sink, [asked["run"]]).verdict == "passed"

    sides = {"plain": lambda: plain(sink.rows_of(spark, [asked["run"]])[0], expectations), "ours": ours}
    rounds = []
    for number in range(asked["rounds"] + 1):
        order = list(sides) if number % 2 else list(sides)[::-1]
        found = {name: timed(sides[name]) for name in order}
        if not all(passed for _, passed in found.values()):
            raise SystemExit(f"not what was to be measured: {found}")
        rounds.append({name: round(seconds, 3) for name, (seconds, _) in found.items()})
    # the first round warmed both up
    answer: dict[str, Any] = {"rounds": rounds[1:]}
    spent: list[float] = []
    of_cpu: list[float] = []
    build = judging.build

    def watched(*arguments: Any) -> str:
        before = time.process_time()
        seconds, index = timed(lambda: build(*arguments))
        spent.append(seconds)
        of_cpu.append(time.process_time() - before)
        return str(index)

    store(Path(home.data_docs) / pipeline.name, asked["stored"])
    judging.build = watched
    whole = [timed(ours)[0] for _ in range(3)]
    answer["data_docs"] = {
        "stored": asked["stored"],
        **{k: [round(s, 3) for s in v] for k, v in {"seconds": spent, "cpu": of_cpu, "judging": whole}.items()},
    }
    print_json(answer)


if __name__ == "__main__":
    run_main(main)
