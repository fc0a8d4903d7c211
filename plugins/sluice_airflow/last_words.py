"""What a failed task leaves for alerts: its error's three sentences, as an XCom."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException, AirflowSkipException
from airflow.sdk.log import redact

from sluice.errors import SluiceError

__all__ = ["KEY", "tells", "words_of"]

KEY = "failure"
"""The XCom of a task that failed: ``what`` happened, the ``state`` of the data, the ``next_step``."""

_LONGEST = 1500

_Execute = TypeVar("_Execute", bound=Callable[..., Any])


def words_of(error: BaseException) -> dict[str, str]:
    """Return an error's three sentences, at a message's length and with Airflow's masks.

    Of a foreign error only its type: what else it says may be a secret that nobody named.
    """
    if isinstance(error, SluiceError):
        words = {"what": error.what, "state": error.state, "next_step": error.next_step}
    elif isinstance(error, AirflowException):
        what, _, rest = str(error).partition("\n  data: ")
        state, _, next_step = rest.partition("\n  next: ")
        words = {"what": what, "state": state, "next_step": next_step}
    else:
        words = {"what": f"{type(error).__name__} was raised", "state": "", "next_step": ""}
    return {name: str(redact(text))[:_LONGEST] for name, text in words.items()}


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
        except Exception as error:
            try:
                context["ti"].xcom_push(key=KEY, value=words_of(error))
            except Exception as trouble:  # of a task that is being ended, say: the failure itself must not be hidden
                self.log.warning("The failure leaves no words for alerts: %s", type(trouble).__name__)
            raise

    return telling  # type: ignore[return-value]
