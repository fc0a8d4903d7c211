"""The pipeline file's model: defaults, what is given, and that every key is described."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from tests.fixtures.specs import GOOD, write

from sluice.decoders.format import Format
from sluice.errors import ConfigError
from sluice.fields import described
from sluice.pipeline import Pipeline, Rows, load
from sluice.recovery import Recovery
from sluice.shipped import CHECKOUT


def test_a_pipelines_name_has_no_line_break(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        'pipeline: "abc\\n"\nsource: {kafka: {topics: [t]}}\ndecode: {json: {schema: "id BIGINT"}}\n'
        "sink: {delta: {path: t}}\n"
    )
    with pytest.raises(ConfigError, match="beginning with a letter"):
        load(str(file))


def test_everything_optional_has_a_default_that_works(tmp_path: Path) -> None:
    spec = load(write(tmp_path, GOOD))
    assert (spec.name, spec.rows, spec.recovery, spec.schedule) == ("p", Rows.ONE, Recovery.REPLAY, "none")
    assert (spec.kafka.connection, spec.kafka.starting_offsets) == ("kafka_default", "earliest")
    assert (spec.kafka.max_records_per_batch, spec.kafka.isolation_level) == (None, "read_uncommitted")
    assert spec.transform.sql == "SELECT * FROM source"
    assert spec.suite_file is None


@pytest.mark.parametrize(
    "decode", ["{csv: {schema: id BIGINT}}", "{avro: {schema: id BIGINT}}", "{xml: {schema: id INT}}"]
)
def test_rows_that_are_objects_are_decoded_as_such(tmp_path: Path, decode: str) -> None:
    spec = "pipeline: p\nsource: {file: {path: in, format: parquet}}\ndecode: %s\nsink: {delta: {path: t}}\n"
    with pytest.raises(ConfigError, match="gives each row as a JSON object: choose"):
        load(write(tmp_path, spec % decode))
    assert load(write(tmp_path, spec % "{text: {}}")).decode.key == "text"


def test_columns_are_added_and_widened_only_when_the_file_says_so(tmp_path: Path) -> None:
    def sink(evolve: str) -> str:
        return re.sub(r"\nsink:\n( .*\n)+", f"\nsink: {{delta: {{path: t, evolve: {evolve}}}}}\n", GOOD)

    assert load(write(tmp_path, GOOD)).sink.delta.evolve == "refuse"
    assert load(write(tmp_path, sink("add"))).sink.delta.evolve == "add"
    wide = load(write(tmp_path, sink("widen"))).sink.delta
    assert (wide.evolve, wide.widened_bytes) == ("widen", 10**10)
    assert load(write(tmp_path, sink("widen, widen_up_to: 1.5GiB"))).sink.delta.widened_bytes == 3 * 2**29
    with pytest.raises(ConfigError, match="widen_up_to"):
        load(write(tmp_path, sink("widen, widen_up_to: much")))


def test_what_is_given_is_taken(tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text("{}")
    spec = load(
        write(
            tmp_path,
            GOOD
            + """\
