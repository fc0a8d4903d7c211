"""What ``processor`` may be, and what it excludes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice.recovery import Recovery
from sluice.run.redriving import possible as redrivable
from sluice.run.request import RunRequest
from sluice.run.retraction import possible as retractable
from sluice.shipped import CHECKOUT

PROCESSOR: dict[str, Any] = {
    "python": "processors.rotations:Rotations", "by": ["id"], "time": "at", "watermark": "1h",
    "schema": "id STRING, n INT",
}  # fmt: skip
WINDOW = {"time": "at", "size": "1h", "aggregates": {"n": "count(*)"}, "watermark": "2h"}


def read(folder: Path, processor: dict[str, Any], **keys: Any) -> Pipeline:
    spec = {
        "pipeline": "p",
        "source": {"kafka": {"topics": ["t"]}},
        "decode": {"json": {"schema": "id STRING, at TIMESTAMP"}},
        "sink": {"delta": {"path": "p"}},
        "processor": {**PROCESSOR, **processor},
        **keys,
    }
    file = folder / "p.yaml"
    file.write_text(yaml.safe_dump(spec))
    return load(file)


def test_its_rows_are_those_of_no_record(tmp_path: Path) -> None:
    pipeline = read(tmp_path, {})
    assert pipeline.stateful is pipeline.processor is not None
    assert (pipeline.keeps, pipeline.kept_by) == ("processor", "a processor")
    assert pipeline.aggregates
    assert pipeline.processor.columns == ["id", "n"]


def test_the_example_is_one() -> None:
    pipeline = load(CHECKOUT / "include/pipelines/examples/flights_rotations.yaml")
    assert pipeline.processor is not None
    assert pipeline.processor.by == ("tailnum",)


@pytest.mark.parametrize(
    ("processor", "keys", "why"),
    [
        ({"by": []}, {}, "by"),
        ({"by": ["id", "ID"]}, {}, "processor.by: id appears twice"),
        ({"python": "processors.rotations"}, {}, "write package.module:function"),
        ({"python": "processors.rotatons:Rotations"}, {}, "no module 'processors.rotatons'"),
        ({"python": "processors.rotations:Rotation"}, {}, "has no class or function 'Rotation'"),
        ({"schema": "id STRANGE"}, {}, "processor.schema: not a Spark DDL schema"),
        ({"schema": "_run STRING"}, {}, "a name that Sluice adds itself"),
        ({"output": "update"}, {}, "output"),
        ({}, {"window": WINDOW}, "processor beside window"),
        ({}, {"dedupe": {"keys": ["id"], "within": "1h"}}, "processor beside dedupe"),
        ({}, {"sink": {"postgres": {"table": "t"}}}, "sink.postgres cannot take its rows yet"),
        ({}, {"sink": {"delta": {"path": "p", "mode": "upsert", "key": ["id"]}}}, "mode: upsert beside processor"),
        ({}, {"sink": {"delta": {"path": "p", "partition_by": ["at"]}}}, "'at' is not a column of processor.schema"),
        (
            {},
            {"also": [{"postgres": {"table": "t", "mode": "upsert", "key": ["id"]}}]},
            "mode: upsert beside processor is not supported yet",
        ),
        ({"flush": {"after": "1d"}}, {"schedule": "on_lag"}, "with schedule: on_lag there is none"),
        (
            {"flush": {"after": "1d"}},
            {"schedule": {"cron": "@daily"}, "lag": {"on_idle": "skip"}},
            "on_idle: skip there is none",
        ),
        ({}, {"rows": "many"}, "must have rows: one or filter"),
        ({}, {"rows": "aggregate"}, "must have rows: one or filter"),
        ({}, {"recovery": "ignore_batch"}, "whose rows would then be silently wrong"),
        ({}, {"recovery": "ignore_range"}, "whose rows would then be silently wrong"),
        ({}, {"state": {"max_bytes": 1}}, "Spark does not say how large the state of a processor is"),
        ({}, {"quality": {"when": "before_commit"}}, "before_commit beside processor"),
        ({}, {"quality": {"history": {"freshness": "1h"}}}, "aggregated rows have none"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    tmp_path: Path, processor: dict[str, Any], keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, processor, **keys)
    assert why in str(refused.value)


def test_a_run_cannot_do_what_the_file_cannot(tmp_path: Path) -> None:
    pipeline = read(tmp_path, {})
    assert [r for r in Recovery if pipeline.refusal(r) is None] == [Recovery.REPLAY, Recovery.WAL, Recovery.HOT]
    with pytest.raises(ConfigError, match="has a processor: which rows the records of an interval give"):
        RunRequest.of(pipeline, "r", start="2026-01-01", end="2026-01-02")
    with pytest.raises(ConfigError, match="has a processor: a row of its sink combines many records"):
        retractable(pipeline)
    with pytest.raises(ConfigError, match="has a processor: a record that is redriven") as refused:
        redrivable(pipeline, quarantined=True)
    assert "send the records to the source again" in refused.value.next_step


@pytest.mark.parametrize(
    ("change", "definition", "absorption"),
    [
        ({}, True, True),
        ({"watermark": "2h"}, True, False),
        ({"ahead": "2d"}, True, False),
        ({"hold": {"idle_after": "1d"}}, True, True),
        ({"flush": {"after": "1d"}}, True, True),
        ({"schema": "id STRING"}, True, False),
        ({"by": ["id", "at"]}, False, False),
        ({"time": "_timestamp"}, False, False),
    ],
)
def test_the_definition_is_what_state_depends_on(
    tmp_path: Path, change: dict[str, Any], definition: bool, absorption: bool
) -> None:
    before, after = read(tmp_path, {}), read(tmp_path, change)
    assert before.processor is not None
    assert after.processor is not None
    assert (before.processor.definition == after.processor.definition) is definition
    assert (before.absorption == after.absorption) is absorption
