"""When a backlog is worth an event: once for each time it rises above the limits. Pure: no clock, no broker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sluice.lag import Backlog, Limits, PartitionLag

__all__ = ["PATIENCE", "REARM", "Crossing", "Runs"]

REARM = 0.5
"""The share of each limit to which the lag has to fall before the limits can be crossed again without a run."""

PATIENCE = 25
"""After how many looks an event that no DAG run answered is sent again: it was lost."""


class Runs(NamedTuple):
    """The DAG runs of the DAG that an event starts: of any state, and those queued or running."""

    known: int
    active: int


@dataclass(frozen=True)
class Crossing:
    """What a watcher remembers between two looks: the event that it sent last, until that one is settled.

    Armed, it asks for an event as soon as the limits are passed. Then it is silent, however much the lag grows or
    flutters around the limit, until a run has moved the position past what the event announced, or the lag fell to
    :data:`REARM` of each limit, or the position was rolled back (that is another backlog). A run that failed is not
    started again by the same backlog: that is for the task's retries, or for whoever clears it.

    The event is remembered first and sent second, so that a triggerer that dies in between has sent nothing twice.
    What it did not send shows as an event that no DAG run answered, and is sent again, word for word: at once by a
    triggerer that has just started, otherwise after :data:`PATIENCE` looks. Sent twice before the scheduler looked, it
    still makes one run.

    Parameters
    ----------
    announced
        The payload of the event; None when armed.
    runs
        How many DAG runs there were before it.
    heard
        Whether a DAG run has begun since.
    unheard
        For how many looks none has. Not remembered over a restart.
    """

    announced: dict[str, Any] | None = None
    runs: int = 0
    heard: bool = False
    unheard: int = PATIENCE

    @classmethod
    def of(cls, state: Any) -> Crossing:
        """Return what :attr:`state` said; armed for anything else."""
        if not isinstance(state, dict) or not isinstance(state.get("announced"), dict):
            return cls()
        return cls(state["announced"], int(state.get("runs", 0)), bool(state.get("heard", False)))

    @property
    def state(self) -> dict[str, Any]:
        """What has to outlive a restart, ready for JSON."""
        if self.announced is None:
            return {}
        return {"announced": self.announced, "runs": self.runs, "heard": self.heard}

    def wants_runs(self, found: Backlog) -> bool:
        """Tell whether :meth:`step` has to know the DAG runs."""
        return _is_worth_it(found) and not self._rearmed(found).heard

    def step(self, found: Backlog, runs: Runs | None = None) -> tuple[Crossing, dict[str, Any] | None]:
        """Take in a look; return what to remember, and the payload to send when there is one.

        Parameters
        ----------
        runs
            None when nobody knows: then only the ledger says whether a run is at work, and no event is sent twice.
        """
        if found.incomplete:
            return self, None  # unknown is neither much nor little: the next look will tell
        now = self._rearmed(found)
        if not _is_worth_it(found) or now.heard or (runs is not None and runs.active):
            return now, None
        if now.announced is None:
            payload = _payload(found)
            return Crossing(payload, runs.known if runs else 0, heard=runs is None, unheard=0), payload
        if runs is None or runs.known > now.runs:
            return replace(now, heard=True), None
        now = replace(now, runs=runs.known)  # fewer than there were: somebody deleted some
        if now.unheard < PATIENCE:
            return replace(now, unheard=now.unheard + 1), None
        return replace(now, unheard=0), now.announced

    def _rearmed(self, found: Backlog) -> Crossing:
        if self.announced is None or found.incomplete:
            return self
        settled = _passed(self.announced, found) or _taken_back(self.announced, found) or _has_fallen(found)
        return Crossing() if settled else self


def _is_worth_it(found: Backlog) -> bool:
    return not found.incomplete and found.worth_a_run


def _payload(found: Backlog) -> dict[str, Any]:
    """Return the snapshot: the same for everybody who sees the same records, whenever they look."""
    oldest = None
    if found.age and found.at is not None:
        oldest = datetime.fromtimestamp(round(found.at.timestamp() - found.age, 3), UTC)
    return {
        "pipeline": found.pipeline,
        "verdict": found.verdict.value,
        "records": found.records,
        "lost": found.lost,
        "oldest": oldest.isoformat(timespec="milliseconds") if oldest else None,
        "limits": str(found.limits),
        "positions": _by_topic((p, p.next) for p in found.partitions),
        "ends": _by_topic((p, p.end) for p in found.partitions),
    }


def _by_topic(offsets: Any) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    part: PartitionLag
    for part, offset in offsets:
        if offset is not None:
            topics.setdefault(part.topic, {})[str(part.partition)] = offset
    return topics


def _announced(payload: dict[str, Any], key: str, part: PartitionLag) -> int | None:
    value = payload.get(key, {}).get(part.topic, {}).get(str(part.partition))
    return None if value is None else int(value)


def _passed(payload: dict[str, Any], found: Backlog) -> bool:
    """Whether a run has read all that was announced of what is still there."""
    moved = False
    for part in found.partitions:
        start, end = _announced(payload, "positions", part), _announced(payload, "ends", part)
        if start is None or end is None or part.next is None:
            continue
        if part.next < end:
            return False
        moved = moved or part.next > start
    return moved


def _taken_back(payload: dict[str, Any], found: Backlog) -> bool:
    starts = ((p.next, _announced(payload, "positions", p)) for p in found.partitions)
    return any(now is not None and start is not None and now < start for now, start in starts)


def _has_fallen(found: Backlog) -> bool:
    if found.needs_a_run:
        return False
    limits = found.limits
    lower = Limits(
        None if limits.max_records is None else int(limits.max_records * REARM),
        None if limits.max_age is None else limits.max_age * REARM,
        None if limits.max_retention_share is None else limits.max_retention_share * REARM,
        limits.match,
    )
    if limits.max_age is not None and any(p.records and p.age is None for p in found.partitions):
        return False  # older than the limit or not is all that is known of it
    return not replace(found, limits=lower).over
