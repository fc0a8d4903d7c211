"""The operators that repair: what each asks of the application or the ledger, refuses, skips, and waits for."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowSkipException
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from tests.airflow.conftest import SECRET, FakeSpark, account_for, states
from tests.fixtures.deltas import aged, marked

from sluice.errors import CheckpointError, ConfigError, LeaseHeldError, SourceUnreachableError
from sluice.home import Home
from sluice.ledger import Ledger, UnknownRunError
from sluice.ledger.events import Judged
from sluice.ranges import OffsetRange
from sluice.run.actions import Action, Redrive, Reset, Retract
from sluice_airflow.operators.accept import AcceptOperator
from sluice_airflow.operators.acknowledge import AcknowledgeOperator
from sluice_airflow.operators.adopt import AdoptOperator
from sluice_airflow.operators.audit import AuditOperator
from sluice_airflow.operators.clean import CleanOperator
from sluice_airflow.operators.compact import CompactOperator
from sluice_airflow.operators.redrive import RedriveOperator
from sluice_airflow.operators.reset import ResetOperator
from sluice_airflow.operators.retract import RetractOperator
from sluice_airflow.operators.vacuum import VacuumOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def span(start: int, end: int) -> OffsetRange:
    return OffsetRange("p", 0, start, end)


REDRIVE, RESET = partial(Redrive, "again"), partial(Reset, "again", "transform")
RETRACT = partial(Retract, "back", "currency")
QUARANTINED, AGREED = {"what": "quarantined", "of_run": ""}, {"truncate": "true", "agreed": "True"}


@pytest.fixture
def renamed(home: Path) -> None:
    """A table and a lost range that the pipeline ``old`` left to ``p``."""
    note = json.dumps({"app_id": "sluice:old:1", "version": 0, "run": "live"})
    made = CommitProperties(custom_metadata={"sluice": note}, app_transactions=[Transaction("sluice:old:1", 0, None)])
    (home / "p").mkdir(parents=True)
    write_deltalake(str(home / "p"), pa.table({"id": [0, 1, 2]}), commit_properties=made)
    account_for((0, 3), part="lost", pipeline="old")


def small_files() -> str:
    """Make the table of ``p`` of three files."""
    path = Home.from_env().resolve("p")
    for number in range(3):
        write_deltalake(path, pa.table({"a": [number]}), mode="append")
    marked(path, "p", "sink")
    return path


@pytest.mark.parametrize(
    ("kind", "more", "asked"),
    [
        (RedriveOperator, {"ranges": "p:0:0-5 p:0:7-9", "of_run": "live"}, REDRIVE((span(0, 5), span(7, 9)), "live")),
        (RedriveOperator, {**QUARANTINED, "ranges": ["p:0:0-5"]}, REDRIVE((span(0, 5),), quarantined=True)),
        (ResetOperator, {}, RESET()),
        (ResetOperator, {"begin": "", "truncate": "False", "agreed": "None"}, RESET()),
        (ResetOperator, {"begin": "2026-11-01", "truncate": True}, RESET("2026-11-01", truncate=True)),
        (ResetOperator, {"begin": " earliest ", **AGREED}, RESET("earliest", truncate=True, agreed=True)),
        (RetractOperator, {"what": "live"}, RETRACT("live")),
        (RetractOperator, {"what": "p:0:0-2 p:0:3-4"}, RETRACT(None, (span(0, 2), span(3, 4)))),
        (RetractOperator, {"what": ["p:0:0-2"]}, RETRACT(None, (span(0, 2),))),
    ],
)
def test_repair_operator_hands_the_application_its_arguments_and_no_secret(
    make: Any, spark: FakeSpark, context: Any, kind: type, more: dict[str, Any], asked: Action
) -> None:
    account_for((0, 5), (7, 9), part="lost" if kind is RedriveOperator else "filtered")
    reason = {RetractOperator: {"reason": "currency"}, ResetOperator: {"reason": "transform"}}.get(kind, {})
    operator = make(kind, **reason, **more)
    if kind is ResetOperator:
        with pytest.raises(AirflowSkipException):  # the fake resets nothing
            operator.execute(context())
    else:
        found = operator.execute(context())
        assert found["run"] == operator.run_id
        assert found.get("still_lost", 7) == 7
    call = spark.calls[asked.name]
    assert call["action"] == asked
    assert SECRET in call["env"]["AIRFLOW_CONN_KAFKA_DEFAULT"]
    assert SECRET not in " ".join(call["argv"])


NOTHING = AirflowSkipException


@pytest.mark.parametrize(
    ("kind", "more", "error", "token"),
    [
        (AcceptOperator, {"of_run": ""}, NOTHING, "run"),
        (AcceptOperator, {"of_run": "None"}, NOTHING, "run"),
        (AcceptOperator, {"reason": ""}, ConfigError, "reason"),
        (AcceptOperator, {"of_run": "lvie"}, UnknownRunError, "live"),
        (AcknowledgeOperator, {"ranges": "p:0:5-7"}, NOTHING, "lost range"),
        (AcknowledgeOperator, {"ranges": "p:0:14-16"}, ConfigError, "p-0"),
        (AcknowledgeOperator, {"reason": ""}, ConfigError, "reason"),
        (AcknowledgeOperator, {"of_run": "none"}, UnknownRunError, "'none'"),
        (AcknowledgeOperator, {"ranges": ["p-0"]}, ConfigError, "p-0"),
        (AdoptOperator, {"former": ""}, ConfigError, "former"),
        (AdoptOperator, {"former": "odl"}, ConfigError, "'odl'"),
        (AuditOperator, {"windows": True, "deep": False}, ConfigError, "deep"),
        (AuditOperator, {"windows": True}, ConfigError, "windows"),
        (RedriveOperator, {"what": "nothing"}, NOTHING, "nothing"),
        (RedriveOperator, {"of_run": "another"}, NOTHING, "lost range"),
        (RedriveOperator, {"what": "everything"}, ConfigError, "what"),
        (RedriveOperator, {"ranges": ["p-0"]}, ConfigError, "p-0"),
        (RedriveOperator, {"of_run": "none"}, UnknownRunError, "'none'"),
        (RedriveOperator, {"what": "nothing", "ranges": "p:0:0-5"}, ConfigError, "quarantined"),
        (RedriveOperator, {"what": "nothing", "of_run": "live"}, ConfigError, "quarantined"),
        (ResetOperator, {"reason": " "}, ConfigError, "reason"),
        (ResetOperator, {"begin": "soon"}, ConfigError, "'soon'"),
        (ResetOperator, {"truncate": True}, ConfigError, "from"),
        (ResetOperator, {"rebuild_state": "True"}, ConfigError, "state"),
        (ResetOperator, {"truncate": "perhaps", "begin": "latest"}, ConfigError, "truncate"),
        (RetractOperator, {"what": ""}, NOTHING, "nothing"),
        (RetractOperator, {"what": "None"}, NOTHING, "nothing"),
        (RetractOperator, {"what": "p:0:20-22"}, NOTHING, "never written"),
        (RetractOperator, {"reason": " "}, ConfigError, "reason"),
        (RetractOperator, {"what": "none"}, UnknownRunError, "'none'"),
        (RetractOperator, {"what": "a p:0:0-5"}, ConfigError, "'a'"),
        (RetractOperator, {"what": "waited"}, ConfigError, "batch 0"),
    ],
)
def test_repair_operator_refuses_or_skips_without_spark_and_without_a_change(
    make: Any, spark: FakeSpark, context: Any, renamed: None, kind: type, more: Any, error: type[Exception], token: str
) -> None:
    ledger = Ledger.open()
    account_for((0, 5), (7, 9), part="lost")
    account_for((10, 12), run="another")
    account_for((12, 14), run="waited")  # its batch waited, and was published by another run
    ledger.decide("p", "waited", Judged(verdict="failed", judgement={"reasons": ["x"], "waits": [1, 0]}))
    before = {name: ledger.events(name) for name in ("p", "old")}
    with pytest.raises(error) as caught:
        make(kind, **more).execute(context())
    assert token in str(caught.value)
    assert spark.calls == {}
    assert {name: ledger.events(name) for name in ("p", "old")} == before


@pytest.mark.parametrize("kind", [AcknowledgeOperator, AdoptOperator, CleanOperator])
def test_ledger_operator_is_tried_later_while_a_run_is_active(
    make: Any, context: Any, renamed: None, kind: type
) -> None:
    account_for((0, 5), part="lost")
    active = "old" if kind is AdoptOperator else "p"
    with Ledger.open().acquire(active, "active"), pytest.raises(LeaseHeldError):
        make(kind).execute(context())


def test_redrive_operator_refuses_a_range_that_was_never_read(make: Any, spark: FakeSpark, context: Any) -> None:
    account_for((0, 5), part="lost")
    with pytest.raises(ConfigError, match="other-0"):
        make(RedriveOperator, ranges="other:0:0-5").execute(context())
    assert spark.calls == {}


@pytest.mark.parametrize("main", ["redrive", "reset", "retract"])
def test_repair_operator_fails_by_the_exit_code_of_its_application(
    make: Any, spark: FakeSpark, context: Any, main: str
) -> None:
    account_for((0, 5), part="lost" if main == "redrive" else "filtered")
    spark.plan(main, code=40, record=False)
    kinds = {"redrive": RedriveOperator, "reset": ResetOperator, "retract": RetractOperator}
    with pytest.raises(LeaseHeldError):
        make(kinds[main]).execute(context())


DAG_FILE = """\
from airflow.sdk import DAG
from sluice_airflow.operators.acknowledge import AcknowledgeOperator
from sluice_airflow.operators.adopt import AdoptOperator

