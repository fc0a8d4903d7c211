"""A table that is not fresh at a given time is told of, whether a run began or not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from tests.airflow.conftest import DOWN, unknown

from sluice.errors import SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag
from sluice_airflow.factory import build_all
from sluice_airflow.operators.freshness import FreshnessOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

WANTED = 'freshness: {max_age: 2h, cron: "0 7 * * *", timezone: Europe/Berlin}'


def waiting(records: int, age: float, **more: Any) -> Backlog:
    return Backlog("demo", (PartitionLag("demo", 0, 5, 0, 5 + records, age),), Limits(10), **more)


@pytest.fixture
def fresh(
    pipeline_file: Callable[..., Path], context: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Backlog], Any]:
    """Check a backlog."""

    def check(found: Backlog) -> Any:
        asked: dict[str, Any] = {}
        monkeypatch.setattr("sluice_airflow.operators.freshness.look", lambda *_, **kw: asked.update(kw) or found)
        operator = FreshnessOperator(task_id="fresh", pipeline=str(pipeline_file()), max_age=timedelta(hours=2))
        age = operator.execute(context())
        assert asked["limits"] == {"max_age": timedelta(hours=2)}
        return age

    return check


def test_what_waits_may_be_young_or_nothing(fresh: Any) -> None:
    assert fresh(waiting(100, 7199.0)) == 7199.0
    assert fresh(waiting(0, 0.0)) == 0.0


def test_a_record_that_is_too_old_or_an_answer_that_is_missing_fails(fresh: Any) -> None:
    with pytest.raises(AirflowFailException, match=r"record that is 3 h old is not in the table.*\n.*100 records wait"):
        fresh(waiting(100, 10800.0))
    with pytest.raises(AirflowFailException, match="run 'r' is at work"):
        fresh(waiting(100, 10800.0, running="r"))
    with pytest.raises(SourceUnreachableError):
        fresh(unknown(DOWN))


def test_a_file_makes_a_dag_that_alerts(
    pipeline_file: Callable[..., Path],
    dags_in: Any,
    call_back: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "late", raising=False)
    (tmp_path / "late.py").write_text(
        "from pathlib import Path\nfrom sluice_airflow.notifiers import FailureNotifier\n"
        f"page = FailureNotifier(lambda c: Path({str(tmp_path / 'paged')!r}).write_text(c['sluice'].text))\n"
    )
    more = f'airflow: {{owner: team, tags: [gold], retries: 0, on_failure: ["late:page"], {WANTED}}}\n'
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipeline_file(more=more).parent))
    monkeypatch.setattr("sluice_airflow.operators.freshness.look", lambda *_, **__: waiting(100, 10800.0))
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "all.py").write_text(
        '"""A DAG for each file."""\nfrom sluice_airflow.factory import build_all\nglobals().update(build_all())\n'
    )
    dags: dict[str, DAG] = dags_in(folder)
    assert set(dags) == {"demo", "demo.freshness"}
    dag = dags["demo.freshness"]
    assert (dag.timetable.expression, str(dag.timetable.timezone)) == ("0 7 * * *", "Europe/Berlin")
    assert (dag.owner, {"gold", "freshness"} <= set(dag.tags), dag.max_active_runs) == ("team", True, 1)
    run = dag.test(logical_date=None)
    assert str(run.state) == "failed"
    call_back(run, folder / "all.py")
    assert (tmp_path / "paged").read_text().startswith("'demo' is not fresh: a record that is 3 h old")


def test_a_task_builds_its_own_dag_only(pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pipeline_file(more=f"airflow: {{maintenance: manual, {WANTED}}}\n").parent
    pipeline_file("other")
    assert set(build_all(folder)) == {"demo", "demo.maintenance", "demo.freshness", "other"}
    for wanted in ("demo", "demo.maintenance", "demo.freshness"):
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", wanted)
        assert set(build_all(folder)) == {wanted}
