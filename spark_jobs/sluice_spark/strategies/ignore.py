"""Strategies ``ignore_batch`` and ``ignore_range``: skip what cannot be read or processed, and write the rest."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.errors import ConfigError, OffsetsGoneError, SluiceError, printable
from sluice.ranges import LostRange, OffsetRange, describe, overlaps, subtract
from sluice.recovery import Recovery
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.engine.failures import EngineError
from sluice_spark.engine.logs import logger
from sluice_spark.rules.records import decoded
from sluice_spark.sources.base import RECORD_SCHEMA, Records
from sluice_spark.strategies.base import Batch, Replay

__all__ = ["Ignoring", "can_be_ignored", "dies_of", "narrow"]

_ATTEMPTS = 3
"""How often in a row a batch is tried if none of its records is found to cause the failure."""

_PROBES = 160
"""Maximum number of trials, each a Spark job, to find the failing records of a batch."""

_FEW = 3
"""Number of failing parts that are searched one by one, before all failing parts are halved evenly."""

_WHOLE = {"spark.sql.adaptive.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "-1"}
"""Settings by which Spark reads both sides of a join, although one is empty."""

_SAMPLES = 8
_SAMPLE_LENGTH = 200


@dataclass(frozen=True)
class Ignoring(Replay):
    """Prepares batches without records that cannot be read or processed, and counts those as lost.

    Only these records are skipped: records that are gone or cannot be read, and records on which decoding or the
    transform fails. Other failures end the run as under every other strategy, because dropping data would not fix
    them: a broker, sink or ledger that is down, missing rights, a wrong pipeline file, or a broken promise about rows.
    If the driver dies, the next run tries the batch again.

    Records count as the cause only if they fail again without a sink, while Spark completes a job without them.

    Parameters
    ----------
    recovery
        ``IGNORE_BATCH`` skips the whole batch. ``IGNORE_RANGE`` finds the failing ranges by halving and skips only
        those.
    """

    recovery: Recovery = Recovery.IGNORE_RANGE

    def admit(self, gone: OffsetsGoneError) -> None:
        """Accept: each batch finds out which of its offsets are gone and records them as lost."""
        logger.warning("%s: they will be recorded as lost", gone.what)

    def prepare(self, writer: BatchWriter, batch: Batch) -> PreparedBatch:
        """Prepare a batch without the ranges that make it fail.

        Raises
        ------
        SluiceError
            If the failure cannot be ignored, or if no range is found that causes it.
        """
        ranges, source = batch.ranges, batch.source
        lost: list[LostRange] = []
        failures = 0
        found = self._without(ranges, source.missing(ranges))  # known to be gone: no trial needed
        while True:
            for item in found:
                logger.warning("lost: %s: %s", item.range, item.reason)
            lost = sorted([*lost, *found], key=lambda item: item.range)
            healthy = subtract(ranges, [item.range for item in lost])
            if not healthy:
                return writer.give_up(ranges, lost)
            try:
                return writer.prepare(None if lost else batch.frame, batch.name, ranges, source, lost)
            except Exception as error:
                failure = source.diagnose(error, healthy)
                if not can_be_ignored(failure):
                    raise failure from error
            found = self._at_fault(failure, healthy, writer, batch)
            failures = 0 if found else failures + 1
            if failures >= _ATTEMPTS:
                raise failure

    def _at_fault(
        self, failure: SluiceError, healthy: Sequence[OffsetRange], writer: BatchWriter, batch: Batch
    ) -> list[LostRange]:
        """Return the ranges to skip so that the rest can be written; none if a second trial of everything succeeds."""
        source = batch.source
        gone = _gone(failure, healthy, source)
        if gone:
            return self._without(healthy, gone, failure)
        writer.lookups.check(batch.spark)  # no record is to blame for a table that cannot be read
        _check_tables(writer, batch.spark, failure)
        logger.warning("the batch failed: %s; searching for the records that cause it", failure.what)

        def dies(part: Sequence[OffsetRange]) -> str | None:
            return dies_of(writer, source, part, lambda error: _of_records(error, part, source))

        try:
            found = narrow(dies, healthy, 0 if self.recovery is Recovery.IGNORE_BATCH else _PROBES)
        except OffsetsGoneError as now:
            return self._without(healthy, _gone(now, healthy, source), now)
        if found:
            _check_spark(batch.spark, failure)
        return [replace(item, sample=_sample(source, item.range)) for item in found[:_SAMPLES]] + found[_SAMPLES:]

    def _without(
        self, ranges: Sequence[OffsetRange], gone: Sequence[OffsetRange], failure: SluiceError | None = None
    ) -> list[LostRange]:
        if not gone:
            return []
        given_up = ranges if self.recovery is Recovery.IGNORE_BATCH else gone
        reason = failure.what if failure else f"gone from the source before they were read: {describe(gone)}"
        return [LostRange(item, reason) for item in given_up]


def _of_records(error: Exception, part: Sequence[OffsetRange], source: Records) -> SluiceError:
    """Return the typed failure of a trial.

    Raises
    ------
    OffsetsGoneError
        If it is known which of these records are gone: a search is not needed then.
    """
    failure = source.diagnose(error, part)
    if _gone(failure, part, source):
        raise failure from error
    return failure


def _check_spark(spark: SparkSession, failure: SluiceError) -> None:
    """Run a job without any of the records: if it fails too, they are not the cause."""
    try:
        spark.range(1).write.format("noop").mode("overwrite").save()
    except Exception as error:
        raise EngineError(
            f"Spark fails even without these records: {failure.what}",
            state="nothing was skipped; committed batches are in the sink and stay",
            next_step="read the log above; run again when the cause is fixed",
        ) from error


def _check_tables(writer: BatchWriter, spark: SparkSession, failure: SluiceError) -> None:
    """Transform no record at all: if that fails, too, a row of a joined table is the cause.

    Raises
    ------
    ConfigError
        With the tables.
    """
    if not writer.lookups.tables:
        return
    # Spark must not see that there is none (as it does of rand() < 0), or it would not read what is joined to it
    none = spark.createDataFrame([(None,) * len(RECORD_SCHEMA)], RECORD_SCHEMA).where(
        F.monotonically_increasing_id() < 0
    )
    before = {key: spark.conf.get(key) for key in _WHOLE}
    try:
        for key, value in _WHOLE.items():
            spark.conf.set(key, value)
        writer.kept(writer.rows_of(decoded(none, writer.pipeline))).write.format("noop").mode("overwrite").save()
    except Exception as error:
        names = ", ".join(table.name for table in writer.lookups.tables)
        raise ConfigError(
            f"the transform fails without any record, too: a row of a joined table ({names}) is the cause: "
            f"{failure.what}",
            state="nothing of this batch is visible in the sink, and no record counts as lost; batches that were "
            "committed stay",
            next_step="change the transform; or correct the table, and write its new version: as version: below "
            "tables.NAME.delta in the pipeline file, for this batch keeps the version with which it was begun; then "
            "run again",
        ) from error
    finally:
        for key, old in before.items():
            spark.conf.set(key, old)


def dies_of(
    writer: BatchWriter, source: Records, ranges: Sequence[OffsetRange], diagnose: Callable[[Exception], SluiceError]
) -> str | None:
    """Return why the records of these ranges cannot be read or processed; None if they can.

    Nothing is written, so that a failing sink cannot be mistaken for failing records.

    Raises
    ------
    SluiceError
        If the failure cannot be ignored.
    """
    try:
        rows = writer.kept(writer.rows_of(decoded(source.read(ranges), writer.pipeline)))
        rows.write.format("noop").mode("overwrite").save()
    except Exception as error:
        failure = diagnose(error)
        if not can_be_ignored(failure):
            raise failure from error
        return failure.what
    return None


def can_be_ignored(error: SluiceError) -> bool:
    """Return whether a run may skip records that cause this failure."""
    # decoding, transforming and writing fail without a type of their own
    return type(error) is SluiceError or isinstance(error, OffsetsGoneError)


def _gone(failure: SluiceError, ranges: Sequence[OffsetRange], source: Records) -> list[OffsetRange]:
    """Return the parts of these ranges that are known to be gone or damaged."""
    if not isinstance(failure, OffsetsGoneError):
        return []
    return overlaps(ranges, failure.ranges) or source.missing(ranges)


# --- search -----------------------------------------------------------------------------------------------------------


@dataclass(order=True)
class _Part:
    """Ranges that fail, by their own trial or because the other half passed; ordered by size, largest first."""

    rank: int = field(init=False)
    ranges: tuple[OffsetRange, ...]
    reason: str
    tried: bool

    def __post_init__(self) -> None:
        self.rank = -sum(map(len, self.ranges))

    def halves(self) -> tuple[tuple[OffsetRange, ...], tuple[OffsetRange, ...]]:
        first: list[OffsetRange] = []
        second: list[OffsetRange] = []
        left = -self.rank // 2
        for item in self.ranges:
            middle = item.start + min(left, len(item))
            left -= middle - item.start
            for side, start, end in ((first, item.start, middle), (second, middle, item.end)):
                if start < end:
                    side.append(replace(item, start=start, end=end))
        return tuple(first), tuple(second)


def narrow(
    dies_of: Callable[[Sequence[OffsetRange]], str | None],
    ranges: Sequence[OffsetRange],
    probes: int = _PROBES,
) -> list[LostRange]:
    """Find the smallest ranges that fail, by halving.

    Parameters
    ----------
    dies_of
        Tries ranges; returns the reason if they fail.
    probes
        Maximum number of trials; one is always made. Ranges that are not narrowed by then are returned as they are.

    Returns
    -------
    list of LostRange
        In the order of offsets; neighbours with the same reason are joined. Each range failed in its own trial, or in
        that of a larger part when the trials were used up. Empty if they all pass when they are tried again.

    Notes
    -----
    All ranges are searched as one sequence. If the first half of a failing part passes, the second half is assumed to
    fail. At first, failing records are searched one by one: if the first half fails, the second half is set aside, and
    all parts set aside are tried together later. So one failing record among n costs log2(n) + 3 trials. After a few
    such searches, the largest failing part is halved next and both halves are tried, so that all parts shrink evenly.
    """
    used = 0

    def try_(part: Sequence[OffsetRange]) -> str | None:
        nonlocal used
        used += 1
        return dies_of(part)

    found: list[LostRange] = []
    aside: list[OffsetRange] = []  # not tried again since a larger part with them failed
    whole = tuple(sorted(ranges))
    reason = try_(whole)
    failing = [_Part(whole, reason, tried=True)] if reason is not None else []
    descents = 1
    while failing or aside:
        # trials are reserved for the parts without a trial of their own: nothing untried is skipped
        owed = sum(not part.tried for part in failing) + bool(aside)
        if not failing or (used + owed + 2 > probes):
            if aside:
                rest, aside = tuple(_merged(aside)), []
                reason = try_(rest)
                descents += 1
                if reason is not None:
                    heapq.heappush(failing, _Part(rest, reason, tried=True))
                continue
            break
        part = heapq.heappop(failing)
        if part.rank == -1:
            reason = part.reason if part.tried else try_(part.ranges)
            if reason is not None:
                found.append(LostRange(part.ranges[0], reason))
            continue
        first, second = part.halves()
        reason = try_(first)
        if reason is None:
            heapq.heappush(failing, _Part(second, part.reason, tried=False))
            continue
        heapq.heappush(failing, _Part(first, reason, tried=True))
        if descents <= _FEW:
            aside += second
        elif (reason := try_(second)) is not None:
            heapq.heappush(failing, _Part(second, reason, tried=True))
    for part in failing:
        reason = part.reason if part.tried else try_(part.ranges)
        if reason is not None:
            found += [LostRange(item, reason) for item in part.ranges]
    return _joined(found)


def _merged(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    return [item.range for item in _joined(LostRange(item, "") for item in ranges)]


def _joined(found: Iterable[LostRange]) -> list[LostRange]:
    joined: list[LostRange] = []
    for item in sorted(found, key=lambda i: i.range):
        last, now = (joined[-1] if joined else None), item.range
        if last and (last.range.topic, last.range.partition, last.range.end, last.reason) == (
            now.topic,
            now.partition,
            now.start,
            item.reason,
        ):
            joined[-1] = replace(last, range=replace(last.range, end=now.end))
        else:
            joined.append(item)
    return joined


# --- samples for the ledger -------------------------------------------------------------------------------------------


def _sample(source: Records, span: OffsetRange) -> dict[str, Any] | None:
    """Return the first record of a range as readable text; None if it cannot be read."""
    try:
        rows = source.read([span]).select("offset", "key", "value").limit(1).collect()
    except Exception:
        return None
    return {"offset": rows[0]["offset"], **{k: _text(rows[0][k]) for k in ("key", "value")}} if rows else None


def _text(raw: Any) -> str | None:
    return None if raw is None else printable(bytes(raw[:_SAMPLE_LENGTH]).decode("utf-8", "backslashreplace"))
