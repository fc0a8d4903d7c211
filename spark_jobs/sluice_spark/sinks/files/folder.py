"""A folder of Parquet files as a sink: staged where they stay, and counted by the commit of a manifest.

A commit is a file that appears whole under the next number, or not at all (:mod:`sluice.sinks.manifest`). It names the
files that it adds and removes and has the commit metadata. Whether a batch is there is looked up in the state that the
commit follows; if somebody else makes that commit, both are done again. So a batch is there once.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.delta.names import owner
from sluice.errors import BEGIN_ANEW, CheckpointError, ConfigError, SinkError
from sluice.sinks.files import FilesSink
from sluice.sinks.manifest import BrokenManifestError, Manifest, State
from sluice.storage import file_system
from sluice_spark.paths import literal
from sluice_spark.sinks.base import NOTHING, Fence, Staged, StagedFile, overtaken
from sluice_spark.sinks.delta.evolution import nullable
from sluice_spark.sinks.parquet.attempts import stray, written_to
from sluice_spark.sinks.parquet.slice import Found, Slice, offsets_in
from sluice_spark.sinks.parquet.staging import StagesParquet

__all__ = ["Folder", "opened"]

_ATTEMPTS = 20


def opened(config: FilesSink, path: str, app_id: str) -> Folder:
    """Open the sink of a pipeline."""
    return Folder(config, path, app_id)


class Folder(StagesParquet):
    """One folder; the first batch creates it.

    Parameters
    ----------
    path
        The folder.
    app_id
        The id of the writer, such as a pipeline's epoch; each writer counts its own batches.
    """

    def __init__(self, config: FilesSink, path: str, app_id: str) -> None:
        self.path, self.staging, self.app_id = path, path, app_id
        self.partition_by: list[str] = []
        self._config = config
        self._manifest = Manifest(path)
        self._owner = owner({"app_id": app_id})

    # --- queries -----------------------------------------------------------------------------------------------

    def examine(self) -> list[str]:
        """Check who owns the folder, and that its manifest is whole; return no warnings.

        Raises
        ------
        ConfigError
            If another pipeline writes to it.
        CheckpointError
            If a commit is missing, or one since the newest snapshot is damaged.
        """
        self._let_pass(self._state())
        return []

    def is_cut_off(self) -> bool:
        """Return False: a commit is on the disk before it gets its name."""
        return False

    def version(self) -> int:
        """Return the highest batch that this writer committed; -1 if there is none."""
        return self._state().batches.get(self.app_id, -1)

    def notes(self, newer_than: int) -> Iterator[dict[str, Any]]:
        """Yield the commit metadata of this writer's batches above a number, newest first."""
        for _, note in self._notes():
            if note["app_id"] == self.app_id:
                if note["version"] <= newer_than:
                    return
                yield note

    def table_version(self) -> int:
        """Return the number of the newest commit of any writer; -1 if there is none."""
        return self._state().version

    def ahead_of(self, known: Mapping[str, int]) -> set[str]:
        """Return which of these writers committed a higher batch than the given one."""
        batches = self._state().batches
        return {writer for writer, batch in known.items() if batches.get(writer, -1) > batch}

    def as_it_is(self) -> tuple[Folder, T.StructType] | None:
        """Return the sink with its present columns; None if there are none yet."""
        schema = self._state().schema
        return None if schema is None else (self, T.StructType.fromJson(schema))

    def check(self, schema: T.StructType) -> None:
        """Refuse rows whose columns are not those of the files that are there.

        Raises
        ------
        ConfigError
            With each column in question.
        """
        self._fit(self._state(), schema)

    def check_replaceable(self) -> None:
        """Do nothing: rows of each folder can be replaced."""

    def held(self, gone: Slice) -> dict[tuple[str, int], Any]:
        """Return the offsets of a slice that the folder holds, per topic and partition, ascending."""
        return offsets_in(gone.find(self.staging, _actions(self._state())).values())

    def rows_of(self, spark: SparkSession, runs: Sequence[str]) -> tuple[DataFrame, int]:
        """Return the rows that these runs wrote, and their number."""
        state = self._state()
        files = [file for file in state.files.values() if file["run"] is None or file["run"] in runs]
        rows = self._read(spark, state, files).where(F.col("_run").isin(*runs))
        mixed = any(file["run"] is None for file in files)  # what an interval left over of others' files
        return rows, rows.count() if mixed else sum(int(file["rows"]) for file in files)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows."""
        state = self._state()
        return self._read(spark, state, list(state.files.values()))

    # --- writing -----------------------------------------------------------------------------------------------

    def commit(
        self,
        staged: Staged,
        schema: T.StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        fence: Fence | None = None,
    ) -> bool:
        """Add staged files by one commit of the manifest; a batch without rows is a commit, too.

        Returns
        -------
        bool
            False if this writer committed this batch before; nothing was changed then.

        Raises
        ------
        LeaseHeldError
            If a rival committed after the fence's version.
        ConfigError, CheckpointError
            As :meth:`examine`, and if the columns differ.
        SinkError
            If the folder cannot be written, or staged files are gone.
        """
        return self._commit(None, staged, schema, version, note, fence=fence) is not None

    def replace(
        self,
        gone: Slice,
        staged: Staged,
        schema: T.StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        name: str,
        check: Callable[[Mapping[tuple[str, int], Any]], None] = lambda _: None,
        fence: Fence | None = None,
    ) -> dict[tuple[str, int], int] | None:
        """Remove the rows of a slice and add staged files, by one commit; see :meth:`commit`.

        Files with rows to remove and rows to keep are rewritten without the former.

        Returns
        -------
        dict or None
            How many offsets were removed, per topic and partition; None if the batch was committed before.
        """
        return self._commit(gone, staged, schema, version, note, name=name, check=check, fence=fence)

    def sweep(self, batch: str) -> None:
        """Remove the folders of a batch's attempts that no commit names."""
        folders = written_to(self.staging, batch)
        if not folders:
            return
        state = self._state()
        files = pa.chunked_array([pa.array([*state.files, *state.replaced], pa.string())])
        self._remove(stray(folders, files))

    def settled(self) -> None:
        """Remove files that were replaced longer ago than ``keep``."""
        for path in self._outdated(self._state()):
            with suppress(FileNotFoundError):
                (Path(self.path) / path).unlink()

    # --- the commit --------------------------------------------------------------------------------------------

    def _commit(
        self,
        gone: Slice | None,
        staged: Staged,
        schema: T.StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        name: str = "",
        check: Callable[[Mapping[tuple[str, int], Any]], None] = lambda _: None,
        fence: Fence | None = None,
    ) -> dict[tuple[str, int], int] | None:
        full = {**note, "app_id": self.app_id, "version": version, "attempt": uuid.uuid4().hex}
        for _ in range(_ATTEMPTS):
            state = self._state()
            # in the state that the commit follows: if somebody else follows it first, all is looked at again
            if state.batches.get(self.app_id, -1) >= version:
                return None
            self._let_pass(state)
            self._keep_out(fence)
            self._fit(state, schema)
            counts: dict[tuple[str, int], int] = {}
            removed: dict[str, Found] = {}
            kept = NOTHING
            if gone is not None:
                removed = gone.find(self.staging, _actions(state))
                offsets = offsets_in(removed.values())
                check(offsets)
                counts = {key: len(numbers) for key, numbers in offsets.items()}
                kept = gone.keep(self.staging, name, removed)
                full["replaced"] = [[*key, count] for key, count in sorted(counts.items())]
            self.refuse_missing(staged, "run again")
            added = [*(_entry(f, full["run"]) for f in staged.files), *(_entry(f, None) for f in kept.files)]
            columns = nullable(schema).jsonValue() if staged.files else None
            forgotten = [p for p in self._outdated(state) if not (Path(self.path) / p).exists()]
            try:
                if self._manifest.commit(state, added, sorted(removed), full, columns, forgotten):
                    return counts
            except OSError as error:
                if self._state().note.get("attempt") == full["attempt"]:
                    return counts
                raise SinkError(
                    f"the folder {self.path} cannot be written: {error}",
                    state="nothing of this batch was committed",
                    next_step="run again when it can",
                ) from error
        raise SinkError(
            f"others commit to {self.path} all the time: {_ATTEMPTS} attempts failed",
            state="nothing of this batch was committed",
            next_step="run again when fewer others write to it",
        )

    def _outdated(self, state: State) -> list[str]:
        before = (time.time() - self._config.keep / timedelta(seconds=1)) * 1000
        return [path for path, at in state.replaced.items() if at <= before]

    def _remove(self, folders: Sequence[str]) -> None:

        fs, _ = file_system(self.staging)
        for folder in folders:
            fs.rm(folder, recursive=True)

    # --- the folder --------------------------------------------------------------------------------------------

    def _state(self) -> State:
        try:
            return self._manifest.state()
        except BrokenManifestError as error:
            raise self._broken(error) from None
        except OSError as error:
            raise SinkError(
                f"the folder {self.path} cannot be read: {error}",
                state="nothing was read or written",
                next_step="run again when it can",
            ) from error

    def _notes(self) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            yield from self._manifest.notes()
        except BrokenManifestError as error:
            raise self._broken(error) from None

    def _broken(self, error: BrokenManifestError) -> CheckpointError:
        return CheckpointError(
            f"the manifest of {self.path} is not whole: {error}",
            state="nothing was read or written",
            next_step=f"restore its folder _sluice from a copy; or, to start over, {BEGIN_ANEW}",
        )

    def _let_pass(self, state: State) -> None:
        other = owner(state.note) if state.note else self._owner
        if other != self._owner:
            raise ConfigError(
                f"the folder {self.path} belongs to pipeline {other!r}: two pipelines in one folder would replace, "
                "redrive and validate each other's rows",
                state="nothing was read or written",
                next_step=f"give {self._owner!r} another sink.files.path",
            )

    def _fit(self, state: State, schema: T.StructType) -> None:
        if state.schema is None:
            return
        there = {f.name: f.dataType.simpleString() for f in T.StructType.fromJson(state.schema).fields}
        ours = {f.name: f.dataType.simpleString() for f in schema.fields}
        problems = [
            f"{name}: {there.get(name, 'missing')} in the files, {ours.get(name, 'missing')} in the pipeline"
            for name in {**there, **ours}
            if there.get(name) != ours.get(name)
        ]
        if problems:
            raise ConfigError(
                f"the files in {self.path} do not fit the pipeline: {'; '.join(problems[:8])}",
                state="nothing was read or written; the position stays where it was",
                next_step=f"change the transform so that they match; or, to start over, {BEGIN_ANEW}",
            )

    def _keep_out(self, fence: Fence | None) -> None:
        if fence is None:
            return
        for number, note in self._notes():
            if number <= fence.since:
                return
            if fence.rival(note):
                raise overtaken(
                    f"(run {note.get('run')!r}) committed to {self.path} while this one worked on the same records",
                    state="this driver did not commit this batch; its earlier commits stay",
                    next_step="run the same command again",
                )

    def _read(self, spark: SparkSession, state: State, files: Sequence[Mapping[str, Any]]) -> DataFrame:
        schema = (
            T.StructType.fromJson(state.schema)
            if state.schema
            else T.StructType([T.StructField("_run", T.StringType())])
        )
        if not files:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(*(literal(f"{self.path}/{file['path']}") for file in files))


