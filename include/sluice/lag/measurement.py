"""Computes the lag from positions, the broker's answers and past runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from sluice.errors import AuthorizationError, ConfigError, SluiceError
from sluice.lag.backlog import Backlog
from sluice.lag.limits import Limits
from sluice.lag.partition import PartitionLag
from sluice.lag.past import PastRun
from sluice.lag.status import Status, signs_of
from sluice.ranges import Positions
from sluice.sources.begin import Begin
from sluice.sources.state import AHEAD, FirstUnread, Key, PartitionState, TopicState

__all__ = ["Ages", "Recorded", "measure"]

RUNS = 3
"""How many consecutive runs ``STUCK`` and ``GROWING`` need."""


@dataclass(frozen=True)
class Recorded:
    """Positions, ids and runs of a pipeline, from its checkpoint and the ledger.

    Attributes
    ----------
    positions
        The checkpoint's committed positions; None before the first run. They must be older than the broker's answers.
    planned
        The end of the batch that was planned and not committed.
    ids, furthest
        The ledger's topic ids, and the ends of what was written.
    history
        The newest closed live runs, newest first.
    """

    positions: Positions | None
    planned: Positions | None = None
    furthest: Positions = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    history: Sequence[PastRun] = ()


@dataclass(frozen=True)
class Ages:
    """Times and retention, from the broker.

    Attributes
    ----------
    first_unread
        The first unread records of partitions with lag; ``age`` is unknown where one is missing.
    at_age_limit
        The first offset that is not older than the age limit, or None. It replaces a missing ``first_unread``.
    retention
        The retention time by topic; None if it is unlimited, missing if it is unknown.
    """

    first_unread: Mapping[Key, FirstUnread] = field(default_factory=dict)
    at_age_limit: Mapping[Key, int | None] = field(default_factory=dict)
    retention: Mapping[str, timedelta | None] = field(default_factory=dict)


def measure(
    pipeline: str,
    recorded: Recorded,
    states: Sequence[TopicState],
    starting_offsets: Begin = "earliest",
    *,
    ages: Ages | None = None,
    limits: Limits | None = None,
    now: datetime | None = None,
) -> Backlog:
    """Compare committed positions with the broker's answers.

    Parameters
    ----------
    states
        The broker's answers, with an error for each topic and partition without an answer.
    starting_offsets
        Where a first run starts; by a time, what was before it counts, too.
        A partition that was added after it is read from offset 0, as in Spark.
    """
    limits, now, ages = limits or Limits(), now or datetime.now(UTC), ages or Ages()
    errors: list[SluiceError] = []
    found: list[PartitionLag] = []
    positions, history = recorded.positions, recorded.history
    for state in states:
        errors += [e for e in (state.error, *state.errors.values()) if e is not None]
        reader = _Reader(
            state,
            None if positions is None else positions.get(state.topic, {}),
            starting_offsets,
            (recorded.planned or {}).get(state.topic, {}),
            recorded.furthest.get(state.topic, {}),
            recorded.ids.get(state.topic),
        )
        found += (reader.partition(number) for number in reader.numbers())
    timed = [_timed(p, ages.first_unread, ages.at_age_limit, ages.retention.get(p.topic), now) for p in found]
    last = history[0] if history else None
    backlog = Backlog(pipeline, tuple(timed), limits, _worst_error(errors), None, now, last)
    told = [run for run in history if run.tells][:RUNS]
    growing = backlog.over and _rises(history)
    signs = {p.key: _signs_of_history(p, told, [r for r in history if r.state == "done"], growing) for p in timed}
    return replace(backlog, partitions=tuple(replace(p, signs=p.signs | signs[p.key]) for p in timed))


@dataclass(frozen=True)
class _Reader:
    """Compares one topic's state with its positions."""

    state: TopicState
    positions: Mapping[int, int] | None
    starting_offsets: Begin
    planned: Mapping[int, int]
    furthest: Mapping[int, int]
    known_id: str | None

    def numbers(self) -> list[int]:
        """Return the partitions of the broker and of the checkpoint."""
        return sorted({*self.state.partitions, *self.state.errors, *(self.positions or {})})

    def partition(self, number: int) -> PartitionLag:
        state, signs = self.state, set[Status]()
        now = state.partitions.get(number)
        position = (self.positions or {}).get(number)
        error = state.errors.get(number) or state.error
        if state.is_another(self.known_id):
            signs.add(Status.RECREATED)
        if now is None and error is None:
            signs.add(Status.RECREATED)  # the topic exists without this partition
        if position is not None and self._reached(number, position) < self.furthest.get(number, 0):
            signs.add(Status.REWOUND)
        signs.update(signs_of(error))
        return PartitionLag(
            state.topic,
            number,
            position,
            now.start if now else None,
            now.end if now else None,
            fresh=self._fresh(number, now),
            high=now.high if now else None,
            signs=frozenset(signs),
            error=error.what if error else None,
        )

    def _reached(self, number: int, position: int) -> int:
        # a driver that died between the ledger's commit and Spark's leaves a planned batch: that is not a rollback
        return max(position, self.planned.get(number, 0))

    def _fresh(self, number: int, now: PartitionState | None) -> int | None:
        if now is None:
            return None
        if self.positions is not None:
            return 0
        if isinstance(self.starting_offsets, dict):
            at = self.starting_offsets.get(self.state.topic, {}).get(number, now.start)
            return min(max(at, now.start), now.end)
        return now.end if self.starting_offsets == "latest" else now.start


def _timed(
    part: PartitionLag,
    first_unread: Mapping[Key, FirstUnread],
    at_age_limit: Mapping[Key, int | None],
    retention: timedelta | None,
    now: datetime,
) -> PartitionLag:
    if part.records is None or part.next is None or part.start is None:
        return part
    first, age, late, ahead = first_unread.get(part.key), None, None, False
    if part.records == 0 or (first is not None and first.time is None):
        age = 0.0
    elif first is not None and first.time is not None:
        ahead = first.is_ahead(now.timestamp())
        told = [moment for moment in (first.time, *first.others) if moment <= now.timestamp() + AHEAD]
        age = max(0.0, now.timestamp() - min(told)) if told else None
        late = None if told else True  # how long they have waited cannot be known, and a run ends that
    elif part.key in at_age_limit:
        limit = at_age_limit[part.key]
        late = limit is None or max(part.next, part.start) < limit
    share = None
    if age is not None and retention:
        share = age / retention.total_seconds()
    signs = part.signs | ({Status.CLOCK} if ahead else set())
    return replace(part, age=age, share=share, late=late, clock=first.clock if first else None, signs=signs)


def _rises(history: Sequence[PastRun]) -> bool:
    """Whether each of the last successful runs found more records than the one before."""
    found = [run.found() for run in history if run.state == "done"][:RUNS]
    return len(found) == RUNS and all(newer > older for newer, older in pairwise(found))


def _signs_of_history(
    part: PartitionLag, told: Collection[PastRun], done: Sequence[PastRun], growing: bool
) -> frozenset[Status]:
    if not part.records:
        return frozenset()
    signs = set()
    if len(told) == RUNS and all(run.failed_at(part.key) for run in told):
        signs.add(Status.STUCK)
    if growing and done[0].found(part.key) > done[RUNS - 1].found(part.key):
        signs.add(Status.GROWING)
    return frozenset(signs)


def _worst_error(errors: Sequence[SluiceError]) -> SluiceError | None:
    """Return the error that is least likely to go away by waiting."""
    order = (AuthorizationError, ConfigError, SluiceError)
    return min(errors, key=lambda e: next(i for i, kind in enumerate(order) if isinstance(e, kind)), default=None)
