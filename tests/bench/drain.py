"""A run against a bare script: volume, and the fixed cost of a small run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench.harness import SCHEMA, Bench, Figure, Options, compare

__all__ = ["fixed", "volume"]

_SMALL = 10_000


def volume(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a large topic, not judged."""
    topic = bench.topic("big", options.records)
    return compare(
        "volume: drain, not judged",
        options.records,
        options.runs,
        {"bare": lambda: _bare(bench, topic)[0], "ours": lambda: _ours(bench, topic, "--no-validate")},
    )


def fixed(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain and judge a small topic."""
    topic = bench.topic("tiny", _SMALL)
    return compare(
        "fixed cost: drain and judge",
        _SMALL,
        options.runs,
        {"bare": lambda: _bare_judged(bench, topic), "ours": lambda: _ours(bench, topic, "--validate")},
    )


def _ours(bench: Bench, topic: str, *options: str) -> Figure:
    return bench.run(bench.pipeline(topic, bench.fresh("ours")), *options).figure


def _bare(bench: Bench, topic: str) -> tuple[Figure, Path]:
    out = bench.scratch / bench.fresh("bare")
    return bench.bare("bare.py", bench.broker.bootstrap, topic, SCHEMA, str(out)), out


def _bare_judged(bench: Bench, topic: str) -> Figure:
    first, out = _bare(bench, topic)
    second = bench.bare("bare_gx.py", str(out), str(bench.suite), str(bench.scratch / bench.fresh("gx")))
    return Figure(first.wall + second.wall, first.cpu + second.cpu, max(first.peak_mb, second.peak_mb))
