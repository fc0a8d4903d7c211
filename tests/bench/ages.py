"""Whether a run costs more the more runs were before it: the 10,000th run against the 1,000th, without Spark.

Each kind of durable state takes the commits that runs write, an hour apart, with the accounts of 12 partitions, and is
read as a run reads it. Files get the times that they would have. Two such states, of which the last run is now, take
turns. A thousand hours are longer than any retention. The compaction that the documents advise runs each week.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.bench.harness import Bench, Goal, Options, median
from tests.contract import sinks
from tests.fixtures.books import split
from tests.fixtures.ledgers import attempt
from tests.fixtures.postgres import Server, binaries, server
from tests.fixtures.wal import EPOCH, Made, record

from sluice.cli.output import err, print_table
from sluice.ledger import Ledger
from sluice.ledger.events import Announced, BatchStarted, Judged, batch_committed
from sluice_spark.runs.tables import KEEPS_HISTORY
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.iceberg import expiry

_YOUNG, _OLD, _MEASURED = 1_000, 10_000, 100
"""Runs of both, of which so many are measured: as many as Delta's commits between two checkpoints."""
_PARTITIONS = 12
_WEEK = 7 * 24
_KEPT = 5 * 24
_HOUR = 3600.0


def ages(bench: Bench, options: Options) -> dict[str, Any]:
    """Compare the last runs of 10,000 with those of 1,000, for each kind of durable state."""
    numbers = (150, 300) if options.quick else (_YOUNG, _OLD)
    programs = binaries()
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        postgres = stack.enter_context(server(programs)) if programs else None
        kinds = [Delta, Iceberg, Log, Accounts, *([Postgres] if programs else [])]
        rows = [_compared([kind(bench.scratch, runs, patch, postgres) for runs in numbers]) for kind in kinds]
    print_table(rows, list(rows[0]))
    worst = max(row["ratio"] for row in rows)
    title = f"ages: run {numbers[1]:,} against run {numbers[0]:,}"
    return {"title": title, "rows": rows, **Goal("the worst ratio", 1.1).judge(worst)}


def _compared(lives: list[_Life]) -> dict[str, Any]:
    """Return what a run costs a young state of a kind and an old one, and how large their metadata is."""
    for life in lives:
        for number in range(life.runs - _MEASURED):
            life.spend(number)
    spent = [[life.spend(life.runs - left) for life in lives] for left in range(_MEASURED, 0, -1)]
    young, old = (median([pair[side] for pair in spent]) for side in (0, 1))
    row = {"state": type(lives[0]).__name__, "ms, young": round(young * 1000, 1), "ms, old": round(old * 1000, 1)}
    row |= {"ratio": round(old / young, 2)}
    row |= {f"kB, {age}": round(life.metadata() / 1000) for age, life in zip(("young", "old"), lives, strict=True)}
    err.print(str(row))
    return row


class _Life:
    """One kind of durable state, and its runs."""

    log = "."
    """The folder of what is no record. New files there get the time at which their run would have made them."""

    def __init__(self, scratch: Path, runs: int, patch: pytest.MonkeyPatch, postgres: Server | None) -> None:
        self.root, self.runs, self.patch = scratch / f"{type(self).__name__}-{runs}", runs, patch
        self.began = time.time() - runs * _HOUR
        self.root.mkdir()
        self.prepare(postgres.url if postgres else "")

    def prepare(self, postgres: str) -> None: ...

    def run(self, number: int) -> None:
        """Read and write what a run reads and writes."""
        raise NotImplementedError

    def spend(self, number: int) -> float:
        """Return the seconds of a run."""
        began = time.perf_counter()
        self.run(number)
        seconds = time.perf_counter() - began
        self.after(number)
        return seconds

    def after(self, number: int) -> None:
        when = self.began + number * _HOUR
        for entry in os.scandir(self.root / self.log) if self.log != "." else ():
            if entry.stat().st_mtime > when + _HOUR / 2:
                os.utime(entry.path, (when, when))

    def metadata(self) -> int:
        """Return the size of what is no record, in bytes."""
        return _size(self.root / self.log)


