"""What a retraction takes back: which offsets, and from which of the ledger's accounts; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluice.errors import ConfigError
from sluice.ledger import REDRIVEN, Entry, Ledger
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange, describe, overlaps, runs_of, subtract
from sluice.sources.base import SourceConfig

__all__ = ["Part", "Standing", "possible", "retractable", "standing", "taken", "wanted"]

Held = Callable[[Sequence[OffsetRange]], Mapping[tuple[str, int], Any]]
"""Returns the offsets of some ranges that a table holds, per topic and partition, ascending."""

_UNTOUCHED = "nothing was read or written; the table and the ledger are unchanged"


@dataclass(frozen=True)
class Standing:
    """The offsets that one account of the ledger still answers for, and those of them that are to be taken back."""

    entry: Entry
    owned: tuple[OffsetRange, ...]
    wanted: tuple[OffsetRange, ...]


@dataclass(frozen=True)
class Part:
    """What leaves one account: gapless ranges, and how many of their offsets were written, filtered and absent."""

    entry: Entry
    ranges: tuple[OffsetRange, ...]
    written: int
    filtered: int = 0
    absent: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the form of commit metadata and ledger."""
        span = self.entry.account.range
        return {
            "epoch": self.entry.epoch, "batch": self.entry.batch, "run": self.entry.run,
            "topic": span.topic, "partition": span.partition, "start": span.start,
            "ranges": [[r.start, r.end] for r in self.ranges],
            "written": self.written, "filtered": self.filtered, "absent": self.absent,
        }  # fmt: skip


def possible(pipeline: Pipeline) -> None:
    """Raise a :class:`~sluice.errors.ConfigError` if rows of this pipeline cannot be retracted."""
    name = pipeline.name
    if pipeline.aggregates:
        what = pipeline.kept_by or "rows: aggregate"
        raise ConfigError(
            f"pipeline {name!r} has {what}: a row of its sink combines many records, so it cannot be taken back "
            "for some of them",
            state=_UNTOUCHED,
            next_step="correct the records at the source, or the rows in the table",
        )
    if pipeline.origins is not None:
        raise ConfigError(
            f"pipeline {name!r} has source.kafka.clusters: a record whose row is taken back would be taken for a copy "
            "of itself, and not come again",
            state=_UNTOUCHED,
            next_step="correct the rows in the table",
        )
    if (of := pipeline.stateful) is not None and of.unretractable:
        raise ConfigError(
            f"pipeline {name!r} {of.unretractable}",
            state=_UNTOUCHED,
            next_step="correct the rows in the table",
        )
    if which := pipeline.irreplaceable:
        raise ConfigError(
            f"rows of {name!r} cannot be retracted: {which} "
            + ("keeps only the newest row of a key, so the older one would not come back"
               if which.endswith("upsert") else "does not take single rows back"),
            state=_UNTOUCHED,
            next_step="use a sink that can replace rows, such as sink.delta with mode: append; to say that rows are "
            "wrong, write corrected records to the source",
        )  # fmt: skip


def retractable(pipeline: Pipeline) -> bool:
    """Return whether rows of this pipeline can be retracted; see :func:`possible`."""
    try:
        possible(pipeline)
    except ConfigError:
        return False
    return True


def wanted(what: Sequence[str], source: SourceConfig) -> tuple[str | None, list[OffsetRange]]:
    """Return the run that is meant, or the ranges.

    Raises
    ------
    ConfigError
        If it is neither one run nor ranges of this source.
    """
    ranges = []
    for text in what:
        try:
            item = OffsetRange.parse(text)
        except ValueError:
            if len(what) == 1 and not source.reads(text.rsplit(":", 2)[0]):
                return text, []
            raise ConfigError(
                f"{text!r} is not a range: write TOPIC:PARTITION:START-END, END exclusive",
                state=_UNTOUCHED,
                next_step="name one run, or one or more ranges",
            ) from None
        if not source.reads(item.topic):
            if len(what) == 1 and ":" in item.topic:
                return text, []
            raise ConfigError(
                f"the pipeline does not read {item.topic!r}",
                state=_UNTOUCHED,
                next_step=f"name one of: {', '.join(source.labels)}",
            )
        ranges.append(item)
    return None, ranges


