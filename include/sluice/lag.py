"""How far a pipeline is behind the broker. Pure: positions, the broker's answers and the ledger's past in; lag out.

What is not known is ``None``, never zero. A pipeline is judged by its own cadence, its runs, and not by a window of
commits: between two runs its position stands still, and that is no sign of anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, Literal

from sluice.errors import AuthorizationError, ConfigError, ExitCode, SluiceError
from sluice.kafka.state import FirstUnread, Key, PartitionState, TopicState
from sluice.ranges import OffsetRange, Positions
from sluice.spec.model import Lag

__all__ = ["Backlog", "FirstUnread", "Key", "Limits", "PartitionLag", "PastRun", "Status", "measure"]

RUNS = 3
"""How many runs in a row make a run of bad luck a pattern (``STUCK``, ``GROWING``)."""


class Status(StrEnum):
    """What is to be said about a partition; a pipeline's verdict is the worst of its partitions'. Mildest first."""

    OK = "OK"
    """Nothing waits."""
    NEW = "NEW"
    """No run has read it yet; the next one starts from where the pipeline file says."""
    BACKLOG = "BACKLOG"
    """Records wait, as they do between two runs. Whether they are too many, the limits say."""
    GROWING = "GROWING"
    """Over the limits, and each of the last three successful runs found more than the one before."""
    UNKNOWN = "UNKNOWN"
    """The broker did not say."""
    STUCK = "STUCK"
    """The last three runs failed, and none moved the position, while records wait."""
    REWOUND = "REWOUND"
    """The position lies before what the ledger says was written: the checkpoint was taken back."""
    LOST = "LOST"
    """The broker removed records before they were read."""
    RECREATED = "RECREATED"
    """The topic was deleted and made again, or is shorter than what was read from it."""
    AUTH = "AUTH"
    """The broker refuses the credentials, or a right is missing."""

    @property
    def severity(self) -> int:
        """The place in this list."""
        return list(Status).index(self)

    @staticmethod
    def worst(found: Iterable[Status]) -> Status:
        """Return the most severe; ``OK`` of none."""
        return max(found, key=lambda s: s.severity, default=Status.OK)


@dataclass(frozen=True)
class Limits:
    """From which lag on a run is worth starting.

    Parameters
    ----------
    max_records
        More offsets than these wait; None: however many.
    max_age
        The first record that waits is older.
    max_retention_share
        It has used up more of the topic's retention time, from 0 to 1.
    match
        Whether ``any`` of the limits given must be passed, or ``all``. A limit is passed, not met; what is not known
        has passed none.
    """

    max_records: int | None = 0
    max_age: timedelta | None = None
    max_retention_share: float | None = None
    match: Literal["any", "all"] = "any"

    @classmethod
    def of(cls, lag: Lag) -> Limits:
        """Read a pipeline file's part ``lag``.

        Who limits the age or the share alone does not mean "or a single record": ``max_records`` then counts only
        when it is written in the file.
        """
        timed = lag.max_age is not None or lag.max_retention_share is not None
        counted = not timed or "max_records" in lag.model_fields_set
        return cls(lag.max_records if counted else None, lag.max_age, lag.max_retention_share, lag.match)

    def __str__(self) -> str:
        parts = []
        if self.max_records is not None:
            parts.append(f"more than {self.max_records:,} records")
        if self.max_age is not None:
            parts.append(f"older than {self.max_age}")
        if self.max_retention_share is not None:
            parts.append(f"over {self.max_retention_share:.0%} of the retention time")
        return (" and " if self.match == "all" else " or ").join(parts) or "no limit"

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form; ``max_age`` in seconds."""
        seconds = None if self.max_age is None else self.max_age.total_seconds()
        return {**asdict(self), "max_age": seconds}


