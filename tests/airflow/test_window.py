"""The window of a DAG run: everything available now, or an interval."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline
from sluice_airflow.params import of
from sluice_airflow.window import run_window

pytestmark = pytest.mark.airflow

MARCH = {"data_interval_start": datetime(2013, 3, 1, tzinfo=UTC), "data_interval_end": datetime(2013, 4, 1, tzinfo=UTC)}
KEY = "2013-03-01T00:00:00Z/2013-04-01T00:00:00Z"


def pipeline(**more: Any) -> Pipeline:
    text = "{pipeline: p, source: {kafka: {topics: [t]}}, decode: {text: {}}, sink: {delta: {path: p}}}"
    return Pipeline.model_validate({**yaml.safe_load(text), **more})


def asked(kind: str | None, dates: dict[str, datetime] | None = None, **params: Any) -> Any:
    context: Any = {"run_id": f"{kind}__1", "params": params, **(dates or {})}
    if kind is not None:
        context["dag_run"] = SimpleNamespace(run_type=SimpleNamespace(value=kind))
    return context


@pytest.mark.parametrize("kind", ["scheduled", "manual", "asset_triggered", None])
@pytest.mark.parametrize("dates", [MARCH, None], ids=["dated", "null date"])
def test_run_window_of_a_run_that_is_no_backfill_is_everything_available_now(kind: str | None, dates: Any) -> None:
    window = run_window(asked(kind, dates, mode="auto", start=None, end=None), pipeline())
    assert (window.run_id, window.interval, window.reason) == (f"{kind}__1", None, None)


def test_run_window_of_a_backfill_is_its_interval_and_has_a_run_of_its_own() -> None:
    window = run_window(asked("backfill", MARCH, mode="auto", reason=" a fix "), pipeline())
    assert (window.run_id, window.interval.key, window.reason) == ("backfill__1__interval", KEY, "a fix")
    assert run_window(asked("backfill", MARCH, mode="available_now"), pipeline()).interval is None


@pytest.mark.parametrize("mode", ["auto", "interval", None])
def test_run_window_of_a_manual_run_is_the_interval_of_its_params(mode: str | None) -> None:
    context = asked("manual", None, mode=mode, start="2013-03-01T00:00:00Z", end="2013-04-01T01:00:00+01:00")
    window = run_window(context, pipeline())
    assert (window.run_id, window.interval.key) == ("manual__1__interval", KEY)
    assert run_window(context, pipeline(), "named").run_id == "named__interval"


@pytest.mark.parametrize(
    ("kind", "dates", "params", "token"),
    [
        ("manual", None, {"mode": "interval"}, "start and end"),
        ("manual", MARCH, {"mode": "interval"}, "start and end"),
        ("manual", None, {"start": "2013-03-01"}, "end"),
        ("manual", None, {"end": "2013-03-01"}, "start"),
        ("manual", None, {"mode": "available_now", "start": "2013-03-01", "end": "2013-04-01"}, "available_now"),
        ("manual", None, {"start": "2013-04-01", "end": "2013-03-01"}, "reversed"),
        ("manual", None, {"start": "2013-04-01", "end": "2013-04-01"}, "width"),
        ("manual", None, {"start": "2013-04-01", "end": "9999-04-01"}, "future"),
        ("manual", None, {"start": "now", "end": "2013-04-01"}, "now"),
        ("manual", None, {"mode": "sideways"}, "sideways"),
        ("manual", None, {"start": "2013-03-01", "end": "2013-04-01", "recovery": "ignore_batch"}, "ignore_batch"),
        ("backfill", MARCH, {"start": "2013-03-01", "end": "2013-04-01"}, "start and end"),
        ("backfill", None, {}, "data interval"),
        ("backfill", {k: MARCH["data_interval_end"] for k in MARCH}, {}, "CronDataIntervalTimetable"),
    ],
)
def test_run_window_refuses_contradictory_params(kind: str, dates: Any, params: dict[str, str], token: str) -> None:
    with pytest.raises(ConfigError, match=token) as caught:
        run_window(asked(kind, dates, **params), pipeline())
    assert caught.value.state == "nothing was read or written"


@pytest.mark.parametrize(
    ("live", "asked_for", "found"),
    [("replay", "wal", "wal"), ("wal", "wal", "wal"), ("ignore_range", "ignore_range", "ignore_range"),
     ("ignore_batch", "ignore_batch", "replay"), ("ignore_batch", "hot", "hot"), ("hot", None, "hot")],
)  # fmt: skip
def test_run_window_has_the_strategy_of_an_interval(live: str, asked_for: str | None, found: str) -> None:
    window = run_window(asked("backfill", MARCH, recovery=asked_for), pipeline(recovery=live))
    assert window.recovery == found


def test_run_window_refuses_a_limit_of_records_for_an_interval_alone() -> None:
    with pytest.raises(ConfigError, match="max_records_per_batch"):
        run_window(asked("backfill", MARCH, max_records_per_batch=7), pipeline())
    assert run_window(asked("scheduled", MARCH, max_records_per_batch=7), pipeline()).interval is None


def test_run_window_refuses_an_interval_of_a_pipeline_that_aggregates() -> None:
    with pytest.raises(ConfigError, match="rows: aggregate"):
        run_window(asked("backfill", MARCH), pipeline(rows="aggregate"))


def test_run_window_refuses_an_unknown_param_in_a_dag_of_sluice_only() -> None:
    context = asked("manual", None, colour="red")
    context["dag"], context["dag_run"].conf = SimpleNamespace(params={"recovery": "replay"}), {"colour": "red"}
    assert run_window(context, pipeline()).interval is None
    context["dag"] = SimpleNamespace(params={**of(pipeline())})
    with pytest.raises(ConfigError, match="'colour'"):
        run_window(context, pipeline())
    context["dag_run"].conf = None
    assert run_window(context, pipeline()).interval is None
