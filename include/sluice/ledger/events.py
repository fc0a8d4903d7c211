"""The ledger's events: the type of each and what it carries.

A payload is what was given when the event was made; a field that was left out is read as its default, also in events
that an earlier version recorded. The facts of a batch (:mod:`sluice.facts`) are events, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    PlainValidator,
    model_validator,
)

from sluice.facts import FACTS, BatchFact
from sluice.ledger.strict_json import plain
from sluice.ranges import LostRange, OffsetRange, RangeAccount, Times
from sluice.recovery import Route
from sluice.text import storable

__all__ = [
    "Announced",
    "BatchCommitted",
    "BatchEvent",
    "BatchGivenUp",
    "BatchStarted",
    "Degraded",
    "EpochOpened",
    "Event",
    "FactRecorded",
    "IntervalResolved",
    "Judged",
    "LossAcknowledged",
    "NormalSet",
    "PipelineAdopted",
    "PipelineForgotten",
    "PipelineReset",
    "RangeLost",
    "RangeRedriven",
    "RangeRetracted",
    "Redriven",
    "RunClosed",
    "RunPlanned",
    "SegmentSealed",
    "SegmentsCleaned",
    "StateMeasured",
    "TimesFound",
    "VerdictAccepted",
    "batch_committed",
    "parsed",
    "rows_retracted",
]

Span = Annotated[
    OffsetRange,
    PlainValidator(lambda span: span if isinstance(span, OffsetRange) else OffsetRange(*span)),
    PlainSerializer(lambda span: span.as_list()),
]
"""A range; in JSON ``[topic, partition, start, end]``."""

TimeSpan = Annotated[
    Times,
    PlainValidator(lambda t: t if isinstance(t, Times) else Times(OffsetRange(*t[:4]), *t[4:])),
    PlainSerializer(lambda t: [*t.range.as_list(), t.first, t.last]),
]
"""The first and the last record time of a range: ``[topic, partition, start, end, first, last]``."""


class Event(BaseModel):
    """One event of a run. Its class names its type."""

    model_config = ConfigDict(frozen=True, validate_by_name=True, validate_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _escape(cls, data: Any) -> Any:
        return storable(data)

    @property
    def type(self) -> str:
        """The name of its type."""
        return type(self).__name__

    def payload(self) -> dict[str, Any]:
        """Return the JSON-ready form; :func:`parsed` reads it."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


class BatchEvent(Event):
    """An event of a batch: its epoch and its number."""

    epoch: int
    batch: int


class RunPlanned(Event):
    """A run begins; the same run id again is another attempt.

    Parameters
    ----------
    token
        The token of the run's lease.
    interval
        For an interval run: :attr:`sluice.run.interval.Interval.key`.
    reason
        The user's reason for the run.
    sources
        The ranges by where they are read from, unless all come from Kafka.
    gated
        Whether it judges each batch before it commits it.
    leaders
        :func:`sluice.sources.state.leaders` of what it saw.
    """

    kind: str
    recovery: str
    epoch: int
    ranges: Sequence[Span]
    topic_ids: Mapping[str, str]
    token: int | None = None
    interval: str | None = None
    reason: str | None = None
    sources: Mapping[str, Sequence[Span]] | None = None
    gated: bool = False
    leaders: Sequence[Sequence[Any]] = ()


class IntervalResolved(Event):
    """The offsets that an interval of record time was resolved to.

    Parameters
    ----------
    number
        The interval's number in its pipeline.
    whole
        Whether both ends are final; otherwise a later run may find that the interval reaches further.
    """

    number: int
    interval: str
    ranges: Sequence[Span]
    whole: bool
    topic_ids: Mapping[str, str]


class TimesFound(Event):
    """The record times of ranges for which no batch's account has them."""

    times: Sequence[TimeSpan]


class EpochOpened(Event):
    """An epoch begins at these positions; None is the pipeline's beginning.

    Recording an epoch again changes its route, which is allowed only while nothing was committed in it.
    """

    epoch: int
    lineage: Route
    positions: Mapping[str, Mapping[int, int]] | None


class Degraded(Event):
    """A run goes on with less than its strategy promises, or reports something else; ``note`` is a sentence."""

    note: str


