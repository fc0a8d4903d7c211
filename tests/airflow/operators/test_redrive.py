"""Redriving from Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from tests.airflow.conftest import FakeSpark

from sluice.errors import ConfigError, LeaseHeldError
from sluice.ledger import Ledger, UnknownRunError
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount
from sluice_airflow.operators.redrive import RedriveOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


@pytest.fixture
def made(pipeline_file: Callable[..., Path], spark: FakeSpark) -> Callable[..., RedriveOperator]:
    file = pipeline_file("p")

    def make(**more: Any) -> RedriveOperator:
        return RedriveOperator(
            task_id="redrive", pipeline=str(file), spark_binary=spark.binary, **{"run_id": "again", **more}
        )

    return make


def lose(*spans: tuple[int, int]) -> None:
    ledger = Ledger.open()
    with ledger.acquire("p", "live") as lease:
        ranges = [OffsetRange("p", 0, *span) for span in spans]
        ledger.run_planned(lease, kind="live", recovery="ignore_range", epoch=1, ranges=ranges, topic_ids={})
        accounts = [RangeAccount(r, Counts(lost=len(r))) for r in ranges]
        ledger.batch_committed(
            lease, epoch=1, batch=0, accounts=accounts, lost=[LostRange(r, "poison") for r in ranges]
        )
        ledger.run_closed(lease, state="done", seconds=1.0)


def test_what_is_asked_for_reaches_the_application(
    made: Callable[..., RedriveOperator], spark: FakeSpark, context: Any
) -> None:
    lose((0, 5), (7, 9))
    found = made(ranges="p:0:0-5 p:0:7-9", of_run="live").execute(context())
    call = spark.call("redrive.py")
    assert call is not None
    argv = call["argv"]
    asked = argv[next(n for n, word in enumerate(argv) if word.endswith("redrive.py")) + 1 :]
    assert asked[2:] == ["--run", "again", "--range", "p:0:0-5", "--range", "p:0:7-9", "--of-run", "live"]
    assert (found["run"], found["still_lost"]) == ("again", 7)


def test_the_quarantine_is_asked_for_by_name(
    made: Callable[..., RedriveOperator], spark: FakeSpark, context: Any
) -> None:
    made(what="quarantined", ranges=["p:0:0-5"], of_run="").execute(context())
    call = spark.call("redrive.py")
    assert call is not None
    assert "--quarantined" in call["argv"]
    assert "--of-run" not in call["argv"]


@pytest.mark.parametrize(
    ("more", "error", "told"),
    [
        ({"what": "nothing"}, AirflowSkipException, "nothing was asked for"),
        ({}, AirflowSkipException, "no open lost range"),
        ({"what": "everything"}, ConfigError, "may be one of"),
        ({"ranges": ["p-0"]}, ConfigError, "p-0"),
        ({"of_run": "none"}, UnknownRunError, "has no run 'none' of 'p'"),
        ({"what": "nothing", "ranges": "p:0:0-5"}, ConfigError, "say lost or quarantined"),
        ({"what": "nothing", "of_run": "live"}, ConfigError, "say lost or quarantined"),
    ],
)
def test_where_there_is_nothing_to_do_no_spark_is_started(
    made: Callable[..., RedriveOperator], spark: FakeSpark, context: Any, more: Any, error: Any, told: str
) -> None:
    with pytest.raises(error, match=told):
        made(**more).execute(context())
    assert spark.call("redrive.py") is None


def test_a_run_that_is_active_is_a_reason_to_try_again_later(
    made: Callable[..., RedriveOperator], spark: FakeSpark, context: Any
) -> None:
    lose((0, 5))
    spark.plan("redrive.py", code=40, record=False)
    with pytest.raises(LeaseHeldError):
        made().execute(context())