def standing(
    ledger: Ledger, pipeline: str, *, run_id: str | None = None, ranges: Sequence[OffsetRange] = ()
) -> list[Standing]:
    """Return what accounts still answer for of a run, or of some ranges; empty if that was all taken back before.

    An account no longer answers for what was lost or retracted of it, nor for what was redriven since: that belongs to
    the redrive.

    Raises
    ------
    UnknownRunError
        If the ledger does not have the run.
    ConfigError
        If an interval run replaced rows there: the ledger does not know which rows of these offsets are whose.
    """
    if run_id is not None:
        kind = ledger.runs.known(pipeline, run_id).kind
        if kind == "interval":
            raise ConfigError(
                f"run {run_id!r} of {pipeline!r} is an interval run: it replaced rows, which do not come back",
                state=_UNTOUCHED,
                next_step="fix the cause and reprocess the interval, which replaces the rows again: sluice run "
                f"{pipeline} --start TS --end TS",
            )
    entries = ledger.offsets.entries(pipeline)
    lost = [row.range for row in ledger.offsets.lost(pipeline, state=None)]
    back = ledger.offsets.retracted_from(pipeline)
    refused = [entry for entry in entries if entry.of == "quarantined"]
    found = []
    for entry in entries:
        if (run_id is not None and entry.run != run_id) or not len(entry.account.range):
            continue
        span = entry.account.range
        if ranges and not overlaps([span], ranges):
            continue
        # what was redriven since, out of this account's losses or of what it had refused, belongs to the redrive
        later = [other.account.range for other in refused if entry.epoch != REDRIVEN or other.batch > entry.batch]
        if entry.epoch != REDRIVEN:
            owned = _without(span, [*lost, *later])
        else:
            owned = _without(span, [*back.get(entry.batch, ()), *(later if entry.of == "lost" else ())])
        wanted = overlaps(owned, ranges) if ranges else owned
        if wanted:
            found.append(Standing(entry, tuple(owned), tuple(wanted)))
    _beside_intervals(ledger, pipeline, [span for item in found for span in item.wanted])
    return found


def _without(span: OffsetRange, holes: Sequence[OffsetRange]) -> list[OffsetRange]:
    return subtract([span], [hole for hole in holes if hole.cut(span)])


def _beside_intervals(ledger: Ledger, pipeline: str, wanted: Sequence[OffsetRange]) -> None:
    taken = sorted(set(overlaps(wanted, [account.range for _, account, _ in ledger.offsets.replaced(pipeline)])))
    if taken:
        raise ConfigError(
            f"interval runs replaced rows of {describe(taken)}: the ledger does not know which of these offsets' rows "
            "are whose",
            state=_UNTOUCHED,
            next_step="reprocess the interval, which replaces the rows again: sluice run "
            f"{pipeline} --start TS --end TS; or name ranges that no interval run replaced",
        )


def taken(item: Standing, sink: Held, quarantine: Held) -> Part | None:
    """Return what is to be taken from an account; None if there is nothing.

    If all that the account answers for is wanted, its filtered and absent offsets go, too: the run decided on them, and
    a redrive decides again; and so do those whose rows a user deleted. For a part, only what is in the table goes,
    because the ledger does not know which of the other offsets were filtered and which are in quarantine.
    """
    counts, span = item.entry.account.counts, item.entry.account.range
    if item.wanted == item.owned:
        kept = quarantine(item.owned) if counts.quarantined else {}
        aside = [r for key, offsets in kept.items() for r in runs_of(*key, offsets.tolist())]
        ranges = [r for r in subtract(item.owned, aside) if len(r)]
        whole = counts.written + counts.filtered + counts.absent
        if sum(map(len, ranges)) == whole:
            if not counts.written and not counts.filtered:
                return None  # no record was there
            return Part(item.entry, tuple(ranges), counts.written, counts.filtered, counts.absent)
    offsets = sink(item.wanted).get((span.topic, span.partition), np.empty(0, dtype=np.int64))
    ranges = runs_of(span.topic, span.partition, offsets.tolist())
    return Part(item.entry, tuple(ranges), len(offsets)) if ranges else None