transform: {python: "sluice.run.preflight:check"}
rows: filter
quality: {suite: suite.json, on_failed: warn}
schedule: {cron: "*/5 * * * *", timezone: Europe/Berlin}
lag: {max_records: 7, max_age: 15m, max_retention_share: 0.5}
""",
        )
    )
    assert spec.rows is Rows.FILTER
    assert spec.suite_file == tmp_path / "suite.json"
    assert spec.lag.max_age == timedelta(minutes=15)
    assert not isinstance(spec.schedule, str)
    assert spec.schedule.timezone == "Europe/Berlin"


def fields(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str | None]]:
    docs = described(model)
    for name, field in model.model_fields.items():
        key = f"{above}{field.alias or name}"
        yield key, field.description or docs.get(name)
        for kind in (field.annotation, *get_args(field.annotation)):
            # what stands below formats and default is what stands below decode
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Format:
                yield from fields(kind, f"{key}.")


def test_every_key_is_described_for_the_editor_and_in_the_docs() -> None:
    page = (CHECKOUT / "docs" / "pipeline.md").read_text()
    found = dict(fields(Pipeline))
    assert len(found) > 40
    assert [key for key, description in found.items() if not description] == []
    own = [key for key in found if not key.startswith("also.")]  # those of sink once more
    assert [key for key in own if f"| `{key}` |" not in page] == []
    named = re.findall(r"^\| `([a-z_.]+)` \|", page, re.MULTILINE)
    assert [key for key in named if key not in found] == []


def test_the_schema_for_editors_is_that_of_the_model() -> None:
    program = Path(sys.executable).with_name("sluice")
    printed = subprocess.run([str(program), "schema"], capture_output=True, text=True, check=True).stdout
    assert (CHECKOUT / "include" / "pipeline.schema.json").read_text() == printed
    assert json.loads(printed)["additionalProperties"] is False


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("vacuum: {keep: 12h}", "vacuum.keep: a run may take"),
        ("vacuum: {keep: 2d}\nairflow: {execution_timeout: 3d}", "vacuum.keep: a run may take 3 d"),
        ("vacuum: {keep: 7d}\nairflow: {execution_timeout: 8d}", "write a longer time, such as 9d, or leave it out"),
        ("airflow: {maintenance_steps: [vacuum, audit]}", "in the order audit, clean, compact, vacuum"),
        ("airflow: {maintenance_steps: [audit, audit]}", "each step at most once"),
        ("airflow: {maintenance_steps: []}", "maintenance_steps"),
        ("airflow: {maintenance_steps: [audit]}", "does nothing without maintenance: add a cron line, or manual"),
        ("airflow: {priority: 1000001}", "1000000"),
        ("airflow: {maintenance: weekly}", "'weekly' is not a cron expression of five fields"),
    ],
)
def test_maintenance_that_would_harm_a_run_is_refused(tmp_path: Path, more: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        load(write(tmp_path, f"{GOOD}\n{more}\n"))


@pytest.mark.parametrize(("timeout", "days"), [("12h", 7), ("6d", 7), ("145h", 8), ("7d", 8), ("8d", 9)])
def test_files_out_of_use_stay_for_a_week_and_longer_than_a_run_takes(tmp_path: Path, timeout: str, days: int) -> None:
    spec = load(write(tmp_path, f"{GOOD}\nairflow: {{execution_timeout: {timeout}}}\n"))
    assert spec.vacuum_keep == timedelta(days=days)
    said = load(write(tmp_path, f"{GOOD}\nvacuum: {{keep: 30d}}\nairflow: {{execution_timeout: {timeout}}}\n"))
    assert said.vacuum_keep == timedelta(days=30)


@pytest.mark.parametrize(
    ("decoder", "making", "absorption", "aggregation"),
    [
        ("json", "9e5e97d7dadca960", "6d0f4a9c0c125008", "b89ed8b7eb895383"),
        ("csv", "97f96ade1d2817ca", "efd25435c0cde464", "bf8bc36914b31d39"),
    ],
)
def test_a_new_key_makes_no_other_pipeline_of_one_that_does_not_use_it(
    decoder: str, making: str, absorption: str, aggregation: str
) -> None:
    """Checkpoints have these digests: a version that gave others would take the state for that of another definition.

    They may change only on purpose.
    """
    window = {"time": "at", "size": "1h", "aggregates": {"n": "count(*)"}, "watermark": "1h"}
    spec = Pipeline.model_validate(
        {
            "pipeline": "p",
            "source": {"kafka": {"topics": ["t"]}},
            "decode": {decoder: {"schema": "id BIGINT, at TIMESTAMP"}},
            "sink": {"delta": {"path": "x"}},
            "window": window,
        }
    )
    assert (spec.making, spec.absorption, spec.aggregation) == (making, absorption, aggregation)
    assert spec.timing == f"{making} at"
