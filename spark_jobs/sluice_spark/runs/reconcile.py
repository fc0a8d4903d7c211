"""Makes ledger, checkpoint, log and sink agree before a run reads anything.

A driver can die between any two steps, so one of the four may be a step behind. Checkpoint, log and sink hold the
truth; the ledger is updated from them. A state that no crash can leave (a checkpoint or a table that was rolled back)
is refused, because going on would lose or double records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from sluice.audit.books import Books
from sluice.delta.names import interval_app_id
from sluice.errors import CheckpointError, LeaseHeldError, SinkError, begin_again
from sluice.facts import facts_in
from sluice.faults import point
from sluice.ledger import REDRIVEN, IntervalRow, Lease, Ledger, RunRow
from sluice.ledger.events import Degraded, Redriven, RunClosed, SegmentSealed, batch_committed, rows_retracted
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount, describe, ranges_between, runs_of, subtract
from sluice.recovery import Route
from sluice.run.checkpoint import Checkpoint
from sluice.run.interval import Interval
from sluice_spark.batch.quarantine import SCHEMA, refused_again, take_out
from sluice_spark.engine.logs import logger
from sluice_spark.runs.epoch_end import HANDOVER, open_next, seal_off
from sluice_spark.runs.epoch_end import emptied as takes_all
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING, ReplaceableSink, Sink, Staged
from sluice_spark.sinks.parquet.slice import Slice

__all__ = [
    "RETRACTED",
    "contradiction",
    "enter_interval",
    "examine",
    "half_done",
    "reconcile",
    "reconcile_log",
    "replace_quarantined",
    "replaced_in",
    "take_over",
    "written_before",
]

RETRACTED = "retracted"
"""The value of ``of`` in the metadata of a commit that only takes rows out."""

_UNTOUCHED = "nothing was read or written now; checkpoint and sink are unchanged"


def examine(tables: Tables, *, leave: bool = False) -> list[str]:
    """Check what others committed to the tables since the last run; return warnings about changed rows.

    A run calls it before it uses its tables in any other way. Idempotent.

    Parameters
    ----------
    leave
        As in :meth:`~sluice_spark.sinks.also.AlsoSinks.examine`.

    Raises
    ------
    ConfigError
        If a table belongs to another pipeline.
    CheckpointError
        If commits of this pipeline were rolled back or damaged, or a table was replaced.
    """
    every = (tables.sink, *tables.also.sinks.values(), tables.quarantine, tables.filled)
    for table in {t.path: t for t in every}.values():
        if table.is_cut_off():
            raise contradiction(
                f"the newest commit of the table {table.path} is empty: the file was damaged, and readers do "
                "not see what it committed",
                "restore the file below _delta_log from a copy. If a power cut emptied it, remove it and run again: "
                "the run writes again what no other commit depends on; then sluice audit --deep says whether "
                "something is missing",
            )
    return [*tables.sink.examine(), *tables.also.examine(tables.sink, leave=leave), *tables.quarantine.examine()]


def reconcile(
    ledger: Ledger,
    lease: Lease,
    tables: Tables,
    redriven: Tables,
    *,
    forgo: bool = False,
    unchecked: bool = False,
    emptied: bool = False,
) -> None:
    """Update quarantine and ledger from checkpoint, log and sink, and close runs whose driver died. Idempotent.

    If a driver closed the epoch and died before the ledger had that, the ledger has the next epoch afterwards. The
    caller must then reconcile that epoch.

    Parameters
    ----------
    forgo
        Whether to continue without staged refused records that are gone; the log and the ledger say how many.
    unchecked
        Whether the epoch's checkpoint is given up: it is not read. Further sinks that lack a batch stay without it.
    emptied
        Whether the sink's rows are given up: it may lack commits.

    Raises
    ------
    CheckpointError
        If checkpoint, log, sink and ledger contradict each other in a way that no crash can cause.
    """
    number, sink = tables.epoch.number, tables.sink
    if not unchecked:
        _mend(tables)
    held = sink.version()
    upto = _last(ledger, lease.pipeline, number)
    if upto > held and not emptied:
        raise contradiction(
            f"the ledger has batch {upto} committed, but the sink {sink.path} holds only up to {held}",
            "restore table and checkpoint to the same state; or, to write all rows again, "
            f"{begin_again(lease.pipeline, truncate=True)}",
        )
    # the table's history is read only when the ledger is behind
    or_restart = f"; or, to write all rows again, {begin_again(lease.pipeline, truncate=True)}"
    # what batches began to read is taken out with the rest
    given_up = {n for epoch, n in ledger.offsets.begun(lease.pipeline) if epoch == number} if emptied else set[int]()
    notes = _notes(sink, upto, held, or_restart, given_up)
    closed = next((note for note in notes if HANDOVER in note), None)
    if closed is not None:
        pass  # the driver that closed the epoch had reconciled it
    elif unchecked:
        if tables.epoch.route is Route.LOG:
            with suppress(SinkError):  # what cannot be read is not in the account, and the epoch ends
                _seals(ledger, lease, tables)
    elif tables.epoch.route is Route.LOG:
        _follows(tables, tables.log_table, "the write-ahead log")
        _seals(ledger, lease, tables)
        if tables.applied is not None:
            _follows(tables.applying, sink, "the sink")
            _within_log(tables)
        elif held > tables.log_table.version():
            raise contradiction(
                f"the sink {sink.path} holds batch {held}, but the write-ahead log {tables.log.path} holds only up to "
                f"{tables.log_table.version()}: it was removed or rolled back",
                "restore the log from a copy",
            )
    else:
        _follows(tables, sink, "the sink")
    for note in notes:
        if note is not closed:
            _enter(ledger, lease, note, tables, forgo=forgo, leave=unchecked)
    if closed is None and not unchecked:
        _same_end(ledger, lease.pipeline, number, tables.applying.checkpoint)
        _together(tables)
    known, there = _last(ledger, lease.pipeline, REDRIVEN), redriven.sink.version()
    # their offsets have accounts, which say where all rows are that are taken out
    for note in _notes(redriven.sink, known, there, or_restart, set(range(known + 1, there + 1)) if emptied else ()):
        _enter(ledger, lease, note, redriven, forgo=forgo, leave=unchecked)
    _together(redriven, leave=unchecked)
    if closed is not None:
        tables.also.restart(closed["version"], closed["run"])
        seal_off(tables, closed)
        open_next(ledger, lease, tables, closed)
        logger.info("reconciled: epoch %d was closed by run %s", number, closed["run"])
    for interval in half_done(ledger, lease.pipeline, tables.replaceable):
        with suppress(LeaseHeldError):  # another driver works on it
            take_over(ledger, lease, redriven, interval, forgo=forgo, leave=unchecked)
    at_work = ledger.runs.at_work(lease.pipeline)
    _abandon(ledger, lease, [row for row in _open(ledger, lease) if at_work.get(row.interval or "") != row.run])


def reconcile_log(ledger: Ledger, lease: Lease, tables: Tables) -> None:
    """Update the ledger from the write-ahead log only, so that a run can land while the sink cannot be read.

    Raises
    ------
    CheckpointError
        If checkpoint and log contradict each other.
    SinkError
        If the log cannot be read.
    """
    tables.mend_checkpoint()
    _follows(tables, tables.log_table, "the write-ahead log")
    _seals(ledger, lease, tables)


def _mend(tables: Tables) -> None:
    tables.mend_checkpoint()
    if tables.applied is not None:
        tables.applying.mend_checkpoint()


def half_done(ledger: Ledger, pipeline: str, sink: ReplaceableSink | None) -> list[IntervalRow]:
    """Return the intervals for which the sink holds a commit that the ledger does not have."""
    keys = ledger.offsets.interval_keys(pipeline) if sink is not None else {}
    if sink is None or not keys:
        return []
    last = ledger.offsets.last_batches(pipeline)
    apps = {key: interval_app_id(pipeline, key) for key in keys.values()}
    ahead = sink.ahead_of({apps[key]: last.get(-number, -1) for number, key in keys.items()})
    return [row for key in keys.values() if apps[key] in ahead for row in ledger.offsets.intervals(pipeline, key)]


def take_over(
    ledger: Ledger, lease: Lease, tables: Tables, known: IntervalRow, *, forgo: bool = False, leave: bool = False
) -> None:
    """Finish the work of a dead driver on another interval; see :func:`enter_interval`.

    Raises
    ------
    LeaseHeldError
        If that driver may be alive, or another driver works on the interval.
    """
    with ledger.acquire(lease.pipeline, lease.holder.run, scope=known.interval) as own:
        own_tables = tables.of_interval(lease.pipeline, known.interval, known.number)
        enter_interval(ledger, own, own_tables, forgo=forgo, leave=leave)


def enter_interval(ledger: Ledger, lease: Lease, tables: Tables, *, forgo: bool = False, leave: bool = False) -> None:
    """Update quarantine and ledger from the sink's commits for an interval, and close its runs whose driver died.

    Idempotent.

    Parameters
    ----------
    lease
        The lease of the interval.
    tables
        The interval's tables: :meth:`Tables.of_interval`.
    forgo
        As in :func:`reconcile`.
    leave
        As in :meth:`~sluice_spark.sinks.also.AlsoSinks.finish`.
    """
    number = tables.epoch.number
    upto = _last(ledger, lease.pipeline, number)
    for note in _notes(tables.sink, upto, max(upto, tables.sink.version())):
        windows = note.get("windows")
        # an interval of windows is of event time, and the quarantine's rows have record times
        times = Interval.from_key(note["interval"]).milliseconds if windows is None else ()
        gone = Slice([OffsetRange(*span) for span in note["slice"]], *times)
        accounts = [RangeAccount.from_dict(a) for a in note["accounts"]]
        entered = tables.quarantine.version() >= note["version"]
        staged = NOTHING if entered else _refused(ledger, lease, tables, note, accounts, forgo=forgo)
        aside = replace_quarantined(tables, gone, staged, note["version"], note["run"])
        tables.also.finish(note, tables.batch_name(note["version"]), gone, leave=leave)
        tables.sweep(note["version"])
        taken = {(topic, partition): count for topic, partition, count in note["replaced"]}
        before = None if windows is None else written_before(ledger, lease.pipeline)
        replaced = replaced_in(accounts, taken, aside, before)
        done = batch_committed(number, note["version"], accounts, facts=facts_in(note), replaced=replaced)
        ledger.record(lease, *done, run_id=note["run"])
        logger.info("reconciled: run %s replaced %s; recorded in the ledger", note["run"], note["interval"])
    _abandon(ledger, lease, [row for row in _open(ledger, lease) if row.interval == lease.scope])


def replace_quarantined(
    tables: Tables, gone: Slice, staged: Staged, batch: int, run_id: str
) -> dict[tuple[str, int], int]:
    """Replace the quarantine's part of an interval after the sink's commit; return how many offsets were removed.

    Idempotent; a second call returns the same numbers.
    """
    quarantine = tables.quarantine
    if not staged.files and quarantine.table() is None:
        return {}
    counts = quarantine.replace(gone, staged, SCHEMA, batch, {"run": run_id}, name=tables.batch_name(batch))
    if counts is not None:
        return counts
    note = next((note for note in quarantine.notes(newer_than=batch - 1) if note["version"] == batch), None)
    if note is None:
        raise contradiction(
            f"the quarantine {quarantine.path} holds batch {batch} of {quarantine.app_id}, but its history, which says "
            "how many records it removed, has expired",
            "restore the quarantine's _delta_log from a copy",
        )
    return {(topic, partition): count for topic, partition, count in note["replaced"]}


def replaced_in(
    accounts: Sequence[RangeAccount],
    taken: Mapping[tuple[str, int], int],
    aside: Mapping[tuple[str, int], int],
    standing: Mapping[tuple[str, int], int] | None = None,
) -> dict[OffsetRange, tuple[int, int]]:
    """Return how many offsets each range of an interval took from sink and quarantine; pure.

    A window does not say which records are in it. Those that were in the quarantine count as written now, and those
    that are refused now do not any more; the others stay what live runs counted them as, also if they came late then.

    Parameters
    ----------
    taken, aside
        What left the sink and the quarantine, per topic and partition.
    standing
        If the sink's rows are windows: how many offsets count as written before, :func:`written_before`. No more than
        these are taken: what is refused now may have been filtered before, which is unknown for single records.
    """
    found = {}
    for account in accounts:
        key, counts = (account.range.topic, account.range.partition), account.counts
        moved, gone = aside.get(key, 0), taken.get(key, 0)
        if standing is not None:
            gone = counts.written + min(counts.quarantined - moved, standing.get(key, 0))
        found[account.range] = gone, moved
    return found


def written_before(ledger: Ledger, pipeline: str) -> dict[tuple[str, int], int]:
    """Return how many offsets of each topic and partition count as written, after all redrives and intervals."""
    return {(page.topic, page.partition): page.counts.written for page in Books.read(ledger, pipeline).pages}


def _open(ledger: Ledger, lease: Lease) -> list[RunRow]:
    rows = ledger.runs.newest(lease.pipeline, state="open", limit=1000)
    return [row for row in rows if row.run != lease.holder.run]


def _abandon(ledger: Ledger, lease: Lease, rows: Sequence[RunRow]) -> None:
    for row in rows:
        ledger.record(
            lease, RunClosed(state="abandoned", error={"what": "its driver died or was fenced"}), run_id=row.run
        )
        logger.info("run %s was never closed: its driver died. Its committed batches stay", row.run)


def _last(ledger: Ledger, pipeline: str, epoch: int) -> int:
    known = ledger.offsets.last_batch(pipeline, epoch)
    return known.batch if known else -1


def _follows(tables: Tables, table: Sink, what: str) -> None:
    """Check that a table holds the last batch that its checkpoint committed, and none beyond the last planned one."""
    checkpoint, held = tables.checkpoint, table.version()
    planned, done = checkpoint.planned(), checkpoint.committed()
    last_planned, last_done = (planned or [-1])[-1], (done or [-1])[-1]
    if held > last_planned:
        raise contradiction(
            f"{what} {table.path} holds batch {held}, but the checkpoint {checkpoint.path} has no plan "
            f"beyond {last_planned}: it was removed or rolled back, or is in another SLUICE_HOME",
            "name that home, or restore the checkpoint from a copy; or go on with a fresh one: "
            f"{begin_again(tables.pipeline)}, and with --rebuild-state if windows or keys are to stay open",
        )
    if held < last_done:
        raise contradiction(
            f"the checkpoint {checkpoint.path} has committed batch {last_done}, but {what} {table.path} holds only up "
            f"to {held}: it was removed or rolled back",
            f"restore it; or begin again: {begin_again(tables.pipeline, truncate=table is tables.sink)}",
        )


def _within_log(tables: Tables) -> None:
    """Check that the log holds what the stream that applies it has planned to apply. Batches have other numbers."""
    checkpoint, landed = tables.applying.checkpoint, tables.position()
    planned = checkpoint.planned()
    beyond = ranges_between(landed or {}, checkpoint.end_of(planned[-1])) if planned else []
    if beyond:
        raise contradiction(
            f"the checkpoint {checkpoint.path} has planned to apply {describe(beyond)}, which the write-ahead log "
            f"{tables.log.path} does not hold: it was removed or rolled back",
            "restore the log from a copy",
        )


def _notes(
    table: Sink, upto: int, held: int, or_restart: str = "", given_up: Collection[int] = ()
) -> list[dict[str, Any]]:
    """Return the metadata of the commits after ``upto``, oldest first.

    Snapshots that a user let expire take it with them. From the first such commit on there is none then, if the rows
    of all that lack it are given up.
    """
    notes = list(reversed(list(table.notes(newer_than=upto)))) if held > upto else []
    gone = set(range(upto + 1, held + 1)) - {note["version"] for note in notes}
    if not gone:
        return notes
    cleared = max((note["version"] for note in notes if takes_all(note)), default=-1)
    if max(gone) < cleared:  # by a driver that died then
        return [note for note in notes if note["version"] >= cleared]
    said = (
        f"{table.path} holds batches {upto + 1} to {held}, but neither the ledger nor its history has an account of "
        "all of them"
    )
    if not gone <= set(given_up):
        raise contradiction(said, f"restore the ledger from a copy{or_restart}")
    logger.warning("%s: their rows are taken out, and their records count as not read", said)
    return [note for note in notes if note["version"] < min(gone)]


def _together(tables: Tables, *, leave: bool = False) -> None:
    """Refuse further sinks that do not end with the sink's newest batch; with ``leave``, let them end with it."""
    if not tables.also:
        return
    held = tables.sink.version()
    newest = next(iter(tables.sink.notes(newer_than=held - 1)), None) if held >= 0 else None
    if leave:
        tables.also.level(held, newest)
    else:
        tables.also.refuse_apart(held, newest)
        if tables.epoch.number > REDRIVEN:
            tables.also.tell_of_new(newest)


