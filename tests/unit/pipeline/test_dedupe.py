"""What ``dedupe`` may be, and what it excludes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice.recovery import Recovery
from sluice.run.request import RunRequest
from sluice.run.retraction import possible

DEDUPE: dict[str, Any] = {"keys": ["id"], "within": "1h"}
WINDOW = {"time": "at", "size": "1h", "aggregates": {"n": "count(*)"}, "watermark": "2h"}


def read(folder: Path, dedupe: dict[str, Any], **keys: Any) -> Pipeline:
    spec = {
        "pipeline": "p",
        "source": {"kafka": {"topics": ["t"]}},
        "decode": {"json": {"schema": "id STRING, at TIMESTAMP"}},
        "sink": {"delta": {"path": "p"}},
        "dedupe": {**DEDUPE, **dedupe},
        **keys,
    }
    file = folder / "p.yaml"
    file.write_text(yaml.safe_dump(spec))
    return load(file)


def test_the_event_time_is_the_records_own_by_default(tmp_path: Path) -> None:
    pipeline = read(tmp_path, {})
    assert pipeline.dedupe is not None
    assert pipeline.dedupe.time == "_timestamp"
    assert pipeline.stateful is pipeline.dedupe
    assert not pipeline.aggregates


@pytest.mark.parametrize(
    ("dedupe", "keys", "why"),
    [
        ({"keys": []}, {}, "keys"),
        ({"keys": ["id", "ID"]}, {}, "dedupe.keys: id appears twice"),
        ({"within": "0s"}, {}, "dedupe.within must be longer"),
        ({"watermark": "1h"}, {}, "watermark"),
        ({}, {"window": WINDOW}, "dedupe beside window"),
        ({}, {"sink": {"postgres": {"table": "t"}}}, "sink.postgres cannot take deduplicated rows yet"),
        ({}, {"rows": "many"}, "must have rows: one or filter"),
        ({}, {"rows": "aggregate"}, "must have rows: one or filter"),
        ({}, {"recovery": "ignore_batch"}, "duplicates would then be taken for the first ones"),
        ({}, {"recovery": "ignore_range"}, "duplicates would then be taken for the first ones"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    tmp_path: Path, dedupe: dict[str, Any], keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, dedupe, **keys)
    assert why in str(refused.value)


def test_a_run_cannot_do_what_the_file_cannot(tmp_path: Path) -> None:
    pipeline = read(tmp_path, {})
    assert [r for r in Recovery if pipeline.refusal(r) is None] == [Recovery.REPLAY, Recovery.WAL, Recovery.HOT]
    with pytest.raises(ConfigError, match="has dedupe: which of an interval's records are duplicates"):
        RunRequest.of(pipeline, "r", start="2026-01-01", end="2026-01-02")
    with pytest.raises(ConfigError, match="rows that are taken back would not come again"):
        possible(pipeline)


@pytest.mark.parametrize(
    ("change", "definition", "absorption"),
    [
        ({}, True, True),
        ({"within": "2h"}, True, False),
        ({"ahead": "2d"}, True, False),
        ({"hold": {"idle_after": "1d"}}, True, True),
        ({"keys": ["id", "at"]}, False, False),
        ({"time": "at"}, False, False),
    ],
)
def test_the_definition_is_what_remembered_keys_depend_on(
    tmp_path: Path, change: dict[str, Any], definition: bool, absorption: bool
) -> None:
    before, after = read(tmp_path, {}), read(tmp_path, change)
    assert before.dedupe is not None
    assert after.dedupe is not None
    assert (before.dedupe.definition == after.dedupe.definition) is definition
    assert (before.absorption == after.absorption) is absorption
