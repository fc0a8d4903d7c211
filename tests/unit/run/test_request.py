"""What a run is asked to do: refused where it cannot be meant, and the same behind argv as before it."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import yaml

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline
from sluice.recovery import Recovery
from sluice.run.interval import Interval
from sluice.run.request import RunRequest


def pipeline(**more: Any) -> Pipeline:
    text = "{pipeline: p, source: {kafka: {topics: [t]}}, decode: {text: {}}, sink: {delta: {path: p}}}"
    return Pipeline.model_validate({**yaml.safe_load(text), **more})


@pytest.mark.parametrize(
    "request_",
    [
        RunRequest("r"),
        RunRequest("manual__2013-01-01T00:00:00+00:00", Recovery.WAL, 7, None, "--because", False),
        RunRequest("a run", interval=Interval.parse("2013-03-01", "2013-04-01"), reason="2 = 2"),
    ],
)
def test_a_request_is_the_same_behind_argv(request_: RunRequest) -> None:
    parser = argparse.ArgumentParser()
    RunRequest.add_to(parser)
    assert RunRequest.parse(parser.parse_args(request_.arguments()), pipeline()) == request_


def test_what_cannot_be_meant_is_refused() -> None:
    def asked(start: str | None, end: str | None, recovery: str | None = None, **keys: Any) -> Interval | None:
        return RunRequest.of(pipeline(**keys), "r", start=start, end=end, recovery=recovery).interval

    assert asked(None, None) is None
    assert asked("", "") is None
    assert asked("2013-03-01", "2013-04-01", "wal") is not None
    for start, end, missing in (("2013-03-01", None, "end"), (None, "2013-03-01", "start")):
        with pytest.raises(ConfigError, match=f"has no {missing}"):
            asked(start, end)
    with pytest.raises(ConfigError, match="would skip some of their records"):
        asked("2013-03-01", "2013-04-01", "ignore_range")
    with pytest.raises(ConfigError, match="rows: aggregate"):
        asked("2013-03-01", "2013-04-01", rows="aggregate")
    with pytest.raises(ConfigError, match="for stateless pipelines"):
        asked(None, None, "ignore_batch", rows="aggregate")
    with pytest.raises(ConfigError, match="at least 1"):
        RunRequest.of(pipeline(), "r", max_records_per_batch=0)
    with pytest.raises(ConfigError, match="printable"):
        RunRequest.of(pipeline(), "a\nrun")
