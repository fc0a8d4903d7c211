"""Cleans a pipeline's write-ahead log beside no run of it."""

from __future__ import annotations

from datetime import UTC, datetime

from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.run.checkpoint import Checkpoint
from sluice.wal import WriteAheadLog
from sluice.wal.cleaning import applied_batch, clean
from sluice.wal.removal import Cleaned

__all__ = ["clean_log"]


def clean_log(ledger: Ledger, pipeline: Pipeline, home: Home, threshold: datetime, *, dry_run: bool = False) -> Cleaned:
    """Clean a pipeline's log under the pipeline's lease, by what the ledger says is applied.

    Raises
    ------
    LeaseHeldError
        If a run of the pipeline is active.
    CheckpointError
        If the checkpoint cannot be read.
    SinkError
        If the log cannot be read or written.
    """
    name = pipeline.name
    log = WriteAheadLog(home.log(name), name)
    with ledger.acquire(name, f"clean__{datetime.now(UTC).isoformat(timespec='milliseconds')}") as lease:
        epoch = ledger.offsets.epoch(name).number
        last = ledger.offsets.last_batch(name, epoch)
        # how the epoch was begun tells, whatever the pipeline file says now: its window may have been removed
        if pipeline.stateful is None and not Checkpoint(home.checkpoint(name, epoch)).defined():
            applied = last.batch if last else -1
        else:
            done = ledger.offsets.furthest(name, epoch, batches=1 << 31)
            for account in ledger.offsets.accounts(name, batch=last) if last else ():  # Spark may still make its state
                done[account.range.topic][account.range.partition] = account.range.start
            applied = applied_batch(log, epoch, done)
        return clean(ledger, lease, log, {epoch: applied}, threshold, dry_run=dry_run)
