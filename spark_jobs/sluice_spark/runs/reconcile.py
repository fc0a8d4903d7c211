"""Before a run reads anything: the ledger, the checkpoint, the log and the sink must tell one story.

A driver can die between any two steps, so one of them may be a step behind. Checkpoint, log and sink hold the truth;
the ledger is brought up to it. What no crash can explain (a checkpoint or a table that was rolled back to an older
state) is refused: going on would lose or double records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from sluice.delta.names import interval_app_id
from sluice.errors import BEGIN_ANEW, CheckpointError, LeaseHeldError
from sluice.ledger import REDRIVEN, IntervalRow, Lease, Ledger, RunRow
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount, describe, runs_of, subtract
from sluice.recovery import Route
from sluice.run.checkpoint import Checkpoint
from sluice.run.interval import Interval
from sluice_spark.batch.quarantine import SCHEMA, refused_again, take_out
from sluice_spark.engine.logs import logger
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING, ReplaceableSink, Sink, Staged
from sluice_spark.sinks.delta.slice import Slice
from sluice_spark.sources.base import RECORD_SCHEMA

__all__ = [
    "HANDOVER",
    "enter_interval",
    "examine",
    "half_done",
    "reconcile",
    "reconcile_log",
    "replace_quarantined",
    "seal_off",
    "take_over",
]

HANDOVER = "handover"
"""In the note of a sink's commit: it closes an epoch and says where the next one starts."""

_UNTOUCHED = "nothing was read or written now; checkpoint, sink and ledger are as they were"


def examine(tables: Tables) -> list[str]:
    """Look at what others did to the tables since the last run; return, in words, what may concern rows.

    Calling it twice changes nothing the second time. Before anything else that a run does with its tables.

    Raises
    ------
    ConfigError
        When a table is another pipeline's.
    CheckpointError
        When commits of this pipeline were rolled back or damaged, or a table was replaced.
    """
    for table in {t.path: t for t in (tables.sink, tables.quarantine, tables.filled)}.values():
        if table.is_cut_off():
            raise _contradiction(
                f"the newest commit of the table {table.path} is empty: the file was damaged, and what it committed "
                "is in no reader's sight",
                "put the file below _delta_log back from a copy. Where a power cut emptied it, remove it and run "
                "again: what nothing else rests on is rewritten; sluice audit --deep tells that nothing is missing",
            )
    return [*tables.sink.examine(), *tables.quarantine.examine()]


def reconcile(ledger: Ledger, lease: Lease, tables: Tables, redriven: Tables, *, forgo: bool = False) -> None:
    """Bring quarantine and ledger up to what checkpoint, log and sink hold, and close runs whose driver died.

    Calling it twice changes nothing the second time. When the epoch was closed by a driver that died before it could
    say so, the ledger has the next epoch afterwards: look again.

    Parameters
    ----------
    forgo
        Whether to go on without staged refused records that are gone; the log says how many.

    Raises
    ------
    CheckpointError
        When checkpoint, log, sink and ledger contradict each other in a way that no crash leaves behind.
    """
    number, checkpoint, sink = tables.epoch.number, tables.checkpoint, tables.sink
    tables.mend_checkpoint()
    held = sink.version()
    upto = _last(ledger, lease.pipeline, number)
    if upto > held:
        raise _contradiction(
            f"the ledger has batch {upto} committed, but the sink {sink.path} holds only up to {held}",
            f"put table and checkpoint back together; or, to start over, {BEGIN_ANEW}",
        )
    # the table's history is read only when the ledger is behind
    notes = _notes(sink, upto, held)
    closed = next((note for note in notes if HANDOVER in note), None)
    if closed is not None:
        pass  # whoever closed the epoch had seen that all of it agrees
    elif tables.epoch.route is Route.LOG:
        _follows(tables.log_table, tables.log_table.version(), checkpoint, "the write-ahead log")
        _seals(ledger, lease, tables)
        if held > tables.log_table.version():
            raise _contradiction(
                f"the sink {sink.path} holds batch {held}, but the write-ahead log {tables.log.path} holds only up to "
                f"{tables.log_table.version()}: it was removed or rolled back",
                "put the log back from a copy",
            )
    else:
        _follows(sink, held, checkpoint, "the sink")
    for note in notes:
        if note is not closed:
            _enter(ledger, lease, note, tables, forgo=forgo)
    _same_end(ledger, lease.pipeline, number, checkpoint)
    for note in _notes(redriven.sink, _last(ledger, lease.pipeline, REDRIVEN), redriven.sink.version()):
        _enter(ledger, lease, note, redriven, forgo=forgo)
    if closed is not None:
        seal_off(tables, closed)
        to = closed[HANDOVER]
        positions = {t: {int(p): int(o) for p, o in parts.items()} for t, parts in to["positions"].items()}
        ledger.epoch_opened(
            lease, epoch=to["epoch"], route=Route(to["lineage"]), positions=positions, run_id=closed["run"]
        )
        logger.info("reconciled: epoch %d was closed by run %s", number, closed["run"])
    for known in half_done(ledger, lease.pipeline, tables.replaceable):
        with suppress(LeaseHeldError):  # somebody is at it
            take_over(ledger, lease, redriven, known, forgo=forgo)
    at_work = ledger.at_work(lease.pipeline)
    _abandon(ledger, lease, [row for row in _open(ledger, lease) if at_work.get(row.interval or "") != row.run])


