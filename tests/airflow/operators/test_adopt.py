"""Giving a pipeline another name from Airflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowSkipException
from deltalake import CommitProperties, Transaction, write_deltalake

from sluice.errors import ConfigError, LeaseHeldError
from sluice.ledger import Ledger
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice_airflow.operators.adopt import AdoptOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


@pytest.fixture
def file(pipeline_file: Callable[..., Path], home: Path) -> str:
    """The file of ``p``, whose table and run the pipeline ``old`` has made."""
    note = json.dumps({"app_id": "sluice:old:1", "version": 0, "run": "r0"})
    made = CommitProperties(custom_metadata={"sluice": note}, app_transactions=[Transaction("sluice:old:1", 0, None)])
    (home / "p").mkdir(parents=True)
    write_deltalake(str(home / "p"), pa.table({"id": [0, 1, 2]}), commit_properties=made)
    ledger, span = Ledger.open(), OffsetRange("p", 0, 0, 3)
    with ledger.acquire("old", "r0") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[span], topic_ids={})
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=[RangeAccount(span, Counts(written=3))])
        ledger.run_closed(lease, state="done", seconds=1.0)
    return str(pipeline_file("p"))


def test_a_dag_renames_it_and_a_cleared_task_has_nothing_to_do(
    file: str, dags_in: Any, tmp_path: Path, context: Any
) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "renaming.py").write_text(
        "from airflow.sdk import DAG\n"
        "from sluice_airflow.operators.adopt import AdoptOperator\n"
        "with DAG('renaming', schedule=None, params={'former': 'old'}):\n"
        f"    AdoptOperator(task_id='adopt', pipeline={file!r}, former='{{{{ params.former }}}}')\n"
    )
    run = dags_in(tmp_path / "dags")["renaming"].test(logical_date=None)
    assert [str(t.state) for t in run.get_task_instances()] == ["success"]
    ledger = Ledger.open()
    assert ([r.run for r in ledger.runs("p")], ledger.runs("old")) == (["r0"], [])
    with pytest.raises(AirflowSkipException, match="old already goes on as p"):
        AdoptOperator(task_id="adopt", pipeline=file, former="old").execute(context())


@pytest.mark.parametrize(("former", "told"), [("", "former: it is empty"), ("odl", "no run of pipeline 'odl'")])
def test_what_makes_no_sense_changes_nothing(file: str, context: Any, former: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        AdoptOperator(task_id="adopt", pipeline=file, former=former).execute(context())
    assert [r.run for r in Ledger.open().runs("old")] == ["r0"]


def test_a_run_that_is_active_is_a_reason_to_try_again_later(file: str, context: Any) -> None:
    with Ledger.open().acquire("old", "live"), pytest.raises(LeaseHeldError):
        AdoptOperator(task_id="adopt", pipeline=file, former="old").execute(context())
