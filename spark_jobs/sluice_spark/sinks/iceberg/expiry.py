"""Expires old snapshots of an Iceberg table, which each commit copies, and removes the files that only they needed.

By the table's property ``history.expire.max-snapshot-age-ms``, which a table has that a run creates. pyiceberg removes
snapshots from the metadata only; which files go with them is the rule of Iceberg's ``IncrementalFileCleanup``: the
manifest lists of expired snapshots, the manifests that no kept snapshot has, and the data files that an expired
snapshot deleted.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

__all__ = ["AGE", "expire"]

AGE = "history.expire.max-snapshot-age-ms"
_LEFT = "history.expire.min-snapshots-to-keep"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TOGETHER = 24
"""Fewer snapshots than these are not worth a commit."""


def expire(table: Table, *, below: str) -> int:
    """Expire the snapshots that are older than the table's property says; return how many.

    A table with branches, tags, or snapshots that are not ancestors of the present one is left alone. Killed behind
    its commit, it leaves files that no snapshot needs.

    Parameters
    ----------
    below
        The folder with the data files that may be removed; those of other writers stay.
    """
    chain = list(ancestors_of(table.current_snapshot(), table.metadata))  # newest first
    age = table.properties.get(AGE)
    if age is None or len(chain) < len(table.snapshots()) or len(table.metadata.refs) > 1:
        return 0
    before = time.time() * 1000 - int(age)
    least = max(1, int(table.properties.get(_LEFT, 1)))
    kept = [snapshot for n, snapshot in enumerate(chain) if n < least or snapshot.timestamp_ms >= before]
    oldest = min(snapshot.timestamp_ms for snapshot in kept)
    old = [snapshot for snapshot in chain[len(kept) :] if snapshot.timestamp_ms < oldest]
    # by one time for all; clocks of several hosts can have left them in another order
    if len(old) < _TOGETHER or len(kept) + len(old) < len(chain):
        return 0
    unused = _files_of(table, old, kept, below)
    table.maintenance.expire_snapshots().older_than(_EPOCH + timedelta(milliseconds=oldest)).commit()
    for path in unused:
        table.io.delete(path)
    return len(old)


def _files_of(table: Table, old: list[Snapshot], kept: list[Snapshot], below: str) -> set[str]:
    """Return the files that only old snapshots need. They are the ancestors of the kept ones; all newest first."""
    ids, io = {snapshot.snapshot_id for snapshot in kept}, table.io
    needed = {manifest.manifest_path for manifest in kept[-1].manifests(io)}
    found, deleted = set[str](), set[str]()
    for snapshot in old:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path in needed | found:
                continue
            found.add(manifest.manifest_path)
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                if entry.status == ManifestEntryStatus.DELETED and entry.snapshot_id not in ids:
                    deleted.add(entry.data_file.file_path)
    if deleted:  # what somebody added again stays
        deleted -= {task.file.file_path for task in table.scan().plan_files()}
    return found | {path for path in deleted if path.startswith(below)}
