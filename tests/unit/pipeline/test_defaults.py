"""``_defaults.yaml``: what the files of a folder have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.golden import Golden

from sluice.cli.validate_spec import check
from sluice.errors import ConfigError
from sluice.pipeline import load, load_all
from sluice.pipeline.defaults import under
from sluice.recovery import Recovery

FILE = """\
pipeline: {name}
source: {{kafka: {{topics: [t]}}}}
decode: {{text: {{}}}}
sink: {{delta: {{path: {name}}}}}
{more}
"""


def write(folder: Path, name: str, more: str = "") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(FILE.format(name=name, more=more))
    return file


def test_defaults_lie_below_a_file_and_mappings_are_merged_key_by_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "_defaults.yaml").write_text("# nothing yet\n")
    assert load(write(tmp_path, "plain")).airflow.owner is None
    (tmp_path / "_defaults.yaml").write_text(
        "airflow: {owner: team, tags: [a], retries: 1}\nrecovery: wal\nlag: {max_records: 5}\n"
        "spark: {conf: {spark.x: 1, spark.y: 2}}\n"
    )
    plain = load(write(tmp_path, "plain"))
    assert (plain.airflow.owner, plain.airflow.tags, plain.recovery) == ("team", ("a",), Recovery.WAL)
    own = load(write(tmp_path, "own", "airflow: {tags: [b]}\nrecovery: replay\nlag: null\nspark: {conf: {spark.y: 3}}"))
    assert (own.airflow.owner, own.airflow.tags, own.airflow.retries) == ("team", ("b",), 1)
    assert own.recovery is Recovery.REPLAY
    assert own.lag.max_records != 5
    assert own.spark.conf == {"spark.x": "1", "spark.y": "3"}
    elsewhere = tmp_path / "below"
    elsewhere.mkdir()
    assert load(write(elsewhere, "far")).airflow.owner is None, "of one folder, and not of those below it"
    assert [path.stem for path, _ in load_all(tmp_path)] == ["own", "plain"], "they are no pipeline"
    assert check([str(f) for f in sorted(tmp_path.glob("*.yaml"))], spark=False, as_json=True) == 0
    printed = capsys.readouterr()
    assert [Path(found["file"]).stem for found in json.loads(printed.out)] == ["own", "plain"]
    assert "_defaults.yaml" in printed.err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("sink: {delta: {path: x}}", "sink", id="defaults-with-a-sink"),
        pytest.param("airflow: [", "line 1", id="defaults-not-yaml"),
        pytest.param("- a", "mapping", id="defaults-a-list"),
        pytest.param("recovery: wal\nrecovery: hot", "line 2: recovery", id="defaults-key-twice"),
        pytest.param("airflow: {ownr: x}", "'owner'", id="defaults-key-misspelt"),
        pytest.param("recovery: {}", "recovery", id="defaults-recovery-a-mapping"),
    ],
)
def test_defaults_file_refuses(tmp_path: Path, golden: Golden, text: str, named: str) -> None:
    (tmp_path / "_defaults.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "p"))
    golden("check", caught.value)
    assert "_defaults.yaml: " in caught.value.what
    assert named in caught.value.what


@pytest.mark.parametrize(
    ("own", "defaults", "merged"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 2}, {"a": 1}, {"a": 2}),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({"a": [1]}, {"a": [2]}, {"a": [1]}),
        ({"a": {"x": None}}, {"a": {"x": 1}}, {"a": {"x": None}}),
    ],
)
def test_defaults_are_merged_without_changing_either(
    own: dict[str, Any], defaults: dict[str, Any], merged: dict[str, Any]
) -> None:
    before = repr((own, defaults))
    assert under(own, defaults) == merged
    assert repr((own, defaults)) == before
