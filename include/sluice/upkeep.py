"""Looks after a pipeline's Delta tables: compaction (``OPTIMIZE``) and ``VACUUM``, both of them delta-rs' own.

Either may run beside live runs, intervals and redrives, and may be killed at any instruction. What it did not commit,
no reader sees, and a later vacuum removes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import sleep
from typing import Any
from urllib.parse import unquote

from sluice.audit.snapshot import last_commits
from sluice.delta.names import ADOPTING, HOLDS, OWNER
from sluice.delta.paths import check_removable
from sluice.delta.table import Table
from sluice.errors import CheckpointError, ConfigError, LeaseHeldError, SinkError, SluiceError, described
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.storage import file_system

__all__ = ["compact", "vacuum"]

_ATTEMPTS, _PAUSE = 5, 0.5
_TASKS = 2
"""How many groups of files are merged at once: memory grows with it."""
_SMALL = 100 * 1024 * 1024
"""The size to which delta-rs merges files, where the table's ``delta.targetFileSize`` says nothing else."""
_SIZE = re.compile(r"(\d{1,18})\s*(?:([kmgtp]?)b?|bytes)", re.IGNORECASE)
_UNTOUCHED = "no table was changed"


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
        If a table is another pipeline's or has no owner, or cannot be rewritten by delta-rs.
    SinkError
        If a table cannot be read or written, or others kept rewriting the same files.
    """
    return [_survey(table) if dry_run else _merge(table) for table in _tables(pipeline, home)]


def vacuum(
    ledger: Ledger, pipeline: Pipeline, home: Home, keep: timedelta | None = None, *, dry_run: bool = False
) -> list[dict[str, Any]]:
    """Remove files that no version of sink and quarantine younger than ``keep`` has.

    These are files that a table's log has as removed, wherever they are, and what the pipeline's own attempts left in
    ``batches/PIPELINE-*``. No other file is touched.

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
        pipeline's or has no owner.
    LeaseHeldError
        If a driver is at work between sink and ledger.
    CheckpointError
        If a driver died there: the refused records of its batch may still be staged.
    SinkError
        If a table cannot be read or written.
    """
    keep = pipeline.vacuum_keep if keep is None else keep
    if keep <= pipeline.airflow.execution_timeout:
        raise ConfigError(
            f"files that are older than {keep} may be in the hands of a run, which may take "
            f"{pipeline.airflow.execution_timeout} (airflow.execution_timeout)",
            state="nothing was removed",
            next_step=f"name a longer time, such as {pipeline.default_keep.days}d",
        )
    tables = _tables(pipeline, home)
    _refuse_unsettled(ledger, pipeline, home)
    names = {pipeline.name, *ledger.runs.former_names(pipeline.name)}
    return [_sweep(table, keep, names, dry_run=dry_run) for table in tables]


def _tables(pipeline: Pipeline, home: Home) -> list[Table]:
    # whether a further sink still waits for staged files is only known from a Delta table's commits
    sinks = pipeline.sinks.values() if pipeline.sink.kind.delta else ()
    named = [("sink", sink.config.location) for sink in sinks if sink.kind.delta]
    named.append(("quarantine", pipeline.quarantine_path))
    tables = [table for name, path in named if (table := Table.open(name, home.resolve(path))).delta is not None]
    for table in tables:
        _refuse_of_others(table, pipeline.name)
    return tables


def _refuse_of_others(table: Table, name: str) -> None:
    """Refuse a table that does not say that it is this one of the pipeline: the first run makes it say so."""
    settings = table.delta.metadata().configuration
    owner = settings.get(OWNER)
    if old := settings.get(ADOPTING):
        raise ConfigError(
            f"the transfer of the table {table.path} from pipeline {old!r} to {owner!r} was interrupted",
            state=_UNTOUCHED,
            next_step=f"finish it: sluice adopt {old} --as {owner}",
        )
    if owner is None:
        raise ConfigError(
            f"the {table.name} {table.path} belongs to no pipeline yet",
            state=_UNTOUCHED,
            next_step=f"run {name} once, which makes the table its own unless another pipeline wrote to it; then again",
        )
    if owner != name:
        raise ConfigError(
            f"the table {table.path} belongs to pipeline {owner!r}",
            state=_UNTOUCHED,
            next_step=f"choose another path in the file of {name!r}, or name {owner!r} here",
        )
    if settings.get(HOLDS) != table.name:
        raise ConfigError(
            f"the table {table.path} is the {settings.get(HOLDS)} of pipeline {name!r}, and not its {table.name}",
            state=_UNTOUCHED,
            next_step=f"name the path of the {table.name} in the file of {name!r}",
        )


def _merge(table: Table) -> dict[str, Any]:
    from deltalake.exceptions import CommitFailedError, DeltaError

    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(_PAUSE)
            table = Table.open(table.name, table.path)
        check_removable(table.path, _paths(table))
        _refuse_negative(table)
        try:
            found = table.delta.optimize.compact(target_size=_wanted(table), max_concurrent_tasks=_TASKS)
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


def _refuse_negative(table: Table) -> None:
    """Refuse a table whose partitions delta-rs would write as others: it cannot print a negative DECIMAL.

    Raises
    ------
    ConfigError
        With one of its values.
    """
    import pyarrow as pa

    files = pa.table(table.delta.get_add_actions(flatten=True))
    for name in (name for name in files.column_names if name.startswith("partition.")):
        column = files.column(name)
        if not pa.types.is_decimal(column.type):
            continue
        if (least := min(column.drop_null().to_pylist(), default=0)) < 0:
            raise ConfigError(
                f"the {table.name} {table.path} is partitioned by {name.removeprefix('partition.')}, which has "
                f"negative values, such as {least}: delta-rs would write them as others",
                state="nothing was changed",
                next_step=f"let Spark merge the files: OPTIMIZE delta.`{table.path}`",
            )


def _survey(table: Table) -> dict[str, Any]:
    import pyarrow as pa

    wanted = _wanted(table)
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


def _paths(table: Table) -> list[str]:
    import pyarrow as pa

    return list(pa.table(table.delta.get_add_actions(flatten=True)).column("path").to_pylist())


def _wanted(table: Table) -> int:
    """Return the size to which files are merged. Spark writes the property as a number, or with a unit: ``128mb``."""
    given = _SIZE.fullmatch(str(table.delta.metadata().configuration.get("delta.targetFileSize", "")).strip())
    power = " kmgtp".index((given[2] or " ").lower()) if given else 0
    size = int(given[1]) << 10 * power if given else 0
    return size if 0 < size < 1 << 63 else _SMALL


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
    what = f"the sink {sink.path} holds {ahead[0]}, and the ledger does not have it yet"
    state = "nothing was removed: refused records of that batch may not be in the quarantine yet"
    if busy := sorted(ledger.runs.at_work(pipeline.name).values()):
        raise LeaseHeldError(
            f"{what}: {', '.join(busy)} is at work", state=state, next_step="vacuum again when it has ended"
        )
    raise CheckpointError(
        f"{what}: a driver died between the two", state=state, next_step=f"run {pipeline.name} once, then vacuum again"
    )


def _sweep(table: Table, keep: timedelta, names: Iterable[str], *, dry_run: bool) -> dict[str, Any]:
    from deltalake.exceptions import DeltaError

    hours = math.ceil(keep / timedelta(hours=1))
    before = datetime.now(UTC) - timedelta(hours=hours)
    try:
        left = _Leftovers.of(table.path, names, before)
        # not full=True: that takes deletion vectors in use, and whatever else lies below the table
        files = set(table.delta.vacuum(retention_hours=hours, dry_run=dry_run))
        files |= left.remove(Table.open(table.name, table.path), dry_run=dry_run)
    except (DeltaError, OSError, ValueError) as error:
        if "Invalid retention period" in str(error):
            raise ConfigError(
                f"the {table.name} {table.path} keeps what it no longer uses for longer than {keep}: {error}",
                state="nothing was removed from it",
                next_step="name a longer time, or set the table's property delta.deletedFileRetentionDuration",
            ) from error
        raise _failed(table, "vacuumed", error) from error
    return {"table": table.name, "path": table.path, "files": len(files)}


@dataclass(frozen=True)
class _Leftovers:
    """What lies in the folders of a pipeline's attempts and was not changed for long; what is deeper, first.

    The log is read after the listing, so that it has what was committed meanwhile.
    """

    fs: Any
    base: str
    old: list[dict[str, Any]]
    before: datetime

    @classmethod
    def of(cls, path: str, names: Iterable[str], before: datetime) -> _Leftovers:
        """List them.

        Parameters
        ----------
        names
            The pipeline's name, and its former ones.
        """
        fs, base = file_system(path)
        fs.invalidate_cache()
        ours = re.compile(rf"(?:{'|'.join(map(re.escape, names))})-[ei]\d+-\d{{6,}}-[0-9a-f]{{8}}")
        # by the table's own listing, since its folder may be a link itself
        top = [f for f in _listed(fs, base) if f["name"].rstrip("/") == f"{base}/batches"]
        attempts = [
            f for folder in top for f in _listed(fs, folder["name"])
            if f["type"] == "directory" and ours.fullmatch(f["name"].rstrip("/").rsplit("/", 1)[-1])
        ]  # fmt: skip
        every = (f for attempt in attempts for f in (*_below(fs, attempt["name"]), attempt))
        return cls(fs, base, [f for f in every if _modified(fs, f) < before], before)

    def remove(self, table: Table, *, dry_run: bool) -> set[str]:
        """Remove what the table does not use; return the names of the files."""
        used = _used(table, self.fs, self.base, self.before) if self.old else set()
        found = set()
        for entry in self.old:
            path = str(entry["name"])
            relative = path.removeprefix(f"{self.base}/")
            folder, _, name = relative.rpartition("/")
            checksum = re.fullmatch(r"\.(.+)\.crc", name)  # Hadoop's; it stays and goes with its file
            if entry["type"] == "directory":
                if not dry_run:
                    with suppress(OSError):  # it is not empty
                        self.fs.rmdir(path)
            elif (f"{folder}/{checksum[1]}" if checksum else relative) not in used:
                if not checksum:
                    found.add(relative)
                if not dry_run:
                    with suppress(FileNotFoundError):
                        self.fs.rm_file(path)
        return found


def _below(fs: Any, folder: str) -> Iterator[dict[str, Any]]:
    """Yield all below a folder, what is deeper first, and follow no link."""
    for entry in _listed(fs, folder):
        if entry["type"] == "directory":
            yield from _below(fs, entry["name"])
        yield entry


def _listed(fs: Any, folder: str) -> Iterator[dict[str, Any]]:
    try:
        entries = fs.ls(folder, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return
    # an object store may list a folder's own marker
    yield from (e for e in entries if not e.get("islink") and e["name"].rstrip("/") != folder.rstrip("/"))


def _modified(fs: Any, entry: dict[str, Any]) -> datetime:
    """Return when a file, or a folder's list of files, was changed; of an object store's folder, now."""
    try:
        when = fs.modified(entry["name"])
    except (OSError, KeyError, NotImplementedError):
        return datetime.now(UTC)
    if not isinstance(when, datetime):
        return datetime.now(UTC)
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _used(table: Table, fs: Any, base: str, since: datetime) -> set[str]:
    """Return the files of the newest version, and those that were removed since, relative to the table.

    The commits tell of the latter: a checkpoint forgets them after the table's own retention.
    """
    import pyarrow as pa

    paths = pa.table(table.delta.get_add_actions()).column("path").to_pylist()
    limit = since.timestamp() * 1000
    for entry in _listed(fs, f"{base}/_delta_log"):
        if entry["name"].endswith(".json") and _modified(fs, entry) >= since:
            with fs.open(entry["name"], "rb") as file:
                gone = [json.loads(line).get("remove") for line in file.read().splitlines() if b'"remove"' in line]
            paths += [action["path"] for action in gone if action and action.get("deletionTimestamp", limit) >= limit]
    return {unquote(path).rpartition(f"{base}/")[2] for path in paths}


def _failed(table: Table, what: str, error: Exception) -> SinkError:
    before, now = table.delta.version(), None
    with suppress(SluiceError):
        now = Table.open(table.name, table.path).delta.version()
    state = "no row was changed"
    if now != before:
        state = f"it had version {before} before, and has {'another' if now is None else now} now: if its rows are not "
        state += f"as they were, RESTORE it to version {before}"
    step = "fix the storage, and do it again. Tables with features that delta-rs cannot write, such as deletion"
    step += " vectors,"
    if "Cannot cast column" in str(error):
        step = "its files have different fields within a map or a list, which delta-rs cannot merge: such tables"
    return SinkError(
        f"the {table.name} {table.path} was not {what}: {described(error)}",
        state=state,
        next_step=f"{step} need Spark's own OPTIMIZE and VACUUM",
    )
