"""Pipeline files in their folder: how one is found, their ``_defaults.yaml``, and clashes of two."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from tests.fixtures.golden import Golden
from tests.fixtures.pipelines import changed
from tests.fixtures.specs import GOOD, run_cli, write

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, find, load, load_all
from sluice.pipeline.load import Clash
from sluice.pipeline.targets import check_function
from sluice.pipeline.yaml_file import YamlError, read
from sluice.recovery import Recovery
from sluice.shipped import CHECKOUT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of pipelines, which is empty."""
    found = tmp_path / "pipelines"
    found.mkdir()
    monkeypatch.setenv("SLUICE_PIPELINES", str(found))
    return found


def named(name: str, table: str = "", more: str = "") -> str:
    return GOOD.replace("pipeline: p", f"pipeline: {name}").replace("path: p", f"path: {table or name}") + more


def written(folder: Path, **files: str) -> dict[str, Pipeline | ConfigError]:
    """Write pipeline files by their paths, ``name`` or ``name path-of-the-sink``, and read all of them."""
    for path, text in files.items():
        file = (folder / path.replace("__", "/")).with_suffix(".yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(named(*text.split()))
    return {str(path.relative_to(folder)): item for path, item in load_all(folder, below=True)}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"a: 1\nb: gr\xfc\xdfe\n", "line 2"),
        (b"a: [1\n", "YAML"),
        (b"a: 1\na: 2\n", "line 2: a"),
        (b"a: " + b"[" * 300 + b"]" * 300, "deeper than 100"),
        (b"a: " + b"[" * 400_000, "deeper than 100"),
        (b"".join(b" " * n + b"a:\n" for n in range(150)), "line 101: it is nested deeper than 100"),
        (b"a: &a [*a]\n", "line 1: .* an alias contains itself"),
        (
            b"a: &a [0]\n" + b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b"*%c, " % n * 9) for n in range(97, 110)),
            "100,000",
        ),
        (b"#" * (1 << 20) + b"\na: 1\n", "larger than 1,048,576 bytes"),
        (b'a: 1\nb: "\\ud83d x"\n', "line 2: .* half a character"),
    ],
)
def test_yaml_that_cannot_be_read_is_one_error(tmp_path: Path, text: bytes, named: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(text)
    with pytest.raises(YamlError, match=named):
        read(file)


def test_yaml_scalars_are_those_of_version_1_2_and_numbers_keep_their_text(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("a: [off, NO, yes, y, true, False]")
    assert read(file)[0] == {"a": ["off", "NO", "yes", "y", True, False]}
    file.write_text("a: [010, 1.10, -5, +7, 1e3, .5, -.inf, 12:30, 1_000, 0x1F, 0o17, 1.2.3]")
    found = read(file)[0]["a"]
    assert found == [10, 1.1, -5, 7, 1000.0, 0.5, float("-inf"), "12:30", "1_000", "0x1F", "0o17", "1.2.3"]
    assert list(map(str, found[:7])) == ["010", "1.10", "-5", "+7", "1e3", ".5", "-.inf"]
    assert json.dumps(found[:3]) == "[10, 1.1, -5]"
    file.write_text(json.dumps({"a🚀": "🚀 orders ä"}))  # with escapes, two for one character
    assert read(file)[0] == {"a🚀": "🚀 orders ä"}


def test_pipelines_of_the_project_are_valid() -> None:
    assert {type(spec) for _, spec in load_all()} == {Pipeline}


def test_pipeline_is_found_by_name_or_path(tmp_path: Path) -> None:
    assert find("flights") == CHECKOUT / "include" / "pipelines" / "flights.yaml"
    file = write(tmp_path, GOOD)
    assert find(str(file)) == file
    with pytest.raises(ConfigError, match="flihgts") as caught:
        find("flihgts")
    assert "'flights'" in caught.value.next_step
    with pytest.raises(ConfigError, match="none"):
        find(str(tmp_path / "none.yaml"))


def test_pipeline_is_found_by_the_name_in_its_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(folder, sales_file="sales", finance__orders="orders")
    assert find("sales") == find("sales_file") == folder / "sales_file.yaml"
    assert run_cli(monkeypatch, "validate-spec", "--no-spark") == 0
    assert " ".join(capsys.readouterr().err.split()).count("by both names") == 1
    with pytest.raises(ConfigError) as caught:
        find("salse")
    assert "'sales'" in caught.value.next_step


def test_pipeline_is_found_in_folders_below(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(folder, p="p", a__deep="deep")
    assert load("deep").file == folder / "a" / "deep.yaml"
    written(folder, b__deep="p")
    with pytest.raises(ConfigError, match="'deep'"):
        load("deep")
    (folder / "b" / "deep.yaml").write_text("nothing")
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", "--json") == 10
    found = {r["file"]: r["valid"] for r in json.loads(capsys.readouterr().out)}
    assert found == {str(folder / f): ok for f, ok in (("p.yaml", True), ("a/deep.yaml", True), ("b/deep.yaml", False))}


def test_pipeline_folder_can_be_named_and_must_exist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "p.yaml"
    file.write_text(GOOD)
    assert find("p") == file
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder / "none"))
    for look in (lambda: find("p"), lambda: list(load_all())):
        with pytest.raises(ConfigError, match=f"{folder}/none") as caught:
            look()
        assert "SLUICE_PIPELINES" in caught.value.next_step
    assert load(file).name == "p"
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", str(file)) == 0


def test_pipeline_file_in_a_folder_below_finds_its_suite_beside_the_others(tmp_path: Path, folder: Path) -> None:
    written(folder, p="p")
    below = folder / "finance" / "q.yaml"
    below.parent.mkdir()
    below.write_text(named("q", more="quality: {suite: expectations/q.json}\n"))
    suite, own = tmp_path / "expectations" / "q.json", below.parent / "expectations" / "q.json"
    with pytest.raises(ConfigError, match=str(suite)):
        load(below)
    for file in (suite, own):
        file.parent.mkdir()
        file.write_text("{}")
        assert load(below).suite_file == suite
    suite.unlink()
    assert load(below).suite_file == own


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("nonsense", "expected a mapping"),
        (GOOD + "airflow: {start_date: 2024-02-30}\n", "start_date"),
        ("a: &a [*a]", "contains itself"),
        (GOOD + 'transform: {python: "broken:f"}\n', "module 'broken' is no Python: .*broken.py, line 2"),
        (GOOD + 'transform: {python: "unreadable:f"}\n', "module 'unreadable' is no Python: .*unreadable.py: "),
        (GOOD + 'transform: {python: "leaving.inner.missing:f"}\n', "no module 'leaving.inner.missing'"),
        (GOOD + 'transform: {python: "leaving.inner.rows:g"}\n', "no function 'g'"),
    ],
)
def test_pipeline_file_that_is_bad_takes_no_other_down(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str, named: str
) -> None:
    modules(tmp_path / "modules")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    (folder / "q.yaml").write_text(bad)
    found = written(folder, p="p")
    assert [type(found[name]) for name in ("p.yaml", "q.yaml")] == [Pipeline, ConfigError]
    assert re.search(named, found["q.yaml"].what)