@dataclass(frozen=True)
class PastRun:
    """A closed run, as the ledger knows it.

    Parameters
    ----------
    state
        ``done``, ``failed`` or ``abandoned``.
    planned, committed
        What it found to read, and what of it was committed.
    code
        The exit code of its error.
    """

    state: str
    planned: Sequence[OffsetRange] = ()
    committed: Sequence[OffsetRange] = ()
    code: int | None = None

    @property
    def tells(self) -> bool:
        """Whether its end says something about the pipeline: not when the broker or another driver was in its way."""
        return self.code not in (ExitCode.SOURCE_UNREACHABLE, ExitCode.LEASE_HELD)

    def found(self, key: Key | None = None) -> int:
        """Return how many offsets it found, in one partition or in all."""
        return sum(len(r) for r in self.planned if key in (None, (r.topic, r.partition)))

    def failed_at(self, key: Key) -> bool:
        """Tell whether it failed without moving this partition's position."""
        if self.state not in ("failed", "abandoned") or any((r.topic, r.partition) == key for r in self.committed):
            return False
        return not self.planned or any((r.topic, r.partition) == key for r in self.planned)


@dataclass(frozen=True)
class PartitionLag:
    """One partition, in offsets, seconds and share of the retention time.

    Offsets are an upper bound of records: transaction markers and compaction leave gaps.

    Parameters
    ----------
    position
        Next offset to read; None when no run has read the partition.
    start, end
        The log's, as the query's isolation level sees it; None when the broker did not say.
    age
        Seconds since the first unread record's time; 0 when nothing waits. None: unknown.
    share
        ``age`` as a share of the topic's retention time; None also where that has no end.
    fresh
        Where the next run starts when there is no position; None: at ``start``.
    late
        Whether an unread record older than the age limit exists, where the broker was asked that instead of ``age``.
    high
        The high watermark, where ``end`` is the last stable offset.
    signs
        What else was found out about it.
    error
        Why something is unknown.
    """

    topic: str
    partition: int
    position: int | None
    start: int | None
    end: int | None
    age: float | None = None
    share: float | None = None
    fresh: int | None = None
    late: bool | None = None
    high: int | None = None
    clock: str | None = None
    signs: frozenset[Status] = frozenset()
    error: str | None = None

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def next(self) -> int | None:
        """The offset that the next run starts with, as far as it can be told."""
        if self.position is not None:
            return self.position
        return self.start if self.fresh is None else self.fresh

    @property
    def recreated(self) -> bool:
        """Whether the position is of another topic of this name, so that it counts nothing in this one."""
        return Status.RECREATED in self.signs or bool(self.beyond)

    @property
    def records(self) -> int | None:
        """Readable offsets that no run has read."""
        if self.recreated or self.next is None or self.start is None or self.end is None:
            return None
        return max(0, self.end - max(self.next, self.start))

    @property
    def lost(self) -> int | None:
        """Offsets that the broker removed before any run read them."""
        if self.recreated or self.next is None or self.start is None or self.end is None:
            return None
        return max(0, min(self.start, self.end) - self.next)

    @property
    def beyond(self) -> int | None:
        """Offsets by which the position is past the end."""
        return None if self.next is None or self.end is None else max(0, self.next - self.end)

    @property
    def pending(self) -> int | None:
        """Offsets behind an open transaction: in the log, and not to be read yet."""
        return None if self.high is None or self.end is None else max(0, self.high - self.end)

    @property
    def status(self) -> Status:
        """The worst that is to be said."""
        found = set(self.signs)
        if self.position is None:
            found.add(Status.NEW)
        elif self.records:
            found.add(Status.BACKLOG)
        if self.recreated:
            found.add(Status.RECREATED)
        elif self.records is None:
            found.add(Status.UNKNOWN)
        if self.lost:
            found.add(Status.LOST)
        return Status.worst(found)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "topic": self.topic, "partition": self.partition, "status": self.status.value, "position": self.position,
            "start": self.start, "end": self.end, "lag": self.records, "age": _rounded(self.age),
            "share": _rounded(self.share, 4), "lost": self.lost, "beyond": self.beyond, "pending": self.pending,
            "clock": self.clock, "error": self.error,
        }  # fmt: skip


