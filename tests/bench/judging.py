"""What judging a run's rows costs against plain Great Expectations, and Data Docs after ten thousand runs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tests.bench.harness import HERE, Bench, Goal, Options, measure, median, python_path

from sluice.cli.output import err, print_table
from sluice.launch.submit import bounded_run
from sluice.pipeline import load
from sluice.run.request import RunRequest

__all__ = ["judging"]

_STORED = 10_000


def judging(bench: Bench, options: Options) -> dict[str, Any]:
    """Judge the rows of one run in turn with plain Great Expectations, on the same frame in the same session."""
    topic, name = bench.topic("big", options.records), bench.fresh("judging")
    file = bench.pipeline(topic, name)
    run = bench.run(file, "--no-validate").account["run"]
    found = bench.scratch / "judging.json"
    begun = bounded_run(load(file), RunRequest("bench"), spark=bench.spark, kafka=bench.kafka)
    asked = {"pipeline": file, "run": run, "found": found, "rounds": options.runs, "stored": _STORED}
    argv = [str(part) for key, value in asked.items() for part in (f"--{key}", value)]
    loop = dataclasses.replace(begun, application=HERE / "many_judgements.py", arguments=argv)
    measure(loop.argv(), {**loop.env, "PYTHONPATH": python_path(HERE.parents[1])}, bench.scratch / "judging.log")
    answer = json.loads(found.read_text())
    bench.remove(name)
    print_table(answer["rounds"], list(answer["rounds"][0]))
    ratio = median([r["ours"] / r["plain"] for r in answer["rounds"]])
    cost = Goal("ours / plain Great Expectations", 0.5)
    err.print(f"judging {options.records:,} rows: {ratio:.2f}; {cost.verdict(ratio)}")
    # the first one still finds all of the stored runs
    docs = answer["data_docs"]
    slowest = max(docs["seconds"])
    pages = Goal(f"seconds of Data Docs after {_STORED:,} stored runs", 1.0)
    err.print(f"Data Docs: {slowest:.2f} s at most, {max(docs['cpu']):.2f} s of CPU; {pages.verdict(slowest)}")
    return {
        "title": "judging a slice against plain Great Expectations",
        "records": options.records,
        **answer,
        "ratio": round(ratio, 3),
        "goal": [cost.limit, pages.limit],
        "met": ratio <= cost.limit and slowest <= pages.limit,
    }