def modules(root: Path) -> None:
    """Write modules that must not be imported to be checked."""
    (root / "leaving" / "inner").mkdir(parents=True)
    (root / "leaving" / "__init__.py").write_text("raise SystemExit(3)")
    (root / "leaving" / "inner" / "rows.py").write_text("raise RuntimeError\ndef f(rows): return rows\n")
    (root / "spaces" / "inner").mkdir(parents=True)
    (root / "spaces" / "inner" / "rows.py").write_text("def f(rows): return rows\n")
    (root / "broken.py").write_text("import os\ndef f(:\n")
    (root / "unreadable.py").write_bytes(b"\0")


@pytest.mark.parametrize("module", ["leaving.inner.rows", "spaces.inner.rows"])
def test_pipeline_function_is_found_without_importing_the_packages_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    modules(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    check_function(f"{module}:f")
    assert module.partition(".")[0] not in sys.modules


def test_pipeline_file_that_is_a_link_to_nothing_is_named_as_one(folder: Path) -> None:
    (folder / "away.yaml").symlink_to(folder / "gone" / "away.yaml")
    with pytest.raises(ConfigError, match=r"link to .*gone/away\.yaml, which is not there"):
        load(folder / "away.yaml")
    assert isinstance(dict(load_all(folder))[folder / "away.yaml"], ConfigError)


@pytest.mark.parametrize("name", ["orders.yml", "orders.YAML", "orders.Yml", "_defaults.yml"])
def test_pipeline_file_with_another_ending_is_refused_with_the_command_that_renames_it(folder: Path, name: str) -> None:
    written(folder, p="p")
    file = folder / name
    file.write_text(named("orders"))
    (folder / "workflow.yml").write_text("on: push\n")  # of another program
    (folder / ".#p.yaml").symlink_to("me@host.1234")  # of an editor
    (folder / ".p.yaml").write_text(GOOD)
    found = dict(load_all(folder))
    error = found.pop(file)
    assert isinstance(error, ConfigError)
    assert error.next_step == f"mv {file} {file.with_suffix('.yaml')}"
    assert [path.name for path in found] == ["p.yaml"]


def test_pipeline_file_has_the_defaults_of_its_folder_below_its_own_keys(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults = folder / "_defaults.yaml"
    defaults.write_text("# nothing yet\n")
    own = "airflow: {tags: [b], email: null}\nrecovery: replay\nlag: null\n"
    own += "spark: {conf: {spark.y: 3}, driver_memory: null}\n"
    for path, name, more in (("plain", "plain", ""), ("own", "own", own), ("below/far", "far", "")):
        file = (folder / path).with_suffix(".yaml")
        file.parent.mkdir(exist_ok=True)
        file.write_text(named(name, more=more))
    assert load("plain").airflow.owner is None
    defaults.write_text(
        "airflow: {owner: team, tags: [a], retries: 1, email: [a@b]}\nrecovery: wal\nlag: {max_records: 5}\n"
        "spark: {conf: {spark.x: 1, spark.y: 2}, driver_memory: 2g}\n"
    )
    for name, tags, recovery, conf in (
        ("own", ("b",), Recovery.REPLAY, {"spark.x": "1", "spark.y": "3"}),
        ("plain", ("a",), Recovery.WAL, {"spark.x": "1", "spark.y": "2"}),
    ):
        spec = load(name)
        assert (spec.airflow.owner, spec.airflow.tags, spec.airflow.retries) == ("team", tags, 1)
        assert (spec.recovery, spec.spark.conf) == (recovery, conf)
    assert [load(name).airflow.email for name in ("own", "plain")] == [(), ("a@b",)]
    assert [load(name).spark.driver_memory for name in ("own", "plain")] == [None, "2g"]
    assert [load(name).lag.max_records for name in ("own", "plain")] == [0, 5]
    assert load("far").airflow.owner is None, "of one folder, and not of those below it"
    assert [path.stem for path, _ in load_all(folder)] == ["own", "plain"], "they are no pipeline"
    files = [str(file) for file in sorted(folder.glob("*.yaml"))]
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", "--json", *files) == 0
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
        pytest.param("lag: {on_idle: wait}", "lag.on_idle", id="defaults-with-a-limit-of-two-features"),
        pytest.param("airflow: {retries: many}", "airflow.retries", id="defaults-below-a-key-of-the-pipeline"),
    ],
)
def test_defaults_file_refuses(tmp_path: Path, golden: Golden, text: str, named: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(GOOD + "airflow: {owner: me}\n")
    (tmp_path / "_defaults.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    golden("check", caught.value)
    assert "_defaults.yaml: " in caught.value.what
    assert named in caught.value.what.partition("_defaults.yaml: ")[2]


def test_pipelines_of_one_name_clash_in_whatever_folders(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = written(folder, orders="orders", finance__orders="orders other", finance__refunds="refunds")
    (clash,) = [(name, item.what) for name, item in found.items() if isinstance(item, Clash)]
    assert (clash[0], f"{folder}/orders.yaml" in clash[1]) == ("finance/orders.yaml", True)
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", str(folder / "finance" / "orders.yaml")) == 10
    assert f"{folder}/orders.yaml" in capsys.readouterr().err
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", str(folder / "orders.yaml")) == 0


def test_pipeline_clashes_with_its_copy_and_with_the_file_of_its_name(folder: Path) -> None:
    found = written(folder, orders="orders", a_copy="orders other")
    assert [name for name, item in found.items() if isinstance(item, Clash)] == ["a_copy.yaml"]
    (folder / "a_copy.yaml").unlink()
    found = written(folder, orders="sales", x="orders")  # sluice run orders would run sales
    assert [name for name, item in found.items() if isinstance(item, Clash)] == ["orders.yaml"]


def test_pipeline_that_runs_keeps_its_table_from_a_new_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    assert isinstance(written(folder, a="a shared", b="b shared")["b.yaml"], Clash)
    (tmp_path / "home" / "checkpoints" / "b" / "epoch-1").mkdir(parents=True)
    assert [type(item) for item in written(folder).values()] == [Clash, Pipeline]


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ("p", "p", "is the sink of"),
        ("p", "./p/../p/", "is the sink of"),
        ("p", "p_quarantine", "the quarantine of"),
        ("p", "p/below", "lies in, or around"),
        ("{home}/p", "file://{home}/p", "is the sink of"),
        ("file://{home}/p/below", "p", "lies in, or around"),
        ("p", "file://localhost{home}/p/", "is the sink of"),
        ("s3://lake/p", "s3a://lake/p/", "is the sink of"),
        ("s3n://lake/p/below", "S3://lake/p", "lies in, or around"),
        ("s3://lake/p", "s3a://lake", "lies in, or around"),
        ("s3://lake/p", "s3a://other/p", None),
        ("s3://lake/p", "gs://lake/p", None),
        ("s3://lake/p", "s3://lake/pp", None),
        ("p", "pp", None),
    ],
)
def test_pipeline_with_the_table_of_another_is_refused_in_any_spelling(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str, named: str | None
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("SLUICE_HOME", str(home))
    for name, place in (("p", one), ("q", other)):
        spec = changed() | {"pipeline": name, "sink": {"delta": {"path": place.format(home=home)}}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    found = written(folder)
    assert isinstance(found["p.yaml"], Pipeline)
    second = found["q.yaml"]
    assert (isinstance(second, ConfigError) and named in second.what) if named else isinstance(second, Pipeline)


@pytest.mark.parametrize(
    ("place", "named"),
    [
        (".", "SLUICE_HOME"),
        ("..", "SLUICE_HOME"),
        ("/", "SLUICE_HOME"),
        ("file://{home}", "SLUICE_HOME"),
        ("checkpoints", "{home}/checkpoints,"),
        ("logs/q", "{home}/logs,"),
        ("quality/data", "{home}/quality,"),
        ("jars", "{home}/jars,"),
        ("file://{home}/jvm", "{home}/jvm,"),
        ("ledger.db", "{home}/ledger.db,"),
        ("{home}-elsewhere", "{home}-elsewhere/ledger.db,"),
        ("p", None),
        ("logs_of_shops", None),
        ("shops/logs", None),
        ("s3://lake/logs", None),
    ],
)
@pytest.mark.parametrize("table", ["sink", "quarantine"])
def test_table_in_or_around_the_home_of_sluice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, named: str | None, table: str
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    if "elsewhere" in place:
        monkeypatch.setenv("SLUICE_LEDGER_URL", f"sqlite:///{home}-elsewhere/ledger.db?timeout=3")
    paths = {"sink": "t", table: place.format(home=home)}
    file = write(tmp_path, yaml.safe_dump(changed() | {key: {"delta": {"path": path}} for key, path in paths.items()}))
    if named is None:
        assert isinstance(load(file), Pipeline)
        return
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert f"{table}.delta.path: " in caught.value.what
    # a table around the home is around the sink, too
    assert named.format(home=home) in caught.value.what or "the sink" in caught.value.what


def test_load_all_outlives_files_that_are_none_or_name_nothing_that_can_be(folder: Path) -> None:
    os.mkfifo(folder / "pipe.yaml")
    (folder / "directory.yaml").mkdir()
    (folder / "key.yaml").write_text("? !!str {=: a}\n: b\n")
    (folder / "other.yml").write_text("? !!str {=: a}\n: b\n")
    write(folder, GOOD.replace("path: p", r'path: "a\0b"') if "path: p" in GOOD else GOOD, "nul.yaml")
    (folder / "good.yaml").write_text(GOOD)
    found = {path.name: item for path, item in load_all(folder)}
    assert isinstance(found.pop("good.yaml"), Pipeline)
    assert {type(item) for item in found.values()} <= {ConfigError, Clash}
    assert {"pipe.yaml", "directory.yaml", "key.yaml"} <= set(found)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".yaml", "a\0b", "a\0b.yaml"])
def test_pipeline_of_a_name_that_no_file_can_have_is_unknown(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="there is no pipeline"):
        find(name)


def test_command_that_an_error_names_has_the_path_in_quotes(tmp_path: Path) -> None:
    file = tmp_path / "my pipelines" / "p.yaml"
    file.parent.mkdir()
    file.write_text("pipeline: [")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.next_step.endswith(f"sluice validate-spec '{file}'")
