"""Looks after a pipeline's Delta tables: compaction (``OPTIMIZE``) and ``VACUUM``, both of them delta-rs' own.

Either may run beside live runs, intervals and redrives, and may be killed at any instruction. What it did not commit,
no reader sees, and a later vacuum removes.
"""

from __future__ import annotations

import math
from datetime import timedelta
from time import sleep
from typing import Any

from sluice.audit.snapshot import last_commits
from sluice.delta.names import OWNER
from sluice.delta.table import Table
from sluice.errors import CheckpointError, ConfigError, SinkError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline

__all__ = ["compact", "vacuum"]

_ATTEMPTS, _PAUSE = 5, 0.5
_TASKS = 2
"""How many groups of files are merged at once: memory grows with it."""
_SMALL = 100 * 1024 * 1024
"""The size to which delta-rs merges files, where the table's ``delta.targetFileSize`` says nothing else."""


def compact(pipeline: Pipeline, home: Home, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Merge the small files of sink and quarantine; no row changes.

    Rows keep their runs, offsets and times, and each table's statistics still name them. The write-ahead log is left
    alone: its segments are kept whole.

    Parameters
    ----------
    dry_run
        Only count the files below the size to which they would be merged.

    Returns
    -------
    list of dict
        For each table that exists: ``table``, ``path``, and ``merged`` files that became ``into`` others; with
        ``dry_run`` the number of ``files``, and of ``small`` ones that have another beside them.

    Raises
    ------
    ConfigError
        If a table is another pipeline's, or cannot be rewritten by delta-rs.
    SinkError
        If a table cannot be read or written, or others kept rewriting the same files.
    """
    return [_survey(table) if dry_run else _merge(table) for table in _tables(pipeline, home)]


def vacuum(
    ledger: Ledger, pipeline: Pipeline, home: Home, keep: timedelta | None = None, *, dry_run: bool = False
) -> list[dict[str, Any]]:
    """Remove files that no version of sink and quarantine younger than ``keep`` has: replaced ones and orphans.

    Parameters
    ----------
    keep
        By default ``vacuum.keep`` of the pipeline file.
    dry_run
        Only count the files.

    Returns
    -------
    list of dict
        For each table that exists: ``table``, ``path``, and the number of ``files``.

    Raises
    ------
    ConfigError
        If ``keep`` is not longer than a run may take or is shorter than a table's own retention, or a table is another
        pipeline's.
    CheckpointError
        If the sink holds a batch that the ledger does not know: its refused records may still be staged.
    SinkError
        If a table cannot be read or written.
    """
    keep = pipeline.vacuum.keep if keep is None else keep
    if keep <= pipeline.airflow.execution_timeout:
        raise ConfigError(
            f"files that are older than {keep} may be in the hands of a run, which may take "
            f"{pipeline.airflow.execution_timeout} (airflow.execution_timeout)",
            state="nothing was removed",
            next_step="name a longer time, such as 7d",
        )
    tables = _tables(pipeline, home)
    _refuse_unsettled(ledger, pipeline, home)
    return [_sweep(table, keep, orphans=pipeline.sink.kind.delta, dry_run=dry_run) for table in tables]


def _tables(pipeline: Pipeline, home: Home) -> list[Table]:
    named = [("sink", pipeline.sink.config.path)] if pipeline.sink.kind.delta else []
    named.append(("quarantine", pipeline.quarantine_path))
    tables = [table for name, path in named if (table := Table.open(name, home.resolve(path))).delta is not None]
    for table in tables:
        owner = table.delta.metadata().configuration.get(OWNER, pipeline.name)
        if owner != pipeline.name:
            raise ConfigError(
                f"the table {table.path} belongs to pipeline {owner!r}",
                state="no table was changed",
                next_step=f"choose another path in the file of {pipeline.name!r}, or name {owner!r} here",
            )
    return tables


def _merge(table: Table) -> dict[str, Any]:
    from deltalake.exceptions import CommitFailedError, DeltaError

    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(_PAUSE)
            table = Table.open(table.name, table.path)
        try:
            found = table.delta.optimize.compact(max_concurrent_tasks=_TASKS)
        except CommitFailedError as error:  # an interval or a redrive replaced the same files meanwhile
            conflict: Exception = error
            continue
        except (DeltaError, OSError) as error:
            raise _failed(table, "compacted", error) from error
        return {
            "table": table.name,
            "path": table.path,
            "merged": int(found["numFilesRemoved"]),
            "into": int(found["numFilesAdded"]),
        }
    raise SinkError(
        f"the {table.name} {table.path} was not compacted: {_ATTEMPTS} times others replaced its files: {conflict}",
        state="it is as the others left it",
        next_step="compact again when no interval is running",
    ) from conflict


def _survey(table: Table) -> dict[str, Any]:
    import pyarrow as pa

    wanted = int(table.delta.metadata().configuration.get("delta.targetFileSize") or _SMALL)
    files = pa.table(table.delta.get_add_actions(flatten=True)).to_pylist()
    small: dict[tuple[Any, ...], int] = {}
    for file in files:
        if file["size_bytes"] < wanted:
            key = tuple(value for name, value in file.items() if name.startswith("partition."))
            small[key] = small.get(key, 0) + 1
    return {
        "table": table.name,
        "path": table.path,
        "files": len(files),
        "small": sum(number for number in small.values() if number > 1),
    }


def _refuse_unsettled(ledger: Ledger, pipeline: Pipeline, home: Home) -> None:
    """Refuse while a batch is between sink and ledger: the file list of its refused records is only in its commit."""
    if not pipeline.sink.kind.delta:
        return
    ahead: list[str] = []
    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(_PAUSE)
        ends = last_commits(ledger, pipeline.name)
        sink = Table.open("sink", home.resolve(pipeline.delta_path))
        ahead = [f"batch {sink.batch(app)} of {what}" for app, (what, last) in ends.items() if sink.batch(app) > last]
        if not ahead:
            return
    raise CheckpointError(
        f"the sink {sink.path} holds {ahead[0]}, and the ledger does not have it yet: a driver died between the two, "
        "or is at work",
        state="nothing was removed: refused records of that batch may not be in the quarantine yet",
        next_step=f"run {pipeline.name} once, then vacuum again",
    )


def _sweep(table: Table, keep: timedelta, *, orphans: bool, dry_run: bool) -> dict[str, Any]:
    from deltalake.exceptions import DeltaError

    hours = math.ceil(keep / timedelta(hours=1))
    try:
        files = table.delta.vacuum(retention_hours=hours, dry_run=dry_run, full=orphans)
    except (DeltaError, OSError) as error:
        if "Invalid retention period" in str(error):
            raise ConfigError(
                f"the {table.name} {table.path} keeps what it no longer uses for longer than {keep}: {error}",
                state="nothing was removed from it",
                next_step="name a longer time, or set the table's property delta.deletedFileRetentionDuration",
            ) from error
        raise _failed(table, "vacuumed", error) from error
    return {"table": table.name, "path": table.path, "files": len(files)}


def _failed(table: Table, what: str, error: Exception) -> SinkError:
    return SinkError(
        f"the {table.name} {table.path} was not {what}: {type(error).__name__}: {error}",
        state="no row was changed",
        next_step="fix the storage, and do it again. Tables with features that delta-rs cannot write, such as deletion "
        "vectors, need Spark's own OPTIMIZE and VACUUM",
    )