with DAG("closing", schedule=None, params={{"why": "retention", "former": "old"}}):
    adopt = AdoptOperator(task_id="adopt", pipeline={file!r}, former="{{{{ params.former }}}}")
    adopt >> AcknowledgeOperator(task_id="close", pipeline={file!r}, reason="{{{{ params.why }}}}")
"""


@pytest.mark.long
def test_dag_adopts_a_pipeline_and_acknowledges_its_losses_by_templates(
    pipeline_file: Any, renamed: None, dags_in: Any, make: Any, context: Any
) -> None:
    run = dags_in(DAG_FILE.format(file=str(pipeline_file("p"))))["closing"].test(logical_date=None)
    assert states(run) == {"adopt": "success", "close": "success"}
    ledger = Ledger.open()
    assert ([r.run for r in ledger.runs.newest("p")], ledger.runs.newest("old"), ledger.offsets.lost("p")) == (
        ["live"],
        [],
        [],
    )
    (event,) = [e for e in ledger.events("p") if e["type"] == "LossAcknowledged"]
    assert event["payload"]["reason"] == "retention"
    with pytest.raises(AirflowSkipException):  # a task that is cleared
        make(AdoptOperator).execute(context())


@pytest.mark.parametrize("new_normal", [False, True])
def test_accept_operator_accepts_once(make: Any, context: Any, new_normal: bool) -> None:
    account_for((0, 5))
    Ledger.open().decide("p", "live", Judged(verdict="failed", judgement={}))
    for _ in range(2):
        assert make(AcceptOperator, new_normal=new_normal).execute(context()) == {"run": "live", "verdict": "failed"}
    assert Ledger.open().verdicts.acceptance("p", "live") == "known gap"
    assert Ledger.open().profiles.normal_since("p") == (("live", "known gap") if new_normal else None)


def test_acknowledge_operator_closes_the_chosen_part_of_ranges(make: Any, context: Any) -> None:
    account_for((0, 5), (7, 9), part="lost")
    found = make(AcknowledgeOperator, ranges="p:0:3-8", of_run="live").execute(context())
    assert found == {"offsets": 3, "ranges": [["p", 0, 3, 5], ["p", 0, 7, 8]]}
    assert [(r.range.start, r.range.end) for r in Ledger.open().offsets.lost("p")] == [(0, 3), (8, 9)]


def test_audit_operator_fails_on_a_gap_and_names_the_command(make: Any, context: Any) -> None:
    account_for((0, 5), (5, 9))
    assert make(AuditOperator, deep=False).execute(context()) == {"balanced": True, "problems": 0, "lost": 0}
    account_for((11, 12), run="later")
    with pytest.raises(CheckpointError) as caught:
        make(AuditOperator, deep=False).execute(context())
    assert "9" in caught.value.what
    assert "sluice audit p --json" in caught.value.next_step


WINDOW = "window: {time: _timestamp, gap: 10m, by: [value], watermark: 1h, aggregates: {n: count(*)}}\n"


@pytest.mark.parametrize("error", [None, CheckpointError, SourceUnreachableError])
def test_audit_operator_compares_windows_by_spark(
    make: Any, pipeline_file: Any, spark: FakeSpark, context: Any, home: Path, error: type[Exception] | None
) -> None:
    write_deltalake(str(home / "p"), pa.table({"_run": pa.array([], pa.string())}))
    item = {"start": 0, "end": 1, "by": {"value": "a"}, "expected": True, "found": False, "values": {"n": ["2", ""]}}
    found = {
        "compared": 3,
        "count": int(bool(error)),
        "differences": [item] * bool(error),
        "doubtful": [],
        "columns": {},
    }
    spark.plan("audit-windows", result=found, code=20 if error is SourceUnreachableError else 0)
    operator = make(AuditOperator, windows=True, conf={"spark.sql.shuffle.partitions": "3"})
    pipeline_file("p", more=WINDOW)
    if error is None:
        assert operator.execute(context()) == {"balanced": True, "problems": 0, "lost": 0}
    else:
        with pytest.raises(error) as caught:
            operator.execute(context())
    if error is CheckpointError:
        assert "n 2" in caught.value.what
        assert "sluice audit p --deep --windows --json" in caught.value.next_step
    call = spark.calls["audit-windows"]
    assert "spark.sql.shuffle.partitions=3" in call["argv"]
    assert SECRET in call["env"]["AIRFLOW_CONN_KAFKA_DEFAULT"]
    assert SECRET not in " ".join(call["argv"])


def test_reset_operator_keeps_state_if_asked(make: Any, pipeline_file: Any, spark: FakeSpark, context: Any) -> None:
    operator = make(ResetOperator, rebuild_state="true")
    pipeline_file("p", more="dedupe: {keys: [id], within: 1h}\n")
    account_for((0, 5))
    with pytest.raises(AirflowSkipException):
        operator.execute(context())
    assert spark.calls["reset"]["action"].rebuild


def test_clean_operator_removes_nothing_without_a_log(make: Any, context: Any) -> None:
    assert make(CleanOperator).execute(context()) == {"segments": 0, "records": 0, "bytes": 0}


def test_compact_operator_merges_small_files(make: Any, context: Any) -> None:
    assert make(CompactOperator).execute(context()) == []
    small_files()
    (row,) = make(CompactOperator, dry_run=True).execute(context())
    assert (row["files"], row["small"]) == (3, 3)
    (row,) = make(CompactOperator).execute(context())
    assert (row["merged"], row["into"]) == (3, 1)


def test_vacuum_operator_removes_files_long_out_of_use(make: Any, context: Any) -> None:
    path = small_files()
    DeltaTable(path).optimize.compact()
    (row,) = make(VacuumOperator).execute(context())
    assert row["files"] == 0
    aged(path, timedelta(days=8))
    (row,) = make(VacuumOperator, dry_run=True).execute(context())
    assert row["files"] == 3
    with pytest.raises(ConfigError, match="execution_timeout"):
        make(VacuumOperator, older_than=timedelta(hours=1)).execute(context())
    (row,) = make(VacuumOperator).execute(context())
    assert row["files"] == 3
    assert DeltaTable(path).count() == 3
