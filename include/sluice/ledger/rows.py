"""The rows that the ledger's queries return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sluice.ranges import OffsetRange, Positions, RangeAccount
from sluice.recovery import Route

__all__ = ["BatchRow", "Entry", "Epoch", "IntervalRow", "LostRow", "PartitionTime", "RunRow", "StateRow", "Unannounced"]


@dataclass(frozen=True)
class RunRow:
    """One run. Times are ISO 8601 in UTC; ``run`` is the run id."""

    pipeline: str
    run: str
    kind: str
    recovery: str
    epoch: int
    state: str
    attempts: int
    opened_at: str
    closed_at: str | None
    seconds: float | None
    verdict: str | None
    judgement: dict[str, Any] | None
    error: dict[str, Any] | None
    notes: list[str]
    topic_ids: dict[str, str]
    interval: str | None
    reason: str | None
    sequence: int


class PartitionTime(NamedTuple):
    """The latest event time that a batch with state read of a partition.

    ``at`` is when the batch was planned; both are in milliseconds since 1970.
    """

    topic: str
    partition: int
    latest: int
    at: int


@dataclass(frozen=True)
class StateRow:
    """The state that a run left behind: what windows or ``dedupe`` keep between runs.

    Attributes
    ----------
    at
        When it was measured, in ISO 8601 and UTC.
    batch
        The last batch that the run committed.
    watermark
        That after the batch, in milliseconds since 1970.
    bytes
        The files of all versions of the state that the checkpoint retains.
    keys, windows
        How many keys it has, and of how many open windows; None if nobody counted them.
    operators
        Of each stateful operator: ``operator``, its name; ``live``, the bytes of all keys and values that the last
        batch found; how many keys the run ``updated`` and ``removed``; ``memory``, the bytes in memory.
    """

    run: str
    at: str
    epoch: int
    batch: int
    watermark: int
    bytes: int
    keys: int | None
    windows: int | None
    operators: list[dict[str, Any]]

    @property
    def sums(self) -> dict[str, int]:
        """The numbers of all operators together."""
        return {name: sum(each[name] for each in self.operators) for name in ("live", "updated", "removed", "memory")}


@dataclass(frozen=True)
class BatchRow:
    """One batch, its state (``started`` or ``committed``) and the id of the run that wrote it last."""

    pipeline: str
    epoch: int
    batch: int
    run: str
    state: str
    at: str
    announced: str | None = None


@dataclass(frozen=True)
class Entry:
    """One split of a live run or a redrive: its epoch and batch, the run's id, and what its offsets were before."""

    account: RangeAccount
    epoch: int
    batch: int
    run: str
    of: str | None


@dataclass(frozen=True)
class Unannounced:
    """What was committed and no asset event has told of.

    Parameters
    ----------
    accounts
        The splits, in the order of offsets.
    written
        The offsets written by run, oldest first.
    replaced
        How many offsets an interval's commits took out of the sink.
    upto
        By epoch the newest of these batches; see :meth:`sluice.ledger.Ledger.announced`.
    """

    accounts: list[RangeAccount]
    written: dict[str, int]
    replaced: int
    upto: dict[int, int]


@dataclass(frozen=True)
class Epoch:
    """One checkpoint of a pipeline, and where it starts (None: at the pipeline file's ``starting_offsets``)."""

    number: int
    route: Route
    positions: Positions | None


@dataclass(frozen=True)
class IntervalRow:
    """An interval of record time and the offsets that it was resolved to; ``whole`` if both ends are final."""

    number: int
    interval: str
    ranges: list[OffsetRange]
    whole: bool
    topic_ids: dict[str, str]
    run: str
    at: str


@dataclass(frozen=True)
class LostRow:
    """A lost range: ``open`` until it is ``redriven``, or ``acknowledged`` as one that nobody brings back.

    ``mirrored`` is one whose records were found in another cluster: ``redriven_by`` read them there.
    """

    range: OffsetRange
    epoch: int
    batch: int
    run: str
    at: str
    reason: str
    sample: dict[str, Any] | None
    state: str
    redriven_by: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        span = self.range
        return {
            "topic": span.topic, "partition": span.partition, "start": span.start, "end": span.end,
            "offsets": len(span), "state": self.state, "lost_by": self.run, "at": self.at, "reason": self.reason,
            "sample": self.sample, "redriven_by": self.redriven_by,
        }  # fmt: skip
