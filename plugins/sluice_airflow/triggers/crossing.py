"""Decides when a backlog causes an event: each time it exceeds the limits, and again after a run that failed.

Pure: the measurements are its only clock, and it asks no broker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sluice.errors import Retry, error_for_exit_code
from sluice.lag import Backlog, Limits, PartitionLag
from sluice.text import length

__all__ = ["PATIENCE", "REARM", "RETRY_AFTER", "RETRY_AFTER_AT_MOST", "Crossing", "Runs", "is_hopeless"]

REARM = 0.5
"""The share of each limit to which the lag must fall before, without a run, the limits can cause another event."""

PATIENCE = 25
"""After how many measurements without a DAG run an event counts as dropped and is sent again."""

RETRY_AFTER = 300.0
"""Seconds from the end of a failed run until the same backlog may start another run; doubled each time."""

RETRY_AFTER_AT_MOST = 3600.0
"""Maximum of that delay, in seconds."""


class Runs(NamedTuple):
    """The numbers of runs of the DAG that an event starts: in any state, and queued or running."""

    known: int
    active: int


@dataclass(frozen=True)
class Crossing:
    """The state of a watcher between two measurements: the last event, until it is settled.

    While armed, it asks for an event as soon as the limits are exceeded. Then it asks for none, even if the lag grows
    or varies around the limit, until a run has moved the position past what the event announced, or the lag fell to
    :data:`REARM` of each limit, or the position was rolled back (that is another backlog).

    A DAG run that ended without reading the backlog has failed, with all retries of its tasks. The same backlog starts
    another one after :data:`RETRY_AFTER`, and then after twice as long each time, until some of it is read.
    No run is started if the pipeline's last run ended with a failure that is never retried: a user has to fix the
    cause and clear the run.

    The state is stored before the event is sent. If the triggerer dies in between, no DAG run follows, and the same
    event is sent again: at once by a triggerer that has just started, otherwise after :data:`PATIENCE` measurements. If
    an event is sent twice before the scheduler handles it, it still makes one run.

    Parameters
    ----------
    announced
        The payload of the event; None when armed.
    runs
        The number of DAG runs before the event.
    heard
        Whether a DAG run has started since.
    unheard
        For how many measurements none has. Not kept over a restart.
    failures
        How many events before this one were for the same backlog.
    ended
        When the run that started since was first found to have ended, in seconds since 1970; None: not yet.
    """

    announced: dict[str, Any] | None = None
    runs: int = 0
    heard: bool = False
    unheard: int = PATIENCE
    failures: int = 0
    ended: float | None = None

    @classmethod
    def of(cls, state: Any) -> Crossing:
        """Read what :attr:`state` returned; anything else gives an armed one."""
        if not isinstance(state, dict) or not isinstance(state.get("announced"), dict):
            return cls()
        ended = state.get("ended")
        return cls(
            state["announced"],
            int(state.get("runs", 0)),
            bool(state.get("heard", False)),
            failures=int(state.get("failures", 0)),
            ended=float(ended) if isinstance(ended, int | float) else None,
        )

    @property
    def state(self) -> dict[str, Any]:
        """The part that must survive a restart, ready for JSON."""
        if self.announced is None:
            return {}
        more = {"failures": self.failures, "ended": self.ended} if self.failures or self.ended else {}
        return {"announced": self.announced, "runs": self.runs, "heard": self.heard, **more}

    def wants_runs(self, found: Backlog) -> bool:
        """Return whether :meth:`step` needs the numbers of DAG runs."""
        return _is_worth_it(found) and not (self._rearmed(found).heard and is_hopeless(found))

    def outlook(self, found: Backlog, retry_after: float = RETRY_AFTER) -> str:
        """Return, in words, when a backlog whose run failed starts another one; empty if no run failed."""
        if not self.heard or not _is_worth_it(found):
            return ""
        if is_hopeless(found):
            return (
                "its last run failed, and trying again cannot help: no run starts until that one is fixed and cleared, "
                "or settled by sluice accept, retract or reset"
            )
        if self.ended is None:
            return ""
        return f"its last run failed: the next one starts {length(_delay(self.failures, retry_after))} after its end"

    def step(
        self, found: Backlog, runs: Runs | None = None, *, retry_after: float = RETRY_AFTER
    ) -> tuple[Crossing, dict[str, Any] | None]:
        """Process a measurement; return the new state, and the payload to send, if any.

        Parameters
        ----------
        runs
            None if unknown: then only the ledger says whether a run is active, and no event is sent twice.
        retry_after
            Overrides :data:`RETRY_AFTER`.
        """
        if found.incomplete:
            return self, None  # an unknown lag decides nothing: the next measurement will
        now = self._rearmed(found)
        if found.running is not None or (runs is not None and runs.active):
            return replace(now, ended=None), None
        if not _is_worth_it(found):
            return now, None
        if now.announced is None:
            payload = _payload(found)
            return Crossing(payload, runs.known if runs else 0, heard=runs is None, unheard=0), payload
        if runs is None:
            return replace(now, heard=True), None
        if now.heard or runs.known > now.runs:
            return replace(now, heard=True)._after_a_failure(found, runs, retry_after)
        now = replace(now, runs=runs.known)  # runs may have been deleted since
        if now.unheard < PATIENCE:
            return replace(now, unheard=now.unheard + 1), None
        return replace(now, unheard=0), now.announced

    def _after_a_failure(
        self, found: Backlog, runs: Runs, retry_after: float
    ) -> tuple[Crossing, dict[str, Any] | None]:
        """Return another event for the same backlog, if the delay has passed."""
        if found.at is None or is_hopeless(found):
            return self, None
        at = found.at.timestamp()
        if self.ended is None:
            return replace(self, ended=at), None
        if at - self.ended < _delay(self.failures, retry_after):
            return self, None
        payload = _payload(found)
        failures = 0 if _has_moved(self.announced or {}, found) else self.failures + 1
        return Crossing(payload, runs.known, unheard=0, failures=failures), payload

    def _rearmed(self, found: Backlog) -> Crossing:
        if self.announced is None or found.incomplete:
            return self
        settled = _passed(self.announced, found) or _taken_back(self.announced, found) or _has_fallen(found)
        return Crossing() if settled else self


def is_hopeless(found: Backlog) -> bool:
    """Return whether the last run failed with an error that is never retried, because another run would fail, too.

    Not if a user decided since how to go on: that needs a run.
    """
    last = found.last
    if last is None or last.state != "failed" or last.settled:
        return False
    return error_for_exit_code(last.code or 1).retry is Retry.NEVER


def _delay(failures: int, retry_after: float) -> float:
    return float(min(retry_after * 2 ** min(failures, 20), max(retry_after, RETRY_AFTER_AT_MOST)))


def _is_worth_it(found: Backlog) -> bool:
    return not found.incomplete and found.worth_a_run


def _payload(found: Backlog) -> dict[str, Any]:
    """Return the payload of an event; it depends only on the records, not on when they are measured."""
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
    """Return whether a run has read everything that the event announced, in the partitions that still exist."""
    moved = False
    for part in found.partitions:
        start, end = _announced(payload, "positions", part), _announced(payload, "ends", part)
        if start is None or end is None or part.next is None:
            continue
        if part.next < end:
            return False
        moved = moved or part.next > start
    return moved


def _has_moved(payload: dict[str, Any], found: Backlog) -> bool:
    starts = ((p.next, _announced(payload, "positions", p)) for p in found.partitions)
    return any(now is not None and start is not None and now > start for now, start in starts)


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
        return False  # it is only known whether the record is older than the limit
    return not replace(found, limits=lower).over
