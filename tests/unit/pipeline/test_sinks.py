"""Several sinks of one pipeline: what is refused when the file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.specs import GOOD, write

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice.pipeline.load import clash_of
from sluice.run import redriving, resetting, retraction

KAFKA = "- kafka: {topic: out}"
POSTGRES = "- postgres: {connection: reporting, table: public.t}"


DEDUPE = "dedupe: {keys: [id], within: 1h, time: at}\n"
WINDOW = "window: {time: at, size: 1h, aggregates: {n: 'count(*)'}, watermark: 1h}\n"
UPSERT = "- postgres: {table: t, mode: upsert, key: [id]}"


def with_also(folder: Path, *sinks: str, text: str = GOOD) -> Pipeline:
    return load(write(folder, text + "also:\n" + "".join(f"  {sink}\n" for sink in sinks)))


def test_all_sinks_and_their_connections_are_known_by_their_keys(tmp_path: Path) -> None:
    spec = with_also(tmp_path, KAFKA, POSTGRES, "- iceberg: {catalog: reporting, table: a.b}")
    assert list(spec.sinks) == ["sink.delta", "also[0].kafka", "also[1].postgres", "also[2].iceberg"]
    assert spec.sinks_need == ["kafka_default", "reporting"]


@pytest.mark.parametrize(
    ("sinks", "more", "told"),
    [
        (["- delta: {path: p}"], "", r"also\[0\].delta and sink.delta would stage"),
        ([KAFKA, KAFKA], "", r"also\[1\].kafka and also\[0\].kafka would stage"),
        (["- kafka: {topic: t}"], "", r"also\[0\].kafka.topic: the pipeline would read what it writes"),
        (["- delta: {path: p_quarantine}"], "", r"also\[0\].delta.path: it is, or lies in or around, the quarantine"),
        (["- files: {path: p/in}"], "", r"also\[0\].files.path: it is, or lies in or around, the sink"),
        (["- files: {path: checkpoints/x}"], "", r"also\[0\].files.path: .* which Sluice keeps for itself"),
        (["- postgres: {table: t, mode: upsert, key: [id]}"], "rows: many\n", r"also\[0\].postgres.mode: upsert"),
        (["- foreach: {python: 'nowhere:Writer'}"], "", "nowhere"),
        ([UPSERT], DEDUPE, r"also\[0\].postgres.mode: upsert beside dedupe"),
        ([UPSERT], WINDOW, r"also\[0\].postgres.mode: upsert beside window"),
        ([KAFKA], WINDOW.replace("}\n", ", output: update}\n"), "also beside window.output: update"),
        ([KAFKA], WINDOW.replace("watermark: 1h}\n", "output: complete}\n"), "also beside window.output: complete"),
        (["- nothing: {}"], "", "nothing"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, sinks: list[str], more: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_also(tmp_path, *sinks, text=GOOD + more)


def test_state_goes_into_each_sink_and_intervals_only_into_one(tmp_path: Path) -> None:
    assert with_also(tmp_path, KAFKA, text=GOOD + DEDUPE).also
    windowed = with_also(tmp_path, "- files: {path: out}", text=GOOD + WINDOW)
    assert "a window and further sinks (also)" in str(windowed.no_intervals)


def test_tombstones_that_delete_are_refused(tmp_path: Path) -> None:
    text = GOOD.replace(
        'json: {schema: "id INT, at TIMESTAMP"}', 'json: {schema: "at TIMESTAMP", key: id, tombstone: delete}'
    )
    text = text.replace("{path: p}", "{path: p, mode: upsert, key: [id]}")
    load(write(tmp_path, text))
    with pytest.raises(ConfigError, match=r"also beside decode\.json\.tombstone: delete"):
        with_also(tmp_path, KAFKA, text=text)


def test_a_pattern_matches_no_topic_that_a_sink_writes(tmp_path: Path) -> None:
    spec = with_also(tmp_path, KAFKA, "- kafka: {topic: second}", text=GOOD.replace("topics: [t]", 'pattern: ".*"'))
    assert spec.kafka.matching(["t", "out", "second", "out.sluice-commits"]) == ["t"]


def test_two_pipelines_do_not_share_a_further_sink(tmp_path: Path) -> None:
    spec = with_also(tmp_path, "- files: {path: shared}")
    other = GOOD.replace("pipeline: p", "pipeline: q").replace("path: p", "path: shared")
    clash = clash_of(spec, [load(write(tmp_path, other, "q.yaml"))])
    assert clash is not None
    assert "also[0].files.path: its place is the sink of" in clash.what


@pytest.mark.parametrize(("sink", "which"), [(KAFKA, "also[0].kafka"), (POSTGRES, None)])
def test_what_replaces_rows_is_allowed_if_each_sink_can(tmp_path: Path, sink: str, which: str | None) -> None:
    spec = with_also(tmp_path, sink)
    assert spec.irreplaceable == which
    assert (spec.no_intervals is None) == retraction.retractable(spec) == (which is None)
    redriving.possible(spec, quarantined=True)
    with pytest.raises(ConfigError, match="does not take such rows back"):
        resetting.possible(spec, "earliest", truncate=True)


def test_digests_do_not_depend_on_further_sinks(tmp_path: Path) -> None:
    assert with_also(tmp_path, KAFKA).making == load(write(tmp_path, GOOD)).making
    kept: dict[str, Any] = with_also(tmp_path, KAFKA).model_dump()
    assert [*kept["also"][0]] != []
