"""Expires old snapshots of an Iceberg table, which each commit copies, and removes the files that only they needed.

By the table's property ``history.expire.max-snapshot-age-ms``, which a table has that a run creates. pyiceberg removes
snapshots from the metadata only; which files go with them is the rule of Iceberg's ``IncrementalFileCleanup``: the
manifest lists of expired snapshots, the manifests that no kept snapshot has, and the data files that an expired
snapshot deleted.
"""

from __future__ import annotations

import time
from contextlib import suppress

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

__all__ = ["AGE", "expire"]

AGE = "history.expire.max-snapshot-age-ms"
_LEFT = "history.expire.min-snapshots-to-keep"
_TOGETHER = 24
"""Fewer snapshots than these are not worth a commit."""
youngest = 3_600_000
"""Milliseconds for which a snapshot stays whatever the property says: the ledger may not have its account yet."""


def expire(table: Table) -> int:
    """Expire the snapshots that are older than the table's property says; return how many.

    Data files of other writers stay. A table with branches, tags, or snapshots that are not ancestors of the present
    one is left alone. Killed behind its commit, it leaves files that no snapshot needs.

    Raises
    ------
    CommitFailedException
        If others committed meanwhile; nothing was changed.
    """
    chain = list(ancestors_of(table.current_snapshot(), table.metadata))  # newest first
    age = table.properties.get(AGE)
    if age is None or len(chain) < len(table.snapshots()) or len(table.metadata.refs) > 1:
        return 0
    before = time.time() * 1000 - max(int(age), youngest)
    least = max(1, int(table.properties.get(_LEFT, 1)))
    count = next((n for n, snapshot in enumerate(chain) if n >= least and snapshot.timestamp_ms < before), len(chain))
    kept, old = chain[:count], chain[count:]
    if len(old) < _TOGETHER:
        return 0
    unused = _files_of(table, old, kept)
    unchanged = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=chain[0].snapshot_id),
    )
    removal = RemoveSnapshotsUpdate(snapshot_ids=[snapshot.snapshot_id for snapshot in old])
    table.catalog.commit_table(table, unchanged, (removal,))
    for path in unused:
        with suppress(OSError):
            table.io.delete(path)
    return len(old)


def _files_of(table: Table, old: list[Snapshot], kept: list[Snapshot]) -> set[str]:
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
    if deleted:  # what another writer added again stays
        deleted -= {task.file.file_path for task in table.scan().plan_files()}
    staged = f"{table.location().rstrip('/')}/batches/"
    return found | {path for path in deleted if path.startswith(staged)}
