"""Auditing from Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.airflow.conftest import FakeSpark

from sluice.errors import CheckpointError, ConfigError, SourceUnreachableError
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


WINDOW = "window: {time: _timestamp, gap: 10m, by: [value], watermark: 1h, aggregates: {n: count(*)}}\n"


@pytest.mark.parametrize("differs", [False, True])
def test_windows_are_compared_by_spark(
    pipeline_file: Callable[..., Path], spark: FakeSpark, context: Any, home: Path, differs: bool
) -> None:
    write_deltalake(str(home / "p"), pa.table({"_run": pa.array([], pa.string())}))
    item = {"start": 0, "end": 1, "by": {"value": "a"}, "expected": True, "found": False, "values": {"n": ["2", ""]}}
    found = {"compared": 3, "count": int(differs), "differences": [item] * differs, "doubtful": [], "columns": {}}
    spark.plan("audit_windows.py", result=found)
    operator = AuditOperator(
        task_id="a", pipeline=str(pipeline_file("p", more=WINDOW)), windows=True, spark_binary=spark.binary,
        conf={"spark.sql.shuffle.partitions": "3"},
    )  # fmt: skip
    if differs:
        with pytest.raises(CheckpointError, match=r"by the records it has n 2") as caught:
            operator.execute(context())
        assert "sluice audit p --deep --windows --json" in caught.value.next_step
    else:
        assert operator.execute(context()) == {"balanced": True, "problems": 0, "lost": 0}
    call = spark.call("audit_windows.py")
    assert call is not None
    assert "spark.sql.shuffle.partitions=3" in call["argv"]
    assert "AIRFLOW_CONN_KAFKA_DEFAULT" in call["env"]


def test_an_application_that_fails_fails_the_task_by_its_exit_code(
    pipeline_file: Callable[..., Path], spark: FakeSpark, context: Any, home: Path
) -> None:
    write_deltalake(str(home / "p"), pa.table({"_run": pa.array([], pa.string())}))
    spark.plan("audit_windows.py", code=20, record=False)
    file = pipeline_file("p", more=WINDOW)
    with pytest.raises(SourceUnreachableError):
        AuditOperator(task_id="a", pipeline=str(file), windows=True, spark_binary=spark.binary).execute(context())


def test_windows_are_asked_of_a_pipeline_that_has_some(
    pipeline_file: Callable[..., Path], spark: FakeSpark, context: Any
) -> None:
    file = str(pipeline_file("p"))
    with pytest.raises(ConfigError, match="goes with deep"):
        AuditOperator(task_id="a", pipeline=file, windows=True, deep=False)
    with pytest.raises(ConfigError, match="has no windows"):
        AuditOperator(task_id="b", pipeline=file, windows=True, spark_binary=spark.binary).execute(context())
    assert spark.call("audit_windows.py") is None
