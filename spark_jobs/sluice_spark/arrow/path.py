"""The driver's side of the Arrow path: stages a batch's rows, or lands its records in the write-ahead log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from pyspark.sql import SparkSession

from sluice.facts.rescued import NONE, Rescued
from sluice.ranges import OffsetRange, Times, subtract
from sluice.storage import make_folder, remove
from sluice_spark.arrow.plan import Plan
from sluice_spark.arrow.read_ahead import Foreseen, ReadAhead
from sluice_spark.arrow.shares import Job, cause_of, do, tidy
from sluice_spark.arrow.worker import Copying, Decoding, Done
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.base import Staged, Tally
from sluice_spark.sinks.parquet.attempts import new_folder
from sluice_spark.sinks.parquet.staged_files import staged_file
from sluice_spark.sources.base import Records
from sluice_spark.sources.inputs import Input, inputs_of

__all__ = ["ArrowCopies", "ArrowPath", "Outcome"]

_CELLS = 16
_FINEST, _COARSEST = 5_000, 50_000
"""Record times are noted for about so many parts of a batch, or more, each of so many offsets."""


@dataclass(frozen=True)
class Outcome:
    """What the Arrow path did with the ranges of a batch.

    Attributes
    ----------
    staged
        The rows that it wrote.
    read
        The number of records that were read, per topic and partition; those set aside or outside are among them.
    outside
        The number of records whose time is outside of the interval.
    aside
        The number of records that were set aside.
    aside_files
        The files with these records, verbatim.
    declined
        The ranges that it did not process.
    why
        Why it did not process the first of them; None if it could not begin to read them.
    rescued
        The unknown fields of the records whose rows it wrote.
    whole
        Ranges with gaps that it read, and whose start the source still had then: nothing was removed before that.
    """

    staged: Staged
    read: dict[tuple[str, int], int]
    outside: dict[tuple[str, int], int]
    aside: dict[tuple[str, int], int]
    aside_files: tuple[str, ...]
    times: list[Times]
    declined: list[OffsetRange]
    why: str | None
    rescued: Rescued = NONE
    whole: tuple[OffsetRange, ...] = ()

    def remove_aside(self) -> None:
        """Remove the files of the records that were set aside."""
        remove(*{os.path.dirname(file) for file in self.aside_files})


@dataclass(frozen=True)
class _Attempt:
    """Ranges of a batch that are to be processed, and where."""

    root: str
    folder: str
    rows: str
    aside: str
    ranges: tuple[OffsetRange, ...]
    parts: Sequence[tuple[Input, Sequence[OffsetRange]]]
    task: Decoding

    def remove(self) -> None:
        remove(self.rows, self.aside)


class _Read(NamedTuple):
    """The workers' results for a batch, and the ranges with gaps whose start the source still had afterwards."""

    attempt: _Attempt
    done: list[Done]
    whole: tuple[OffsetRange, ...] = ()


