"""The failure of an application: its last words become the exception's, and the exception's type decides on a retry."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowTaskTimeout

from sluice.errors import (
    AuthorizationError,
    ConfigError,
    LeaseHeldError,
    OffsetsGoneError,
    QualityError,
    SinkError,
    SluiceError,
    SourceUnreachableError,
    described,
)
from sluice.ledger.lease import TTL
from sluice_airflow.failure import MARK, from_exit
from sluice_airflow.failure_message import words_of
from sluice_airflow.retry import TypedRetryPolicy

pytestmark = pytest.mark.airflow

GONE = [
    "26/11/21 INFO noise",
    "sluice: error: offsets are gone: flights-0 [0, 5)",
    "  data: planned, nothing written",
    "  next: choose ignore_range",
    "26/11/21 INFO shutting down",
]
SEVERAL = ["sluice: error: first", "  next: x", "sluice: error: flights.yaml is bad:", "  line 1", "  next: y"]
CUT = ["sluice: error: cut off", *(f"log line {i}" for i in range(100))]


@pytest.mark.parametrize(
    ("code", "output", "kind", "what", "next_step"),
    [
        (21, GONE, OffsetsGoneError, "offsets are gone: flights-0 [0, 5)", "choose ignore_range"),
        (10, SEVERAL, ConfigError, "flights.yaml is bad:\n  line 1", "y"),
        (30, CUT, SinkError, "cut off", "look"),
    ],
    ids=["three parts", "several lines", "cut off"],
)
def test_application_that_fails_gives_the_error_its_last_words(
    code: int, output: list[str], kind: type[SluiceError], what: str, next_step: str
) -> None:
    error = from_exit(code, output, command="look")
    assert (type(error), error.what, error.next_step) == (kind, what, next_step)
    assert error.state == "planned, nothing written" or output is not GONE


def test_application_without_last_words_leaves_its_code_and_nothing_of_its_output() -> None:
    error = from_exit(20, ["one", "", "secret.key=AKIASECRET"], command="sluice status flights")
    assert isinstance(error, SourceUnreachableError)
    assert "exit code 20 (source_unreachable)" in error.what
    assert "AKIASECRET" not in str(error)
    assert error.next_step == "sluice status flights"
    assert error.state


@pytest.mark.parametrize("code", [-9, 137])
def test_application_that_a_signal_ended_has_its_name_in_the_error(code: int) -> None:
    error = from_exit(code, [], command="")
    assert type(error) is SluiceError
    assert "SIGKILL" in error.what


@pytest.mark.parametrize(
    ("error", "action"),
    [
        *((kind("no"), RetryAction.FAIL) for kind in (ConfigError, OffsetsGoneError, AuthorizationError, QualityError)),
        *((error, RetryAction.DEFAULT) for error in (SinkError("disk"), SluiceError("else"), ValueError("not ours"))),
        (SourceUnreachableError("down"), RetryAction.RETRY),
    ],
)
def test_retry_policy_decides_by_the_type_of_the_error(error: Exception, action: RetryAction) -> None:
    assert TypedRetryPolicy().evaluate(error, 1, 3).action is action


def test_retry_policy_doubles_its_delay_up_to_a_limit_and_waits_out_a_lease() -> None:
    policy = TypedRetryPolicy(first=timedelta(seconds=10), longest=timedelta(seconds=60))
    waits = [policy.evaluate(SourceUnreachableError("down"), n, 9).retry_delay for n in (1, 2, 3, 4, 99)]
    assert [w.total_seconds() for w in waits if w] == [10, 20, 40, 60, 60]
    held = TypedRetryPolicy().evaluate(LeaseHeldError("held"), 1, 3)
    assert (held.action, held.retry_delay) == (RetryAction.RETRY, timedelta(seconds=90))
    assert timedelta(seconds=90) > timedelta(seconds=TTL)
    assert vars(TypedRetryPolicy.deserialize(policy.serialize())) == vars(policy)


def test_alert_has_no_text_of_another_library_or_of_a_users_function() -> None:
    foreign = ValueError("GET https://x?token=CANARY of SSN-1")
    error = from_exit(1, [f"{MARK}transform: {described(foreign)}"], command="")
    assert "CANARY" not in str(error), "the driver's line above has it; OpenLineage sends the error's text"
    assert words_of(error)["what"] == "transform: ValueError: «…»"
    assert words_of(ValueError("CANARY"))["what"] == "ValueError was raised"


def test_application_that_took_too_long_has_an_error_of_its_own() -> None:
    words = words_of(AirflowTaskTimeout("after 5 s"))
    assert "execution_timeout" in words["what"]
    assert "next attempt" in words["state"]
