"""Auditing from Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import CheckpointError
from sluice.ledger import Ledger
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice_airflow.operators.audit import AuditOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def commit(*spans: tuple[int, int]) -> None:
    ledger = Ledger.open()
    with ledger.acquire("p", "live") as lease:
        ranges = [OffsetRange("p", 0, *span) for span in spans]
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=ranges, topic_ids={})
        for batch, item in enumerate(ranges):
            accounts = [RangeAccount(item, Counts(filtered=len(item)))]
            ledger.batch_committed(lease, epoch=1, batch=batch, accounts=accounts)
        ledger.run_closed(lease, state="done", seconds=1.0)


def test_an_account_that_balances_passes(pipeline_file: Callable[..., Path], context: Any) -> None:
    commit((0, 5), (5, 9))
    found = AuditOperator(task_id="a", pipeline=str(pipeline_file("p")), deep=False).execute(context())
    assert found == {"balanced": True, "problems": 0, "lost": 0}


def test_a_gap_fails_the_task_by_name_and_for_good(pipeline_file: Callable[..., Path], context: Any) -> None:
    commit((0, 5), (7, 9))
    with pytest.raises(CheckpointError, match=r"does not balance: 1 problems, such as: .*5") as caught:
        AuditOperator(task_id="a", pipeline=str(pipeline_file("p")), deep=False).execute(context())
    assert "sluice audit p --json" in caught.value.next_step
