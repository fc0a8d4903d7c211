"""Which windows a table must have, by the ledger: what a deep audit recomputes them from.

A live batch absorbed a record into those of its windows that ended after the watermark of the batch before, which the
ledger has. An interval made its windows from all records that it read. So each window follows from the records, and
from which batch or interval made it last.

A session follows from the records, and from the watermark before the batch of each. A record that is missing may have
been in a session that lasts at its time, or have joined it to one that begins within the gap after it. All others are
the same without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from sluice.errors import ConfigError, begin_again
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.pipeline.window import Window
from sluice.ranges import OffsetRange
from sluice.run.interval import Interval
from sluice.run.rebuild_plan import began
from sluice.text import instant

__all__ = ["EVER", "Plan", "Recompute", "Verdict", "cannot", "doubt", "told"]

EVER = 1 << 52
"""Later than any time, in milliseconds since 1970."""

_FOREIGN = "the pipeline file makes other windows of their records now than it did when they were written"
_MADE_AGAIN = "an interval made them again, of all of their records, and took out what live runs had written of them"
_JOINED_ANEW = "their records were joined once more when their state was made again, with the tables as they were then"
_UNTOLD = "an interval made them again by a version of Sluice that did not note of which records"


def possible(pipeline: Pipeline) -> None:
    """Refuse a pipeline whose windows cannot be recomputed.

    Raises
    ------
    ConfigError
        With the reason.
    """
    if (why := pipeline.no_recomputing) is not None:
        raise ConfigError(why, state="nothing was read or written", next_step="leave --windows out")


@dataclass(frozen=True)
class Plan:
    """What windows are recomputed from; of JSON's types. Times are in milliseconds since 1970.

    Attributes
    ----------
    version
        The version of the sink's table.
    live
        The ranges of live batches: topic, partition, start, end, epoch, watermark by which records were late, first and
        last event time (None if no record has one), number of records (None if it is unknown), whether the present file
        makes the same windows of them, the batch's number.
    made
        The ranges that intervals read: topic, partition, start, end, the interval's number, the batch's number.
    joined
        By epoch (an interval has a number less than 0) and batch, as ``1:4``: the versions of tables that it joined.
    owned
        Which windows are those of an interval: first start, start of the first that is none, the interval's number, the
        epoch beside which it ran. They do not overlap.
    closed, former
        By epoch: up to which end it has closed windows, or one that went on with its state, and up to which it writes
        none.
    begun
        By epoch: the one that began without state, with whose state it went on; often itself.
    doubtful
        Windows that cannot be proved: first start, start of the first that can, reason, whether also those of
        intervals. For sessions: those that end at the first time or later, and begin before the second.
    lost
        Ranges whose records no window has.
    partly
        Ranges of quarantined records that an interval put into those of their windows which begin in it: topic,
        partition, start, end, the interval's number.
    """

    version: int
    live: list[list[Any]] = field(default_factory=list)
    made: list[list[Any]] = field(default_factory=list)
    owned: list[list[int]] = field(default_factory=list)
    closed: dict[str, int] = field(default_factory=dict)
    former: dict[str, int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    joined: dict[str, Any] = field(default_factory=dict)
    doubtful: list[list[Any]] = field(default_factory=list)
    lost: list[list[Any]] = field(default_factory=list)
    partly: list[list[Any]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        pipeline: Pipeline,
        moves: Sequence[Mapping[str, Any]],
        former: Mapping[int, int],
        version: int,
    ) -> Plan:
        """Return the plan of a pipeline whose windows can be recomputed.

        Parameters
        ----------
        moves
            What batches did to windows since all rows were taken out, oldest first.
        former
            By epoch: up to which end it writes no windows, as far as there is a checkpoint that says so; where batches
            say it, they count.
        """
        window, name = pipeline.window, pipeline.name
        assert window is not None
        moves = list({(p["epoch"], p["batch"]): p for p in moves}.values())
        former = {**former, **{p["epoch"]: p["former_to"] for p in moves if p.get("former_to") is not None}}
        whole = window.output == "complete"
        newest = max((p["epoch"] for p in moves), default=0)
        epochs = {p["epoch"] for p in moves if p["epoch"] > 0 and (not whole or p["epoch"] == newest)}
        rebuilt = ledger.offsets.resets(name).rebuilt
        counted = {a.range: len(a.range) - a.counts.absent - a.counts.lost for a in ledger.offsets.accounts(name)}
        found = cls(
            version,
            closed={str(e): EVER if whole else 0 for e in epochs},
            former={str(e): to for e, to in former.items() if e in epochs},
            begun={str(e): began(ledger, name, e) if e in rebuilt else e for e in epochs},
            joined={
                f"{e}:{b}": tables for (e, b), tables in (ledger.facts.joined(name) if pipeline.tables else {}).items()
            },
            lost=[row.range.as_list() for row in ledger.offsets.never_read(name)],
        )
        intervals = {row.number: Interval.from_key(row.interval) for row in ledger.offsets.intervals(name)}
        made, now = list[tuple[int, int, int, int, Mapping[str, Any]]](), 0
        for move in moves:
            epoch = move["epoch"]
            if epoch in epochs:
                now = max(now, epoch)
                if move.get("absorbed"):
                    # what was made again of records: the file of then may have taken other event times of them
                    same = all(row[9] for row in found.live if row[4] in range(found.begun[str(epoch)], epoch))
                    if pipeline.tables or not same:
                        why = _JOINED_ANEW if pipeline.tables else _FOREIGN
                        found.doubtful.append([*doubt(window, *move["absorbed"]), why, False])
                found._take_live(pipeline, window, move, counted)
            elif epoch < 0 and -epoch in intervals:
                start, end = intervals[-epoch].milliseconds
                until = min(end, move["closed_to"] - _length(window) + 1)
                if until > start and window.gap is not None:
                    # of windows with a size, from before, it is not known how far they reach
                    reach, why = (move["reach"] + 1, _MADE_AGAIN) if "reach" in move else (end, _FOREIGN)
                    found.doubtful.append([start, max(until, reach), why, True])
                elif until > start:
                    made.append((start, until, -epoch, now, move))
        last = {
            first: max(found.closed[e] for e in found.begun if found.begun[e] == first)
            for first in found.begun.values()
        }
        found.closed.update({e: last[first] for e, first in found.begun.items()})
        found._take_made(pipeline, made)
        return found

    @property
    def recomputed(self) -> list[list[Any]]:
        """Those of :attr:`live` from which windows are recomputed.

        For other records, the present file may take other event times: it would demand windows that no run owed.
        """
        return [row for row in self.live if row[9]]

    def _take_live(
        self, pipeline: Pipeline, window: Window, move: Mapping[str, Any], counted: Mapping[OffsetRange, int]
    ) -> None:
        epoch, whole = move["epoch"], window.output == "complete"
        if not whole:
            self.closed[str(epoch)] = max(self.closed[str(epoch)], move["closed_to"])
        for topic, partition, start, end, first, last in move["times"]:
            late, count = -EVER if whole else move["late_by"], counted.get(OffsetRange(topic, partition, start, end))
            same = _same(pipeline, move)
            if first is not None and not same:
                self.doubtful.append([*doubt(window, first, last), _FOREIGN, False])
            self.live.append([topic, partition, start, end, epoch, late, first, last, count, same, move["batch"]])

    def _take_made(self, pipeline: Pipeline, made: Sequence[tuple[int, int, int, int, Mapping[str, Any]]]) -> None:
        edges = sorted({edge for start, until, *_ in made for edge in (start, until)})
        for here, there in pairwise(edges):
            owners = [item for item in made if item[0] <= here and there <= item[1]]
            if not owners:
                continue
            *_, number, epoch, move = owners[-1]
            self.owned.append([here, there, number, epoch])
            if "ranges" not in move:
                self.doubtful.append([here, there, _UNTOLD, True])
            elif not _same(pipeline, move):
                self.doubtful.append([here, there, _FOREIGN, True])
        numbers = {number for *_, number, _ in self.owned}
        newest = {number: move for *_, number, _, move in made}
        for number in sorted(numbers):
            self.made.extend([*span, number, newest[number]["batch"]] for span in newest[number].get("ranges", ()))
            self.partly.extend([*span, number] for span in newest[number].get("partly", ()))

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


@dataclass(frozen=True)
class Verdict:
    """What the comparison of recomputed windows with the table found; of JSON's types.

    Attributes
    ----------
    compared
        The number of windows, of each key, that were compared.
    count, differences
        How many differ, and the first of them: ``start`` and ``end`` (milliseconds since 1970), ``by`` (texts of the
        keys), ``values`` (by column, texts of what the records give and of what the table has; None for no row).
    doubtful
        As :attr:`Plan.doubtful`, of all reasons.
    columns
        Columns that were not compared, and why.
    """

    compared: int
    count: int
    differences: list[dict[str, Any]]
    doubtful: list[list[Any]]
    columns: dict[str, str]


Recompute = Callable[[Plan], Verdict]
"""Recomputes windows, which needs Spark."""


def cannot(pipeline: Pipeline) -> str | None:
    """Return why the windows of a pipeline cannot be recomputed; None if they can."""
    assert pipeline.window is not None
    if pipeline.origins is not None:
        return "Windows of records that several clusters have are not recomputed"
    return None


def doubt(window: Window, first: int, last: int) -> tuple[int, int]:
    """Return which windows may have a record of these event times: first start, start of the first that has none.

    For sessions, those that may have it, or would begin or end elsewhere without it: first end, start of the first that
    is the same.
    """
    if window.gap is not None:
        return first, last + _length(window) + 2  # an event time may be a part of a millisecond later
    return first - _length(window) + 1, last + 1


def told(pipeline: Pipeline, verdict: Verdict) -> tuple[list[str], list[str]]:
    """Return in words what differs, and what was not proved."""
    problems = [_difference(pipeline, item) for item in verdict.differences]
    if (more := verdict.count - len(problems)) > 0:
        problems.append(f"other windows that the sink has otherwise: {more:,} more")
    assert pipeline.window is not None
    those = "windows that begin" if pipeline.window.gap is None else "sessions that last at any time"
    unproved = [
        f"{those} from {instant(start * 1000)} to {instant((end - 1) * 1000)}: {why}"
        for start, end, why in _merged(verdict.doubtful)
    ]
    unproved += [f"window.aggregates: {name}: {why}" for name, why in verdict.columns.items()]
    return problems, unproved


def _difference(pipeline: Pipeline, item: Mapping[str, Any]) -> str:
    keys = "".join(f", {name} {value}" for name, value in item["by"].items())
    where = f"window {instant(item['start'] * 1000)} to {instant(item['end'] * 1000)}{keys}"
    if item["found"] and item["expected"]:
        parts = [
            f"{name} is {there} in the sink, and {by} by the records" for name, (by, there) in item["values"].items()
        ]
        what = "; ".join(parts)
    else:
        values = ", ".join(
            f"{name} {by if item['expected'] else there}" for name, (by, there) in item["values"].items()
        )
        lacks = "the sink has no such row, and by the records it has"
        extra = "the sink has a row that no record accounts for, or has it twice:"
        what = f"{lacks if item['expected'] else extra} {values}"
    return f"{where}: {what}. {_way_out(pipeline, item)}"


def _way_out(pipeline: Pipeline, item: Mapping[str, Any]) -> str:
    window = pipeline.window
    assert window is not None
    if window.output == "complete":
        return "The next run that reads a record writes all windows again"
    if pipeline.no_intervals is not None:
        return f"To write all rows again: {begin_again(pipeline.called, truncate=True)}"
    step = round(window.step.total_seconds() * 1000)
    start, end = (instant(time * 1000) for time in (item["start"], item["start"] + step))
    earlier = "" if window.gap is None else "; with an earlier start, if it is a part of a session that begins before"
    return (
        f"To make it again, from all of its records: sluice run {pipeline.called} --start {start} --end {end}{earlier}"
    )


def _merged(doubtful: Iterable[Sequence[Any]]) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for why, start, end in sorted((item[2], item[0], item[1]) for item in doubtful):
        if found and found[-1][2] == why and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]), why)
        else:
            found.append((start, end, why))
    return sorted(found)


def _same(pipeline: Pipeline, move: Mapping[str, Any]) -> bool:
    return move.get("aggregation") == pipeline.aggregation or move.get("absorption") == pipeline.absorption


def _length(window: Window) -> int:
    return round(window.length.total_seconds() * 1000)
