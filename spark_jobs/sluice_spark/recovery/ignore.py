"""Strategies ``ignore_batch`` and ``ignore_range``: what cannot be had is given up, exactly; the rest is written."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from sluice.errors import OffsetsGoneError, SluiceError
from sluice.ranges import LostRange, OffsetRange, overlaps, subtract
from sluice.recovery import Recovery
from sluice_spark.batch import BatchWriter, PreparedBatch, Records
from sluice_spark.decode import decode
from sluice_spark.log import logger

__all__ = ["Ignoring", "can_be_ignored", "dies_of", "narrow"]

_ATTEMPTS = 2
"""How often a batch is tried in one run before its failure is final."""

_PROBES = 160
"""Small jobs that finding the failing records of a batch may cost."""

_SAMPLES = 8
_SAMPLE_LENGTH = 200


@dataclass(frozen=True)
class Ignoring:
    """Prepares batches that may lose something.

    Only what one can go on without is ignored: records that are gone or cannot be read, and records of which decoding,
    transforming or writing dies. A broker, sink or ledger that is down, missing rights, a wrong pipeline file or a
    broken promise about rows end the run as under every other strategy: dropping data would not mend them. So does
    the death of the driver itself, after which the batch is tried anew.

    Parameters
    ----------
    strategy
        ``IGNORE_BATCH`` gives up the whole batch after its second failure. ``IGNORE_RANGE`` looks for the failing
        ranges by halving, and gives up these.
    classify
        Turns what a job died of into a typed error.
    """

    writer: BatchWriter
    strategy: Recovery
    classify: Callable[[Exception], SluiceError]

    def prepare(
        self, records: DataFrame | None, name: str, ranges: Sequence[OffsetRange], source: Records
    ) -> PreparedBatch:
        """Prepare a batch; see :meth:`sluice_spark.batch.BatchWriter.prepare`.

        Parameters
        ----------
        records
            The batch as the engine gave it; None to read it from ``source``.

        Raises
        ------
        SluiceError
            When the failure is none that can be ignored, or cannot be pinned to any range.
        """
        lost: list[LostRange] = []
        failures = 0
        while True:
            healthy = subtract(ranges, [item.range for item in lost])
            if not healthy:
                return self.writer.give_up(ranges, lost)
            try:
                frame = records if records is not None and not lost else source.again(healthy)
                return self.writer.prepare(frame, name, ranges, source, lost)
            except Exception as error:
                failure = self.classify(error)
                if not can_be_ignored(failure):
                    raise failure from error
            failures += 1
            found = self._give_up(failure, failures, healthy, source)
            if not found and failures > _ATTEMPTS:
                raise failure
            for item in found:
                logger.warning("lost: %s: %s", item.range, item.reason)
            lost = sorted([*lost, *found], key=lambda item: item.range)

    def _give_up(
        self, failure: SluiceError, failures: int, healthy: Sequence[OffsetRange], source: Records
    ) -> list[LostRange]:
        gone = isinstance(failure, OffsetsGoneError)
        if self.strategy is Recovery.IGNORE_BATCH:
            final = gone or failures >= _ATTEMPTS
            found = [LostRange(r, failure.what) for r in healthy] if final else []
        elif gone:
            assert isinstance(failure, OffsetsGoneError)
            found = [LostRange(r, failure.what) for r in overlaps(healthy, failure.ranges or source.gone(healthy))]
        else:
            logger.warning("the batch failed: %s; looking for the records that it dies of", failure.what)
            found = narrow(lambda part: dies_of(self.writer, source, part, self.classify), healthy)
        return [replace(item, sample=_sample(source, item.range)) for item in found[:_SAMPLES]] + found[_SAMPLES:]


def dies_of(
    writer: BatchWriter, source: Records, ranges: Sequence[OffsetRange], classify: Callable[[Exception], SluiceError]
) -> str | None:
    """Return why the records of these ranges cannot be read or processed; None when they can.

    Raises
    ------
    SluiceError
        When the failure is none that can be ignored.
    """
    try:
        rows = writer.rows_of(decode(source.again(ranges), writer.pipeline.decode))
        rows.write.format("noop").mode("overwrite").save()
    except Exception as error:
        failure = classify(error)
        if not can_be_ignored(failure):
            raise failure from error
        return failure.what
    return None


def can_be_ignored(error: SluiceError) -> bool:
    """Tell whether a run can go on without the records that died of this."""
    # a failure without a type of its own is one of decoding, transforming or writing
    return type(error) is SluiceError or isinstance(error, OffsetsGoneError)


def narrow(
    dies_of: Callable[[Sequence[OffsetRange]], str | None],
    ranges: Sequence[OffsetRange],
    probes: int = _PROBES,
) -> list[LostRange]:
    """Find the smallest ranges that fail, by halving; the largest are halved first.

    Parameters
    ----------
    dies_of
        Tries ranges; returns the reason when it fails.
    probes
        How many trials are made at most. What is not narrowed by then is returned as it is.

    Returns
    -------
    list of LostRange
        In the order of offsets, neighbours with the same reason joined. Empty when everything passed: the failure was
        of passing nature.

    Notes
    -----
    When the first half of a failing range passes, the second half is taken to fail without a trial; a single offset is
    tried before it is given up. One failing record among n costs about log2(n) trials.
    """
    left = probes
    failing: list[tuple[int, OffsetRange, str]] = []

    def try_(part: OffsetRange) -> str | None:
        nonlocal left
        left -= 1
        return dies_of([part])

    for item in ranges:
        reason = try_(item)
        if reason is not None:
            heapq.heappush(failing, (-len(item), item, reason))
    confirmed: list[LostRange] = []
    sure = {item for _, item, _ in failing}
    while failing and left > 0:
        _, item, reason = heapq.heappop(failing)
        if len(item) == 1:
            again = reason if item in sure else try_(item)
            if again is not None:
                confirmed.append(LostRange(item, again))
            continue
        middle = item.start + len(item) // 2
        first, second = (
            OffsetRange(item.topic, item.partition, a, b) for a, b in ((item.start, middle), (middle, item.end))
        )
        why = try_(first)
        if why is None:
            heapq.heappush(failing, (-len(second), second, reason))
            continue
        sure.add(first)
        heapq.heappush(failing, (-len(first), first, why))
        other = try_(second)
        if other is not None:
            sure.add(second)
            heapq.heappush(failing, (-len(second), second, other))
    return _joined([*confirmed, *(LostRange(item, reason) for _, item, reason in failing)])


def _joined(found: Sequence[LostRange]) -> list[LostRange]:
    joined: list[LostRange] = []
    for item in sorted(found, key=lambda i: i.range):
        last, now = (joined[-1] if joined else None), item.range
        if last and (last.range.topic, last.range.partition, last.range.end, last.reason) == (
            now.topic,
            now.partition,
            now.start,
            item.reason,
        ):
            joined[-1] = replace(last, range=OffsetRange(now.topic, now.partition, last.range.start, now.end))
        else:
            joined.append(item)
    return joined


def _sample(source: Records, span: OffsetRange) -> dict[str, Any] | None:
    """Return the first record of a range as readable text; None when it cannot be read."""
    try:
        rows = source.again([span]).select("offset", "key", "value").limit(1).collect()
    except Exception:
        return None
    return {"offset": rows[0]["offset"], **{k: _text(rows[0][k]) for k in ("key", "value")}} if rows else None


def _text(raw: Any) -> str | None:
    return None if raw is None else bytes(raw[:_SAMPLE_LENGTH]).decode("utf-8", "backslashreplace")
