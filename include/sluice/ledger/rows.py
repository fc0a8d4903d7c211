"""The rows that the ledger's queries return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sluice.ranges import OffsetRange, Positions, RangeAccount
from sluice.recovery import Route

__all__ = [
    "BatchRow",
    "Entry",
    "Epoch",
    "IntervalRow",
    "LostRow",
    "PartitionTime",
    "Resets",
    "RunRow",
    "StateRow",
    "Unannounced",
    "WindowReach",
]


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


class WindowReach(NamedTuple):
    """How far windows came, in milliseconds since 1970.

    ``latest`` is the latest event time that they absorbed, None if there is none; up to ``closed_to`` all are closed,
    which is 0 if none is.
    """

    latest: int | None
    closed_to: int


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
        How many keys it has, and of how many open windows; None if they were not counted.
    operators
        For each stateful operator: ``operator``, its name; ``live``, the bytes of all keys and values that the last
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
        By epoch the newest of these batches; see :class:`sluice.ledger.events.Announced`.
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
class Resets:
    """The resets and failovers of a pipeline.

    Parameters
    ----------
    told
        For each, oldest first: the run, and its :class:`~sluice.ledger.events.PipelineReset` as a dict.
    """

    told: list[tuple[str, dict[str, Any]]]

    @property
    def base(self) -> int:
        """The epoch with which the account begins: that of the newest reset that took all rows out, or 1."""
        return next((int(told["epoch"]) for _, told in reversed(self.told) if told["truncated"]), 1)

    @property
    def rebuilt(self) -> set[int]:
        """The epochs that were opened to go on with the state of the one before, which is made again."""
        return {int(told["epoch"]) for _, told in self.told if told.get("rebuild")}

    @property
    def left(self) -> Positions:
        """How far each stream was read when the pipeline went on with another cluster, since all rows left the sink."""
        found = Positions()
        for _, told in self.told:
            if told["truncated"]:
                found = Positions()
                continue
            for stream, parts in (told.get("cluster") or {}).get("left", {}).items():
                found[stream] = {int(partition): int(offset) for partition, offset in parts.items()}
        return found

    def by(self, run_id: str) -> dict[str, Any]:
        """Return what a run's reset did, as :meth:`sluice.run.reset_plan.Reset.as_dict`; empty if it did nothing."""
        return next((told for run, told in reversed(self.told) if run == run_id), {})


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
    """A lost range: ``open`` until it is ``redriven``, or ``acknowledged`` as one that will not be recovered.

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
