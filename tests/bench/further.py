"""A table and a topic of one pipeline, against a pipeline for each."""

from __future__ import annotations

from typing import Any

from tests.bench.harness import Bench, Figure, Goal, Options, compare

__all__ = ["also"]

_SHARE = 0.4


def also(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a topic into a table and another topic, not judged."""
    records = int(options.records * _SHARE)
    topic = bench.topic("twofold", records)

    def drain(**keys: Any) -> Figure:
        return bench.run(bench.pipeline(topic, bench.fresh("ours"), **keys), "--no-validate").figure

    def into_topic() -> dict[str, Any]:
        target = bench.fresh("further")
        bench.topics.create(target, 4, {"retention.ms": "-1"})
        return {"kafka": {"topic": target, "key": "id"}}

    def apart() -> Figure:
        table, copy = drain(), drain(sink=into_topic())
        return Figure(table.wall + copy.wall, table.cpu + copy.cpu, max(table.peak_mb, copy.peak_mb))

    sides = {"a pipeline each": apart, "also": lambda: drain(also=[into_topic()]), "the table alone": drain}
    title = "a table and a topic: drain, not judged"
    return compare(title, records, options.runs, sides, goal=Goal("of two pipelines", 1.0))
