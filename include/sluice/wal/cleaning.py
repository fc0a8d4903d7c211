"""Cleans a write-ahead log and records it in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sluice.ledger import Lease, Ledger
from sluice.ledger.events import SegmentsCleaned
from sluice.ranges import Positions
from sluice.wal.log import WriteAheadLog
from sluice.wal.removal import Cleaned
from sluice.wal.segment import batch_of

__all__ = ["applied_batch", "clean"]


def applied_batch(log: WriteAheadLog, epoch: int, positions: Positions | None) -> int:
    """Return the newest batch of an epoch that was applied, with all before it, by how far they were applied.

    With windows or ``dedupe``, the sink numbers its batches by itself: offsets alone tell what it has.

    Parameters
    ----------
    positions
        Up to where it was applied, and its state made; None if nothing was.
    """
    done = positions or {}
    waiting = [
        batch_of(path)[1]
        for path, span in log.known()
        if batch_of(path)[0] == epoch and span.end > done.get(span.topic, {}).get(span.partition, 0)
    ]
    return min(waiting) - 1 if waiting else log.version(epoch)


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
    needed = [row.range for row in ledger.offsets.lost(lease.pipeline)]
    found = log.clean(threshold, applied=everything, needed=needed, dry_run=dry_run, thorough=thorough)
    if found.segments and not dry_run:
        ledger.record(lease, SegmentsCleaned(**{"threshold": threshold.isoformat(), **found.as_dict()}))
    return found