def reconcile_log(ledger: Ledger, lease: Lease, tables: Tables) -> None:
    """Bring the ledger up to the write-ahead log alone, so that a run can land while the sink cannot be read.

    Raises
    ------
    CheckpointError
        When checkpoint and log contradict each other.
    SinkError
        When the log cannot be read.
    """
    tables.mend_checkpoint()
    _follows(tables.log_table, tables.log_table.version(), tables.checkpoint, "the write-ahead log")
    _seals(ledger, lease, tables)


def half_done(ledger: Ledger, pipeline: str, sink: ReplaceableSink | None) -> list[IntervalRow]:
    """Return the intervals of which the sink holds more than the ledger says."""
    intervals = ledger.intervals(pipeline)
    if sink is None or not intervals:
        return []
    last = ledger.last_batches(pipeline)
    apps = {known.number: interval_app_id(pipeline, known.interval) for known in intervals}
    ahead = sink.ahead_of({app: last.get(-number, -1) for number, app in apps.items()})
    return [known for known in intervals if apps[known.number] in ahead]


def take_over(ledger: Ledger, lease: Lease, tables: Tables, known: IntervalRow, *, forgo: bool = False) -> None:
    """Enter what a dead driver left of another interval; see :func:`enter_interval`.

    Raises
    ------
    LeaseHeldError
        When its driver may be alive, or another one is at it.
    """
    with ledger.acquire(lease.pipeline, lease.holder.run, scope=known.interval) as own:
        enter_interval(ledger, own, tables.of_interval(lease.pipeline, known.interval, known.number), forgo=forgo)


def enter_interval(ledger: Ledger, lease: Lease, tables: Tables, *, forgo: bool = False) -> None:
    """Bring quarantine and ledger up to what the sink holds of an interval, when a driver died in between.

    Calling it twice changes nothing the second time.

    Parameters
    ----------
    lease
        The interval's.
    tables
        As of :meth:`Tables.of_interval`.
    forgo
        As of :func:`reconcile`.
    """
    number = tables.epoch.number
    upto = _last(ledger, lease.pipeline, number)
    for note in _notes(tables.sink, upto, max(upto, tables.sink.version())):
        gone = Slice([OffsetRange(*span) for span in note["slice"]], *Interval.from_key(note["interval"]).milliseconds)
        accounts = [RangeAccount.from_dict(a) for a in note["accounts"]]
        entered = tables.quarantine.version() >= note["version"]
        staged = NOTHING if entered else _refused(ledger, lease, tables, note, accounts, forgo=forgo)
        aside = replace_quarantined(tables, gone, staged, note["version"], note["run"])
        tables.sweep(note["version"])
        taken = {(topic, partition): count for topic, partition, count in note["replaced"]}
        keys = {a.range: (a.range.topic, a.range.partition) for a in accounts}
        ledger.batch_committed(
            lease,
            epoch=number,
            batch=note["version"],
            accounts=accounts,
            replaced={span: (taken.get(key, 0), aside.get(key, 0)) for span, key in keys.items()},
            run_id=note["run"],
        )
        logger.info("reconciled: run %s had replaced %s; entered into the ledger", note["run"], note["interval"])
    _abandon(ledger, lease, [row for row in _open(ledger, lease) if row.interval == lease.scope])


