"""The decision is the type's."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import RetryAction

from sluice.errors import (
    AuthorizationError,
    ConfigError,
    LeaseHeldError,
    OffsetsGoneError,
    QualityError,
    SinkError,
    SluiceError,
    SourceUnreachableError,
)
from sluice.ledger.lease import TTL
from sluice_airflow.retry import TypedRetryPolicy

pytestmark = pytest.mark.airflow


@pytest.mark.parametrize("kind", [ConfigError, OffsetsGoneError, AuthorizationError, QualityError])
def test_what_cannot_help_is_not_tried(kind: type[SluiceError]) -> None:
    assert TypedRetryPolicy().evaluate(kind("no"), 1, 3).action is RetryAction.FAIL


def test_backing_off_doubles_up_to_a_limit() -> None:
    policy = TypedRetryPolicy(first=timedelta(seconds=10), longest=timedelta(seconds=60))
    waits = [policy.evaluate(SourceUnreachableError("down"), n, 9).retry_delay for n in (1, 2, 3, 4, 99)]
    assert [w.total_seconds() for w in waits if w] == [10, 20, 40, 60, 60]


def test_a_held_lease_is_waited_out() -> None:
    decision = TypedRetryPolicy().evaluate(LeaseHeldError("held"), 1, 3)
    assert decision.action is RetryAction.RETRY
    assert decision.retry_delay == timedelta(seconds=90) > timedelta(seconds=TTL)


@pytest.mark.parametrize("error", [SinkError("disk"), SluiceError("else"), ValueError("not ours")])
def test_the_rest_is_the_tasks_own(error: Exception) -> None:
    assert TypedRetryPolicy().evaluate(error, 1, 3).action is RetryAction.DEFAULT


def test_it_survives_serialization() -> None:
    policy = TypedRetryPolicy(first=timedelta(seconds=7))
    again = TypedRetryPolicy.deserialize(policy.serialize())
    assert vars(again) == vars(policy)
