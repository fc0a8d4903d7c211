"""The sinks of a pipeline beside its first one: each gets a batch's rows once the first sink has them.

The first sink decides. Before its commit, the rows are staged for each further sink, and the commit metadata names the
staged files. After it, each further sink commits them under the same writer id and batch number, in a transaction of
its own. A driver that dies in between leaves a batch that some sinks lack; the next run commits the staged files there
before it does anything else. So a further sink is never more than one batch behind, and never ahead. The same holds of
the commit of an interval, which replaces rows, and of a retraction, which takes rows out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.errors import CheckpointError, ConfigError, SinkError, begin_again
from sluice.faults import point
from sluice.home import Home
from sluice.pipeline import Pipeline
from sluice.sinks.base import SinkConfig
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.base import (
    NOTHING,
    AcceptingSink,
    OrderedSink,
    ReplaceableSink,
    Replacing,
    RowsRefusedError,
    SettlingSink,
    Sink,
    Staged,
    TakenBackError,
    overtaken,
)
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sinks.parquet.staged_files import read_back
from sluice_spark.sinks.parquet.staging import StagesParquet

__all__ = ["ALSO", "NO_ALSO", "TAKEN", "AlsoSinks", "Shared"]

ALSO = "also"
"""The key of a commit's metadata that says what further sinks get of the batch."""

TAKEN = "also_taken"
"""The key in the metadata of the commit that closes an epoch: the further sinks that :meth:`AlsoSinks.examine` took
as they are. The driver may die before they say so themselves."""

_FOR_A_FIRST_SINK = re.compile(r"(; or, )?to (start over|write all rows again), .*")
"""What an error of a sink advises that is not true of a further one."""

_KNOWN_LATER = "the next run tries again, before it does anything else"


@dataclass(frozen=True)
class Shared:
    """The rows of one batch, staged for each further sink.

    Parameters
    ----------
    schema
        The schema of the rows.
    rows
        Their number, the same for each sink.
    staged
        The staged files, by the name of the sink.
    settings
        A digest of the settings by which they were staged, by the name of the sink.
    """

    schema: StructType
    rows: int
    staged: Mapping[str, Staged]
    settings: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return what the first sink's commit says of them; JSON."""
        left = {name: {"folder": s.folder, "settings": self.settings[name]} for name, s in self.staged.items()}
        return {"schema": self.schema.jsonValue(), "rows": self.rows, "staged": left}


