"""What a window may be, and what it excludes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice.recovery import Recovery
from sluice.run.request import RunRequest

WINDOW: dict[str, Any] = {"time": "at", "size": "1h", "aggregates": {"n": "count(*)"}, "watermark": "2h"}
UPSERTED = {"postgres": {"table": "t"}}


def read(folder: Path, window: dict[str, Any], **keys: Any) -> Pipeline:
    spec = {
        "pipeline": "p",
        "source": {"kafka": {"topics": ["t"]}},
        "decode": {"json": {"schema": "k STRING, at TIMESTAMP"}},
        "sink": {"delta": {"path": "p"}},
        "window": {**WINDOW, **window},
        **keys,
    }
    file = folder / "p.yaml"
    file.write_text(yaml.safe_dump(spec))
    return load(file)


def test_a_window_has_defaults_and_columns(tmp_path: Path) -> None:
    window = read(tmp_path, {"by": ["k"]}).window
    assert window is not None
    assert window.columns == ["window_start", "window_end", "k", "n"]
    assert window.step == window.size
    assert window.output == "append"


@pytest.mark.parametrize(
    ("window", "keys", "why"),
    [
        ({"size": "0s"}, {}, "window.size must be longer"),
        ({"slide": "2h"}, {}, "at most window.size"),
        ({"slide": "0s"}, {}, "window.slide must be longer"),
        ({"aggregates": {}}, {}, "aggregates"),
        ({"aggregates": {"Window_Start": "count(*)"}}, {}, "Window_Start is a column that Sluice adds itself"),
        ({"by": ["_run"]}, {}, "_run is a column that Sluice adds itself"),
        ({"by": ["N"]}, {}, "two columns of the sink would be called N"),
        ({"output": "sometimes"}, {}, "output"),
        ({"output": "complete"}, {}, "no window is ever closed, and no record is late: leave it out"),
        ({"watermark": None}, {}, "window needs watermark"),
        (
            {"output": "complete", "watermark": None, "size": None, "gap": "30m", "by": ["k"]},
            {},
            "complete is for windows with a size",
        ),
        (
            {"output": "complete", "watermark": None, "flush": {"after": "1d"}},
            {},
            "window.flush: with output: complete",
        ),
        (
            {"output": "complete", "watermark": None, "by": ["k"]},
            {"sink": {"delta": {"path": "p", "partition_by": ["k"]}}},
            "window.output: complete cannot replace rows of a partitioned table yet",
        ),
        ({"output": "update", "size": None, "gap": "30m", "by": ["k"]}, {}, "update is for windows with a size"),
        ({"output": "update", "flush": {"after": "1d"}}, {}, "windows are written before they are closed"),
        (
            {"output": "update", "by": ["k"]},
            {"sink": {"delta": {"path": "p", "partition_by": ["k"]}}},
            "cannot replace rows of a partitioned table yet",
        ),
        ({"hold": {"idle_after": "0s"}}, {}, "otherwise each partition would be idle at once"),
        (
            {"output": "complete", "watermark": None, "hold": {"idle_after": "1d"}},
            {},
            "window.hold: with output: complete, no record is late",
        ),
        ({"gap": "30m"}, {}, "exactly one of: size (tumbling or sliding windows), gap (sessions)"),
        ({"size": None}, {}, "exactly one of"),
        ({"size": None, "gap": "0s", "by": ["k"]}, {}, "window.gap must be longer"),
        ({"size": None, "gap": "30m", "by": ["k"], "slide": "5m"}, {}, "sessions do not overlap"),
        ({"size": None, "gap": "30m"}, {}, "window.gap needs by"),
        ({"flush": {"after": "1d"}}, {"schedule": "on_lag"}, "with schedule: on_lag there is none"),
        (
            {"flush": {"after": "1d"}},
            {"schedule": {"cron": "0 * * * *"}, "lag": {"on_idle": "skip"}},
            "with lag.on_idle: skip there is none",
        ),
        ({}, {"sink": UPSERTED}, "sink.postgres cannot take windows yet"),
        ({}, {"rows": "many"}, "must have rows: one or filter"),
        ({}, {"rows": "aggregate"}, "must have rows: one or filter"),
        ({}, {"sink": {"delta": {"path": "p", "partition_by": ["k"]}}}, "'k' is not a column of the windows"),
        ({}, {"recovery": "ignore_batch"}, "would skip records of windows that are open"),
        ({}, {"recovery": "ignore_range"}, "would skip records of windows that are open"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    tmp_path: Path, window: dict[str, Any], keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, window, **keys)
    assert why in str(refused.value)


def test_a_whole_result_has_no_watermark_and_no_intervals(tmp_path: Path) -> None:
    pipeline = read(tmp_path, {"output": "complete", "watermark": None})
    assert pipeline.window is not None
    assert pipeline.window.kept is None
    assert "output: complete" in (pipeline.no_intervals or "")


def test_a_run_cannot_do_what_the_file_cannot(tmp_path: Path) -> None:
    pipeline = read(tmp_path, {})
    assert [r for r in Recovery if pipeline.refusal(r) is None] == [Recovery.REPLAY, Recovery.WAL, Recovery.HOT]
    with pytest.raises(ConfigError, match="choose recovery: replay, wal or hot"):
        RunRequest.of(pipeline, "r", recovery="ignore_range")
    assert RunRequest.of(pipeline, "r", start="2026-01-01", end="2026-01-02").interval is not None
    sessions = read(tmp_path, {"size": None, "gap": "10m", "by": ["k"]})
    assert RunRequest.of(sessions, "r", start="2026-01-01", end="2026-01-02").interval is not None
    parts = read(
        tmp_path, {"size": None, "gap": "10m", "by": ["k"]}, sink={"delta": {"path": "p", "partition_by": ["k"]}}
    )
    with pytest.raises(ConfigError, match="which lack those of partitions"):
        RunRequest.of(parts, "r", start="2026-01-01", end="2026-01-02")
    parts = read(tmp_path, {}, sink={"delta": {"path": "p", "partition_by": ["window_start"]}})
    with pytest.raises(ConfigError, match=r"has sink\.delta\.partition_by: window_start"):
        RunRequest.of(parts, "r", start="2026-01-01", end="2026-01-02")


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        ({"window": {"size": "2h", "aggregates": {"m": "max(v)"}, "watermark": "3h"}}, True),
        ({"window": {"time": "_timestamp"}}, False),
        ({"rules": [{"name": "r", "sql": {"passes": "k > 'a'"}}]}, False),
        ({"transform": {"sql": "SELECT * FROM source WHERE k > 'a'"}}, False),
    ],
)
def test_event_times_hold_as_long_as_what_decides_them_is_the_same(
    tmp_path: Path, keys: dict[str, Any], same: bool
) -> None:
    before = read(tmp_path, {}).timing
    rest = {key: value for key, value in keys.items() if key != "window"}
    assert (read(tmp_path, keys.get("window", {}), **rest).timing == before) is same
    assert read(tmp_path, {}, transform={"python": "sluice.text:length"}).timing is None


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"watermark": "3h", "ahead": "2d"}, True),
        ({"aggregates": {"n": " count( * ) "}}, False),
        ({"slide": "1h"}, True),
        ({"size": "2h"}, False),
        ({"slide": "30m"}, False),
        ({"by": ["k"]}, False),
        ({"time": "_timestamp"}, False),
        ({"output": "update"}, False),
    ],
)
def test_the_definition_is_what_state_depends_on(tmp_path: Path, change: dict[str, Any], same: bool) -> None:
    before, after = read(tmp_path, {}).window, read(tmp_path, change).window
    assert before is not None
    assert after is not None
    assert (before.definition == after.definition) is same


def test_the_definition_of_sessions_is_their_gap(tmp_path: Path) -> None:
    sessions = {"size": None, "gap": "30m", "by": ["k"]}
    window = read(tmp_path, sessions).window
    assert window is not None
    assert (window.definition["gap"], "size" in window.definition) == (1800.0, False)
    assert window.columns == ["window_start", "window_end", "k", "n"]
    # an event time may be a part of a millisecond later
    assert window.last_end(5) == 1_800_006
