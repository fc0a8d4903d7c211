"""``_defaults.yaml``: what the files of a folder have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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


def test_a_file_comes_first_and_mappings_are_merged_key_by_key(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sink: {delta: {path: x}}", "_defaults.yaml: sink: the keys here are: airflow, lag"),
        ("airflow: [", "_defaults.yaml: line 1: not YAML: while parsing"),
        ("- a", "_defaults.yaml: expected a mapping"),
        ("recovery: wal\nrecovery: hot", "_defaults.yaml: line 2: recovery: this key appears twice"),
        ("airflow: {ownr: x}", "_defaults.yaml: airflow.ownr: unknown key; did you mean 'owner'?"),
        ("recovery: {}", "_defaults.yaml: recovery"),
    ],
)
def test_a_mistake_in_it_is_told_as_its_own(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "_defaults.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "p"))
    assert told in caught.value.what


def test_an_empty_one_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "_defaults.yaml").write_text("# nothing yet\n")
    assert load(write(tmp_path, "p")).airflow.owner is None


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
def test_what_lies_under_what(own: dict[str, Any], defaults: dict[str, Any], merged: dict[str, Any]) -> None:
    before = repr((own, defaults))
    assert under(own, defaults) == merged
    assert repr((own, defaults)) == before


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("recovery_choices: [wal]", "lacks replay"),
        ("airflow: {email: [nobody]}", "airflow.email"),
        ("airflow: {start_date: soon}", "airflow.start_date"),
        ("airflow: {access_control: {Analyst: can_read}}", "airflow.access_control"),
        ('airflow: {freshness: {cron: "0 7 * * *"}}', "airflow.freshness.max_age"),
        ("airflow: {freshness: {max_age: 2h, cron: at seven}}", "is not a cron expression"),
        ("airflow: {on_failure: [nowhere]}", "write package.module:function"),
        ("airflow: {on_failure: ['nowhere:f']}", "no module 'nowhere'"),
        ("airflow: {on_failure: ['json:nothing']}", "no function 'nothing'"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, more: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "p", more))
    assert told in caught.value.what


def test_the_files_of_a_shell_pattern_can_be_checked_though_the_defaults_are_among_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "_defaults.yaml").write_text("recovery: wal\n")
    write(tmp_path, "p")
    assert check([str(f) for f in sorted(tmp_path.glob("*.yaml"))], spark=False, as_json=True) == 0
    told = capsys.readouterr()
    assert [found["file"] for found in json.loads(told.out)] == [str(tmp_path / "p.yaml")]
    assert "defaults of its folder" in told.err