@dataclass(frozen=True)
class Backlog:
    """The lag of one pipeline.

    Parameters
    ----------
    error
        The most telling of the errors that left something unknown.
    running
        The run that holds the pipeline's lease: what it has planned still counts as lag.
    at
        When it was measured.
    """

    pipeline: str
    partitions: tuple[PartitionLag, ...]
    limits: Limits = field(default_factory=Limits)
    error: SluiceError | None = None
    running: str | None = None
    at: datetime | None = None

    @property
    def verdict(self) -> Status:
        """The worst status of the partitions, and of what kept them unknown."""
        return Status.worst([*(p.status for p in self.partitions), *_sign_of(self.error)])

    @property
    def incomplete(self) -> bool:
        """Whether the lag of a part is not known: sums and maxima are those of the rest."""
        return self.error is not None or any(p.records is None and not p.recreated for p in self.partitions)

    @property
    def records(self) -> int | None:
        """Readable offsets that no run has read, as far as known; None when nothing is."""
        return self._sum(p.records for p in self.partitions)

    @property
    def lost(self) -> int | None:
        """Offsets that the broker removed before any run read them, as far as known; None when nothing is."""
        return self._sum(p.lost for p in self.partitions)

    @property
    def age(self) -> float | None:
        """Seconds since the time of the oldest first unread record that is known."""
        return max((p.age for p in self.partitions if p.age is not None), default=None)

    @property
    def share(self) -> float | None:
        """The largest share of the retention time that is used up, of those that are known."""
        return max((p.share for p in self.partitions if p.share is not None), default=None)

    @property
    def over(self) -> bool:
        """Whether the limits are passed, by what is known."""
        limits, passed = self.limits, []
        if limits.max_records is not None:
            passed.append((self.records or 0) > limits.max_records)
        if limits.max_age is not None:
            too_old = (self.age or 0.0) > limits.max_age.total_seconds()
            passed.append(too_old or any(p.late for p in self.partitions))
        if limits.max_retention_share is not None:
            passed.append((self.share or 0.0) > limits.max_retention_share)
        return bool(passed) and (all(passed) if limits.match == "all" else any(passed))

    @property
    def needs_a_run(self) -> bool:
        """Whether something is amiss that only a run can report with its typed error, or put on record."""
        return any(p.status in (Status.LOST, Status.RECREATED) for p in self.partitions)

    @property
    def worth_a_run(self) -> bool:
        """Whether to start a run: over the limits, or something to report, and no run is at work already.

        A pipeline that is ``STUCK`` counts as well: whoever starts runs without being asked looks at the verdict, too.
        """
        return self.running is None and (self.over or self.needs_a_run)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        error = self.error
        return {
            "pipeline": self.pipeline,
            "verdict": self.verdict.value,
            "lag": self.records,
            "age": _rounded(self.age),
            "share": _rounded(self.share, 4),
            "lost": self.lost,
            "over": self.over,
            "incomplete": self.incomplete,
            "limits": self.limits.as_dict(),
            "running": self.running,
            "at": self.at.isoformat(timespec="milliseconds") if self.at else None,
            "error": error
            and {
                "type": type(error).__name__, "exit_code": int(error.exit_code), "what": error.what,
                "state": error.state, "next_step": error.next_step,
            },
            "partitions": [p.as_dict() for p in self.partitions],
        }  # fmt: skip

    def _sum(self, values: Iterable[int | None]) -> int | None:
        found = [v for v in values if v is not None]
        nothing_to_know = not self.partitions and self.error is None
        return sum(found) if found or nothing_to_know else None


