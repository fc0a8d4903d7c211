"""What judging a run's rows costs against plain Great Expectations, and Data Docs after ten thousand runs."""

from __future__ import annotations

from typing import Any

from tests.bench.harness import Bench, Goal, Options, median

from sluice.cli.output import print_table

__all__ = ["judging"]

_STORED = 10_000


def judging(bench: Bench, options: Options) -> dict[str, Any]:
    """Judge the rows of one run in turn with plain Great Expectations, on the same frame in the same session."""
    topic, name = bench.topic("big", options.records), bench.fresh("judging")
    file = bench.pipeline(topic, name)
    run = bench.run(file, "--no-validate").account["run"]
    answer = bench.loop("many_judgements.py", file, run=run, rounds=options.runs, stored=_STORED).account
    bench.remove(name)
    print_table(answer["rounds"], list(answer["rounds"][0]))
    ratio = median([r["ours"] / r["plain"] for r in answer["rounds"]])
    cost = Goal("ours / plain Great Expectations", 0.5)
    met = cost.judge(ratio, f"judging {options.records:,} rows: {ratio:.2f}")["met"]
    # the first one still finds all of the stored runs
    docs = answer["data_docs"]
    slowest = max(docs["seconds"])
    pages = Goal(f"seconds of Data Docs after {_STORED:,} stored runs", 1.0)
    met &= pages.judge(slowest, f"Data Docs: {slowest:.2f} s at most, {max(docs['cpu']):.2f} s of CPU")["met"]
    return {
        "title": "judging a slice against plain Great Expectations",
        "records": options.records,
        **answer,
        "ratio": round(ratio, 3),
        "goal": [cost.limit, pages.limit],
        "met": met,
    }
