"""Strategies ``ignore_batch`` and ``ignore_range``: what cannot be had is given up, exactly; the rest is written."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from sluice.errors import OffsetsGoneError, SluiceError
from sluice.ranges import LostRange, OffsetRange, describe, overlaps, subtract
from sluice.recovery import Recovery
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.engine.failures import EngineError, printable
from sluice_spark.engine.logs import logger
from sluice_spark.rules.records import decoded
from sluice_spark.sources.base import Records
from sluice_spark.strategies.base import Batch, Replay

__all__ = ["Ignoring", "can_be_ignored", "dies_of", "narrow"]

_ATTEMPTS = 3
"""How often a batch is tried in a row when none of its records can be found to be at fault."""

_PROBES = 160
"""Small jobs that finding the failing records of a batch may cost."""

_FEW = 3
"""Failing records that are looked for one by one, before all that fails is halved evenly."""

_SAMPLES = 8
_SAMPLE_LENGTH = 200


@dataclass(frozen=True)
class Ignoring(Replay):
    """Prepares batches that may lose something.

    Only what one can go on without is ignored: records that are gone or cannot be read, and records of which decoding
    or transforming dies. A broker, sink or ledger that is down, missing rights, a wrong pipeline file or a broken
    promise about rows end the run as under every other strategy: dropping data would not fix them. So does the death
    of the driver itself, after which the batch is tried again.

    Records are at fault only when they fail a second time with no sink involved, and when Spark at the same time does
    a job that has none of them.

    Parameters
    ----------
    recovery
        ``IGNORE_BATCH`` gives up the whole batch. ``IGNORE_RANGE`` looks for the failing ranges by halving, and gives
        up these.
    """

    recovery: Recovery = Recovery.IGNORE_RANGE

    def admit(self, gone: OffsetsGoneError) -> None:
        """Go on: each batch finds out which of its offsets are gone, and records them as lost."""
        logger.warning("%s: they will be recorded as lost", gone.what)

    def prepare(self, writer: BatchWriter, batch: Batch) -> PreparedBatch:
        """Prepare a batch, without what it dies of.

        Raises
        ------
        SluiceError
            When the failure cannot be ignored, or cannot be pinned to any range.
        """
        ranges, source = batch.ranges, batch.source
        lost: list[LostRange] = []
        failures = 0
        found = self._without(ranges, source.missing(ranges))  # known to be gone: not even tried
        while True:
            for item in found:
                logger.warning("lost: %s: %s", item.range, item.reason)
            lost = sorted([*lost, *found], key=lambda item: item.range)
            healthy = subtract(ranges, [item.range for item in lost])
            if not healthy:
                return writer.give_up(ranges, lost)
            try:
                frame = batch.frame if batch.frame is not None and not lost else source.read(healthy)
                return writer.prepare(frame, batch.name, ranges, source, lost)
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
        """Return what to give up so that the rest can go on; nothing when everything passes when it is tried again."""
        source = batch.source
        gone = _gone(failure, healthy, source)
        if gone:
            return self._without(healthy, gone, failure)
        logger.warning("the batch failed: %s; looking for the records that it dies of", failure.what)

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
        reason = failure.what if failure else f"gone from Kafka before they were read: {describe(gone)}"
        return [LostRange(item, reason) for item in given_up]


def _of_records(error: Exception, part: Sequence[OffsetRange], source: Records) -> SluiceError:
    """Type what a trial died of.

    Raises
    ------
    OffsetsGoneError
        When it is known which of these records are gone: then there is nothing to look for.
    """
    failure = source.diagnose(error, part)
    if _gone(failure, part, source):
        raise failure from error
    return failure


def _check_spark(spark: SparkSession, failure: SluiceError) -> None:
    """Do a job without any of the records: when that fails too, they are not at fault."""
    try:
        spark.range(1).write.format("noop").mode("overwrite").save()
    except Exception as error:
        raise EngineError(
            f"Spark fails, whatever it reads: {failure.what}",
            state="nothing was given up; batches that were committed are in the sink and stay",
            next_step="read the log above; run again when the cause is fixed",
        ) from error


def dies_of(
    writer: BatchWriter, source: Records, ranges: Sequence[OffsetRange], diagnose: Callable[[Exception], SluiceError]
) -> str | None:
    """Return why the records of these ranges cannot be read or processed; None when they can.

    Nothing is written: a sink that fails is no fault of theirs.

    Raises
    ------
    SluiceError
        When the failure is none that can be ignored.
    """
    try:
        rows = writer.rows_of(decoded(source.read(ranges), writer.pipeline))
        rows.write.format("noop").mode("overwrite").save()
    except Exception as error:
        failure = diagnose(error)
        if not can_be_ignored(failure):
            raise failure from error
        return failure.what
    return None


def can_be_ignored(error: SluiceError) -> bool:
    """Tell whether a run can go on without the records that died of this, should it be their fault."""
    # a failure without a type of its own is one of decoding, transforming or writing
    return type(error) is SluiceError or isinstance(error, OffsetsGoneError)


def _gone(failure: SluiceError, ranges: Sequence[OffsetRange], source: Records) -> list[OffsetRange]:
    """Return the parts of these ranges that are known to be gone or damaged."""
    if not isinstance(failure, OffsetsGoneError):
        return []
    return overlaps(ranges, failure.ranges) or source.missing(ranges)


# --- the search ------------------------------------------------------------------------------------------------------


@dataclass(order=True)
class _Part:
    """Ranges that fail, by a trial of their own or because nothing else is left that could; largest first."""

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
        Tries ranges; returns the reason when it fails.
    probes
        How many trials are made at most; one is always made. What is not narrowed by then is returned as it is.

    Returns
    -------
    list of LostRange
        In the order of offsets, neighbours with the same reason joined. Each failed in a trial of its own, or as a
        part of one when the trials were used up. Empty when everything passes when it is tried again.

    Notes
    -----
    All ranges are one sequence, whatever their number. When the first half of what fails passes, the second is taken
    to fail without a trial. The first few failing records are looked for one by one: the second halves beside them are
    tried all together afterwards, so that one among n costs log2(n) + 3 trials. Where more fails than that, the
    largest part is halved next and both of its halves are tried, so that everything is narrowed evenly.
    """
    used = 0

    def try_(part: Sequence[OffsetRange]) -> str | None:
        nonlocal used
        used += 1
        return dies_of(part)

    found: list[LostRange] = []
    aside: list[OffsetRange] = []  # not tried since the part that they belong to failed
    whole = tuple(sorted(ranges))
    reason = try_(whole)
    failing = [_Part(whole, reason, tried=True)] if reason is not None else []
    descents = 1
    while failing or aside:
        # nothing is given up that was not tried: trials are kept back for that
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


# --- what is told of it ----------------------------------------------------------------------------------------------


def _sample(source: Records, span: OffsetRange) -> dict[str, Any] | None:
    """Return the first record of a range as readable text; None when it cannot be read."""
    try:
        rows = source.read([span]).select("offset", "key", "value").limit(1).collect()
    except Exception:
        return None
    return {"offset": rows[0]["offset"], **{k: _text(rows[0][k]) for k in ("key", "value")}} if rows else None


def _text(raw: Any) -> str | None:
    return None if raw is None else printable(bytes(raw[:_SAMPLE_LENGTH]).decode("utf-8", "backslashreplace"))
