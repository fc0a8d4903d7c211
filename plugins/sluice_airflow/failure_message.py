"""What a failed task leaves for alerts: its error's three sentences, as an XCom."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from airflow.sdk.log import redact

from sluice.errors import SluiceError, public

__all__ = ["KEY", "Hopeless", "WaitedTooLong", "tells", "words_of"]

KEY = "failure"
"""The XCom of a task that failed: ``what`` happened, the ``state`` of the data, the ``next_step``."""

_LONGEST = 1500

_TIMEOUTS = {
    AirflowTaskTimeout: SluiceError(
        "the attempt took longer than its execution_timeout, and was ended",
        state="what was committed before is in the sink, accounted for; what was open is finished by the next attempt",
        next_step="read the log for what it waited for, or raise execution_timeout; then clear the task",
    ),
    AirflowSensorTimeout: SluiceError(
        "the sensor waited longer than its timeout",
        state="nothing was read or written",
        next_step="read the log for what it waited for, then clear the task",
    ),
}

_Execute = TypeVar("_Execute", bound=Callable[..., Any])


class WaitedTooLong(AirflowSensorTimeout):
    """The end of a sensor's patience, in three sentences. Airflow does not try a sensor again after its timeout."""

    def __init__(self, what: str, *, state: str, next_step: str) -> None:
        self.error = SluiceError(what, state=state, next_step=next_step)
        super().__init__(str(self.error))


class Hopeless(AirflowFailException):
    """An error of Sluice's that Airflow must not try again, whatever the task's retry policy is."""

    def __init__(self, what: str, *, state: str, next_step: str) -> None:
        self.error = SluiceError(what, state=state, next_step=next_step)
        super().__init__(str(self.error))


def words_of(error: BaseException) -> dict[str, str]:
    """Return an error's three sentences, at a message's length and with Airflow's masks.

    Text that is not Sluice's own is left out: it may hold a secret, or a record's values.
    """
    told = next((told_of for kind, told_of in _TIMEOUTS.items() if isinstance(error, kind)), error)
    told = error.error if isinstance(error, Hopeless | WaitedTooLong) else told
    if isinstance(told, SluiceError):
        words = {"what": told.what, "state": told.state, "next_step": told.next_step}
    else:
        words = {"what": f"{type(error).__name__} was raised", "state": "", "next_step": ""}
    return {name: str(redact(public(text)))[:_LONGEST] for name, text in words.items()}


def tells(execute: _Execute) -> _Execute:
    """Let a method that a task runs leave the words of its failure; the error goes on as it is.

    A DAG's own ``on_failure_callback`` does not get the exception. An attempt that follows removes the XCom.
    """

    @functools.wraps(execute)
    def telling(self: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return execute(self, context, *args, **kwargs)
        except (AirflowSkipException, AirflowRescheduleException):
            raise
        except (Exception, AirflowTaskTimeout) as error:  # the timeout is no Exception
            try:
                context["ti"].xcom_push(key=KEY, value=words_of(error))
            except Exception as trouble:  # of a task that is being ended, say: the failure itself must not be hidden
                self.log.warning("The failure leaves no words for alerts: %s", type(trouble).__name__)
            raise

    return telling  # type: ignore[return-value]