class SegmentSealed(BatchEvent):
    """The sealed segments of a batch, as :meth:`sluice.wal.Segment.as_dict`, with their records and bytes."""

    segments: Sequence[Mapping[str, Any]]
    records: int
    bytes: int

    @classmethod
    def of(cls, epoch: int, batch: int, segments: Sequence[Mapping[str, Any]]) -> Self:
        """Return the event of these segments."""
        records, size = (sum(segment[name] for segment in segments) for name in ("records", "length"))
        return cls(epoch=epoch, batch=batch, segments=segments, records=records, bytes=size)


class SegmentsCleaned(Event):
    """Segments were removed from the write-ahead log: :meth:`sluice.wal.Cleaned.as_dict`.

    Parameters
    ----------
    batches
        Each batch that lost segments, with what the log retains of it: ``epoch``, ``batch``, ``segments``, ``records``,
        ``bytes``.
    """

    model_config = ConfigDict(extra="allow")

    batches: Sequence[Mapping[str, Any]]


class BatchStarted(BatchEvent):
    """A batch with these ranges is being processed.

    Parameters
    ----------
    tables
        The tables that its transform joins, by name: ``path`` and ``version`` of each. If the driver dies, the batch is
        processed again with these.
    """

    ranges: Sequence[Span]
    tables: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)


class BatchCommitted(BatchEvent):
    """The split of a batch that the sink holds, as :meth:`~sluice.ranges.RangeAccount.as_dict`.

    Each may also have ``of`` (what was redriven), ``replaced`` and ``replaced_quarantined`` (of an interval).
    """

    accounts: Sequence[Mapping[str, Any]]


class FactRecorded(BatchEvent):
    """A fact of a batch. Its type is the fact's."""

    fact: InstanceOf[BatchFact]

    @property
    def type(self) -> str:
        """The name of the fact's type."""
        return self.fact.event

    def payload(self) -> dict[str, Any]:
        """Return the fact beside epoch and batch."""
        found: dict[str, Any] = storable({"epoch": self.epoch, "batch": self.batch, **self.fact.as_dict()})
        return found


class RangeLost(BatchEvent):
    """Ranges of a batch that were lost, as :meth:`~sluice.ranges.LostRange.as_dict`."""

    ranges: Sequence[Mapping[str, Any]]


class RangeRedriven(BatchEvent):
    """Ranges were written that had been ``lost`` or ``quarantined``.

    Parameters
    ----------
    of
        Their state before: ``lost`` or ``quarantined``.
    source
        Where their records came from.
    """

    of: str
    ranges: Sequence[Span]
    source: Mapping[str, Any]


class RangeRetracted(BatchEvent):
    """A commit took rows out of the sink; their offsets are open as lost.

    Parameters
    ----------
    moved
        The offsets that each account no longer holds: :meth:`sluice.run.retraction.Part.as_dict`.
    """

    reason: str
    moved: Sequence[Mapping[str, Any]]


class PipelineReset(Event):
    """The pipeline begins again in a new epoch: :meth:`sluice.run.reset_plan.Reset.as_dict`.

    Parameters
    ----------
    truncated
        Whether the pipeline's rows left the sink.
    removed
        The number of their offsets.
    skipped
        Ranges between the old and the new positions; they are open as lost.
    held
        By epoch, the newest batch that the sink counts.
    recreated
        Topics that were made again.
    rebuild
        Whether the new epoch goes on with the state of the one before.
    cluster
        For a failover: the connections ``from`` and ``to``, and ``left``, the position in the streams of ``from``.
    """

    epoch: int
    lineage: Route
    positions: Mapping[str, Mapping[int, int]]
    skipped: Sequence[Span]
    truncated: bool
    removed: int
    reason: str
    topic_ids: Mapping[str, str]
    notes: Sequence[str]
    held: Sequence[tuple[int, int]]
    recreated: Sequence[str]
    rebuild: bool = False
    cluster: Mapping[str, Any] | None = None


class LossAcknowledged(Event):
    """Lost ranges are closed without a redrive; or they are open again.

    The counts stay: these offsets are lost.
    """

    ranges: Sequence[Span]
    reason: str
    was: str
    now: str = Field(validation_alias="is", serialization_alias="is")


class PipelineForgotten(Event):
    """The pipeline is not listed any more, until it runs again. Nothing else changes."""

    reason: str


class PipelineAdopted(Event):
    """All records of a pipeline of another name are those of this one."""

    former: str = Field(validation_alias="from", serialization_alias="from")


class Judged(Event):
    """A verdict; observed values are stored as :func:`~sluice.ledger.strict_json.plain` converts them."""

    verdict: str
    judgement: Annotated[Mapping[str, Any], BeforeValidator(lambda value: plain(dict(value)))]


