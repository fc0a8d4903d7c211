"""Whether a pipeline's past costs its next run anything: the 500th run against the 10th, as whole cold processes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.bench.harness import Bench, Goal, Options, Ran, median
from tests.bench.shapes import RECORDS, broken, feed

from sluice.cli.output import err, print_table

_YOUNG = 5
"""Runs before the first one that is measured of a young pipeline."""

_MEASURED = 5
_JUDGED = 55
"""So many of an old pipeline's last runs are judged: more than Data Docs keep (``data_docs.KEPT_RUNS``)."""


def history(bench: Bench, options: Options) -> dict[str, Any]:
    """Compare runs 6 to 10 of a pipeline with runs 496 to 500, for a direct and for a logged one."""
    old = 60 if options.quick else 500 - _MEASURED
    found = {strategy: _compare(bench, strategy, old) for strategy in ("replay", "wal")}
    title = f"history: run {old + _MEASURED} of a pipeline against run {_YOUNG + _MEASURED}"
    met = all(f["ratio"]["wall"] <= 1.1 for f in found.values())
    return {"title": title, "records": RECORDS, **found, "goal": 1.1, "met": met}


def _compare(bench: Bench, strategy: str, age: int) -> dict[str, Any]:
    """Two pipelines, alike but for their age, run in turn: what the machine does meanwhile hits both."""
    lives = [_Life(bench, f"{stage}-{strategy}", strategy) for stage in ("young", "old")]
    young, old = lives
    young.live_through(_YOUNG, judged=_YOUNG)
    old.live_through(age, judged=_JUDGED)
    sizes = [{"of": life.name, **life.sizes()} for life in lives]
    pairs: list[tuple[Ran, Ran]] = []
    for number in range(_MEASURED):
        ran = {life.name: life.run() for life in (lives if number % 2 == 0 else lives[::-1])}
        pairs.append((ran[young.name], ran[old.name]))
        each = "; ".join(f"{life.name} {ran[life.name].figure.wall:.2f} s" for life in lives)
        err.print(f"history, {strategy}, pair {number + 1}: {each}")
    rows = [{"of": life.name, "run": life.number, **s} for life, s in zip(lives, sizes, strict=True)]
    print_table(rows, list(rows[0]))
    phases = []
    for side, life in enumerate(lives):
        spent = [{"wall": p[side].figure.wall, "cpu": p[side].figure.cpu, **p[side].phases} for p in pairs]
        phases.append({"of": life.name, **{n: round(median([s.get(n, 0.0) for s in spent]), 2) for n in spent[0]}})
    print_table(phases, list(phases[0]))
    by_pair = {
        f: [round(getattr(b.figure, f) / getattr(a.figure, f), 3) for a, b in pairs] for f in ("wall", "cpu", "peak_mb")
    }
    ratios = {f: round(median(values), 3) for f, values in by_pair.items()}
    what = f"history, {strategy}: {ratios['wall']:.3f}"
    Goal(f"run {old.number} / run {young.number} wall", 1.1).judge(ratios["wall"], what)
    return {"ratio": ratios, "ratio_by_pair": by_pair, "medians": phases, "sizes": rows}


class _Life:
    """One pipeline with a home, a ledger and a topic of its own, fed for each run."""

    def __init__(self, bench: Bench, name: str, strategy: str) -> None:
        self.bench, self.name, self.strategy = bench, name, strategy
        self.home = bench.make_home(f"home-{name}")
        self.number = 0
        bench.topics.create(name, 4, {"retention.ms": "-1"})
        self.file = bench.pipeline(name, name, recovery=strategy)

    def live_through(self, runs: int, *, judged: int) -> None:
        """Make runs up to this number, in one session; only the last ``judged`` of them are judged."""
        err.print(f"{self.name}: runs {self.number + 1} to {runs} in one session")
        asked = {"recovery": self.strategy, "bootstrap": self.bench.broker.bootstrap, "topic": self.name}
        numbers = {"first": self.number + 1, "last": runs, "judged_from": runs - judged + 1}
        env = {"SLUICE_HOME": str(self.home)}
        ran = self.bench.loop("runs", self.file, env=env, **asked, **numbers)
        err.print(f"{self.name}: {ran.figure.wall:.0f} s")
        self.number = runs

    def run(self) -> Ran:
        """Feed the next run, and make it as a whole cold process, judged."""
        self.number += 1
        with self.bench.topics.producer() as producer:
            feed(producer, self.name, self.number)
        ran = self.bench.run(self.file, "--run", f"run-{self.number:04d}", env={"SLUICE_HOME": str(self.home)})
        bad = broken(self.number)
        return ran.check(written=RECORDS - bad, quarantined=bad, verdict="passed")

    def sizes(self) -> dict[str, str]:
        log, refused = f"logs/{self.name}", f"{self.name}_quarantine"
        places = {"checkpoint": f"checkpoints/{self.name}", "Data Docs": f"quality/{self.name}"}
        places |= {"sink's log": f"{self.name}/_delta_log", "sink": f"{self.name}/batches"}
        places |= {"write-ahead log's log": f"{log}/_delta_log", "write-ahead log": f"{log}/batches"}
        places |= {"quarantine's log": f"{refused}/_delta_log"}
        found = {what: _size(self.home / place) for what, place in places.items()}
        with closing(sqlite3.connect(self.home / "ledger.db")) as ledger:
            names = ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'sluice%'")
            rows = sum(ledger.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for (name,) in names.fetchall())
        size = sum(f.stat().st_size for f in self.home.glob("ledger.db*"))
        return {**found, "ledger": f"{rows:,} rows, {size / 1000:,.0f} kB"}


def _size(folder: Path) -> str:
    sizes = [f.stat().st_size for f in folder.rglob("*") if f.is_file()]
    return f"{len(sizes):,} files, {sum(sizes) / 1000:,.0f} kB" if sizes else "–"
