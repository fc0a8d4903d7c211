"""What batches cost beside their records: 100 batches against one, and what Spark takes for 100 that do nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.bench.harness import Bench, Figure, Goal, Options, compare, median

from sluice.cli.output import err

__all__ = ["batches"]

_MANY = 100
_LIGHT = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1"
"""The bare script's JVM does without the optimizing compiler, as a run's on the Arrow path does."""


def batches(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a large topic in one batch and in 100, not judged; and plan the same batches without doing anything."""
    topic = bench.topic("big", options.records)

    def ours(number: int) -> Figure:
        name = bench.fresh("batches")
        kafka = {"topics": [topic], "max_records_per_batch": -(-options.records // number)}
        ran = bench.run(bench.pipeline(topic, name, source={"kafka": kafka}), "--no-validate")
        if len(ran.batches) not in (number, number + 1):  # the cap is shared out by partition, and rounded down
            raise SystemExit(f"{len(ran.batches)} batches, not {number}")
        bench.remove(name)
        return ran.figure

    def empty(number: int) -> Figure:
        checkpoint = str(bench.scratch / bench.fresh("empty"))
        most = str(-(-options.records // number))
        return bench.bare("bare_empty.py", bench.broker.bootstrap, topic, most, checkpoint, conf=[_LIGHT])

    found = compare(
        f"one batch and {_MANY}: drain, not judged; and Spark's batches that do nothing",
        options.records,
        options.runs,
        {
            "one": partial(ours, 1),
            "many": partial(ours, _MANY),
            "one, empty": partial(empty, 1),
            "many, empty": partial(empty, _MANY),
        },
        goal=Goal(f"{_MANY} batches / one wall", 1.15),
    )
    more = {
        what: {
            field: round(median([r[many][field] - r[one][field] for r in found["rounds"]]), 1)
            for field in ("wall", "cpu")
        }
        for what, one, many in (("ours", "one", "many"), ("empty", "one, empty", "many, empty"))
    }
    for what, cost in more.items():
        err.print(f"{_MANY - 1} more batches, {what}: {cost['wall']} s, {cost['cpu']} CPU s")
    return {**found, "more": more}