def _entry(file: StagedFile, run: Any) -> dict[str, Any]:
    """Return what the manifest says of a file.

    Parameters
    ----------
    run
        The run whose rows it holds; None if it may hold those of several.
    """
    return {"path": file.path, "bytes": file.size, "rows": file.rows, "run": run, "stats": json.loads(file.stats)}


def _time(text: str | None) -> datetime | None:
    """Return a bound; None, which excludes no row, for one that an earlier version wrote of a year before 1000."""
    with suppress(TypeError, ValueError):
        return datetime.fromisoformat(text)  # type: ignore[arg-type]
    return None


def _actions(state: State) -> pa.Table:
    """Return the files with the statistics by which a slice's rows are searched for."""
    files = list(state.files.values())
    kinds = {
        "_topic": pa.string(), "_partition": pa.int64(), "_offset": pa.int64(), "_timestamp": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    columns: dict[str, Any] = {
        "path": pa.array([file["path"] for file in files], pa.string()),
        "num_records": pa.array([file["rows"] for file in files], pa.int64()),
    }
    for name, kind in kinds.items():
        for short, long in (("min", "minValues"), ("max", "maxValues")):
            found = [file["stats"][long].get(name) for file in files]
            if name == "_timestamp":
                found = [_time(text) for text in found]
            columns[f"{short}.{name}"] = pa.array(found, kind)
    return pa.table(columns)