def measure(
    pipeline: str,
    positions: Positions | None,
    states: Sequence[TopicState],
    starting_offsets: Literal["earliest", "latest"] = "earliest",
    *,
    planned: Positions | None = None,
    known_ids: Mapping[str, str] | None = None,
    furthest: Positions | None = None,
    first_unread: Mapping[Key, FirstUnread] | None = None,
    at_age_limit: Mapping[Key, int | None] | None = None,
    retention: Mapping[str, timedelta | None] | None = None,
    history: Sequence[PastRun] = (),
    limits: Limits | None = None,
    running: str | None = None,
    error: SluiceError | None = None,
    now: datetime | None = None,
) -> Backlog:
    """Compare committed positions with the broker's answers.

    Parameters
    ----------
    positions
        The checkpoint's committed positions; None before the first run. They must be older than the broker's answers.
    states
        The broker's answers, with the errors of those topics and partitions that it did not answer for.
    starting_offsets
        Where a first run starts. A partition that was added after it is read from offset 0, as Spark does.
    planned
        Where the batch leads to that was planned and not committed.
    known_ids, furthest
        Topic ids, and the ends of what was written, by the ledger.
    first_unread
        Of partitions with lag; where it is missing, ``age`` is unknown.
    at_age_limit
        The first offset that is not older than the age limit, by the broker; None for no such record. It stands in
        for a missing ``first_unread``.
    retention
        The retention time by topic; None or missing: without end, or unknown.
    history
        The newest closed live runs, newest first.
    running
        The run that is at work now.
    error
        Why ``states`` do not say everything, when it is not the error of one of them.
    """
    limits, now = limits or Limits(), now or datetime.now(UTC)
    errors = [error] if error else []
    found: list[PartitionLag] = []
    for state in states:
        errors += [e for e in (state.error, *state.errors.values()) if e is not None]
        reader = _Reader(
            state,
            None if positions is None else positions.get(state.topic, {}),
            starting_offsets,
            (planned or {}).get(state.topic, {}),
            (furthest or {}).get(state.topic, {}),
            (known_ids or {}).get(state.topic),
        )
        found += (reader.partition(number) for number in reader.numbers())
    timed = [
        _timed(p, first_unread or {}, at_age_limit or {}, (retention or {}).get(p.topic), now) for p in found
    ]  # fmt: skip
    backlog = Backlog(pipeline, tuple(timed), limits, _worst_error(errors), running, now)
    told = [run for run in history if run.tells][:RUNS]
    growing = backlog.over and _rises(history)
    signs = {p.key: _signs_of_history(p, told, [r for r in history if r.state == "done"], growing) for p in timed}
    return replace(backlog, partitions=tuple(replace(p, signs=p.signs | signs[p.key]) for p in timed))


@dataclass(frozen=True)
class _Reader:
    """What is known of one topic."""

    state: TopicState
    positions: Mapping[int, int] | None
    starting_offsets: Literal["earliest", "latest"]
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
        if self.known_id and state.topic_id and self.known_id != state.topic_id:
            signs.add(Status.RECREATED)
        if now is None and error is None:
            signs.add(Status.RECREATED)  # the topic answers, and has no such partition any more
        if position is not None and self._reached(number, position) < self.furthest.get(number, 0):
            signs.add(Status.REWOUND)
        signs.update(_sign_of(error))
        return PartitionLag(
            state.topic,
            number,
            position,
            now.start if now else None,
            now.end if now else None,
            fresh=self._fresh(now),
            high=now.high if now else None,
            signs=frozenset(signs),
            error=error.what if error else None,
        )

    def _reached(self, number: int, position: int) -> int:
        # a driver that died between the ledger's commit and Spark's leaves a planned batch, and has rewound nothing
        return max(position, self.planned.get(number, 0))

    def _fresh(self, now: PartitionState | None) -> int | None:
        if now is None:
            return None
        if self.positions is not None:
            return 0
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
    first, age, late = first_unread.get(part.key), None, None
    if part.records == 0 or (first is not None and first.time is None):
        age = 0.0
    elif first is not None and first.time is not None:
        age = max(0.0, now.timestamp() - first.time)  # a producer's clock may be ahead
    elif part.key in at_age_limit:
        limit = at_age_limit[part.key]
        late = limit is None or max(part.next, part.start) < limit
    share = None
    if age is not None and retention:
        share = age / retention.total_seconds()
    return replace(part, age=age, share=share, late=late, clock=first.clock if first else None)


def _rises(history: Sequence[PastRun]) -> bool:
    """Whether each of the last successful runs found more than the one before."""
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


def _sign_of(error: SluiceError | None) -> list[Status]:
    if error is None:
        return []
    return [Status.AUTH if isinstance(error, AuthorizationError) else Status.UNKNOWN]


def _worst_error(errors: Sequence[SluiceError]) -> SluiceError | None:
    """Return what waiting mends least."""
    order = (AuthorizationError, ConfigError, SluiceError)
    return min(errors, key=lambda e: next(i for i, kind in enumerate(order) if isinstance(e, kind)), default=None)


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
