"""What windows cost: sliding windows made of panes against Spark's own, and a run with windows against one without."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from deltalake import DeltaTable
from tests.bench.harness import HERE, Bench, Figure, Goal, Options, Ran, compare, measure, median

from sluice.cli.output import err, print_table

_SHARE = 0.2
"""Records, of those of the volume: a million flights are three years."""
_SCHEMA = "carrier STRING, origin STRING, time_hour TIMESTAMP, dep_delay INT, distance INT"
_HOURLY: dict[str, Any] = {
    "time": "time_hour", "size": "1h", "by": ["origin"], "watermark": "2h",
    "aggregates": {"flights": "count(*)", "late": "avg(dep_delay)"},
}  # fmt: skip
_SLIDING: dict[str, Any] = {
    "time": "time_hour", "size": "60h", "slide": "1h", "by": ["origin", "carrier"], "watermark": "2h",
    "aggregates": {
        "flights": "count(*)", "delay": "sum(dep_delay)", "mean": "avg(dep_delay)", "least": "min(dep_delay)",
        "most": "max(dep_delay)", "miles": "sum(distance)",
    },
}  # fmt: skip


class _Flights:
    """A topic of flights, and runs that drain it."""

    def __init__(self, bench: Bench, options: Options) -> None:
        self.bench, self.records = bench, int(options.records * _SHARE)
        self.topic = f"flights-{self.records}"
        if not bench.topics.exists(self.topic):
            err.print(f"filling {self.topic} with {self.records:,} flights")
            bench.topics.create(self.topic, 4, {"retention.ms": "-1"})
            argv = [sys.executable, str(HERE / "fill_flights.py"), bench.broker.bootstrap, self.topic]
            measure([*argv, str(self.records)], {}, bench.scratch / "fill-flights.log")

    def run(self, **keys: Any) -> tuple[Ran, int]:
        """Drain it, not judged; return also how many rows the table then has."""
        bench, name = self.bench, self.bench.fresh("windowed")
        file = bench.pipeline(self.topic, name, decode={"json": {"schema": _SCHEMA}}, quality={}, **keys)
        ran = bench.run(file, "--no-validate")
        account = ran.account
        if account["written"] + account["filtered"] != self.records or account["filtered"] > self.records / 100:
            raise SystemExit(f"not what was to be measured: {account}")
        rows = DeltaTable(str(bench.home / name)).to_pyarrow_dataset().count_rows()
        bench.remove(name)
        return ran, rows


def panes(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain flights into sliding windows of 60 slides, with ``panes`` off and on: the same rows."""
    flights, rows = _Flights(bench, options), set[int]()
    seconds: dict[str, list[float]] = {"off": [], "auto": []}

    def run(how: str) -> Figure:
        ran, made = flights.run(window={**_SLIDING, "panes": how})
        rows.add(made)
        seconds[how].append(ran.phases["query"])
        err.print(f"panes {how}: {', '.join(f'{name} {taken:.1f}' for name, taken in ran.phases.items())}")
        return ran.figure

    sides = {"off": partial(run, "off"), "auto": partial(run, "auto")}
    found = compare("sliding windows of 60 slides", flights.records, options.runs, sides)
    if len(rows) > 1:
        raise SystemExit(f"panes made other windows: {sorted(rows)} rows")
    query = {how: median(taken) for how, taken in seconds.items()}
    err.print(
        f"{rows.pop():,} windows; seconds of the query alone: {query['off']:.1f} and {query['auto']:.1f}, "
        f"ratio {query['auto'] / query['off']:.2f}"
    )
    return {**found, "query": query, "operators": _operators(flights, options)}


def _operators(flights: _Flights, options: Options) -> dict[str, Any]:
    """Make windows of rows that are cached, in one session: neither source, sink nor state; the CPU is compared."""
    bench, name = flights.bench, flights.bench.fresh("operators")
    file = bench.pipeline(flights.topic, name, decode={"json": {"schema": _SCHEMA}}, quality={}, window=_SLIDING)
    answer: dict[str, Any] = bench.loop(
        "windows", file, bootstrap=bench.broker.bootstrap, topic=flights.topic, schema=_SCHEMA,
        rounds=1 if options.quick else max(3, options.runs),
    ).account  # fmt: skip
    goal = Goal("CPU of panes / Spark's own windows, operator alone", 0.1)
    for name, shape in answer.items():
        print_table(shape["rounds"], list(shape["rounds"][0]))
        ratio = median([taken["cpu ratio"] for taken in shape["rounds"]])
        each = f"{shape['records']:,} cached rows, {shape['records'] / shape['panes']:.1f} a pane"
        judged = goal.judge(ratio, f"{name}: {each}, {shape['windows']:,} windows: {ratio:.3f}")
        shape |= {"ratio": round(ratio, 3), **judged}
    return answer


def windows(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain flights into a row each, on both paths, and into hourly windows."""
    flights = _Flights(bench, options)
    keys: dict[str, dict[str, Any]] = {
        "rows": {}, "rows, engine spark": {"engine": "spark"}, "windows": {"window": _HOURLY},
    }  # fmt: skip
    sides = {name: lambda more=more: flights.run(**more)[0].figure for name, more in keys.items()}
    return compare("a run with windows, and without", flights.records, options.runs, sides)