def replace_quarantined(
    tables: Tables, gone: Slice, staged: Staged, batch: int, run_id: str
) -> dict[tuple[str, int], int]:
    """Make the quarantine what an interval's commit to the sink says; return how many offsets went out of it.

    Doing it twice changes nothing the second time, and returns the same.
    """
    quarantine = tables.quarantine
    if not staged.files and quarantine.table() is None:
        return {}
    counts = quarantine.replace(gone, staged, SCHEMA, batch, {"run": run_id}, name=tables.batch_name(batch))
    if counts is not None:
        return counts
    note = next(note for note in quarantine.notes(newer_than=batch - 1) if note["version"] == batch)
    return {(topic, partition): count for topic, partition, count in note["replaced"]}


def _open(ledger: Ledger, lease: Lease) -> list[RunRow]:
    rows = ledger.runs(lease.pipeline, state="open", limit=1000)
    return [row for row in rows if row.run != lease.holder.run]


def _abandon(ledger: Ledger, lease: Lease, rows: Sequence[RunRow]) -> None:
    for row in rows:
        ledger.run_closed(lease, state="abandoned", run_id=row.run, error={"what": "its driver died or was fenced"})
        logger.info("run %s was never closed: its driver died. Its committed batches stay", row.run)


def _last(ledger: Ledger, pipeline: str, epoch: int) -> int:
    known = ledger.last_batch(pipeline, epoch)
    return known.batch if known else -1


def _follows(table: Sink, held: int, checkpoint: Checkpoint, what: str) -> None:
    """A table that a stream fills holds the checkpoint's last done batch, and at most its last planned one."""
    planned, done = checkpoint.planned(), checkpoint.committed()
    last_planned, last_done = (planned or [-1])[-1], (done or [-1])[-1]
    if held > last_planned:
        raise _contradiction(
            f"{what} {table.path} holds batch {held}, but the checkpoint {checkpoint.path} was never planned beyond "
            f"{last_planned}: it was removed or rolled back",
            f"put the checkpoint back from a copy; or, to start over, {BEGIN_ANEW}",
        )
    if held < last_done:
        raise _contradiction(
            f"the checkpoint {checkpoint.path} has committed batch {last_done}, but {what} {table.path} holds only up "
            f"to {held}: it was removed or rolled back",
            f"put the table back; or, to start over, {BEGIN_ANEW}",
        )


def _notes(table: Sink, upto: int, held: int) -> list[dict[str, Any]]:
    """Return the notes of the commits behind ``upto``, oldest first."""
    notes = list(reversed(list(table.notes(newer_than=upto)))) if held > upto else []
    if [note["version"] for note in notes] != list(range(upto + 1, held + 1)):
        raise _contradiction(
            f"the table {table.path} holds batches {upto + 1} to {held}, for which neither the ledger nor the table's "
            "history accounts",
            "put the ledger back from a copy",
        )
    return notes


def seal_off(tables: Tables, note: Mapping[str, Any]) -> None:
    """End the log of an epoch that its sink's commit closed, too, and remove what attempts at its open batch left.

    Parameters
    ----------
    note
        The one of the sink's commit.
    """
    tables.sweep(tables.sink.version())
    if tables.epoch.route is Route.LOG:
        log = tables.log_table
        ended = any(HANDOVER in note for note in log.last_notes())
        number = log.version() + (not ended)
        if not ended:
            with suppress(LeaseHeldError):  # a driver that slept until now sealed it: it is in the log, and in no sink
                log.commit(NOTHING, RECORD_SCHEMA, number, {HANDOVER: note[HANDOVER]})
        log.sweep(tables.landing_name(number))


def _enter(ledger: Ledger, lease: Lease, note: Mapping[str, Any], tables: Tables, *, forgo: bool) -> None:
    version, run = note["version"], note["run"]
    accounts = [RangeAccount.from_dict(a) for a in note["accounts"]]
    lost = [LostRange.from_dict(item) for item in note.get("lost") or []]
    if note.get("of") == "quarantined":
        # by their offsets, not by the files in which they once were: somebody may have compacted those
        spans = [account.range for account in accounts]
        take_out(tables.quarantine, spans, version, run, name=tables.batch_name(version))
    elif note.get("refused") and tables.quarantine.version() < version:
        staged = _refused(ledger, lease, tables, note, accounts, forgo=forgo)
        if tables.epoch.number > REDRIVEN and staged.rows != sum(a.counts.quarantined for a in accounts):
            accounts, lost = _as_lost(tables, accounts, lost, staged) or (accounts, lost)
        tables.quarantine.commit(staged, SCHEMA, version, {"run": run})
    tables.sweep(version)
    ledger.batch_committed(
        lease,
        epoch=tables.epoch.number,
        batch=version,
        accounts=accounts,
        lost=lost,
        redriven=note.get("of"),
        source=note.get("source"),
        run_id=run,
    )
    logger.info("reconciled: batch %d of run %s is in the sink; entered into the ledger", version, run)


