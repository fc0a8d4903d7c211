"""Decides whether and when a failed task is retried: by the type of its error, not by its text."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import RetryDecision, RetryPolicy

from sluice.errors import Retry, SluiceError

__all__ = ["TypedRetryPolicy"]


class TypedRetryPolicy(RetryPolicy):
    """Decides by the error itself (:attr:`sluice.errors.SluiceError.retry`).

    ``NEVER`` fails at once, ``BACKING_OFF`` waits twice as long each time, ``LATER`` waits until a dead driver's lease
    has certainly expired. Everything else, also exceptions that are not Sluice's, is left to the task's ``retries`` and
    ``retry_delay``. A policy grants no more tries than ``retries`` does; after a SIGKILL Airflow does not ask it.

    Parameters
    ----------
    first, longest
        The first and the longest wait when backing off.
    later
        The wait for ``LATER``; longer than :data:`sluice.ledger.lease.TTL`.
    """

    def __init__(
        self,
        *,
        first: timedelta = timedelta(seconds=30),
        longest: timedelta = timedelta(minutes=15),
        later: timedelta = timedelta(seconds=90),
    ) -> None:
        self.first = first
        self.longest = longest
        self.later = later

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        """Decide; ``try_number`` counts from 1."""
        if not isinstance(exception, SluiceError):
            return RetryDecision.default()
        name = type(exception).__name__
        match exception.retry:
            case Retry.NEVER:
                return RetryDecision.fail(reason=f"{name}: trying again cannot help")
            case Retry.BACKING_OFF:
                delay = min(self.first * 2 ** min(try_number - 1, 20), self.longest)
                return RetryDecision.retry(delay=delay, reason=f"{name}: backing off")
            case Retry.LATER:
                return RetryDecision.retry(delay=self.later, reason=f"{name}: another driver is at work")
            case _:
                return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """Return plain values; :meth:`deserialize` reads them."""
        return {
            "first": self.first.total_seconds(),
            "longest": self.longest.total_seconds(),
            "later": self.later.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> TypedRetryPolicy:
        """Read what :meth:`serialize` wrote."""
        return cls(**{key: timedelta(seconds=data[key]) for key in ("first", "longest", "later")})