def _enter(ledger: Ledger, lease: Lease, note: Mapping[str, Any], tables: Tables, *, forgo: bool, leave: bool) -> None:
    version, run = note["version"], note["run"]
    if note.get("of") == RETRACTED:
        moved = [OffsetRange(p["topic"], p["partition"], *span) for p in note["moved"] for span in p["ranges"]]
        tables.also.take_out(Slice(moved), version, note, tables.batch_name(version))
        tables.sweep(version)
        ledger.record(lease, *rows_retracted(tables.epoch.number, version, note["moved"], note["reason"]), run_id=run)
        logger.info("reconciled: run %s retracted rows; recorded in the ledger", run)
        return
    accounts = [RangeAccount.from_dict(a) for a in note["accounts"]]
    lost = [LostRange.from_dict(item) for item in note.get("lost") or []]
    if note.get("of") == "quarantined":
        # by their offsets, because OPTIMIZE may have replaced the files in which they were
        spans = [account.range for account in accounts]
        take_out(tables.quarantine, spans, version, run, name=tables.batch_name(version))
    elif note.get("refused"):
        accounts, lost = _quarantined(ledger, lease, tables, note, accounts, lost, forgo=forgo)
    tables.also.finish(note, tables.batch_name(version), leave=leave)
    tables.sweep(version)
    redriven = Redriven(of=note["of"], source=note.get("source") or {}) if note.get("of") else None
    done = batch_committed(tables.epoch.number, version, accounts, lost=lost, facts=facts_in(note), redriven=redriven)
    ledger.record(lease, *done, run_id=run)
    logger.info("reconciled: batch %d of run %s is in the sink; recorded in the ledger", version, run)


