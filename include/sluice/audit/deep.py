"""Compares the ledger with the tables, offset by offset, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sluice.audit.line import Cell, Line
from sluice.audit.occurrences import QUARANTINE, SINK, Occurrences, Strays
from sluice.audit.report import AuditReport, shortened
from sluice.audit.snapshot import Snapshot
from sluice.audit.windows import Plan, Recompute, cannot, told
from sluice.delta.commits import Commit, altered, undone
from sluice.delta.table import Table
from sluice.errors import ConfigError, SinkError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.pipeline.sections import Rows
from sluice.ranges import OffsetRange, describe
from sluice.run.checkpoint import Checkpoint
from sluice.wal import WriteAheadLog

__all__ = ["deep_audit"]

_STRETCH = 1 << 28
"""Maximum number of offsets in memory, one byte each. Larger tables are read once per so many offsets."""

_COLUMNS = ("_topic", "_partition", "_offset", "_run")
_EVERY = 5.0

Say = Callable[[str], None]


def deep_audit(
    ledger: Ledger,
    pipeline: Pipeline,
    home: Home,
    say: Say = lambda _: None,
    recompute: Recompute | None = None,
) -> AuditReport:
    """Prove that the ledger is consistent, and that sink, quarantine and write-ahead log agree with it.

    Parameters
    ----------
    say
        Called with a line of progress every few seconds.
    recompute
        Recomputes closed windows from their records, which needs Spark. None: they are not compared, and the report
        says so.

    Raises
    ------
    ConfigError
        If the sink has no row for each offset.
    SinkError
        If the sink or the quarantine cannot be read.

    Notes
    -----
    Memory: one byte for each accounted offset, at most 256 MiB, and the reader's buffers, whatever the tables' size.
    A driver may be at work meanwhile: see :class:`Snapshot`.
    """
    if pipeline.sink.config.keyed:
        raise ConfigError(
            f"the table of {pipeline.name!r} has the newest row of each key (mode: upsert), not one for each offset, "
            "so it cannot be compared with the ledger",
            state="nothing was read or written",
            next_step=f"sluice audit {pipeline.name} proves the account from the ledger alone",
        )
    try:
        snapshot = Snapshot.take(
            ledger, pipeline.name, home.resolve(pipeline.delta_path), home.resolve(pipeline.quarantine_path)
        )
    except ValueError as error:
        unread = "the tables were not compared: an account of the ledger does not add up"
        return AuditReport(pipeline.name, [], [], [str(error)], [unread], {})
    proof = _Proof(snapshot, pipeline.rows, pipeline.aggregates, say)
    proof.compare()
    log = _Log(ledger, pipeline.name, home.log(pipeline.name), say)
    log.check()
    wrong, unproved = _compared_windows(ledger, pipeline, home, snapshot, recompute, proof.tables)
    report = snapshot.books.report()
    return replace(
        report,
        problems=[*report.problems, *snapshot.problems, *proof.problems, *wrong, *log.problems],
        unproved=unproved,
        tables={**proof.tables, **log.tables},
    )


_ABSORBED = (
    "window: rows of the sink carry no offsets. That each record was absorbed once follows from the table's batches "
    "and from Spark's checkpoint, not from its rows"
)


def _compared_windows(
    ledger: Ledger,
    pipeline: Pipeline,
    home: Home,
    snapshot: Snapshot,
    recompute: Recompute | None,
    tables: dict[str, dict[str, Any]],
) -> tuple[list[str], list[str]]:
    """Return what is wrong with windows, and what was not proved of this pipeline."""
    wrong = _rolled_back(snapshot.sink) if pipeline.aggregates else []
    if pipeline.window is None:
        return wrong, _unproved(pipeline, snapshot.sink)
    why = cannot(pipeline)
    if why is not None or recompute is None:
        more = f"To compare them with the records, by Spark: sluice audit {pipeline.name} --deep --windows"
        return wrong, [f"{_ABSORBED}. {more if why is None else why}", *_altered(snapshot.sink)]
    if snapshot.sink.delta is None:
        return [], []
    former = {}
    for epoch in range(1, ledger.offsets.epoch(pipeline.name).number + 1):
        for path in (home.applied(pipeline.name, epoch), home.checkpoint(pipeline.name, epoch)):
            if (to := Checkpoint(path).former_to()) is not None:
                former[epoch] = to
    plan = Plan.of(ledger, pipeline, snapshot.moves, former, snapshot.sink.delta.version())
    verdict = recompute(plan)
    tables["windows"] = {"path": snapshot.sink.path, "windows": verdict.compared}
    differing, unproved = told(pipeline, verdict)
    return [*wrong, *differing], unproved


def _rolled_back(sink: Table) -> list[str]:
    """Return what is wrong if a commit of the pipeline is no longer part of the table: rows do not show it."""
    found = undone(_history(sink), -1, lambda commit: commit.note is not None)
    if found is None:
        return []
    lost = "its former content" if found.lost is None else str(found.lost)
    return [f"the sink {sink.path} was rolled back or replaced by {found.by}: {lost} is no longer part of it"]


def _altered(sink: Table) -> list[str]:
    changed = altered(_history(sink))
    shown = ", ".join(map(str, changed[:5]))
    return [f"others may have changed rows of the sink {sink.path}: {shown}"] if changed else []


def _history(sink: Table) -> list[Commit]:
    return [] if sink.delta is None else [Commit.of(entry) for entry in sink.delta.history()]


def _unproved(pipeline: Pipeline, sink: Table) -> list[str]:
    if (of := pipeline.stateful) is not None and of.combines:
        return [_ABSORBED.replace("window:", f"{of.key}:", 1), *_altered(sink)]
    if pipeline.rows is Rows.AGGREGATE:
        return [
            "rows: aggregate: rows of the sink carry no offsets. That each record was processed once follows from the "
            "table's batches, not from its rows"
        ]
    if pipeline.rows is Rows.MANY:
        return ["rows: many: the number of rows that an offset must have is unknown; it has some, all by one run"]
    return []


@dataclass
class _Proof:
    """Compares sink and quarantine with the ledger."""

    snapshot: Snapshot
    rows: Rows
    aggregates: bool
    say: Say
    problems: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def compare(self) -> None:
        """Read both tables and collect problems."""
        line = Line(self.snapshot.books.pages, self.snapshot.runs)
        chosen = [(SINK, self.snapshot.sink), (QUARANTINE, self.snapshot.quarantine)]
        if self.aggregates:
            self._known_runs(chosen.pop(0)[1])
        chosen = [(mark, table) for mark, table in chosen if self._readable(table, line.cells)]
        strays = {mark: Strays(table.name) for mark, table in chosen}
        counts = {mark: np.zeros(len(line.cells), dtype=np.int64) for mark, _ in chosen}
        for start in range(0, max(line.length, 1), _STRETCH):
            end = min(start + _STRETCH, line.length)
            sieve = Occurrences(line, start, end)
            for mark, table in chosen:
                once = mark == QUARANTINE or self.rows is not Rows.MANY
                for batch in self._read(table, _COLUMNS, line.named(start, end) if start else None):
                    sieve.take(batch, mark, once=once, strays=None if start else strays[mark])
                counts[mark] += sieve.counts(mark)
            self.problems += sieve.problems(both=len(chosen) == 2)
        for mark, table in chosen:
            self.problems += strays[mark].problems()
            self.problems += _differences(table.name, mark, line.cells, counts[mark].tolist())

    def _readable(self, table: Table, cells: Sequence[Cell]) -> bool:
        """Return whether a table's rows can be compared; a missing table counts as empty if no rows are due."""
        if table.delta is None:
            due = [c for c in cells if (c.written if table is self.snapshot.sink else c.quarantined)]
            if due and table is self.snapshot.quarantine:  # a missing sink was reported before
                where = describe([c.range for c in due])
                self.problems.append(f"there is no quarantine at {table.path}, where records of {where} were put")
            return not due
        lacking = [name for name in _COLUMNS if name not in table.columns]
        if lacking:
            self.problems.append(f"the {table.name} {table.path} has no column {', '.join(lacking)}")
        return not lacking

    def _known_runs(self, sink: Table) -> None:
        """Check that every row belongs to a known run, for rows that carry no offsets."""
        if sink.delta is None:
            return
        if "_run" not in sink.columns:
            self.problems.append(f"the sink {sink.path} has no column _run")
            return
        found: dict[str | None, int] = {}
        for batch in self._read(sink, ["_run"]):
            for item in batch.column("_run").value_counts().to_pylist():
                found[item["values"]] = found.get(item["values"], 0) + item["counts"]
        known = {*self.snapshot.runs.values(), *self.snapshot.windowed}
        for run, count in sorted(found.items(), key=str):
            if run not in known:
                self.problems.append(f"{count:,} rows of the sink are by run {run!r}, for which there is no account")

    def _read(self, table: Table, columns: Sequence[str], ranges: Sequence[OffsetRange] | None = None) -> Iterator[Any]:
        if table.delta is None:
            return
        first = table.name not in self.tables
        entry = self.tables.setdefault(table.name, {"path": table.path, "version": table.delta.version(), "rows": 0})
        told, count = time.monotonic(), 0
        for batch in table.rows(columns, ranges):
            yield batch
            count += batch.num_rows
            if time.monotonic() > told + _EVERY:
                told = time.monotonic()
                self.say(f"{table.name}: {count:,} rows read")
        if first:
            entry["rows"] = count