@dataclass
class ArrowPath:
    """Writes the rows of batches on the Arrow path, as far as it can."""

    spark: SparkSession
    plan: Plan
    run_id: str
    used: bool = False
    """Whether it was asked for the rows of a batch."""
    _off: bool = False
    _coming: Callable[[], Iterable[Foreseen]] | None = None
    _ahead: ReadAhead[_Read] | None = None
    _given: dict[str, _Read] = field(default_factory=dict)

    @property
    def works(self) -> bool:
        """Whether it is still used: it was not turned off by records or a failure."""
        return not self._off

    def expect(self, coming: Callable[[], Iterable[Foreseen]]) -> None:
        """Say who knows which batches will probably follow the one that is staged next: they are read meanwhile."""
        self._coming = coming

    def close(self) -> None:
        """Remove what was read or decoded ahead and is not used."""
        if self._ahead is not None:
            self._ahead.close()
        while self._given:
            self._given.popitem()[1].attempt.remove()

    def stage(
        self,
        root: str,
        name: str,
        ranges: Sequence[OffsetRange],
        source: Records,
        within: tuple[int, int] | None = None,
    ) -> Outcome | None:
        """Read, decode and write ranges; commit nothing.

        Parameters
        ----------
        root
            The path of the sink.
        name
            The name of the batch, by which files of earlier attempts are found.
        source
            The batch's records.
        within
            As :attr:`Decoding.within`.

        Returns
        -------
        Outcome or None
            None if nothing was processed: everything has to take the Spark path.
        """
        self.used = True
        if self._off:
            return None
        if self._ahead is None and self._coming is not None:
            self._ahead = ReadAhead(
                self.spark,
                lambda batches: self._read(root, batches, source, within),
                lambda read: read.attempt.remove(),
            )
        read = None
        try:
            if self._ahead is not None and self._coming is not None:
                read = self._ahead.take(name, ranges)
                self._ahead.go_on(self._coming())
            read = read or self._take(name, ranges)
            read = read or self._read(root, [(name, tuple(ranges))], source, within).get(name)
            outcome = None if read is None else _outcome(*read)
        except Exception as error:
            # whatever it is, the Spark path meets it again, and knows its name; or it works there
            logger.warning("the Arrow path failed, and the run goes on without it: %s", cause_of(error))
            self._off = True
            outcome = None
        if read is not None and (outcome is None or not outcome.staged.files):
            remove(read.attempt.rows)
        if read is not None and (outcome is None or not outcome.aside_files):
            remove(read.attempt.aside)
        if outcome is not None and 2 * sum(map(len, outcome.declined)) > sum(map(len, ranges)):
            logger.info("the Arrow path is not used from here on: %s", outcome.why)
            self._off = True
        if self._off:
            self.close()
        return outcome if outcome is not None and (outcome.read or not outcome.declined) else None

    def begin(self, root: str, name: str, ranges: Sequence[OffsetRange], source: object) -> _Attempt | None:
        """Return how the rows of a batch would be written, for a user who reads its records anyway.

        It is to be given to :meth:`end`, or removed. None means that nothing of the batch can be processed.
        """
        return None if self._off else self._attempt(root, name, tuple(ranges), source, None)

    def end(self, name: str, attempt: _Attempt, done: list[Done]) -> None:
        """Keep rows that were written meanwhile, until :meth:`stage` is asked for exactly this batch."""
        tidy(attempt.rows, {file.name for item in done for file in item.files})
        self._given[name] = _Read(attempt, done)

    def _take(self, name: str, ranges: Sequence[OffsetRange]) -> _Read | None:
        found = self._given.pop(name, None)
        if found is not None and found.attempt.ranges != tuple(ranges):
            found.attempt.remove()
            return None
        return found

    def _read(
        self, root: str, batches: Sequence[Foreseen], source: Records, within: tuple[int, int] | None
    ) -> dict[str, _Read]:
        """Process batches in one job; those of which workers can read nothing are left out."""
        attempts: dict[str, _Attempt] = {}
        try:
            for name, ranges in batches:
                attempt = self._attempt(root, name, ranges, source, within)
                if attempt is not None:
                    attempts[name] = attempt
            jobs = [Job(attempt.task, attempt.parts) for attempt in attempts.values()]
            found = do(self.spark, jobs) if jobs else []
            for attempt, done in zip(attempts.values(), found, strict=True):
                tidy(attempt.rows, {file.name for item in done for file in item.files})
        except Exception:
            for attempt in attempts.values():
                attempt.remove()
            raise
        read = dict(zip(attempts, found, strict=True))
        gaps = [r for name, done in read.items() if _has_gaps(done) for r in attempts[name].ranges]
        whole: list[OffsetRange] = []
        # asked now: when the batch is committed, retention may have removed what was read whole
        with suppress(Exception):  # then it is asked again at the end
            whole = subtract(gaps, source.missing(gaps)) if gaps else []
        return {name: _Read(attempts[name], done, tuple(whole)) for name, done in read.items()}

    def _attempt(
        self,
        root: str,
        name: str,
        ranges: tuple[OffsetRange, ...],
        source: object,
        within: tuple[int, int] | None,
    ) -> _Attempt | None:
        total = sum(map(len, ranges))
        parts = inputs_of(source, ranges)
        if not total or not any(len(r) for _, mine in parts for r in mine):
            return None
        folders = [new_folder(name), new_folder(name)]
        rows, aside = (f"{root}/{folder}" for folder in folders)
        plan = self.plan
        task = Decoding(
            plan.decoder,
            plan.rules,
            plan.transform,
            plan.schema,
            self.run_id,
            plan.codec,
            plan.partition_by,
            rows,
            aside,
            min(_COARSEST, max(_FINEST, -(-total // _CELLS))),
            within,
            plan.rescues,
            plan.headers,
            plan.split,
        )
        attempt = _Attempt(root, folders[0], rows, aside, ranges, parts, task)
        try:
            for folder in (rows, aside):
                make_folder(folder)
        except OSError:
            attempt.remove()
            raise
        return attempt


@dataclass
class ArrowCopies:
    """Writes the records of batches as they are, for the write-ahead log.

    Parameters
    ----------
    rows
        Writes the rows of the same records, so that they are read once; None if they are to be read from the log.
    sink
        The path of the sink, for the rows.
    """

    spark: SparkSession
    rows: ArrowPath | None = None
    sink: str = ""
    _off: bool = False

    def stage(
        self, root: str, name: str, ranges: Sequence[OffsetRange], source: object, most: int, batch: str
    ) -> Staged | None:
        """Read ranges and write their records; commit nothing.

        Parameters
        ----------
        root
            The path of the log's table.
        name
            The name of the batch, by which files of earlier attempts are found.
        source
            The batch's records, as :class:`sluice_spark.sources.base.Records`.
        most
            Maximum number of records in a file.
        batch
            The name of the batch in the sink, for the rows.

        Returns
        -------
        Staged or None
            The files, each with records of one partition in the order of their offsets; None if a range could not be
            read to its end: Spark has to read the batch then.
        """
        parts = [] if self._off else inputs_of(source, ranges)
        if subtract(ranges, [r for _, mine in parts for r in mine]) or not sum(map(len, ranges)):
            return None
        folder = new_folder(name)
        place = f"{root}/{folder}"
        attempt = None
        try:
            make_folder(place)
            attempt = self._rows(batch, ranges, source)
            task = Copying(place, None if attempt is None else attempt.task)
            (done,) = do(self.spark, [Job(task, parts, most)])
            tidy(place, {file.name for item in done for file in item.files})
            why = next((item.declined for item in done if item.declined is not None), None)
            files = [staged_file(root, f"{folder}/{file.name}") for item in done for file in item.files]
            if why is None and sum(file.rows for file in files) != sum(item.read for item in done):
                why = "its files do not have all records that were read"
        except Exception as error:  # as above
            why = cause_of(error)
        if why is not None:
            logger.warning("records are landed by Spark from here on: %s", why)
            self._off = True
            remove(place)
            if attempt is not None:
                attempt.remove()
            return None
        if self.rows is not None and attempt is not None:
            self.rows.end(batch, attempt, [item.decoded for item in done if item.decoded is not None])
        return Staged(folder, tuple(sorted(files, key=lambda f: f.path)), {})

    def _rows(self, batch: str, ranges: Sequence[OffsetRange], source: object) -> _Attempt | None:
        if self.rows is None:
            return None
        try:
            return self.rows.begin(self.sink, batch, ranges, source)
        except OSError as error:  # of the sink, for which the log does not wait
            logger.warning("rows are not written while their records are landed: %s", error)
            return None


def _has_gaps(done: Sequence[Done]) -> bool:
    return any(item.declined is None and item.read < len(item.range) for item in done)


def _outcome(attempt: _Attempt, done: Sequence[Done], whole: tuple[OffsetRange, ...] = ()) -> Outcome:
    """Put the ranges together, after comparing each file's footer with what its worker counted.

    Raises
    ------
    OSError
        If they differ.
    """
    read: dict[tuple[str, int], int] = {}
    outside: dict[tuple[str, int], int] = {}
    doubtful: dict[tuple[str, int], int] = {}
    tallies: dict[tuple[str, int], Tally] = {}
    files, times = [], []
    for item in done:
        key = (item.range.topic, item.range.partition)
        read[key] = read.get(key, 0) + item.read
        outside[key] = outside.get(key, 0) + item.outside
        doubtful[key] = doubtful.get(key, 0) + item.aside
        times += item.times
        if not item.files and not item.rows:
            continue
        own_files = [staged_file(attempt.root, f"{attempt.folder}/{file.name}", file.values) for file in item.files]
        rows = sum(file.rows for file in own_files)
        if rows != item.rows:
            raise OSError(f"the files of {item.range} have {rows} rows, where {item.rows} were written")
        files += own_files
        own = Tally(item.rows, item.offsets, item.first, item.last)
        tallies[key] = own if key not in tallies else tallies[key] | own
    staged = Staged(attempt.folder, tuple(sorted(files, key=lambda f: f.path)), tallies)
    kept = tuple(os.path.join(attempt.aside, file.name) for item in done for file in item.aside_files)
    why = next((item.declined for item in done if item.declined is not None), None)
    return Outcome(
        staged,
        {key: n for key, n in read.items() if n},
        {key: n for key, n in outside.items() if n},
        {key: n for key, n in doubtful.items() if n},
        kept,
        sorted(times),
        subtract(attempt.ranges, [item.range for item in done if item.declined is None]),
        why,
        reduce(Rescued.__or__, (item.rescued for item in done), NONE),
        tuple(subtract(whole, [item.range for item in done if item.declined is not None])),
    )