class VerdictAccepted(Event):
    """The user accepts what a run wrote although its verdict failed.

    Parameters
    ----------
    batch
        Epoch and number of the batch that waits for this, and is published by the next run.
    faults
        The faults of that batch; see :func:`sluice.run.verdict.faults`.
    """

    verdict: str
    reason: str
    batch: tuple[int, int] | None = None
    faults: Mapping[str, int | None] | None = None


class NormalSet(Event):
    """Expectations from history ignore all runs before this one."""

    reason: str


class BatchGivenUp(Event):
    """A batch, which waits because its verdict failed, is not to be published."""

    reason: str
    batch: tuple[int, int]


class Announced(Event):
    """A run's asset event was sent.

    Parameters
    ----------
    upto
        Epoch and number of the newest batch that the event named, of each epoch; it named all before it, too.
    version
        The version of the sink's table that the event named.
    """

    upto: Sequence[tuple[int, int]]
    version: int | None


class RunClosed(Event):
    """A run ended: ``done``, ``failed``, or ``abandoned`` (its driver died; a later run records it).

    Parameters
    ----------
    engine
        The engine that processed its records: ``arrow``, or ``spark`` if the Arrow path could not be taken or was given
        up; None if there was nothing to process, or it is not known.
    """

    state: str
    seconds: float | None = None
    verdict: str | None = None
    error: Mapping[str, Any] | None = None
    engine: str | None = None


class StateMeasured(BatchEvent):
    """The state that a run leaves behind, as of :class:`~sluice.ledger.rows.StateRow`."""

    watermark: int
    bytes: int
    keys: int | None
    windows: int | None
    operators: Sequence[Mapping[str, Any]]


class Redriven(BaseModel):
    """Where redriven records come from.

    Parameters
    ----------
    of
        The state of their ranges before: ``lost`` or ``quarantined``.
    source
        Where they were read.
    """

    model_config = ConfigDict(frozen=True)

    of: str
    source: Mapping[str, Any] = Field(default_factory=dict)


def batch_committed(
    epoch: int,
    batch: int,
    accounts: Sequence[RangeAccount],
    *,
    lost: Sequence[LostRange] = (),
    facts: Sequence[BatchFact] = (),
    redriven: Redriven | None = None,
    replaced: Mapping[OffsetRange, tuple[int, int]] | None = None,
) -> list[Event]:
    """Return the events of a batch that the sink holds; they are recorded together.

    Parameters
    ----------
    lost
        The ranges that the accounts count as lost.
    redriven
        None for a batch of a live run.
    replaced
        For an interval, per range: how many offsets its commits removed from the sink and from the quarantine.
    """
    key: dict[str, Any] = {"epoch": epoch, "batch": batch}
    split = [account.as_dict() for account in accounts]
    events: list[Event] = []
    if lost:
        events.append(RangeLost(**key, ranges=[item.as_dict() for item in lost]))
    if redriven is not None:
        split = [{**item, "of": redriven.of} for item in split]
        ranges = [account.range for account in accounts]
        events.append(RangeRedriven(**key, of=redriven.of, ranges=ranges, source=redriven.source))
    if replaced:
        removed = [replaced[account.range] for account in accounts]
        split = [{**a, "replaced": n, "replaced_quarantined": q} for a, (n, q) in zip(split, removed, strict=True)]
    events += [FactRecorded(**key, fact=fact) for fact in facts if fact]
    return [*events, BatchCommitted(**key, accounts=split)]


def rows_retracted(epoch: int, batch: int, moved: Sequence[Mapping[str, Any]], reason: str) -> list[Event]:
    """Return the events of a commit that took rows out of the sink; they are recorded together."""
    return [
        RangeRetracted(epoch=epoch, batch=batch, reason=reason, moved=moved),
        BatchCommitted(epoch=epoch, batch=batch, accounts=[]),
    ]


def parsed(kind: str, payload: Mapping[str, Any]) -> Event | None:
    """Return the event that was recorded; None if this version does not know the type."""
    if kind in _FACTS:
        fact = _FACTS[kind].from_dict(payload)
        return FactRecorded(epoch=payload["epoch"], batch=payload["batch"], fact=fact)
    known = _EVENTS.get(kind)
    return None if known is None else known.model_validate(payload)


_FACTS = {fact.event: fact for fact in FACTS}
_EVENTS = {
    kind.__name__: kind for base in (Event, BatchEvent) for kind in base.__subclasses__() if kind is not BatchEvent
}