class _Sink(_Life):
    case: type[sinks.SinkCase]

    def prepare(self, postgres: str) -> None:
        request: Any = SimpleNamespace(getfixturevalue=lambda _: postgres, addfinalizer=lambda _: None)
        self.sink = self.case(self.root, self.patch, request)

    def spend(self, number: int) -> float:
        if isinstance(self.sink, sinks.Iceberg | sinks.Postgres):
            self.sink.connect()
        return super().spend(number)

    def run(self, number: int) -> None:
        sink = self.sink.writer()
        held = sink.version()
        list(sink.notes(newer_than=held))
        note = {"pipeline": "p", "run": f"run-{number}", "accounts": [a.as_dict() for a in _accounts(number)]}
        staged = self.sink.stage(sink, number, sinks.rows(number, number + 1))
        assert sink.commit(staged, self.sink.schema, number, note)
        sink.sweep(f"p-e1-{number:06d}")


class Delta(_Sink):
    case, log = sinks.Delta, "out/_delta_log"

    def after(self, number: int) -> None:
        if number % _WEEK == _WEEK - 1:
            DeltaTable(self.sink.place).optimize.compact()
            for folder in sorted((self.root / "out" / "batches").iterdir())[:-1]:
                shutil.rmtree(folder)  # as a vacuum does
        super().after(number)


class Iceberg(_Sink):
    case = sinks.Iceberg

    def prepare(self, postgres: str) -> None:
        super().prepare(postgres)
        self.patch.setattr(expiry, "youngest", 0)

    def run(self, number: int) -> None:
        super().run(number)
        if number == 0:  # the clock of snapshots cannot be set: by their number, which stands for five days
            few = {expiry.AGE: "0", "history.expire.min-snapshots-to-keep": str(_KEPT)}
            self.sink.table.transaction().set_properties(few).commit_transaction()  # type: ignore[attr-defined]
        self.sink.writer().settled()

    def metadata(self) -> int:
        return sum(_size(folder) for folder in (self.root / "lake").rglob("metadata"))


class Postgres(_Sink):
    case = sinks.Postgres

    def metadata(self) -> int:
        names = "('sluice_commits', 'sluice_commits_pkey')"
        sizes = f"SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname IN {names}"
        found = self.sink.execute(sizes)  # type: ignore[attr-defined]
        return int(found[0][0] or 0)


class _Landed(Made):
    @property
    def table(self) -> DeltaSink:
        return DeltaSink(str(self.root), self.log.app_id(self.epoch), settings=KEEPS_HISTORY)


class Log(_Life):
    log = "log/_delta_log"

    def prepare(self, postgres: str) -> None:
        self.made = _Landed(self.root / "log")

    def run(self, number: int) -> None:
        self.made.seal(number, [[record(number)]])
        log = self.made.log
        assert len(log.segments(epoch=1, batch=number)) == 1
        log.clean(EPOCH + timedelta(seconds=number - _WEEK), applied={1: number}, thorough=False)


class Accounts(_Life):
    def run(self, number: int) -> None:
        ledger, accounts, run = Ledger.open(f"sqlite:///{self.root}/ledger.db"), _accounts(number), f"run-{number}"
        offsets, runs = ledger.offsets, ledger.runs
        for ask in (offsets.epoch, runs.topic_ids, runs.leaders, offsets.last_batches, offsets.interval_keys):
            ask("p")
        ledger.runs.paces("p", limit=5)
        ledger.offsets.furthest("p", 1)
        ledger.offsets.lost("p")
        ranges = [a.range for a in accounts]
        with attempt(ledger, run, *ranges, state="done", closed={"seconds": 1.0}) as own:
            ledger.record(own, BatchStarted(epoch=1, batch=number, ranges=ranges))
            ledger.record(own, *batch_committed(1, number, accounts))
            ledger.record(own, Judged(verdict="passed", judgement={}), run_id=run)
        upto = sorted(ledger.runs.unannounced("p", run).upto.items())
        ledger.decide("p", run, Announced(upto=upto, version=None))
        ledger.runs.account("p", run)


def _accounts(number: int) -> list[Any]:
    return [split(100 * number, 100 * number + 100, partition) for partition in range(_PARTITIONS)]


def _size(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
