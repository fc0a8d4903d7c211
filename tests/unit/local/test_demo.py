"""What the demo tells its user to try next works as it is printed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sluice.local.demo import Demo
from sluice.pipeline import load, pipelines_folder


def test_the_command_that_is_printed_makes_a_pipeline_that_the_backlog_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("pipelines/flights.yaml", "expectations/flights.json"):
        (tmp_path / file).parent.mkdir()
        shutil.copy(pipelines_folder().parent / file, tmp_path / file)
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "pipelines"))
    told = Demo().next_steps()
    (command,) = re.findall(r"^ +(sed .*\\\n.*)$", told, re.M)
    subprocess.run(["bash", "-c", command], check=True)
    made, source = load("flights_on_lag"), load("flights")
    assert (made.schedule, made.sink.config.location) == ("on_lag", "flights_on_lag")
    changed = {"name", "schedule", "sink"}
    assert made.model_dump(exclude=changed) == source.model_dump(exclude=changed)
    assert "airflow dags unpause flights_on_lag" in told


def test_the_other_two_name_the_dag_that_has_months() -> None:
    told = Demo().next_steps()
    assert "/dags/flights_monthly, button Trigger" in told
    assert "airflow backfill create --dag-id flights_monthly --from-date 2013-03-01" in told
    assert load("flights_monthly").schedule.cron == "0 0 1 * *"  # type: ignore[union-attr]
