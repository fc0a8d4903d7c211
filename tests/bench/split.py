"""What it costs that a suite splits the rows of a run: 20 expectations on single rows, against no split."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from tests.bench.harness import Bench, Figure, Goal, Options, compare

__all__ = ["split"]

_LIMIT = 1.1


def split(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a topic with and without a split, not judged afterwards, on both paths."""
    suite = {"name": "split", "expectations": _expectations()}
    (bench.scratch / "split.json").write_text(json.dumps(suite))
    topic = bench.topic("big", options.records)
    quality = {"suite": "split.json"}
    found = {}
    for path, keys in {"Arrow path": {}, "Spark path": {"engine": "spark"}}.items():

        def run(split: str, keys: dict[str, Any] = keys) -> Figure:
            name = bench.fresh("split")
            ran = bench.run(bench.pipeline(topic, name, quality={**quality, "split": split}, **keys), "--no-validate")
            if ran.account["written"] != options.records:
                raise SystemExit(f"not what was to be measured: {ran.account}")
            bench.remove(name)
            return ran.figure

        found[path] = compare(
            f"20 expectations that split rows, {path}",
            options.records,
            options.runs,
            {"none": partial(run, "none"), "split": partial(run, "critical")},
            goal=Goal("split / none wall", _LIMIT),
        )
    return found


def _expectations() -> list[dict[str, Any]]:
    def of(kind: str, **kwargs: Any) -> dict[str, Any]:
        return {"type": f"expect_column_{kind}", "kwargs": kwargs}

    countries = ["DE", "FR", "IT", "ES", "PL"]
    return [
        *(of("values_to_not_be_null", column=name) for name in ("id", "ts", "amount", "country", "payload")),
        of("values_to_be_between", column="id", min_value=0),
        of("values_to_be_between", column="id", max_value=10**12),
        of("values_to_be_between", column="amount", min_value=0, max_value=1000),
        of("values_to_be_between", column="amount", min_value=-1, strict_min=True),
        of("values_to_be_between", column="ts", min_value="2000-01-01"),
        of("values_to_be_between", column="ts", max_value="2100-01-01T00:00:00Z"),
        of("values_to_be_in_set", column="country", value_set=countries),
        of("values_to_not_be_in_set", column="country", value_set=["XX", ""]),
        of("value_lengths_to_equal", column="country", value=2),
        of("value_lengths_to_be_between", column="payload", min_value=1, max_value=64),
        of("values_to_match_regex", column="country", regex="^[A-Z]{2}$"),
        of("values_to_match_regex", column="payload", regex="^[0-9a-f]+$"),
        of("values_to_not_match_regex", column="payload", regex="[A-Z]"),
        of("pair_values_a_to_be_greater_than_b", column_A="id", column_B="_partition", or_equal=True,
           row_condition="id > 100", condition_parser="spark"),
        of("values_to_be_between", column="_offset", min_value=0, row_condition="country = 'DE'",
           condition_parser="spark"),
    ]  # fmt: skip