def _quarantined(
    ledger: Ledger,
    lease: Lease,
    tables: Tables,
    note: Mapping[str, Any],
    accounts: list[RangeAccount],
    lost: list[LostRange],
    *,
    forgo: bool,
) -> tuple[list[RangeAccount], list[LostRange]]:
    """Commit the refused records of a batch to the quarantine; return what its records count as.

    Idempotent: an account that was split because records were missing is in the quarantine's commit metadata, from
    where a repair that was killed after that commit has it.
    """
    quarantine, version = tables.quarantine, note["version"]
    if quarantine.version() >= version:
        own = next((each for each in quarantine.notes(newer_than=version - 1) if each["version"] == version), {})
        if "accounts" not in own:
            return accounts, lost
        return [RangeAccount.from_dict(a) for a in own["accounts"]], [LostRange.from_dict(item) for item in own["lost"]]
    staged = _refused(ledger, lease, tables, note, accounts, forgo=forgo)
    entry: dict[str, Any] = {"run": note["run"]}
    if tables.epoch.number > REDRIVEN and staged.rows != sum(a.counts.quarantined for a in accounts):
        accounts, lost = _as_lost(tables, accounts, lost, staged) or (accounts, lost)
        entry |= {"accounts": [a.as_dict() for a in accounts], "lost": [item.as_dict() for item in lost]}
    quarantine.commit(staged, SCHEMA, version, entry)
    point("quarantine-committed")
    return accounts, lost


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
        ledger.record(lease, Degraded(note=told), run_id=note["run"])
    return staged


