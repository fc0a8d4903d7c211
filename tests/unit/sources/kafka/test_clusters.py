"""What ``source.kafka.clusters`` may be, and what it excludes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice.recovery import Recovery
from sluice.run.retraction import possible

WINDOW = {"time": "at", "size": "1h", "aggregates": {"n": "count(*)"}, "watermark": "2h"}


def read(folder: Path, kafka: dict[str, Any] | None = None, **keys: Any) -> Pipeline:
    spec = {
        "pipeline": "p",
        "source": {"kafka": {"clusters": ["a", "b"], "topics": ["t"], "origin_header": "o", **(kafka or {})}},
        "decode": {"json": {"schema": "id STRING, at TIMESTAMP"}},
        "sink": {"delta": {"path": "p"}},
        **keys,
    }
    file = folder / "p.yaml"
    file.write_text(yaml.safe_dump(spec))
    return load(file)


def test_a_pipeline_begins_with_the_first_and_each_stream_has_a_name(tmp_path: Path) -> None:
    kafka = read(tmp_path).kafka
    assert (kafka.active, kafka.prefix, kafka.needs, kafka.needs_also) == ("a", "", "a", ["b"])
    second = kafka.at({"b:t": {0: 3}})
    assert (second.active, second.prefix, second.has("b:t"), second.has("t")) == ("b", "b:", True, False)
    assert [c.active for c in kafka.everywhere()] == ["a", "b"]
    with pytest.raises(ConfigError, match="no longer names"):
        kafka.at({"c:t": {}})


@pytest.mark.parametrize(
    ("kafka", "keys", "why"),
    [
        ({"clusters": ["a"]}, {}, "clusters"),
        ({"clusters": ["a", "a"]}, {}, "named twice"),
        ({"clusters": ["a", "b:c"]}, {}, "no id of a connection"),
        ({"connection": "a"}, {}, "both given"),
        ({"topics": None, "pattern": "t.*"}, {}, "pattern"),
        ({"origin_header": None}, {}, "origin_header"),
        ({"topics": ["t" * 249]}, {}, "too long"),
        ({}, {"window": WINDOW}, "window"),
        ({}, {"dedupe": {"keys": ["id"], "within": "1h"}}, "dedupe"),
        ({}, {"rows": "aggregate", "transform": {"sql": "SELECT 1"}}, "aggregate"),
        ({}, {"recovery": "wal"}, "wal"),
        ({}, {"schedule": "on_lag"}, "on_lag"),
        ({}, {"sink": {"postgres": {"table": "t", "mode": "upsert", "key": ["id"]}}}, "upsert"),
        ({}, {"sink": {"kafka": {"connection": "b", "topic": "t"}}}, "would read what it writes"),
    ],
)
def test_what_cannot_follow_is_refused(tmp_path: Path, kafka: dict[str, Any], keys: dict[str, Any], why: str) -> None:
    kafka = {k: v for k, v in kafka.items() if v is not None or k == "origin_header"}
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, kafka, **keys)
    assert why in refused.value.what


def test_origin_header_is_for_clusters(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="origin_header is for clusters"):
        load(_one(tmp_path))


def _one(folder: Path) -> Path:
    file = folder / "q.yaml"
    source = {"kafka": {"topics": ["t"], "origin_header": "o"}}
    spec = {"pipeline": "q", "source": source, "decode": {"text": {}}, "sink": {"delta": {"path": "p"}}}
    file.write_text(yaml.safe_dump(spec))
    return file


def test_intervals_retractions_and_the_log_are_refused_by_name(tmp_path: Path) -> None:
    pipeline = read(tmp_path)
    assert "source.kafka.clusters" in (pipeline.no_intervals or "")
    assert "source.kafka.clusters" in (pipeline.refusal(Recovery.WAL) or "")
    with pytest.raises(ConfigError, match=r"source\.kafka\.clusters"):
        possible(pipeline)
