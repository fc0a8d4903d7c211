"""Splits the planned ranges of a batch by the counts, and checks the transform's declaration about rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from sluice.errors import ConfigError
from sluice.pipeline import Rows
from sluice.ranges import Counts, OffsetRange, RangeAccount, overlaps
from sluice_spark.sinks.base import Tally

__all__ = [
    "ROLLED_BACK",
    "Offsets",
    "PromiseError",
    "RecordCounts",
    "account_exactly",
    "account_for",
    "doubled",
    "inside",
]

Offsets = Mapping[tuple[str, int], Any]
"""Ascending offsets per topic and partition, as NumPy arrays."""

ROLLED_BACK = "nothing of this batch is visible in the sink; the position stays before it"


class RecordCounts(NamedTuple):
    """The number of records per topic and partition.

    Attributes
    ----------
    read, bad
        Those that were read, and those of them that were refused.
    outside
        Those that were read but are outside of the interval; they count as filtered, with any ``rows``.
    """

    read: Mapping[tuple[str, int], int]
    bad: Mapping[tuple[str, int], int]
    outside: Mapping[tuple[str, int], int] = MappingProxyType({})


class PromiseError(ConfigError):
    """The transform's rows contradict the key ``rows`` of the pipeline file."""


def account_for(
    rows: Rows,
    ranges: Sequence[OffsetRange],
    counted: RecordCounts,
    written: Mapping[tuple[str, int], Tally],
    lost: Sequence[OffsetRange] = (),
    passed: Sequence[OffsetRange] = (),
) -> list[RangeAccount]:
    """Split each planned range by the counts; pure.

    Parameters
    ----------
    written
        The counts of the staged files.
    lost
        Parts of the ranges that were skipped.
    passed
        Parts of the ranges that were not read because none of their records is in the interval; filtered, too.

    Raises
    ------
    PromiseError
        If more records came out than went in, an offset appears twice where ``rows`` forbids it, or an offset is not in
        a planned range.
    """
    planned = {(r.topic, r.partition): r for r in ranges}
    strangers = sorted(set(written) - set(planned)) or [
        key for key, t in written.items() if t.first < planned[key].start or t.last >= planned[key].end
    ]
    if strangers:
        raise _broken(f"rows have offsets of {strangers[0][0]}-{strangers[0][1]} that this batch did not read")
    accounts = []
    for key, span in planned.items():
        came, refused, aside = (counts.get(key, 0) for counts in counted)
        good = came - refused - aside
        out = written.get(key, Tally(0, 0, 0, 0))
        given_up = sum(map(len, overlaps([span], lost)))
        left_out = sum(map(len, overlaps([span], passed)))
        to_read = len(span) - given_up - left_out
        if came > to_read:
            raise _broken(f"{came} records were read of {span}, which has {to_read} offsets to read")
        if rows in (Rows.ONE, Rows.FILTER) and out.rows != out.offsets:
            raise _broken(
                f"{span}: {good} records went into the transform and {out.rows} rows of {out.offsets} records came "
                f"out, where rows: {rows.value} allows one row per record",
            )
        if out.offsets > good:
            raise _broken(f"{span}: {good} records went into the transform, rows of {out.offsets} came out")
        if rows is Rows.ONE and out.rows != good:
            raise _broken(
                f"{span}: {good} records went into the transform and {out.rows} rows came out, where rows: one "
                "promises one row per record"
            )
        kept = good if rows is Rows.AGGREGATE else out.offsets
        filtered = good - kept + aside + left_out
        counts = Counts(
            written=kept, filtered=filtered, quarantined=refused, absent=to_read - came, lost=given_up
        )  # fmt: skip
        accounts.append(RangeAccount(span, counts))
    return accounts


def account_exactly(
    rows: Rows, ranges: Iterable[OffsetRange], came: Offsets, bad: Offsets, written: Offsets | None
) -> list[RangeAccount]:
    """Split each range by the individual offsets that were read, refused and written; pure.

    Parameters
    ----------
    came, bad, written
        Ascending offsets per topic and partition. ``written`` is None if rows carry no offsets (``rows: aggregate``).

    Raises
    ------
    PromiseError
        If a row has the offset of a record that was not read, or a record has no row although ``rows: one`` requires
        it.
    """
    accounts = []
    for span in ranges:
        here, refused = inside(came, span), inside(bad, span)
        good = np.setdiff1d(here, refused, assume_unique=True)
        out = good if written is None else inside(written, span)
        if not np.isin(out, good).all() or (rows is Rows.ONE and len(out) != len(good)):
            raise PromiseError(
                f"the promise about rows is broken: {span}: {len(good)} records went into the transform, rows of "
                f"{len(out)} came out, where the pipeline file says rows: {rows.value}",
                state="nothing of this step is visible in the sink; the ranges stay open",
                next_step="fix the transform, or declare what it does in the pipeline file",
            )
        counts = Counts(
            written=len(out),
            filtered=len(good) - len(out),
            quarantined=len(refused),
            absent=len(span) - len(here),
        )
        accounts.append(RangeAccount(span, counts))
    return accounts


def inside(offsets: Offsets, span: OffsetRange) -> Any:
    """Return the offsets that are in a range."""
    numbers = offsets.get((span.topic, span.partition), np.empty(0, dtype=np.int64))
    return numbers[np.searchsorted(numbers, span.start) : np.searchsorted(numbers, span.end)]


def doubled(where: str, rows: Rows, count: int, records: int) -> PromiseError:
    """Return the error of a transform that gives a record several rows."""
    return _broken(
        f"{where}: {count} rows of {records} records came out of the transform, where rows: {rows.value} allows one "
        "row per record"
    )


def _broken(what: str) -> PromiseError:
    return PromiseError(
        f"the promise about rows is broken: {what}",
        state=ROLLED_BACK,
        next_step="fix the transform, or declare what it does: rows: filter, many or aggregate in the pipeline file",
    )