def _as_lost(
    tables: Tables, accounts: Sequence[RangeAccount], lost: Sequence[LostRange], staged: Staged
) -> tuple[list[RangeAccount], list[LostRange]] | None:
    """Count the offsets that neither table holds as lost, in the ranges in which records were refused.

    It is unknown which of these offsets were refused, filtered or absent; a redrive reads them again and finds out.
    Returns None if the sink cannot tell which offsets it holds, or if rows of these ranges were deleted from it.
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
    upto = ledger.offsets.last_sealed(lease.pipeline, tables.epoch.number)
    for note in _notes(tables.log_table, upto, max(upto, tables.log_table.version())):
        ledger.record(
            lease, SegmentSealed.of(tables.epoch.number, note["version"], note["segments"]), run_id=note["run"]
        )
        logger.info("reconciled: batch %d of run %s is in the write-ahead log", note["version"], note["run"])


def _same_end(ledger: Ledger, name: str, epoch: int, checkpoint: Checkpoint) -> None:
    known = ledger.offsets.last_batch(name, epoch)
    if known is None or known.batch not in checkpoint.planned():
        return
    ends = checkpoint.end_of(known.batch)
    for account in ledger.offsets.accounts(name, batch=known):
        r = account.range
        if ends.get(r.topic, {}).get(r.partition) != r.end:
            raise contradiction(
                f"batch {known.batch} of {r.topic}-{r.partition} ends at {r.end} in the ledger, but at "
                f"{ends.get(r.topic, {}).get(r.partition)} in the checkpoint {checkpoint.path}",
                "the checkpoint was changed or belongs to another pipeline: restore the right one",
            )


def contradiction(what: str, way_out: str) -> CheckpointError:
    return CheckpointError(what, state=_UNTOUCHED, next_step=way_out)