def _differences(name: str, mark: int, cells: Sequence[Cell], found: Sequence[int]) -> list[str]:
    done = "written" if mark == SINK else "quarantined"
    return shortened(
        [
            f"of {cell.range} the ledger counts {expected:,} offsets as {done}, the {name} holds {held:,}"
            for cell, held in zip(cells, found, strict=True)
            if held != (expected := cell.written if mark == SINK else cell.quarantined) and not cell.open
        ],
        f"other accounts that the {name} contradicts",
    )


@dataclass
class _Log:
    """Compares the write-ahead log with its seals; most pipelines have none."""

    ledger: Ledger
    pipeline: str
    path: str
    say: Say
    problems: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def check(self) -> None:
        """Read every retained segment and collect problems."""
        log = WriteAheadLog(self.path, self.pipeline)
        try:
            log.refresh()
            self._newest(log)
            segments = log.segments()
            told, damages = time.monotonic(), []
            for number, segment in enumerate(segments):
                damages += log.check([segment], pages=True)
                if time.monotonic() > told + _EVERY:
                    told = time.monotonic()
                    self.say(f"write-ahead log: {number + 1:,} of {len(segments):,} segments checked")
            if damages:
                log.refresh()
                kept = {s.path for s in log.segments()}  # the log may have been cleaned meanwhile
                self.problems += [str(d) for d in damages if d.segment.path in kept]
        except SinkError as error:
            self.problems.append(f"{error.what}; segments beside it were not checked")
        else:
            if segments:
                records = sum(s.records for s in segments)
                self.tables["log"] = {"path": self.path, "segments": len(segments), "records": records}
        finally:
            log.close()

    def _newest(self, log: WriteAheadLog) -> None:
        for epoch in range(1, self.ledger.offsets.epoch(self.pipeline).number + 1):
            sealed = self.ledger.offsets.last_sealed(self.pipeline, epoch)
            if log.version(epoch) < sealed:
                self.problems.append(
                    f"the ledger has batch {sealed} of epoch {epoch} sealed, the write-ahead log {self.path} ends "
                    f"with batch {log.version(epoch)}: it was removed or rolled back"
                )
