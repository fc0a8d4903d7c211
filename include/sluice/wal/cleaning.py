"""Cleans a write-ahead log and records it in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from sluice.home import Home
from sluice.ledger import Lease, Ledger
from sluice.pipeline import Pipeline
from sluice.wal.log import WriteAheadLog
from sluice.wal.removal import Cleaned

__all__ = ["clean", "clean_log"]


def clean_log(ledger: Ledger, pipeline: Pipeline, home: Home, threshold: datetime, *, dry_run: bool = False) -> Cleaned:
    """Clean a pipeline's log beside no run of it: under the pipeline's lease, by what the ledger says is applied.

    Raises
    ------
    LeaseHeldError
        If a run of the pipeline is active.
    SinkError
        If the log cannot be read or written.
    """
    name = pipeline.name
    log = WriteAheadLog(home.log(name), name)
    with ledger.acquire(name, f"clean__{datetime.now(UTC).isoformat(timespec='milliseconds')}") as lease:
        epoch = ledger.epoch(name).number
        last = ledger.last_batch(name, epoch)
        return clean(ledger, lease, log, {epoch: last.batch if last else -1}, threshold, dry_run=dry_run)


def clean(
    ledger: Ledger,
    lease: Lease,
    log: WriteAheadLog,
    applied: Mapping[int, int],
    threshold: datetime,
    *,
    dry_run: bool = False,
    thorough: bool = True,
) -> Cleaned:
    """Remove applied segments older than ``threshold``; see :meth:`WriteAheadLog.clean`.

    Parameters
    ----------
    applied
        Per epoch, the newest batch that the sink holds. Closed epochs need not be included: everything in their log
        was applied before they were closed, or was read from Kafka instead.

    Notes
    -----
    Segments of open lost ranges are retained.
    """
    log.refresh()
    newest = max(applied, default=0)
    everything = {epoch: 2**62 for epoch in range(1, newest)} | dict(applied)
    needed = [row.range for row in ledger.lost(lease.pipeline)]
    found = log.clean(threshold, applied=everything, needed=needed, dry_run=dry_run, thorough=thorough)
    if found.segments and not dry_run:
        ledger.segments_cleaned(lease, {"threshold": threshold.isoformat(), **found.as_dict()})
    return found
