"""Every mistake in a pipeline file is told with its file, line, key and fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.fixtures.specs import GOOD, run_cli, write

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, find, load, load_all
from sluice.shipped import CHECKOUT


def refuse(folder: Path, text: str) -> str:
    file = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(file) in caught.value.what
    assert "validate-spec" in caught.value.next_step
    assert caught.value.state == "nothing was read or written"
    return caught.value.what


# text behind GOOD (or "old → new" within it), line, key, what the message says
MISTAKES = [
    ("transfrom: {sql: SELECT 1}", 9, "transfrom", "unknown key; did you mean 'transform'?"),
    ("zzz: 1", 9, "zzz", "unknown key; the keys here are: pipeline, source, decode"),
    ("    topics: [t] → topic: [t]", 4, "source.kafka.topic", "did you mean 'topics'?"),
    ("json: {schema → json: {shema", 6, "decode.json.shema", "did you mean 'schema'?"),
    ("sink:\n  delta: {path: p} → sinc:\n  delta: {path: p}", 7, "sinc", "did you mean 'sink'?"),
    ("sink:\n  delta: {path: p} → #", None, "sink", "this key is required"),
    ("pipeline: p → #", None, "pipeline", "this key is required"),
    ("pipeline: p → pipeline: Flights 2013", 1, "pipeline", "use a-z, 0-9, _ and -"),
    ("pipeline: p → pipeline: 7", 1, "pipeline", "valid string"),
    ("topics: [t] → topics: t", 4, "source.kafka.topics", "valid list"),
    ("topics: [t] → topics: []", 4, "source.kafka.topics", "at least 1 item"),
    ("topics: [t] → topics: [t, t]", 4, "source.kafka.topics", "a topic is named twice"),
    ('topics: [t] → topics: ["a b"]', 4, "source.kafka.topics", "is not a Kafka topic name"),
    ("topics: [t] → {topics: [t], max_records_per_batch: 0}", 4, "max_records_per_batch", "greater than 0"),
    ("topics: [t] → {topics: [t], max_records_per_batch: many}", 4, "max_records_per_batch", "given: 'many'"),
    ("topics: [t] → {topics: [t], starting_offsets: middle}", 4, "starting_offsets", "'earliest' or 'latest'"),
    ("topics: [t] → {topics: [t], isolation_level: serial}", 4, "isolation_level", "read_committed"),
    ("json: {schema → avro: {schema", 6, "decode.avro", "unknown key; the keys here are: json, csv, text, bytes"),
    ('json: {schema: "id INT, at TIMESTAMP"} → {}', 5, "decode", "needs exactly one of: json, csv, text, bytes"),
    ('json: {schema: "id INT, at TIMESTAMP"} → {text: {}, bytes: {}}', 5, "decode", "needs exactly one of"),
    ('"id INT, at TIMESTAMP" → "id INTT"', 6, "decode.json.schema", "not a Spark DDL schema, near 'INTT'"),
    ('"id INT, at TIMESTAMP" → "id JSON"', 6, "decode.json.schema", "'JSON', which Spark does not know"),
    ('"id INT, at TIMESTAMP" → "id, name"', 6, "decode.json.schema", "expected `name TYPE, name TYPE`"),
    ('"id INT, at TIMESTAMP" → ""', 6, "decode.json.schema", "not a Spark DDL schema"),
    ('"id INT, at TIMESTAMP" → "id INT, a ARRAY<"', 6, "decode.json.schema", "not a Spark DDL schema"),
    ('"id INT, at TIMESTAMP" → "id INT, ID INT"', 6, "decode.json.schema", "declared twice"),
    ('"id INT, at TIMESTAMP" → "_Offset INT"', 6, "decode.json.schema", "rename it in the schema"),
    ('"id INT, at TIMESTAMP" → "__sluice_x INT"', 6, "decode.json.schema", "rename it in the schema"),
    ('json: {schema: "id INT, at TIMESTAMP"} → csv: {schema: "id INT, a ARRAY<INT>"}', 6, "decode.csv.schema", "ARRAY"),
    ('json: {schema: "id INT, at TIMESTAMP"} → csv: {schema: "id INT", quote: ","}', 6, "decode.csv", "separator"),
    ('json: {schema: "id INT, at TIMESTAMP"} → csv: {schema: "id INT", null_text: ","}', 6, "decode.csv", "null_text"),
    ("transform: {}", 9, "transform", "needs exactly one of: sql, python"),
    ('transform: {sql: a, python: "sluice.run.preflight:check"}', 9, "transform", "needs exactly one of: sql, python"),
    ('transform: {python: "sluice.run.preflight"}', 9, "transform.python", "write package.module:function"),
    ('transform: {python: "not-a.module:f"}', 9, "transform.python", "write package.module:function"),
    ('transform: {python: "sluice.nothing:f"}', 9, "transform.python", "no module 'sluice.nothing'"),
    ('transform: {python: "nowhere.at.all:f"}', 9, "transform.python", "no module 'nowhere.at.all'"),
    ('transform: {python: "sluice.run.preflight:chek"}', 9, "transform.python", "has no function 'chek'"),
    ("rows: two", 9, "rows", "'one', 'filter', 'many' or 'aggregate'"),
    ('delta: {path: p} → delta: {path: ""}', 8, "sink.delta.path", "at least 1 character"),
    ("delta: {path: p} → delta: {}", 8, "sink.delta.path", "this key is required"),
    ("delta: {path: p} → delta: {path: p, partition_by: id}", 8, "sink.delta.partition_by", "valid list"),
    ("delta: {path: p} → iceberg: {path: p}", 8, "sink.iceberg", "unknown key"),
    ("quality: {suite: expectations/none.json}", 9, "quality.suite", "there is no file"),
    ("quality: {max_quarantined: 0.01}", 9, "quality.max_quarantined", "0.01 is neither a share"),
    ("quality: {max_quarantined: 101%}", 9, "quality.max_quarantined", "'101%' is neither a share"),
    ("quality: {max_lost: -1}", 9, "quality.max_lost", "-1 is neither a share"),
    ("quality: {max_lost: yes}", 9, "quality.max_lost", "True is neither a share"),
    ("quality: {max_lost: none}", 9, "quality.max_lost", "such as 1%, nor a number of them, such as 100"),
    ("quality: {on_failed: explode}", 9, "quality.on_failed", "'fail' or 'warn'"),
    ("recovery: replai", 9, "recovery", "'replay'"),
    ("rows: aggregate\nrecovery: ignore_batch", None, "pipeline", "is for stateless pipelines"),
    ('schedule: {cron: "0 * *"}', 9, "schedule.cron", "five fields"),
    ('schedule: {cron: "0 * * * *", timezone: Mars/Phobos}', 9, "schedule.timezone", "is not a time zone"),
    ('schedule: {crom: "0 * * * *"}', 9, "schedule.crom", "did you mean 'cron'?"),
    ("schedule: daily", 9, "schedule", "'on_lag' or 'none'"),
    ("lag: {max_records: -1}", 9, "lag.max_records", "greater than or equal to 0"),
    ("lag: {max_age: 15 parsecs}", 9, "lag.max_age", "write 30s, 15m, 2h or 7d"),
    ("lag: {max_retention_share: 1.5}", 9, "lag.max_retention_share", "less than or equal to 1"),
]


@pytest.mark.parametrize(("change", "line", "key", "message"), MISTAKES, ids=[m[0].split(" → ")[-1] for m in MISTAKES])
def test_a_mistake_is_told_with_its_line_its_key_and_its_fix(
    tmp_path: Path, change: str, line: int | None, key: str, message: str
) -> None:
    old, arrow, new = change.partition(" → ")
    if arrow:
        assert old in GOOD
        text = GOOD.replace(old, "    " + new if old.startswith("    ") else new)
        text = text.replace("    {topics", "     {topics")
    else:
        text = GOOD + change + "\n"
    told = refuse(tmp_path, text)
    lines = [part for part in told.splitlines()[1:] if message in part]
    assert lines, told
    assert key in lines[0]
    if line is not None:
        assert lines[0].strip().startswith(f"line {line}: "), told


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    told = refuse(tmp_path, GOOD.replace("pipeline: p", "pipeline: P") + "rows: two\nzzz: 1\n")
    assert len(told.splitlines()) == 4


@pytest.mark.parametrize("text", ["", "just text", "- a\n- b\n", "pipeline: [\n", "a:\n\t- b\n"])
def test_what_is_no_mapping_is_no_pipeline(tmp_path: Path, text: str) -> None:
    refuse(tmp_path, text)


@pytest.mark.parametrize("cron", ["61 * * * *", "0 0 31 2 2 *", "0 * * *", "a b c d e", "@hourlyy"])
def test_a_cron_expression_that_means_nothing_is_refused(tmp_path: Path, cron: str) -> None:
    assert "schedule.cron" in refuse(tmp_path, GOOD + f'schedule: {{cron: "{cron}"}}\n')


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    told = refuse(tmp_path, GOOD.replace("topics: [t]", "topics: [t]\n    topics: [u]") + "rows: one\nrows: filter\n")
    assert "line 5: source.kafka.topics: this key appears twice" in told
    assert "line 11: rows: this key appears twice" in told


def test_a_pipeline_is_found_by_name_or_by_path(tmp_path: Path) -> None:
    assert find("flights") == CHECKOUT / "include" / "pipelines" / "flights.yaml"
    file = write(tmp_path, GOOD)
    assert find(str(file)) == file
    with pytest.raises(ConfigError, match="flihgts") as caught:
        find("flihgts")
    assert "did you mean 'flights'?" in caught.value.next_step
    with pytest.raises(ConfigError):
        find(str(tmp_path / "none.yaml"))


def test_a_bad_file_takes_no_other_down(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    write(tmp_path, "nonsense", "q.yaml")
    found = {path.name: spec for path, spec in load_all(tmp_path / "pipelines")}
    assert isinstance(found["p.yaml"], Pipeline)
    assert isinstance(found["q.yaml"], ConfigError)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("p", "its sink is the sink of"),
        ("./p/../p/", "its sink is the sink of"),
        ("p_quarantine", "its sink is the quarantine of"),
        ("p/below", "its sink lies in, or around, the sink of"),
    ],
)
def test_of_two_pipelines_with_one_table_the_second_is_refused(tmp_path: Path, path: str, what: str) -> None:
    first = {**yaml.safe_load(GOOD), "sink": {"delta": {"path": "p"}}}
    second = {**first, "pipeline": "q", "sink": {"delta": {"path": path}}}
    write(tmp_path, yaml.safe_dump(first))
    write(tmp_path, yaml.safe_dump(second), "q.yaml")
    found = {file.name: spec for file, spec in load_all(tmp_path / "pipelines")}
    assert isinstance(found["p.yaml"], Pipeline)
    refused = found["q.yaml"]
    assert isinstance(refused, ConfigError)
    assert what in refused.what


def test_the_pipelines_of_the_project_are_valid() -> None:
    found = dict(load_all())
    assert found
    assert [spec for spec in found.values() if isinstance(spec, ConfigError)] == []


def test_a_pipeline_is_found_in_whatever_folder_its_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, GOOD)
    folder = tmp_path / "pipelines"
    for name in ("a", "b"):
        (folder / name).mkdir()
    (folder / "a" / "deep.yaml").write_text(
        GOOD.replace("pipeline: p", "pipeline: deep").replace("path: p", "path: deep")
    )
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    assert load("deep").file == folder / "a" / "deep.yaml"
    (folder / "b" / "deep.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match="more than one pipeline file is called 'deep'"):
        load("deep")
    (folder / "b" / "deep.yaml").write_text("nothing")
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", "--json") == 10
    told = {r["file"]: r["valid"] for r in json.loads(capsys.readouterr().out)}
    assert told == {str(folder / f): ok for f, ok in (("p.yaml", True), ("a/deep.yaml", True), ("b/deep.yaml", False))}


def test_the_folder_of_pipelines_can_be_named_and_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, GOOD)
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "none"))
    for what in (lambda: find("p"), lambda: list(load_all())):
        with pytest.raises(ConfigError, match=f"no folder of pipelines: {tmp_path}/none") as caught:
            what()
        assert "SLUICE_PIPELINES" in caught.value.next_step
    assert load(file).name == "p"
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", str(file)) == 0
    with pytest.raises(ConfigError, match=r"there is no pipeline .*absent\.yaml"):
        find(str(tmp_path / "absent.yaml"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(file.parent))
    assert find("p") == file
