"""What a reset does: where the new epoch begins, and what becomes of the offsets before it; pure.

A reset closes a pipeline's epoch and opens the next one, with a fresh checkpoint. The account goes on to tile:

- **It begins where the account ends.** Nothing else changes.
- **It begins later.** The offsets in between count as lost, with the reason, and are open: a redrive can bring them.
- **It begins earlier.** The same offsets would be written twice. So that is refused, unless all rows of the pipeline
  leave the sink and the quarantine (``truncate``), in one commit each. The account then starts over: earlier accounts
  stay on record as closed. Offsets that had an account and lie before the new beginning are open as lost.

A topic that was recreated has other records at the same offsets. Its former records cannot come back, and its offsets
have no account in the new one; so that needs ``truncate``, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.errors import ConfigError, begin_again
from sluice.ledger import REDRIVEN, Epoch, Ledger
from sluice.pipeline import Pipeline
from sluice.pipeline.window import Window
from sluice.ranges import OffsetRange, Positions, describe
from sluice.recovery import Route
from sluice.run.interval import moment_of
from sluice.sources.state import TopicState, joined_ids
from sluice.text import instant

__all__ = ["Reset", "Standing", "may_hold", "of_windows", "plan", "possible", "still_open", "united"]

_UNTOUCHED = "nothing was read or written; the table and the ledger are unchanged"


@dataclass(frozen=True)
class Reset:
    """A planned reset.

    Attributes
    ----------
    epoch, route, positions
        The new epoch, and where it begins.
    skipped
        What had no account, or has none any more, and is not read by the new epoch either: open as lost.
    truncated
        Whether all rows of the pipeline leave sink and quarantine, and the account starts over.
    recreated
        Topics that have other records now than those of the account.
    topic_ids
        The ids of the topics that the new epoch reads.
    given_up
        What does not come back by reading on from there, in words.
    notes
        What else it means, in words.
    held
        For redrives (0) and intervals (below): the newest batch that the sink has, if the ledger knows of later ones.
    removed
        How many offsets' rows left the sink.
    """

    epoch: int
    route: Route
    positions: Positions
    skipped: tuple[OffsetRange, ...]
    truncated: bool
    recreated: tuple[str, ...]
    topic_ids: Mapping[str, str]
    reason: str
    given_up: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    held: tuple[tuple[int, int], ...] = ()
    removed: int = 0
    rebuild: bool = False
    """Whether the new epoch goes on with the state of the one before, which its first run makes again."""
    cluster: Mapping[str, Any] | None = None
    """For a failover: the connections ``from`` and ``to``, and ``left``: how far the streams of ``from`` were read."""

    def as_dict(self) -> dict[str, Any]:
        """Return the form of commit metadata and ledger."""
        return {
            "epoch": self.epoch, "lineage": self.route.value,
            "positions": {t: {str(p): o for p, o in parts.items()} for t, parts in self.positions.items()},
            "skipped": [span.as_list() for span in self.skipped], "truncated": self.truncated,
            "recreated": list(self.recreated), "topic_ids": dict(self.topic_ids), "reason": self.reason,
            "notes": [*self.given_up, *self.notes], "held": [list(item) for item in self.held],
            "removed": self.removed,
            **({"rebuild": True} if self.rebuild else {}),
            **({"cluster": dict(self.cluster)} if self.cluster is not None else {}),
        }  # fmt: skip


def possible(pipeline: Pipeline, begin: str | None, *, truncate: bool, rebuild: bool = False) -> None:
    """Raise a :class:`~sluice.errors.ConfigError` if this pipeline cannot be reset in this way.

    Parameters
    ----------
    begin
        ``earliest``, ``latest``, a time in ISO 8601, or None for the position.
    rebuild
        Whether the new epoch goes on with the state of the one before, made again.
    """
    name, sink = pipeline.name, pipeline.sink
    if rebuild:
        _rebuildable(pipeline, begin, truncate=truncate)
    if begin not in (None, "earliest", "latest"):
        moment_of(begin)
        if not pipeline.source.kind.seek_by_time:
            raise ConfigError(
                f"source.{pipeline.source.key} of {name!r} cannot find offsets by time",
                state=_UNTOUCHED,
                next_step="say --from earliest or --from latest, or leave it out to go on at the position",
            )
    if not truncate:
        return
    if begin is None:
        raise ConfigError(
            "--truncate takes all rows out, and no option says from where they are to be written again",
            state=_UNTOUCHED,
            next_step="say --from earliest, --from latest or --from TIME as well",
        )
    which = pipeline.irreplaceable or ("a pipeline that has further sinks (also)" if pipeline.also else None)
    if which is not None or (pipeline.aggregates and not sink.kind.by_value):
        aggregated = f"sink.{sink.key} beside {pipeline.kept_by or 'rows: aggregate'}, whose rows carry no offsets,"
        raise ConfigError(
            f"rows of {name!r} cannot be taken out: {which or aggregated} does not take such rows back",
            state=_UNTOUCHED,
            next_step="leave --truncate out, which goes on at the position or later; or empty the sink yourself, give "
            "the pipeline another name and its sink another path",
        )


def _rebuildable(pipeline: Pipeline, begin: str | None, *, truncate: bool) -> None:
    """Raise if the state of this pipeline cannot be made again."""
    name = pipeline.name
    if truncate or begin is not None:
        raise ConfigError(
            f"--rebuild-state goes on where {name!r} stands: it cannot be combined with "
            f"{'--truncate' if truncate else '--from'}",
            state=_UNTOUCHED,
            next_step="leave one of them out",
        )
    if (why := pipeline.no_rebuilding) is not None:
        way = f"{begin_again(name)} drops what is kept; with --truncate --from earliest all rows are written again"
        raise ConfigError(
            why, state=_UNTOUCHED, next_step="leave --rebuild-state out" + (f": {way}" if pipeline.stateful else "")
        )


def united(ledger: Ledger, pipeline: str) -> dict[tuple[str, int], OffsetRange]:
    """Return, per partition, from where to where accounts stand: those of live runs, and of intervals before them."""
    spans = [entry.account.range for entry in ledger.offsets.entries(pipeline) if entry.epoch > REDRIVEN]
    found: dict[tuple[str, int], OffsetRange] = {}
    for span in (*spans, *(account.range for _, account, _ in ledger.offsets.replaced(pipeline))):
        key = (span.topic, span.partition)
        known = found.get(key, span)
        found[key] = OffsetRange(*key, min(span.start, known.start), max(span.end, known.end))
    return found


def may_hold(ledger: Ledger, pipeline: str) -> list[OffsetRange]:
    """Return where the tables may have rows: where accounts stand, and what batches read that were begun only."""
    begun = [span for ranges in ledger.offsets.begun(pipeline).values() for span in ranges]
    return [*united(ledger, pipeline).values(), *begun]


@dataclass(frozen=True)
class Standing:
    """How far runs have come, by checkpoint and ledger.

    Attributes
    ----------
    reached
        The position, as far as it is known.
    accounted
        As of :func:`united`.
    known_ids
        The ids of topics.
    unread
        What runs planned to read and did not. For a topic that the new epoch does not read, it is open as lost.
    first
        Where a first run would begin, if nothing is accounted for.
    """

    reached: Positions
    accounted: Mapping[tuple[str, int], OffsetRange]
    known_ids: Mapping[str, str]
    unread: Sequence[OffsetRange] = ()
    first: Positions = field(default_factory=dict)


def plan(
    pipeline: Pipeline,
    now: Epoch,
    *,
    reason: str,
    begin: Positions,
    truncate: bool,
    standing: Standing,
    states: Sequence[TopicState],
) -> Reset:
    """Return what a reset has to do.

    Parameters
    ----------
    now
        The epoch that it closes.
    begin
        Where the user asked to begin; empty for the position.

    Raises
    ------
    ConfigError
        If offsets would be written twice, or a position is unknown.
    """
    name, reached, accounted = pipeline.name, standing.reached, standing.accounted
    known_ids, unread = standing.known_ids, standing.unread
    recreated = tuple(s.topic for s in states if s.is_another(known_ids.get(s.topic)))
    gone = tuple(topic for topic in recreated if any(t == topic for t, _ in accounted))
    if gone and not truncate:
        raise ConfigError(
            f"topic {gone[0]!r} of {name!r} was deleted and recreated: its offsets stand for other records now, and "
            "rows of the former records with the same offsets are in the sink",
            state=_UNTOUCHED,
            next_step=f"sluice reset {name} --reason TEXT --truncate --from earliest takes those rows out; to keep "
            "them, give the pipeline another name and its sink another path, both at once",
        )
    kafka = pipeline.source.kafka
    # what a pattern matches only since the first run is read from offset 0, also where the first run began at the end
    later = 0 if kafka is not None and kafka.pattern is not None and reached else None
    positions: Positions = {}
    skipped, twice, unknown = list[OffsetRange](), list[OffsetRange](), list[str]()
    for state in states:
        for number, there in state.partitions.items():
            key, top = (state.topic, number), max(there.end, there.high or 0)
            position = None if state.topic in recreated else reached.get(state.topic, {}).get(number, later)
            start = begin.get(state.topic, {}).get(number)
            if start is None:
                start = there.start if state.topic in recreated else position
            if start is None and accounted and pipeline.source.config.starting_offsets != "earliest":
                unknown.append(f"{state.topic}-{number}")
            if start is None:
                start = standing.first.get(state.topic, {}).get(number, there.start)
            start = min(max(start, there.start), top)
            positions.setdefault(state.topic, {})[number] = start
            if truncate:
                begun = accounted.get(key)
                if begun is not None and begun.start < start and state.topic not in recreated:
                    skipped.append(OffsetRange(*key, begun.start, start))
            elif position is not None and position < start:
                skipped.append(OffsetRange(*key, position, start))
            elif position is not None and start < position:
                twice.append(OffsetRange(*key, start, position))
    left = {s.topic for s in states}
    if not truncate:
        skipped += [span for span in unread if span.topic not in left]
    if truncate:
        skipped += [span for (topic, _), span in accounted.items() if topic not in left]
    if unknown:
        raise ConfigError(
            f"where {name!r} stands in {', '.join(unknown)} is not on record, and source.starting_offsets is not "
            "earliest",
            state=_UNTOUCHED,
            next_step="say from where to go on: --from latest, --from earliest or --from TIME",
        )
    if twice:
        raise ConfigError(
            f"{sum(map(len, twice)):,} offsets would be written twice: {describe(twice)}",
            state=_UNTOUCHED,
            next_step="add --truncate, which takes the pipeline's rows out of the sink first; or begin where the rows "
            f"end: leave --from out to go on at {_place(reached)}",
        )
    # accounts of topics that are left out still stand: if one is created again, it is another one
    kept = {} if truncate else {t: known for t, known in known_ids.items() if t not in recreated}
    reset = Reset(
        now.number + 1, pipeline.recovery.route, positions, tuple(sorted(skipped)), truncate, recreated,
        joined_ids(kept, states), reason,
    )  # fmt: skip
    return replace(reset, given_up=tuple(_given_up(reset, gone, states)))


def _given_up(reset: Reset, gone: Sequence[str], states: Sequence[TopicState]) -> list[str]:
    found = []
    if reset.truncated and reset.skipped:
        found.append(
            f"rows leave the sink, and the new epoch does not read their records again: {describe(reset.skipped)}"
        )
    if gone:
        found.append(f"rows of the former topic {', '.join(gone)} leave the sink, and their records cannot be read")
    lost = _unreadable(reset, states)
    if lost:
        found.append(f"the source no longer has {describe(lost)}")
    return found if reset.truncated else []


def _unreadable(reset: Reset, states: Sequence[TopicState]) -> list[OffsetRange]:
    starts = {(s.topic, number): now.start for s in states for number, now in s.partitions.items()}
    ends = ((span, min(span.end, starts.get((span.topic, span.partition), span.end))) for span in reset.skipped)
    return [OffsetRange(span.topic, span.partition, span.start, end) for span, end in ends if end > span.start]


def still_open(definition: tuple[str, Mapping[str, Any]] | None, latest: int | None, closed_to: int) -> bool:
    """Return whether windows may be open that no row has yet.

    Parameters
    ----------
    definition
        As of :meth:`sluice.run.checkpoint.Checkpoint.definition`; None if it is unknown.
    latest
        The latest event time that was absorbed, in milliseconds since 1970; None if none was.
    closed_to
        All windows up to there are closed.
    """
    if latest is None:
        return False
    if definition is None or definition[0] != "window":
        return True
    length = float(definition[1].get("size") or definition[1].get("gap") or 0.0)
    return latest + round(length * 1000) + 1 > closed_to


def of_windows(
    window: Window | None,
    *,
    written: bool,
    are_open: bool,
    before: str = "append",
    latest: int | None = None,
    closed_to: int = 0,
    intervals: bool = True,
) -> tuple[list[str], list[str]]:
    """Return what does not come back of windows when their table stays, and what else is to be known.

    Parameters
    ----------
    window
        Those of the new epoch; None if it has none.
    written
        Whether batches have absorbed anything since the table was empty.
    are_open
        Whether windows may be open that no row has yet: :func:`still_open`.
    before
        When the old epoch wrote windows: ``append``, ``update`` or ``complete``.
    latest
        The latest event time that was absorbed so far, in milliseconds since 1970.
    closed_to
        All windows up to there were closed so far, in milliseconds since 1970.
    intervals
        Whether intervals make windows of the table again.
    """
    lost = "windows that are open are dropped: what they had absorbed counts as written, and no row has it."
    if before != "append":
        lost = "windows that are open are updated no more: the table keeps what it has of them."
    again = "--truncate with an earlier --from writes all windows again"
    if window is not None and window.output == "complete":
        dropped = "the first batch of the new epoch puts what it has read in place of all rows of the table: "
        return [f"{dropped}those from records before it leave. {again}"] if written or are_open else [], []
    if window is not None and window.gap is not None and are_open:
        lost += " A session that goes on gets a row of its records from now on."
    if window is not None and window.gap is not None and intervals:
        again = f"An interval of event time makes sessions whole when they are closed; {again}"
    given_up = [f"{lost} {again}"] if are_open else []
    if window is None or not (are_open or written):
        return given_up, []
    if window.gap is not None:
        at = f" ({_instant(closed_to)})" if closed_to else ""
        return given_up, [
            f"sessions that were written stay as they are: records that are late by the watermark so far{at} count as "
            "filtered in the new epoch, too"
        ]
    at = "" if latest is None else f" ({_instant(latest)})"
    way = "an interval of event time makes them again when they are closed" if intervals else f"only {again}"
    return given_up, [
        f"windows that begin at or before the latest event time so far{at} stay as the table has them, and those that "
        f"it does not have are not written: records that come for them count as filtered, and {way}"
    ]


def _instant(time: int) -> str:
    return instant(time // 1000 * 1_000_000)


def _place(positions: Positions) -> str:
    places = [f"{topic}-{n}: {o}" for topic, parts in sorted(positions.items()) for n, o in sorted(parts.items())]
    return ", ".join(places[:8]) + (" …" if len(places) > 8 else "") or "the position"