@dataclass(frozen=True)
class AlsoSinks:
    """The further sinks of one writer; none of them need exist yet.

    Parameters
    ----------
    pipeline
        The name of the pipeline.
    first
        What messages call the first sink.
    sinks
        By name: the key of its kind, and its place.
    settings
        A digest of the settings of each.
    """

    pipeline: str = ""
    first: str = ""
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    _open: Mapping[str, Callable[[str], Sink]] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set, compare=False)

    @classmethod
    def of(cls, pipeline: Pipeline, home: Home, writer: str, first: Sink) -> AlsoSinks:
        """Open the further sinks of a pipeline for a writer id."""
        open_: dict[str, Callable[[str], Sink]] = {}
        for further in pipeline.also:
            config = further.config
            path = home.resolve(config.location_of(pipeline.name))
            open_[f"{further.key} {config.shown}"] = partial(further.kind.opened, config, path)
        digests = {name: _digest(further.config) for name, further in zip(open_, pipeline.also, strict=True)}
        return cls(pipeline.name, first.path, settings=digests, _open=open_).of_writer(writer)

    def of_writer(self, writer: str) -> AlsoSinks:
        """Return the same sinks under another writer id."""
        return replace(self, sinks={name: opened(writer) for name, opened in self._open.items()}, _taken=set())

    def __bool__(self) -> bool:
        return bool(self.sinks)

    # --- before a run -------------------------------------------------------------------------------------------

    @property
    def taken(self) -> list[str]:
        """The names of the sinks that :meth:`examine` took as they are."""
        return sorted(self._taken)

    def examine(self, first: Sink, *, leave: bool = False) -> list[str]:
        """Check each sink as :meth:`Sink.examine` does; return all warnings.

        Parameters
        ----------
        first
            The first sink. If its newest commit names a sink under :data:`TAKEN`, that one is taken as with ``leave``.
        leave
            Whether a table of which commits were rolled back is taken as it is; the log says so. It stays so with
            :meth:`restart`.
        """
        told: list[str] = []
        for name, sink in self.sinks.items():
            try:
                told += sink.examine()
            except CheckpointError as error:
                acceptable = isinstance(error, TakenBackError) and isinstance(sink, AcceptingSink)
                if not acceptable or not (leave or name in _named_as_taken(first)):
                    undo = _FOR_A_FIRST_SINK.sub("", error.next_step)
                    way = "take it as it is" if acceptable else "give it another place in also, and go on"
                    error.next_step = f"{undo}{'; or ' if undo else ''}{way}: {begin_again(self.pipeline)}"
                    raise
                logger.warning("%s: it is taken as it is", error.what)
                cast(AcceptingSink, sink).accept()
                self._taken.add(name)
        return told

    def check(self, schema: StructType) -> None:
        """Check each sink as :meth:`Sink.check` does, which may create it.

        Raises
        ------
        ConfigError
            If rows of this schema do not fit one of the sinks, or if it does not stage Parquet files, which are what a
            dead driver leaves to the next one.
        """
        for name, sink in self.sinks.items():
            sink.check(schema)
            if sink.staging is None:  # asked here: a table that is not there yet may not know where it will be
                raise ConfigError(
                    f"{name} in also of {self.pipeline!r} does not stage Parquet files, so the next run could not "
                    "finish what a dead driver had begun",
                    state="nothing was read or written",
                    next_step="make it the first sink",
                )

    def finish(self, note: Mapping[str, Any], name: str, gone: Slice | None = None, *, leave: bool = False) -> None:
        """Commit a batch of the first sink to those that lack it, because its driver died. Idempotent.

        Parameters
        ----------
        note
            The metadata of the first sink's commit, with its ``version``.
        name
            The name of the batch.
        gone
            What its rows take the place of, if it replaces any.
        leave
            Whether a sink to which the batch cannot be committed is left without it; the log says so.

        Raises
        ------
        ConfigError
            If the pipeline file does not name a sink as it did when the batch was staged.
        CheckpointError
            If staged files are gone.
        SinkError
            If a sink cannot be written.
        """
        also = note.get(ALSO)
        if also is None:
            return
        batch, schema = int(note["version"]), StructType.fromJson(also["schema"])
        bare = {key: value for key, value in note.items() if key not in (ALSO, "app_id", "version")}
        for key, left in also["staged"].items():
            try:
                sink = self.sinks.get(key)
                if sink is not None and sink.version() >= batch:
                    continue
                if sink is None or self.settings[key] != left["settings"]:
                    raise self._named_otherwise(key, batch, gone=sink is None)
                staged = self._again(sink, left["folder"], also["rows"], batch)
                self._commit(sink, staged, schema, batch, bare, name, gone)
            except (ConfigError, CheckpointError, SinkError) as error:
                if not leave:
                    raise
                logger.warning("%s: it goes on without these %d rows", error.what, also["rows"])
            else:
                logger.info("reconciled: batch %d of run %s is in %s, too", batch, note["run"], sink.path)

    def level(self, held: int, newest: Mapping[str, Any] | None) -> None:
        """Let each sink that the newest commit names end with the same batch, by a commit without rows. Idempotent."""
        also = (newest or {}).get(ALSO)
        if newest is None or also is None:
            return
        bare = {key: value for key, value in newest.items() if key not in (ALSO, "app_id", "version")}
        for key, sink in self.sinks.items():
            if key in also["staged"] and sink.version() < held:
                sink.commit(NOTHING, StructType.fromJson(also["schema"]), held, {**bare, "left": True})

    def restart(self, batch: int, run_id: str) -> None:
        """Let each table that was taken as it is say so, by a commit without rows, after an epoch was closed.

        Parameters
        ----------
        batch
            The number of the commit that closed the epoch.
        """
        for name in self.taken:
            sink = self.sinks[name]
            there = sink.as_it_is()
            if there is not None:
                number = max(batch, sink.version() + 1)
                sink.commit(NOTHING, there[1], number, {"pipeline": self.pipeline, "run": run_id, "left": True})

    def tell_of_new(self, newest: Mapping[str, Any] | None) -> None:
        """Say which sinks get rows from now on: the newest commit does not name them."""
        due = (newest or {}).get(ALSO, {}).get("staged", {})
        for name, sink in self.sinks.items():
            if newest is not None and name not in due and sink.version() < int(newest["version"]):
                logger.warning("%s gets rows from this run on: those of earlier runs are not in it", sink.path)

    def refuse_apart(self, held: int, newest: Mapping[str, Any] | None) -> None:
        """Refuse sinks that do not end with the same batch as the first one, after all batches were finished.

        Parameters
        ----------
        held
            The highest batch that the first sink holds; -1 if there is none.
        newest
            The metadata of its newest commit, if known.

        Raises
        ------
        CheckpointError
            If one lacks the newest batch, or holds a later one: it was restored, or the first sink was.
        """
        due = (newest or {}).get(ALSO, {}).get("staged", {})
        for name, sink in self.sinks.items():
            there = sink.version()
            if there > held or (name in due and there < held):
                raise CheckpointError(
                    f"{sink.path} ends with batch {there}, and {self.first} with batch {held}: one of them was "
                    "restored to an earlier state",
                    state="nothing was read or written",
                    next_step="restore both to the same state; or go on from the position as it is: "
                    f"{begin_again(self.pipeline)}",
                )

    # --- batches ------------------------------------------------------------------------------------------------

    def share(
        self, first: Sink, staged: Staged, rows: DataFrame, schema: StructType, batch: str, *, offsets: bool
    ) -> Shared:
        """Stage the rows of a batch for each sink: files that fit as they are are copied, others written by Spark.

        Parameters
        ----------
        first, staged
            The first sink, and what is staged for it.
        rows
            The staged rows.
        batch
            The name of the batch.
        offsets
            As for :meth:`Sink.stage`.

        Raises
        ------
        SinkError
            If other rows were staged than those of the first sink.
        """
        found, count = dict[str, Staged](), staged.rows
        for name, sink in self.sinks.items():
            ordered = isinstance(sink, OrderedSink) and sink.ordered
            if not count:
                found[name] = NOTHING
            elif first.staging is not None and _plain(first) and _plain(sink) and not ordered:
                found[name] = cast(Any, sink).copied(first.staging, staged, batch, offsets=offsets)
            else:
                found[name] = sink.stage(_in_order(rows) if offsets and ordered else rows, batch, offsets=offsets)
            if found[name].rows != count:
                raise SinkError(
                    f"{found[name].rows:,} rows of {count:,} were staged for {sink.path}",
                    state="nothing of this batch was committed to any sink",
                    next_step="run again",
                )
            point("also-staged")
        return Shared(schema, count, found, self.settings)

    def commit(self, shared: Shared, batch: int, note: Mapping[str, Any], name: str, gone: Slice | None = None) -> None:
        """Commit staged rows to each sink, after the first one has them.

        Parameters
        ----------
        name, gone
            As for :meth:`finish`.

        Raises
        ------
        LeaseHeldError
            If another driver was first.
        SinkError
            If a sink cannot be written; the next run brings the batch there.
        """
        for key, staged in shared.staged.items():
            sink = self.sinks[key]
            if not self._commit(sink, staged, shared.schema, batch, note, name, gone):
                raise overtaken(
                    f"committed batch {batch} to {sink.path}",
                    state="the batch is there once; this driver's files are not part of it",
                    next_step="run again: the next run records that batch in the ledger and goes on after it",
                )

    def check_replaceable(self) -> None:
        """Raise a :class:`~sluice.errors.ConfigError` if the present state of a sink does not allow to replace rows."""
        for sink in self.sinks.values():
            cast(ReplaceableSink, sink).check_replaceable()

    def take_out(self, gone: Slice, batch: int, note: Mapping[str, Any], name: str) -> None:
        """Remove the rows of a slice from each sink that lacks the batch, after the first one did. Idempotent.

        Raises
        ------
        SinkError
            If a sink cannot be written; the next run takes them out there.
        """
        bare = {key: value for key, value in note.items() if key not in ("app_id", "version")}
        for sink in self.sinks.values():
            there = sink.as_it_is()
            if not isinstance(sink, Replacing):  # the file names it since
                logger.warning("%s keeps the rows that batch %d took out of %s", sink.path, batch, self.first)
            elif there is not None and sink.version() < batch:
                self._commit(sink, NOTHING, there[1], batch, bare, name, gone)

    def sweep(self, batch: str) -> None:
        """Remove the leftovers of uncommitted attempts at a batch; each sink has the batch."""
        for sink in self.sinks.values():
            sink.sweep(batch)

    def settled(self) -> None:
        """Let sinks remove what they keep of committed batches for a while."""
        for sink in self.sinks.values():
            if isinstance(sink, SettlingSink):
                sink.settled()

    def _commit(
        self,
        sink: Sink,
        staged: Staged,
        schema: StructType,
        batch: int,
        note: Mapping[str, Any],
        name: str,
        gone: Slice | None,
    ) -> bool:
        try:
            if gone is None:
                done = sink.commit(staged, schema, batch, note)
            else:
                replacing = cast(ReplaceableSink, sink)
                done = replacing.replace(gone, staged, schema, batch, note, name=name) is not None
        except (ConfigError, CheckpointError, SinkError) as error:
            error.state = f"{self.first} has batch {batch}, and {sink.path} may not; {_KNOWN_LATER}"
            without = f"or go on without this batch there: {begin_again(self.pipeline)}"
            if isinstance(error, RowsRefusedError):
                error.rows = {}  # the first sink has them
                # a row rule is for the batches after it: the rows of this one are staged
                then = f"for later batches, {error.next_step}"
                error.next_step = f"change {sink.path} so that it takes these rows, and run again; {without}; {then}"
            else:
                error.next_step += f"; {without}"
            raise
        point("also-committed")
        return done

    def _again(self, sink: Sink, folder: str, rows: int, batch: int) -> Staged:
        """Return the staged files that a dead driver left."""
        assert sink.staging is not None
        staged = read_back(sink.staging, folder, offsets=False) if rows else NOTHING
        if staged.rows != rows:
            raise CheckpointError(
                f"{self.first} has batch {batch}, {sink.path} lacks it, and of the {rows:,} rows that were staged for "
                f"it in {sink.staging}/{folder}, {staged.rows:,} are left",
                state="nothing was read or written now",
                next_step=f"restore this folder; or go on without these rows there: {begin_again(self.pipeline)}",
            )
        return staged

    def _named_otherwise(self, key: str, batch: int, *, gone: bool) -> ConfigError:
        how = "does not name it any more" if gone else "has other settings of it"
        return ConfigError(
            f"{self.first} has batch {batch}, {key} may lack it, and the pipeline file {how}",
            state="nothing was read or written now; the rows for it are staged",
            next_step="name it in also as it was, and run once: that brings the batch there. Then change the file. Or "
            f"go on without this batch there: {begin_again(self.pipeline)}",
        )


def _named_as_taken(first: Sink) -> list[str]:
    newest = next(iter(first.notes(newer_than=first.version() - 1)), None)
    return list((newest or {}).get(TAKEN) or ())


def _digest(config: SinkConfig) -> str:
    return hashlib.sha256(json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:16]


NO_ALSO = AlsoSinks()
"""Those of a pipeline without ``also``."""


def _plain(sink: Sink) -> bool:
    """Return whether the files of its batches have the rows, all columns of them, and nothing else."""
    return isinstance(sink, StagesParquet) and sink.plain and not sink.partition_by


def _in_order(rows: DataFrame) -> DataFrame:
    """Return rows with those of a source partition in one task, by offset: files are read in another order."""
    return rows.repartition("_topic", "_partition").sortWithinPartitions("_topic", "_partition", "_offset")
