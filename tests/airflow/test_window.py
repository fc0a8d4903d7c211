"""What a run of a DAG means: what is available now, or an interval."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline
from sluice_airflow.window import run_window

pytestmark = pytest.mark.airflow

MARCH = {
    "data_interval_start": datetime(2013, 3, 1, tzinfo=UTC),
    "data_interval_end": datetime(2013, 4, 1, tzinfo=UTC),
}
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
def test_every_run_but_a_backfill_means_what_is_available_now(kind: str | None, dates: Any) -> None:
    window = run_window(asked(kind, dates, mode="auto", start=None, end=None), pipeline())
    assert (window.run_id, window.interval, window.reason) == (f"{kind}__1", None, None)


def test_a_backfill_means_its_interval_and_has_a_run_of_its_own_in_the_ledger() -> None:
    window = run_window(asked("backfill", MARCH, mode="auto", reason=" a fix "), pipeline())
    assert window.interval is not None
    assert (window.run_id, window.interval.key, window.reason) == ("backfill__1__interval", KEY, "a fix")


def test_a_backfill_may_be_told_to_drain_instead() -> None:
    assert run_window(asked("backfill", MARCH, mode="available_now"), pipeline()).interval is None


@pytest.mark.parametrize("mode", ["auto", "interval", None])
def test_a_manual_run_of_an_interval(mode: str | None) -> None:
    context = asked("manual", None, mode=mode, start="2013-03-01T00:00:00Z", end="2013-04-01T01:00:00+01:00")
    window = run_window(context, pipeline())
    assert window.interval is not None
    assert (window.run_id, window.interval.key) == ("manual__1__interval", KEY)
    assert run_window(context, pipeline(), "named").run_id == "named__interval"


@pytest.mark.parametrize(
    ("kind", "dates", "params", "says"),
    [
        ("manual", None, {"mode": "interval"}, "needs start and end"),
        ("manual", MARCH, {"mode": "interval"}, "needs start and end"),
        ("manual", None, {"start": "2013-03-01"}, "has no end"),
        ("manual", None, {"end": "2013-03-01"}, "has no start"),
        (
            "manual",
            None,
            {"mode": "available_now", "start": "2013-03-01", "end": "2013-04-01"},
            "mode is available_now",
        ),
        ("manual", None, {"start": "2013-04-01", "end": "2013-03-01"}, "is reversed"),
        ("manual", None, {"start": "2013-04-01", "end": "2013-04-01"}, "has no width"),
        ("manual", None, {"start": "2013-04-01", "end": "9999-04-01"}, "in the future"),
        ("manual", None, {"start": "now", "end": "2013-04-01"}, "is not a time"),
        ("manual", None, {"mode": "sideways"}, "is not one of auto, available_now, interval"),
        ("manual", None, {"start": "2013-03-01", "end": "2013-04-01", "recovery": "ignore_batch"}, "skip some"),
        ("backfill", MARCH, {"start": "2013-03-01", "end": "2013-04-01"}, "start and end were given as well"),
        ("backfill", None, {}, "has no data interval"),
        ("backfill", {k: MARCH["data_interval_end"] for k in MARCH}, {}, "CronDataIntervalTimetable"),
    ],
)
def test_what_contradicts_itself_is_refused(kind: str, dates: Any, params: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        run_window(asked(kind, dates, **params), pipeline())
    assert caught.value.state == "nothing was read or written"


def test_the_files_own_strategy_is_no_choice_of_the_run() -> None:
    params = {"start": "2013-03-01", "end": "2013-04-01", "recovery": "ignore_range"}
    assert run_window(asked("manual", None, **params), pipeline(recovery="ignore_range")).interval is not None


def test_a_pipeline_that_aggregates_has_no_intervals() -> None:
    with pytest.raises(ConfigError, match="rows: aggregate"):
        run_window(asked("backfill", MARCH), pipeline(rows="aggregate"))
