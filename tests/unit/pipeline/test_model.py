"""The pipeline file's model: defaults, given keys, several sinks, joined tables, state, and that keys are described."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from tests.fixtures.pipelines import loaded, modelled
from tests.fixtures.specs import GOOD, write

from sluice.decoders.format import Format
from sluice.fields import Strict, described
from sluice.pipeline import Pipeline, Rows, load
from sluice.pipeline.load import clash_of
from sluice.pipeline.quality import Quality, exceeds
from sluice.recovery import Recovery
from sluice.shipped import CHECKOUT


def test_pipeline_keys_that_are_given_are_taken(tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text("{}")
    spec = loaded(
        tmp_path,
        'transform: {python: "sluice.run.preflight:check"}, rows: filter, '
        "quality: {suite: suite.json, on_failed: warn}, "
        'schedule: {cron: "*/5 * * * *", timezone: Europe/Berlin}, '
        "lag: {max_records: 7, max_age: 15m, max_retention_share: 0.5}",
    )
    assert (spec.rows, spec.suite_file) == (Rows.FILTER, tmp_path / "suite.json")
    assert spec.lag.max_age == timedelta(minutes=15)
    assert spec.schedule.timezone == "Europe/Berlin"


KAFKA, POSTGRES = "{kafka: {topic: out}}", "{postgres: {connection: reporting, table: public.t}}"
HOURS = {"12h": 7, "6d": 7, "145h": 8, "7d": 8, "8d": 9}
COALESCED = 'transform: {sql: "SELECT *, coalesce(at, 0) AS seq FROM source"}, sink.postgres.sequence: seq'
VALUES: list[tuple[str, str, str, Any]] = [
    ("kafka", "sink.delta.evolve: add", "sink.delta.evolve", "add"),
    ("kafka", "sink.delta.evolve: widen", "sink.delta.widened_bytes", 10**10),
    ("kafka", "sink.delta: {path: t, evolve: widen, widen_up_to: 1.5GiB}", "sink.delta.widened_bytes", 3 * 2**29),
    *(("kafka", f"airflow: {{execution_timeout: {t}}}", "vacuum_keep", timedelta(days=d)) for t, d in HOURS.items()),
    ("kafka", "vacuum: {keep: 30d}, airflow: {execution_timeout: 8d}", "vacuum_keep", timedelta(days=30)),
    ("delta-upsert", "sink.delta.sequence: at", "sink.config.keyed", True),
    ("delta-upsert", "", "sink.kind.replaceable", False),
    ("delta-deletes", "", "decode.deletes", True),
    ("delta-deletes", "decode.json.tombstone: row", "decode.deletes", False),
    ("postgres-upsert", "sink.postgres.sequence: at", "sink.config.keyed", True),
    ("postgres-upsert", "", "sink.kind.replaceable", False),
    ("postgres-deletes", "", "decode.deletes", True),
    ("postgres-deletes", "sink.postgres.sequence: _timestamp", "decode.deletes", True),
    ("postgres-deletes", COALESCED, "decode.deletes", True),
    ("postgres-deletes", "decode.json.tombstone: row", "decode.deletes", False),
    ("window", "window.by: [id]", "window.columns", ["window_start", "window_end", "id", "n"]),
    ("window", "", "window.step", timedelta(hours=1)),
    ("window", "", "keeps", "window"),
    ("session", "", "window.columns", ["window_start", "window_end", "id", "n"]),
    ("complete", "", "window.kept", None),
    ("dedupe", "dedupe.time: null", "dedupe.time", "_timestamp"),
    ("dedupe", "", "aggregates", False),
    ("dedupe", "", "keeps", "dedupe"),
    ("processor", "", "keeps", "processor"),
    ("processor", "", "kept_by", "a processor"),
    ("processor", "", "aggregates", True),
    ("processor", "", "processor.columns", ["id", "n"]),
]


@pytest.mark.parametrize(("base", "changes", "name", "value"), VALUES, ids=[f"{base}-{n}" for base, _, n, _ in VALUES])
def test_pipeline_has(base: str, changes: str, name: str, value: Any) -> None:
    assert attrgetter(name)(modelled(changes, base)) == value


@pytest.mark.parametrize(
    ("base", "changes", "named"),
    [
        ("delta-upsert", "", "mode: upsert"),
        ("postgres-upsert", "", "mode: upsert"),
        ("complete", "", "output: complete"),
        ("window", "also: [{files: {path: out}}]", "also"),
    ],
)
def test_pipeline_that_has_no_intervals_says_why(base: str, changes: str, named: str) -> None:
    assert named in str(modelled(changes, base).no_intervals)


@pytest.mark.parametrize("base", ["window", "dedupe", "processor"])
def test_stateful_pipeline_recovers_without_skipping_records_and_takes_further_sinks(base: str) -> None:
    pipeline = modelled(f"also: [{KAFKA}]", base)
    assert [r for r in Recovery if pipeline.refusal(r) is None] == [Recovery.REPLAY, Recovery.WAL, Recovery.HOT]
    assert pipeline.stateful is getattr(pipeline, base) is not None


def test_session_window_is_defined_by_its_gap() -> None:
    window: Any = modelled(base="session").window
    assert (window.definition["gap"], "size" in window.definition) == (1800.0, False)
    assert window.last_end(5) == 1_800_006, "an event time may be a part of a millisecond later"


def test_profile_reads_columns_back_for_figures_that_no_footer_has() -> None:
    quality = Quality(profiled=["x"], history={"columns": {"a": ["nulls", "max"], "b": ["mean"], "x": ["distinct"]}})
    assert quality.measured == ("x", "b")
    assert Quality(masked=["pin"], history={"columns": {"PIN": ["nulls"]}}).history, "nulls of a masked column"


@pytest.mark.parametrize(
    ("limit", "count", "exceeded"),
    [(100, 100, False), (100, 101, True), (0, 0, False), ("1%", 10, False), ("1%", 11, True), ("0.5%", 5, False)],
)
def test_quality_limit_is_exceeded_by_more_than_it_allows(limit: int | str, count: int, exceeded: bool) -> None:
    assert exceeds(limit, count, 1000) is exceeded


def test_joined_table_has_a_version_or_a_time() -> None:
    plain, third = modelled(base="tables"), modelled("tables.c.delta.version: 3", "tables")
    assert (plain.tables["c"].delta.path, plain.tables["c"].delta.version) == ("c", None)
    assert third.tables["c"].delta.version == 3
    timed = modelled('tables.c.delta.timestamp: "2026-01-01T12:00:00Z"', "tables").tables["c"].delta
    assert timed.timestamp == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert plain.making != third.making, "rows of a batch that waits were made of this version"
    assert modelled().making == modelled()._digest({"decode", "rules", "transform"})


def test_further_sinks_are_known_by_their_keys() -> None:
    spec = modelled(f"also: [{KAFKA}, {POSTGRES}, {{iceberg: {{catalog: reporting, table: a.b}}}}]")
    assert list(spec.sinks) == ["sink.delta", "also[0].kafka", "also[1].postgres", "also[2].iceberg"]
    assert spec.sinks_need == ["kafka_default", "reporting"]
    assert modelled(f"also: [{KAFKA}]").making == modelled().making, "digests do not depend on further sinks"


def test_kafka_pattern_matches_no_topic_that_a_sink_writes() -> None:
    reads = 'source.kafka: {pattern: ".*"}'
    spec = modelled(f"{reads}, also: [{KAFKA}, {{kafka: {{topic: second}}}}]")
    assert spec.kafka.matching(["t", "out", "second", "out.sluice-commits"]) == ["t"]
    assert modelled(f"{reads}, sink: {{kafka: {{topic: t}}}}").kafka.matching(["t", "u"]) == ["u"]
    elsewhere = modelled(f"{reads}, sink: {{kafka: {{topic: t, connection: other}}}}")
    assert elsewhere.kafka.matching(["t", "u"]) == ["t", "u"]


def test_further_sink_of_two_pipelines_clashes(tmp_path: Path) -> None:
    spec = loaded(tmp_path, "also: [{files: {path: shared}}]")
    other = write(tmp_path, GOOD.replace("pipeline: p", "pipeline: q").replace("path: p", "path: shared"), "q.yaml")
    assert "also[0].files.path" in str(clash_of(spec, [load(other)]))


@pytest.mark.parametrize("sink", ['{foreach: {python: "sluice.sinks.foreach:Writer"}}', "{console: {rows: 5}}"])
def test_foreach_and_console_sinks_of_two_pipelines_do_not_clash(tmp_path: Path, sink: str) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = loaded(tmp_path / "one", f"sink: {sink}"), loaded(tmp_path / "other", f"pipeline: q, sink: {sink}")
    assert clash_of(one, [other]) is None


@pytest.mark.parametrize(
    ("base", "change", "definition", "absorption"),
    [
        ("window", "window.watermark: 3h, window.ahead: 2d", True, None),
        ("window", 'window.aggregates: {n: " count( * ) "}', False, None),
        ("window", "window.slide: 1h", True, None),
        ("window", "window.size: 2h", False, None),
        ("window", "window.slide: 30m", False, None),
        ("window", "window.by: [id]", False, None),
        ("window", "window.time: _timestamp", False, None),
        ("window", "window.output: update", False, None),
        ("dedupe", "", True, True),
        ("dedupe", "dedupe.within: 2h", True, False),
        ("dedupe", "dedupe.ahead: 2d", True, False),
        ("dedupe", "dedupe.hold: {idle_after: 1d}", True, True),
        ("dedupe", "dedupe.keys: [id, at]", False, False),
        ("dedupe", "dedupe.time: _timestamp", False, False),
        ("processor", "", True, True),
        ("processor", "processor.watermark: 2h", True, False),
        ("processor", "processor.ahead: 2d", True, False),
        ("processor", "processor.hold: {idle_after: 1d}", True, True),
        ("processor", "processor.flush: {after: 1d}", True, True),
        ("processor", "processor.schema: id STRING", True, False),
        ("processor", "processor.by: [id, at]", False, False),
        ("processor", "processor.time: _timestamp", False, False),
    ],
)
def test_stateful_definition_has_the_keys_on_which_kept_state_depends(
    base: str, change: str, definition: bool, absorption: bool | None
) -> None:
    before, after = modelled(base=base), modelled(change, base)
    assert (before.stateful.definition == after.stateful.definition) is definition
    assert absorption is None or (before.absorption == after.absorption) is absorption


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("window.size: 2h, window.aggregates: {m: max(v)}, window.watermark: 3h", True),
        ("window.time: _timestamp", False),
        ("rules: [{name: r, sql: {passes: \"k > 'a'\"}}]", False),
        ("transform: {sql: \"SELECT * FROM source WHERE k > 'a'\"}", False),
    ],
)
def test_window_event_times_are_known_until_the_rows_are_made_otherwise(change: str, same: bool) -> None:
    assert (modelled(change, "window").timing == modelled(base="window").timing) is same
    assert modelled('transform: {python: "sluice.text:length"}', "window").timing is None


@pytest.mark.parametrize(
    ("decoder", "making", "absorption", "aggregation"),
    [
        ("json", "9e5e97d7dadca960", "6d0f4a9c0c125008", "b89ed8b7eb895383"),
        ("csv", "97f96ade1d2817ca", "efd25435c0cde464", "bf8bc36914b31d39"),
    ],
)
def test_pipeline_digests_in_checkpoints_stay_as_earlier_versions_wrote_them(
    decoder: str, making: str, absorption: str, aggregation: str
) -> None:
    """A version that gave others would take the state for that of another definition: they change only on purpose."""
    spec = modelled(f'decode: {{{decoder}: {{schema: "id BIGINT, at TIMESTAMP"}}}}, window.watermark: 1h', "window")
    assert (spec.making, spec.absorption, spec.aggregation) == (making, absorption, aggregation)
    assert spec.timing == f"{making} at"


def fields(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str | None]]:
    assert issubclass(model, Strict), f"{model} takes unknown keys"
    docs = described(model)
    for name, field in model.model_fields.items():
        key = f"{above}{field.alias or name}"
        yield key, field.description or docs.get(name)
        for kind in (field.annotation, *get_args(field.annotation)):
            # what stands below formats and default is what stands below decode
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Format:
                yield from fields(kind, f"{key}.")


def test_pipeline_keys_are_known_by_name_and_described_for_the_editor_and_in_the_docs() -> None:
    page = (CHECKOUT / "docs" / "pipeline.md").read_text()
    found = dict(fields(Pipeline))
    assert len(found) > 40
    assert [key for key, description in found.items() if not description] == []
    own = [key for key in found if not key.startswith("also.")]  # those of sink once more
    assert [key for key in own if f"| `{key}` |" not in page] == []
    named = re.findall(r"^\| `([a-z_.]+)` \|", page, re.MULTILINE)
    assert [key for key in named if key not in found] == []


def test_pipeline_schema_for_editors_is_that_of_the_model() -> None:
    program = Path(sys.executable).with_name("sluice")
    printed = subprocess.run([str(program), "schema"], capture_output=True, text=True, check=True).stdout
    assert (CHECKOUT / "include" / "pipeline.schema.json").read_text() == printed
    assert json.loads(printed)["additionalProperties"] is False
