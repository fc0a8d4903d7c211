"""Every mistake in a pipeline file is told with its file, line, key and fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.fixtures.specs import GOOD, run_cli, write

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, find, load, load_all
from sluice.pipeline.load import Clash
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
    ("pipeline: p → pipeline: 7", 1, "pipeline", "expected text, not 7: write '7', with the quotes"),
    ("topics: [t] → topics: t", 4, "source.kafka.topics", "expected a list, not 't': write [t]"),
    ("topics: [t] → topics: []", 4, "source.kafka.topics", "is empty: give at least one"),
    ("topics: [t] → topics: [t, t]", 4, "source.kafka.topics", "a topic is named twice"),
    ('topics: [t] → topics: ["a b"]', 4, "source.kafka.topics", "is not a Kafka topic name"),
    ("topics: [t] → {topics: [t], max_records_per_batch: 0}", 4, "max_records_per_batch", "must be more than 0"),
    (
        "topics: [t] → {topics: [t], max_records_per_batch: many}",
        4,
        "max_records_per_batch",
        "a whole number, not 'many'",
    ),
    ("topics: [t] → {topics: [t], starting_offsets: middle}", 4, "starting_offsets", "'earliest' or 'latest'"),
    ("topics: [t] → {topics: [t], isolation_level: serial}", 4, "isolation_level", "read_committed"),
    (
        "json: {schema → orc: {schema",
        6,
        "decode.orc",
        "unknown key; the keys here are: json, csv, avro, protobuf, xml, text, bytes",
    ),
    (
        'json: {schema: "id INT, at TIMESTAMP"} → {}',
        5,
        "decode",
        "needs exactly one of: json, csv, avro, protobuf, xml, text, bytes",
    ),
    ('json: {schema: "id INT, at TIMESTAMP"} → {text: {}, bytes: {}}', 5, "decode", "needs exactly one of"),
    ('"id INT, at TIMESTAMP" → "id INTT"', 6, "decode.json.schema", "not a Spark DDL schema, near 'INTT'"),
    ('"id INT, at TIMESTAMP" → "id JSON"', 6, "decode.json.schema", "'JSON', which Spark does not know"),
    ('"id INT, at TIMESTAMP" → "id, name"', 6, "decode.json.schema", "expected `name TYPE, name TYPE`"),
    ('"id INT, at TIMESTAMP" → ""', 6, "decode.json.schema", "not a Spark DDL schema"),
    ('"id INT, at TIMESTAMP" → "id INT, a ARRAY<"', 6, "decode.json.schema", "not a Spark DDL schema"),
    ('"id INT, at TIMESTAMP" → "id INT, ID INT"', 6, "decode.json.schema", "declared twice"),
    ('"id INT, at TIMESTAMP" → "a ARRAY<STRUCT<b: INT, B: INT>>"', 6, "decode.json.schema", "has two fields 'b'"),
    ('"id INT, at TIMESTAMP" → "m MAP<INT, INT>"', 6, "decode.json.schema", "has a map whose keys are no STRING"),
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
    ('delta: {path: p} → delta: {path: ""}', 8, "sink.delta.path", "is empty"),
    ("delta: {path: p} → delta: {}", 8, "sink.delta.path", "this key is required"),
    (
        "delta: {path: p} → delta: {path: p, partition_by: id}",
        8,
        "sink.delta.partition_by",
        "expected a list, not 'id': write [id]",
    ),
    ("delta: {path: p} → iceberg: {path: p}", 8, "sink.iceberg", "unknown key"),
    ("quality: {suite: expectations/none.json}", 9, "quality.suite", "there is no file"),
    ("quality: {max_quarantined: 0.01}", 9, "quality.max_quarantined", "0.01 is neither a share"),
    ("quality: {max_quarantined: 101%}", 9, "quality.max_quarantined", "'101%' is neither a share"),
    ("quality: {max_lost: -1}", 9, "quality.max_lost", "-1 is neither a share"),
    ("quality: {max_lost: yes}", 9, "quality.max_lost", "True is neither a share"),
    ("quality: {max_lost: none}", 9, "quality.max_lost", "such as 1%, nor a number of them, such as 100"),
    ("quality: {when: before_commit, on_failed: warn}", 9, "quality", "would publish what when: before_commit holds"),
    (
        "quality: {when: before_commit}\ndedupe: {keys: [id], time: at, within: 1h}",
        9,
        "quality.when",
        "before_commit beside dedupe",
    ),
    ("quality: {on_failed: explode}", 9, "quality.on_failed", "'fail', 'hold' or 'warn'"),
    ("recovery: replai", 9, "recovery", "'replay'"),
    ("rows: aggregate\nrecovery: ignore_batch", 10, "recovery", "is for stateless pipelines"),
    ('schedule: {cron: "0 * *"}', 9, "schedule.cron", "five fields"),
    ('schedule: {cron: "0 * * * *", timezone: Mars/Phobos}', 9, "schedule.timezone", "is not a time zone"),
    ('schedule: {crom: "0 * * * *"}', 9, "schedule.crom", "did you mean 'cron'?"),
    ("schedule: daily", 9, "schedule", "is neither on_lag, none, nor a clock"),
    ("lag: {max_records: -1}", 9, "lag.max_records", "must be at least 0"),
    ("lag: {max_age: 15 parsecs}", 9, "lag.max_age", "write 30s, 15m, 2h or 7d"),
    ('schedule: "*/5 * * * *"', 9, "schedule", 'a clock, such as {cron: "*/5 * * * *"}'),
    ("schedule: [on_lag]", 9, "schedule", "is neither on_lag, none, nor a clock"),
    ("schedule: {on_lag: true}", 9, "schedule", "is neither on_lag, none, nor a clock"),
    ("schedule: {cron: 5}", 9, "schedule.cron", "expected text, not 5"),
    ("airflow: {email: a@b}", 9, "airflow.email", "expected a list, not 'a@b': write [a@b]"),
    ('airflow: {email: ["a@b, c@d"]}', 9, "airflow.email.0", "'a@b, c@d' is not a mail address"),
    ("airflow: {tags: orders}", 9, "airflow.tags", "expected a list, not 'orders': write [orders]"),
    ("airflow: {tags: {orders: 1}}", 9, "airflow.tags", "expected a list, not a mapping"),
    ("airflow: {access_control: {A: can_read}}", 9, "airflow.access_control.A", "write [can_read]"),
    ("airflow: {access_control: [can_read]}", 9, "airflow.access_control", "expected a mapping, not a list"),
    ("airflow: {start_date: yesterday}", 9, "airflow.start_date", "expected a date, such as 2024-01-31"),
    ("airflow: {execution_timeout: 30}", 9, "airflow.execution_timeout", "without a unit: write 30s, 30m, 30h or 30d"),
    ("airflow: {maintenance: yes}", 9, "airflow.maintenance", "expected text, not true (to YAML, yes, on, no"),
    ("airflow: {maintenance_steps: [audi], maintenance: manual}", 9, "steps.0", "not 'audi': did you mean 'audit'?"),
    ("airflow: [orders]", 9, "airflow", "expected a mapping, not a list; the keys here are: execution_timeout, max"),
    ("airflow:", 9, "airflow", "nothing is given, and a mapping is expected"),
    ("airflow: {taggs: [a]}", 9, "airflow.taggs", "did you mean 'tags'?"),
    ("tags: [orders]", 9, "tags", "unknown key; it belongs below airflow"),
    ('cron: "@daily"', 9, "cron", "unknown key; it belongs below airflow.freshness or schedule"),
    ("quality: expectations/p.json", 9, "quality", "not 'expectations/p.json'; the keys here are: suite, on_failed"),
    ("rules: [{name: A b, sql: {passes: x}}]", 9, "rules.0.name", "use a-z, 0-9 and _"),
    ("rules: [{name: a, sql: {passes: x, colum: y}}]", 9, "rules.0.sql.colum", "did you mean 'column'?"),
    ("recovery: Wal", 9, "recovery", "not 'Wal': did you mean 'wal'?"),
    ("recovery_choices: [wal]", 9, "recovery_choices", "lacks replay, which is the pipeline's recovery"),
    ("spark: {driver_memory: 4}", 9, "spark.driver_memory", "4 is no amount of memory, such as 512m or 4g"),
    ("wal: {keep: 30}", 9, "wal.keep", "without a unit"),
    ("vacuum: {keep: 1h}", 9, "vacuum.keep", "a run may take 12 h"),
    ("lag: {on_idle: wait}", 9, "lag.on_idle", "is for runs of a cron schedule"),
    ('lag: {max_records: "100,000"}', 9, "lag.max_records", "expected a whole number, not '100,000': write 100000"),
    ("lag: {max_age: 99999999999d}", 9, "lag.max_age", "is longer than 100 years"),
    ("true: 1", None, "", "expected a key that is text, not true: put it in quotes"),
    ("rows:\n\t- one", 10, "not YAML", "indent with spaces, not with tabs"),
    ("schedule: {cron: * * * * *}", 9, "not YAML", "put a value that begins with such a character"),
    ("lag: {max_retention_share: 1.5}", 9, "lag.max_retention_share", "must be at most 1"),
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
    assert not any(words in told for words in ("Input should", "instance of", "tuple", "  : ")), told
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


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        ("{home}/p", "file://{home}/p", "its sink is the sink of"),
        ("file://{home}/p/below", "p", "its sink lies in, or around, the sink of"),
        ("p", "file://localhost{home}/p/", "its sink is the sink of"),
        ("s3://lake/p", "s3a://lake/p/", "its sink is the sink of"),
        ("s3n://lake/p/below", "S3://lake/p", "its sink lies in, or around, the sink of"),
        ("s3://lake/p", "s3a://lake", "its sink lies in, or around, the sink of"),
        ("s3://lake/p", "s3a://other/p", ""),
        ("s3://lake/p", "gs://lake/p", ""),
        ("s3://lake/p", "s3://lake/pp", ""),
        ("p", "pp", ""),
    ],
)
def test_one_place_has_many_spellings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str, what: str
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("SLUICE_HOME", str(home))
    for name, place in (("p", one), ("q", other)):
        sink = {"delta": {"path": place.format(home=home)}}
        write(tmp_path, yaml.safe_dump({**yaml.safe_load(GOOD), "pipeline": name, "sink": sink}), f"{name}.yaml")
    (_, first), (_, second) = load_all(tmp_path / "pipelines")
    assert isinstance(first, Pipeline)
    assert (what in second.what) if isinstance(second, ConfigError) else not what


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (".", "is SLUICE_HOME, or around it"),
        ("..", "is SLUICE_HOME, or around it"),
        ("/", "is SLUICE_HOME, or around it"),
        ("file://{home}", "is SLUICE_HOME, or around it"),
        ("checkpoints", "{home}/checkpoints, which Sluice keeps"),
        ("logs/q", "{home}/logs, which Sluice keeps"),
        ("quality/data", "{home}/quality, which Sluice keeps"),
        ("jars", "{home}/jars, which Sluice keeps"),
        ("file://{home}/jvm", "{home}/jvm, which Sluice keeps"),
        ("ledger.db", "{home}/ledger.db, which Sluice keeps"),
        ("{home}-elsewhere", "{home}-elsewhere/ledger.db, which Sluice keeps"),
        ("p", ""),
        ("logs_of_shops", ""),
        ("shops/logs", ""),
        ("s3://lake/logs", ""),
    ],
)
@pytest.mark.parametrize("table", ["sink", "quarantine"])
def test_no_table_lies_in_or_around_what_sluice_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, what: str, table: str
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    if "elsewhere" in place:
        monkeypatch.setenv("SLUICE_LEDGER_URL", f"sqlite:///{home}-elsewhere/ledger.db?timeout=3")
    paths = {"sink": "t", table: place.format(home=home)}
    text = yaml.safe_dump(yaml.safe_load(GOOD) | {key: {"delta": {"path": path}} for key, path in paths.items()})
    if not what:
        assert isinstance(load(write(tmp_path, text)), Pipeline)
        return
    told = refuse(tmp_path, text)
    assert f"{table}.delta.path: " in told
    # a table around the home is around the sink, too
    assert what.format(home=home) in told or "it is, or lies in, the sink" in told


def of_all(folder: Path, **files: str) -> dict[str, Pipeline | ConfigError]:
    """Write pipeline files by name of pipeline, or text, and read all of them."""
    for path, text in files.items():
        file = folder / "pipelines" / path.replace("__", "/").replace("_yml", ".yml")
        file = file if file.suffix else file.with_suffix(".yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        name, _, table = text.partition(" ")
        file.write_text(GOOD.replace("pipeline: p", f"pipeline: {name}").replace("path: p", f"path: {table or name}"))
    root = folder / "pipelines"
    return {str(path.relative_to(root)): item for path, item in load_all(root, below=True)}


def test_two_files_of_one_name_are_told_whatever_folders_they_are_in(tmp_path: Path) -> None:
    found = of_all(tmp_path, orders="orders", finance__orders="orders other", finance__refunds="refunds")
    told = found["finance/orders.yaml"]
    assert isinstance(told, Clash)
    assert f"'orders' is the name of {tmp_path}/pipelines/orders.yaml already" in told.what
    assert {name for name, item in found.items() if isinstance(item, Pipeline)} == {
        "orders.yaml",
        "finance/refunds.yaml",
    }


def test_a_copy_does_not_take_the_name_of_what_it_was_copied_from(tmp_path: Path) -> None:
    found = of_all(tmp_path, orders="orders", a_copy="orders other")
    assert isinstance(found["orders.yaml"], Pipeline)
    assert isinstance(found["a_copy.yaml"], Clash)


def test_a_file_that_is_called_like_another_ones_pipeline_is_refused(tmp_path: Path) -> None:
    found = of_all(tmp_path, orders="sales", x="orders")
    told = found["orders.yaml"]
    assert isinstance(told, Clash), "sluice run orders would run sales"
    assert f"'orders' is that of {tmp_path}/pipelines/x.yaml" in told.what
    assert isinstance(found["x.yaml"], Pipeline)


def test_a_newcomer_does_not_take_the_table_of_a_pipeline_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    assert isinstance(of_all(tmp_path, a="a shared", b="b shared")["b.yaml"], Clash)
    (tmp_path / "home" / "checkpoints" / "b" / "epoch-1").mkdir(parents=True)
    found = of_all(tmp_path)
    assert isinstance(found["b.yaml"], Pipeline)
    assert isinstance(found["a.yaml"], Clash)


@pytest.mark.parametrize("name", ["orders", "_defaults"])
def test_a_file_that_ends_in_yml_is_not_ignored_in_silence(tmp_path: Path, name: str) -> None:
    write(tmp_path, GOOD)
    file = write(tmp_path, GOOD.replace("pipeline: p", "pipeline: orders"), f"{name}.yml")
    write(tmp_path, "on: push\n", "workflow.yml")
    (told,) = (item for path, item in load_all(file.parent) if path == file)
    assert isinstance(told, ConfigError)
    assert f"{name}.yml is not read" in told.what
    assert told.next_step == f"mv {file} {file.with_suffix('.yaml')}"
    assert {path.name for path, _ in load_all(file.parent)} == {"p.yaml", file.name}, "others' files are theirs"


def test_an_editors_files_are_no_pipelines(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    file.with_name(".#p.yaml").symlink_to("somebody@host.1234")
    file.with_name(".p.yaml").write_text(GOOD)
    assert [path for path, _ in load_all(file.parent)] == [file]


def test_a_pipeline_is_found_by_its_own_name_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_all(tmp_path, sales_file="sales", finance__orders="orders")
    folder = tmp_path / "pipelines"
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    assert find("sales") == find("sales_file") == folder / "sales_file.yaml"
    assert run_cli(monkeypatch, "validate-spec", "--no-spark") == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "its pipeline is 'sales', and commands find it by both names" in told
    assert told.count("by both names") == 1
    with pytest.raises(ConfigError) as caught:
        find("salse")
    assert "did you mean 'sales'?" in caught.value.next_step


def test_a_file_in_a_folder_below_finds_its_suite_where_the_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "pipelines"))
    write(tmp_path, GOOD)
    below = tmp_path / "pipelines" / "finance" / "q.yaml"
    below.parent.mkdir()
    below.write_text(GOOD + "quality: {suite: expectations/q.json}\n")
    suite = tmp_path / "expectations" / "q.json"
    with pytest.raises(ConfigError, match=f"there is no file {suite}"):
        load(below)
    suite.parent.mkdir()
    suite.write_text("{}")
    assert load(below).suite_file == suite
    own = below.parent / "expectations" / "q.json"
    own.parent.mkdir()
    own.write_text("{}")
    assert load(below).suite_file == suite
    suite.unlink()
    assert load(below).suite_file == own


def test_a_file_that_is_named_is_checked_against_its_namesakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_all(tmp_path, orders="orders", finance__orders="orders other")
    folder = tmp_path / "pipelines"
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", str(folder / "finance" / "orders.yaml")) == 10
    assert "already" in capsys.readouterr().err
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", str(folder / "orders.yaml")) == 0


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
