"""``mode: upsert`` of both sinks that have it: what is refused when the file is loaded, with the way out."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.pipeline import Pipeline

BY_KEY = {"mode": "upsert", "key": ["id"]}
DELETE = {"decode": {"json": {"schema": "name STRING", "key": "id", "tombstone": "delete"}}}
WINDOW = {"time": "at", "size": "1h", "by": ["id"], "aggregates": {"n": "count(*)"}, "watermark": "1h"}
DEDUPE = {"keys": ["id"], "time": "at", "within": "1h"}


def loaded(kind: str, sink: dict[str, Any], **more: Any) -> Pipeline:
    where = {"delta": {"path": "t"}, "postgres": {"table": "t"}}[kind]
    spec = {
        "pipeline": "p",
        "source": {"kafka": {"topics": ["t"]}},
        "decode": {"json": {"schema": "id STRING, at TIMESTAMP"}},
        "sink": {kind: where | sink},
    }
    return Pipeline.model_validate(spec | more)


@pytest.mark.parametrize("kind", ["delta", "postgres"])
def test_rows_with_a_key(kind: str) -> None:
    pipeline = loaded(kind, BY_KEY | {"sequence": "at"})
    assert (pipeline.sink.config.keyed, pipeline.sink.kind.replaceable) == (True, False)
    assert "with mode: upsert cannot replace rows" in str(pipeline.no_intervals)
    assert loaded(kind, BY_KEY, **DELETE).decode.deletes
    assert loaded(kind, {}).sink.kind.replaceable


@pytest.mark.parametrize("kind", ["delta", "postgres"])
@pytest.mark.parametrize(
    ("sink", "more", "told"),
    [
        ({"mode": "upsert"}, {}, r"needs the key.*key: \[id\]"),
        ({"key": ["id"]}, {}, "are for mode: upsert"),
        ({"sequence": "at"}, {}, "are for mode: upsert"),
        (BY_KEY | {"key": ["id", "id"]}, {}, "stands twice in the key"),
        (BY_KEY, {"rows": "many"}, "rows: one or filter"),
        (BY_KEY, {"rows": "aggregate"}, "rows: one or filter"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: str, sink: dict[str, Any], more: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        loaded(kind, sink, **more)


@pytest.mark.parametrize(
    ("sink", "more", "told"),
    [
        (BY_KEY | {"partition_by": ["id"]}, {}, "leave partition_by out"),
        (BY_KEY, {"window": WINDOW}, "mode: upsert beside window, which merges windows by itself with output: update"),
        (BY_KEY, {"dedupe": DEDUPE}, "mode: upsert beside dedupe, which keeps the first row"),
        (
            BY_KEY | {"sequence": "_timestamp"},
            DELETE,
            "leave sequence out, then offsets decide; or choose sink.postgres",
        ),
    ],
)
def test_what_delta_cannot_do_is_refused_by_name(sink: dict[str, Any], more: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        loaded("delta", sink, **more)
