"""A folder of Parquet files as a sink: staged where they stay, and counted by the commit of a manifest.

A commit is a file that appears whole under the next number, or not at all (:mod:`sluice.sinks.manifest`). It names the
files that it adds and removes and has the commit metadata. Whether a batch is there is looked up in the state that the
commit follows; if another program makes that commit, both are done again. So a batch is there once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.delta.names import owner
from sluice.errors import START_OVER, CheckpointError, SinkError
from sluice.pipeline.window import END, START
from sluice.sinks.files import FilesSink
from sluice.sinks.manifest import BrokenManifestError, Manifest, State
from sluice_spark.paths import literal
from sluice_spark.sinks.base import NOTHING, StagedFile
from sluice_spark.sinks.delta.evolution import nullable
from sluice_spark.sinks.parquet.attempts import remove, stray, written_to
from sluice_spark.sinks.parquet.slice import Found, Slice, offsets_in
from sluice_spark.sinks.transactional import Change, TransactionalSink

__all__ = ["Folder", "opened"]


def opened(config: FilesSink, path: str, app_id: str) -> Folder:
    """Open the sink of a pipeline."""
    return Folder(config, path, app_id)


class Folder(TransactionalSink[State]):
    """One folder; the first batch creates it.

    Parameters
    ----------
    path
        The folder.
    app_id
        The id of the writer, such as a pipeline's epoch; each writer counts its own batches.
    """

    key = "sink.files.path"
    noun = "folder"

    def __init__(self, config: FilesSink, path: str, app_id: str) -> None:
        super().__init__(path, app_id, path)
        self._config = config
        self._manifest = Manifest(path)

    @property
    def shown(self) -> str:
        """The folder in a sentence."""
        return f"the folder {self.path}"

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
        self.let_pass(self._state())
        return []

    def newest(self) -> int:
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

    def held(self, gone: Slice) -> dict[tuple[str, int], Any]:
        """Return the offsets of a slice that the folder holds, per topic and partition, ascending."""
        with self._files_there():
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

    def sweep(self, batch: str) -> None:
        """Remove the folders of a batch's attempts that no commit names."""
        folders = written_to(self.staging, batch)
        if not folders:
            return
        state = self._state()
        files = pa.chunked_array([pa.array([*state.files, *state.replaced], pa.string())])
        remove(self.staging, stray(folders, files))

    def settled(self) -> None:
        """Remove files that were replaced longer ago than ``keep``."""
        for path in self._outdated(self._state()):
            with suppress(FileNotFoundError):
                (Path(self.path) / path).unlink()

    # --- the transaction ----------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, change: Change) -> Iterator[State]:
        """Read the state; :meth:`put` commits, by a file that the state's next number gives a name to."""
        with self._files_there():
            yield self._state()

    def batch_of(self, state: State, writer: str) -> int:
        """Return the highest batch of a writer; -1 if there is none."""
        return state.batches.get(writer, -1)

    def since(self, state: State, version: int) -> Iterator[dict[str, Any]]:
        """Yield the commit metadata of all commits after a version."""
        return (note for _, note in takewhile(lambda commit: commit[0] > version, self._notes()))

    def put(self, state: State, change: Change) -> bool:
        """Commit the manifest that follows the state; return False if there is one already."""
        self._fit(state, change.schema, since=True)
        removed: dict[str, Found] = {}
        kept, staged, note = NOTHING, change.staged, change.note
        if change.gone is not None:
            removed = change.gone.find(self.staging, _actions(state))
            change.removes(offsets_in(removed.values()))
            kept = change.gone.keep(self.staging, change.name, removed)
        added = [*(_entry(f, note["run"]) for f in staged.files), *(_entry(f, None) for f in kept.files)]
        columns = nullable(change.schema).jsonValue() if staged.files else None
        forgotten = [p for p in self._outdated(state) if not (Path(self.path) / p).exists()]
        try:
            return self._manifest.commit(state, added, sorted(removed), note, columns, forgotten)
        except OSError as error:
            if self._state().note.get("attempt") == note["attempt"]:
                return True
            raise SinkError(
                f"{self.shown} cannot be written: {error}",
                state="nothing of this batch was committed",
                next_step="run again when it can",
            ) from error

    @contextmanager
    def _files_there(self) -> Iterator[None]:
        """Turn a file that the manifest names, and that was removed, into an error that names it."""
        try:
            yield
        except FileNotFoundError as error:
            raise SinkError(
                f"a file of {self.shown} is gone: {error.filename or error}",
                state="nothing of this batch was committed",
                next_step=f"restore it from a copy, and run again; or, to start over, {START_OVER}",
            ) from error

    def _outdated(self, state: State) -> list[str]:
        before = (time.time() - self._config.keep / timedelta(seconds=1)) * 1000
        return [path for path, at in state.replaced.items() if at <= before]

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
            next_step=f"restore its folder _sluice from a copy; or, to start over, {START_OVER}",
        )

    def let_pass(self, state: State) -> None:
        """Refuse the folder of another pipeline."""
        self.refuse_other(owner(state.note) if state.note else None)

    def _fit(self, state: State, schema: T.StructType, *, since: bool = False) -> None:
        if state.schema is None:
            return
        there = {f.name: f.dataType.simpleString() for f in T.StructType.fromJson(state.schema).fields}
        ours = {f.name: f.dataType.simpleString() for f in schema.fields}
        self.refuse_misfits(
            [
                f"{name}: {there.get(name, 'missing')} in the files, {ours.get(name, 'missing')} in the pipeline"
                for name in {**there, **ours}
                if there.get(name) != ours.get(name)
            ],
            since=since,
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
        "_topic": pa.string(), "_partition": pa.int64(), "_offset": pa.int64(),
        **dict.fromkeys(("_timestamp", START, END), pa.timestamp("us", "UTC")),
    }  # fmt: skip
    columns: dict[str, Any] = {
        "path": pa.array([file["path"] for file in files], pa.string()),
        "num_records": pa.array([file["rows"] for file in files], pa.int64()),
    }
    for name, kind in kinds.items():
        for short, long in (("min", "minValues"), ("max", "maxValues")):
            found = [file["stats"][long].get(name) for file in files]
            if pa.types.is_timestamp(kind):
                found = [_time(text) for text in found]
            columns[f"{short}.{name}"] = pa.array(found, kind)
    return pa.table(columns)
