"""What a DAG's page says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice_airflow.factory import build_dag

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_the_page_and_the_schedule(pipeline_file: Callable[..., Path]) -> None:
    hourly = build_dag(pipeline_file(more='schedule: {cron: "5 * * * *", timezone: Europe/Berlin}\n'))
    assert hourly.timetable.expression == "5 * * * *"
    assert "Europe/Berlin" in hourly.doc_md
    assert "sluice audit demo" in hourly.doc_md
    assert "airflow backfill create --dag-id demo" in hourly.doc_md
    by_hand = build_dag(pipeline_file())
    assert "by hand" in by_hand.doc_md
    assert "by itself" in build_dag(pipeline_file(more="schedule: on_lag\n")).doc_md


def test_the_page_says_when_it_runs(pipeline_file: Callable[..., Path]) -> None:
    page = build_dag(pipeline_file(more="schedule: on_lag\n")).doc_md
    assert "more than 10 records" in page
    assert "x-sluice://demo/lag" in page
    assert "15 s" in page
    assert "On lag" not in build_dag(pipeline_file()).doc_md