def _refused(
    ledger: Ledger,
    lease: Lease,
    tables: Tables,
    note: Mapping[str, Any],
    accounts: Sequence[RangeAccount],
    *,
    forgo: bool,
) -> Staged:
    staged = refused_again(tables.quarantine, note, accounts, forgo=forgo)
    due = sum(account.counts.quarantined for account in accounts)
    if staged.rows != due:
        told = (
            f"batch {note['version']} refused {due:,} records, of which {due - staged.rows:,} were removed before they "
            f"reached the quarantine {tables.quarantine.path}. They are among "
            f"{describe(a.range for a in accounts if a.counts.quarantined)}"
        )
        logger.warning("%s", told)
        ledger.degraded(lease, told, run_id=note["run"])
    return staged


def _as_lost(
    tables: Tables, accounts: Sequence[RangeAccount], lost: Sequence[LostRange], staged: Staged
) -> tuple[list[RangeAccount], list[LostRange]] | None:
    """Count as lost what neither table holds of the ranges in which records were refused.

    Nobody knows any more which of these offsets were refused, filtered or absent: redriving reads them again, and then
    it is known. None where the sink cannot tell which offsets it has, or somebody deleted some of them.
    """
    there, replaceable = tables.sink.as_it_is(), tables.replaceable
    if there is None or replaceable is None or "_offset" not in there[1].names:
        return None
    sink = replaceable.held(Slice([a.range for a in accounts if a.counts.quarantined]))
    refused = tables.quarantine.staged_offsets(staged)
    nothing = np.empty(0, dtype=np.int64)
    split, found = [], list(lost)
    for account in accounts:
        span, key = account.range, (account.range.topic, account.range.partition)
        if not account.counts.quarantined:
            split.append(account)
            continue
        written, kept = (_of(held.get(key, nothing), span) for held in (sink, refused))
        if len(written) != account.counts.written:
            return None
        missing = np.setdiff1d(np.arange(span.start, span.end), np.union1d(written, kept))
        split.append(RangeAccount(span, Counts(len(written), 0, len(kept), 0, len(missing)), account.times))
        gone = subtract(runs_of(*key, missing.tolist()), [item.range for item in lost])
        found += [LostRange(item, "refused, and removed before it reached the quarantine") for item in gone]
    return split, found


def _of(offsets: Any, span: OffsetRange) -> Any:
    return offsets[(offsets >= span.start) & (offsets < span.end)]


def _seals(ledger: Ledger, lease: Lease, tables: Tables) -> None:
    upto = ledger.last_sealed(lease.pipeline, tables.epoch.number)
    for note in _notes(tables.log_table, upto, max(upto, tables.log_table.version())):
        ledger.segment_sealed(
            lease, epoch=tables.epoch.number, batch=note["version"], segments=note["segments"], run_id=note["run"]
        )
        logger.info("reconciled: batch %d of run %s is in the write-ahead log", note["version"], note["run"])


def _same_end(ledger: Ledger, name: str, epoch: int, checkpoint: Checkpoint) -> None:
    known = ledger.last_batch(name, epoch)
    if known is None or known.batch not in checkpoint.planned():
        return
    ends = checkpoint.end_of(known.batch)
    for account in ledger.accounts(name, batch=known):
        r = account.range
        if ends.get(r.topic, {}).get(r.partition) != r.end:
            raise _contradiction(
                f"batch {known.batch} ends at {r.end} in {r.topic}-{r.partition} for the ledger, at "
                f"{ends.get(r.topic, {}).get(r.partition)} for the checkpoint {checkpoint.path}",
                "this is another pipeline's checkpoint or a changed one: put the right one back",
            )


def _contradiction(what: str, way_out: str) -> CheckpointError:
    return CheckpointError(what, state=_UNTOUCHED, next_step=way_out)
