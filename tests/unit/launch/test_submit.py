"""The spark-submit: its command line, environment, master and class-data archive, its log, and its end by signals."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest
from tests.fixtures.connections import SASL, SECRET, connection

from sluice.connections import Connection
from sluice.errors import ConfigError, SinkError
from sluice.home import Home
from sluice.launch import jars
from sluice.launch.jars import locked
from sluice.launch.submit import SparkSubmit, archive_file, archive_stamp, is_small, spark_master, submit
from sluice.pipeline import load
from sluice.pipeline.spark import Spark
from sluice.recovery import Recovery
from sluice.run.actions import Action, AuditWindows, Retract, RunRequest, Validate, parsed
from sluice.run.interval import Interval
from sluice.shipped import shipped

COPIED = """\
source: {kafka: {topics: [t]}}
decode: {text: {}}
sink: {delta: {path: p}}
"""
RUN = "scheduled__2013-01-01T00:00:00+00:00"
ASKED = RunRequest(RUN, Recovery.REPLAY, 7, Interval.parse("2013-01-01", "2013-01-02"), validate=False)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "paths", lambda _name: [])
    return stamped(archive_file(Home.from_env()))


def stamped(archive: Path) -> Path:
    archive.parent.mkdir()
    archive.write_bytes(b"x" * 100)
    archive.with_suffix(".stamp").write_text(archive_stamp(archive))
    return archive


def started(action: Action, master: str = "local", pipeline: str | Path = "flights", **more: Any) -> SparkSubmit:
    kafka, spark = connection({"bootstrap.servers": "h:1"}), Connection("spark_default", "spark", master)
    return submit(load(pipeline), action, spark=spark, find=lambda _: kafka, **more)


def written(folder: Path, keys: str = "", sink: str = "p") -> Path:
    source = f"source: {{kafka: {{topics: [t]}}}}, decode: {{text: {{}}}}, sink: {{delta: {{path: '{sink}'}}}}"
    (folder / "p.yaml").write_text(f"{{pipeline: p, {source}{keys}}}")
    return folder / "p.yaml"


@pytest.mark.parametrize("spelt", ["p", "'p'  # mine"])
def test_submit_refuses_a_copy_that_kept_the_name_of_its_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelt: str
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "pipelines"))
    (tmp_path / "pipelines" / "trials").mkdir(parents=True)
    own = written(tmp_path / "pipelines")
    for copied in ("try.yaml", "a.yaml", "trials/p.yaml"):
        copy = own.parent / copied
        copy.write_text(f"pipeline: {spelt}\n" + COPIED)
        with pytest.raises(ConfigError, match=r"'p' is the name of .*p\.yaml already"):
            started(RunRequest("r"), pipeline=copy)
        assert started(RunRequest("r"), pipeline=own).application
        assert started(Validate("r"), pipeline=own).application
    own.write_text("pipeline: p\n<<<<<<< HEAD\n")
    with pytest.raises(ConfigError, match="is the name of"):
        started(RunRequest("r"), pipeline=own.parent / "try.yaml")


def _options(master: str = "local[2]") -> str:
    return started(Validate("r"), master).java_options


def test_submit_uses_a_whole_class_data_archive(archive: Path, tmp_path: Path, monkeypatch: Any) -> None:
    for master in ("local[2]", "spark://host:7077"):  # the driver runs here all the same
        assert f"-XX:SharedArchiveFile={archive}" in _options(master)
    archive.write_bytes(b"x" * 99)
    assert "SharedArchiveFile" not in _options()
    archive.unlink()
    assert "SharedArchiveFile" not in _options()
    named = tmp_path / "image" / "other.jsa"  # an image may bring one
    monkeypatch.setenv("SLUICE_JVM_ARCHIVE", str(named))
    assert "SharedArchiveFile" not in _options()
    stamped(named)
    assert f"-XX:SharedArchiveFile={named}" in _options()


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_jars: list[Path]) -> SparkSubmit:
    home = tmp_path / "home"
    home.mkdir()
    (home / "jars").symlink_to(spark_jars[0].parent.parent)
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.setenv("SLUICE_LEDGER_URL", f"postgresql://u:{SECRET}@h/d")
    kafka, spark = connection(SASL, password=SECRET), Connection("spark_default", "spark", host="local[2]")
    return submit(load(written(tmp_path)), ASKED, spark=spark, find=lambda _: kafka)


def test_submit_has_secrets_locale_and_zone_in_the_environment_alone(sent: SparkSubmit) -> None:
    assert SECRET not in " ".join([*sent.argv(), repr(sent)])
    assert all(SECRET in sent.env[name] for name in ("AIRFLOW_CONN_KAFKA_DEFAULT", "SLUICE_LEDGER_URL"))
    assert (sent.env["LC_ALL"], sent.env["TZ"]) == ("C.UTF-8", "UTC")


def test_submit_has_the_request_on_its_command_line(sent: SparkSubmit, spark_jars: list[Path], tmp_path: Path) -> None:
    argv = sent.argv()
    assert argv[argv.index("--master") + 1] == "local[2]"
    jars = [str(jar.resolve()) for jar in spark_jars]
    assert f"spark.driver.extraClassPath={':'.join(jars)}" in argv
    assert "spark.sql.session.timeZone=UTC" in argv
    main = next(i for i, a in enumerate(argv) if a.endswith("spark_jobs/job.py"))
    assert Path(argv[main]).is_file()
    assert (argv[main + 1], parsed(argv[main + 2 :])) == (str(tmp_path / "p.yaml"), ASKED)
    argv = started(RunRequest("r"), "spark://m:7077", tmp_path / "p.yaml").argv()
    files = [Path(jar).name for jar in argv[argv.index("--jars") + 1].split(",")]
    assert files == [jar.file_name for jar in locked("spark")], "executors elsewhere need them"
    assert [a for a in argv if a.startswith("spark.driver.extraClassPath=")], "the driver has them at hand"
    audit = started(AuditWindows(tmp_path, tmp_path), pipeline=tmp_path / "p.yaml")
    back = started(Retract("r", "why", "a"), pipeline=tmp_path / "p.yaml")
    assert ["AIRFLOW_CONN_KAFKA_DEFAULT" in each.env for each in (audit, back)] == [True, False], "what it needs"


@pytest.mark.parametrize(
    ("host", "port", "master"),
    [
        ("local", None, "local"), ("local[*]", None, "local[*]"), ("spark://m", 7077, "spark://m:7077"),
        ("spark://m:1", 2, "spark://m:1"), ("yarn", None, "yarn"), ("k8s://https://h:1", None, "k8s://https://h:1"),
    ],
)  # fmt: skip
def test_spark_connection_names_a_master(host: str, port: int | None, master: str) -> None:
    assert spark_master(Connection("s", "spark", host=host, port=port)) == master


@pytest.mark.parametrize(
    "wrong",
    [
        Connection("s", "kafka", host="local"), Connection("s", "spark"), Connection("s", "spark", host="spark://m"),
        Connection("s", "spark", host="m", port=7077),
        Connection("s", "spark", host="spark://m", port=7077, extra={"deploy-mode": "cluster"}),
    ],
    ids=["kafka", "no host", "no port", "no scheme", "cluster mode"],
)  # fmt: skip
def test_spark_connection_that_names_no_master_is_refused(wrong: Connection) -> None:
    with pytest.raises(ConfigError, match=r"Spark connection|deploy-mode"):
        spark_master(wrong)


@pytest.mark.parametrize(
    ("keys", "engine", "waiting", "master", "compiles"),
    [
        ("", None, None, "local[2]", False),
        ("", "spark", 10_000_000, "local[2]", True),
        ("", "arrow", 10_000_000, "spark://host:7077", True),  # the records are elsewhere
        (", transform: {sql: SELECT value FROM source}", None, 10_000_000, "local[2]", True),
        (", engine: spark", "arrow", 10_000_000, "local[2]", True),
        (", spark: {conf: {spark.driver.defaultJavaOptions: -XX:TieredStopAtLevel=4}}", None, 5, "local[2]", True),
    ],
)
def test_submit_leaves_the_optimizing_compiler_out_where_python_does_the_work(
    archive: Path, tmp_path: Path, keys: str, engine: str | None, waiting: int | None, master: str, compiles: bool
) -> None:
    file = written(tmp_path, keys)
    small = is_small(load(file), RunRequest("r"), waiting=waiting, engine=engine)
    submitted = started(RunRequest("r"), master, file, small=small)
    assert ("-XX:TieredStopAtLevel=1" not in submitted.java_options) is compiles


@pytest.mark.parametrize(
    ("conf", "master", "daemon"),
    [
        ({}, "local[2]", "sluice_spark.daemon"),
        ({}, "spark://h:7077", None),  # executors may lack it
        ({"spark.python.daemon.module": "sentry_daemon"}, "local[2]", "sentry_daemon"),
        ({"spark.pyspark.python": "/opt/other/bin/python"}, "local[2]", None),
    ],
)
def test_submit_names_a_daemon_that_forks_python_workers(conf: dict[str, str], master: str, daemon: Any) -> None:
    submitted = started(Validate("r"), master, settings=Spark(conf=conf))
    assert submitted.conf.get("spark.python.daemon.module") == daemon


_START = """
import sys
from types import SimpleNamespace
from sluice.launch.launcher import LocalProcess

said = SimpleNamespace(argv=lambda: ["/bin/sh", "-c", sys.argv[1]], env={})
sys.exit(LocalProcess.start(said))
"""
_WARNING = "WARNING: Using incubator modules: jdk.incubator.vector"
_OTHER = "Warning: Java versions > Java 11 can only operate in restricted mode"


def _started(script: str) -> Any:
    return subprocess.Popen([sys.executable, "-c", _START, script], stderr=subprocess.PIPE)


def test_application_log_is_whole_without_a_needless_warning() -> None:
    script = f"echo '{_WARNING}' >&2; echo '{_OTHER}'; echo first; "
    script += f"printf '\\377 no text\\n' >&2; echo 'the {_WARNING}'; exit 3"
    child = _started(script)
    _, log = child.communicate()
    assert child.returncode == 3
    assert log.splitlines() == [b"first", b"\xff no text", f"the {_WARNING}".encode()]


_DRIVER = """
from sluice.errors import LeaseHeldError
from sluice_spark.engine.session import run_main

def main():
    raise LeaseHeldError("another run is at work", state="nothing was read", next_step="try again")

run_main(main)
"""


def test_launcher_knows_the_error_that_ended_its_application() -> None:
    start = "import json" + _START.replace("import LocalProcess", "import LocalProcess, last_words")
    start = start.replace("sys.exit(", "print(").replace("(said))", "(said), json.dumps(last_words()))")
    found = []
    for script in (shlex.join([sys.executable, "-c", _DRIVER]), "exit 3"):
        done = subprocess.run([sys.executable, "-c", start, script], capture_output=True, text=True, check=True)
        found.append(done.stdout.strip())
    told = {
        "type": "LeaseHeldError",
        "what": "another run is at work",
        "state": "nothing was read",
        "next": "try again",
    }
    assert found == [f"40 {json.dumps(told)}", "3 null"]


def test_application_log_has_the_last_lines_after_ctrl_c() -> None:
    """Only Sluice's own lines; threads of a JVM end with a trace."""
    trap = "echo Exception in thread; echo 12:00:00 sluice: last words; echo at java.lang; exit 1"
    child = _started(f"trap '{trap}' TERM; echo ready; while :; do sleep 0.1; done")
    assert child.stderr.readline() == b"ready\n"
    child.send_signal(signal.SIGINT)
    _, log = child.communicate()
    assert child.returncode == 128 + signal.SIGINT
    assert log == b"12:00:00 sluice: last words\n"


def test_application_ends_by_ctrl_c_during_its_start(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    early = """
import os, signal, subprocess, sluice.launch.launcher as launcher

class Early(subprocess.Popen):
    def __init__(self, argv, **more):
        super().__init__(argv, **more)
        if argv[0] == "/bin/sh":
            os.read(go, 1)
            os.kill(os.getpid(), signal.SIGINT)

go, ready = os.pipe()
os.set_inheritable(ready, True)
launcher.subprocess.Popen = Early
"""
    early = early.replace("super().__init__(argv, **more)", "super().__init__(argv, pass_fds=(ready,), **more)")
    script = f"trap 'touch {ended}; exit 1' TERM; echo >&$READY; while :; do sleep 0.1; done"
    argv = [sys.executable, "-c", early + "os.environ['READY'] = str(ready)\n" + _START, script]
    child = subprocess.run(argv, stderr=subprocess.PIPE, timeout=60, check=False)
    assert child.returncode == 128 + signal.SIGINT
    assert ended.exists()


def test_application_outlives_its_launcher(tmp_path: Path) -> None:
    go = tmp_path / "go"
    child = _started(f"echo ready; until [ -e {go} ]; do sleep 0.05; done; echo more")
    assert child.stderr.readline() == b"ready\n"
    child.kill()
    child.wait()
    go.touch()
    assert child.stderr.read() == b"more\n"


def test_application_log_is_silent_about_classes_that_spark_has() -> None:
    """A class that Spark has moved would be logged again."""
    settings = Path(shipped("include/spark-log4j2.properties")).read_text()
    names = set(re.findall(r"^logger\.\w+\.name = (org\.apache\.spark\.(?!sql\.kafka010)\S+)$", settings, re.MULTILINE))
    assert len(names) > 3
    wanted = {f"{name.replace('.', '/')}{end}" for name in names for end in (".class", "$.class")}
    found = set[str]()
    for jar in (Path(pyspark.__file__).parent / "jars").glob("spark-*.jar"):
        with ZipFile(jar) as file:
            found |= wanted & set(file.namelist())
    assert {re.sub(r"\$?\.class$", "", name).replace("/", ".") for name in found} == names


def test_submit_takes_a_reason_that_begins_like_an_option_and_no_endless_one() -> None:
    asked = RunRequest("x", Recovery.REPLAY, reason="-y")
    assert parsed(started(asked).arguments[1:]) == asked
    with pytest.raises(ConfigError, match="200,000 characters"):
        RunRequest("r", Recovery.REPLAY, reason="x" * 200_000)


@pytest.mark.parametrize("place", ["/proc/nope/t", "{tmp}/file/t", "{tmp}/file"])
@pytest.mark.parametrize("key", ["sink", "quarantine", "SLUICE_HOME"])
def test_run_is_refused_before_spark_when_a_place_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, place: str
) -> None:
    place = place.format(tmp=tmp_path)
    (tmp_path / "file").touch()
    paths = {"SLUICE_HOME": tmp_path / "home", "sink": "out", "quarantine": "refused", key: place}
    monkeypatch.setenv("SLUICE_HOME", str(paths["SLUICE_HOME"]))
    file = written(tmp_path, f", quarantine: {{delta: {{path: '{paths['quarantine']}'}}}}", str(paths["sink"]))
    with pytest.raises(SinkError, match="cannot write to") as caught:
        started(RunRequest("r", Recovery.REPLAY), pipeline=file)
    assert place in caught.value.what
    assert ("SLUICE_HOME" if key == "SLUICE_HOME" else "p.yaml") in caught.value.next_step


@pytest.mark.parametrize("variable", ["JAVA_HOME", "SPARK_HOME"])
def test_run_is_refused_before_spark_when_a_variable_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(ConfigError, match=f"in {variable}={tmp_path}") as error:
        started(RunRequest("r"), pipeline=written(tmp_path))
    assert variable in error.value.next_step
    assert not (tmp_path / "home").exists()


def test_run_whose_places_can_be_written_leaves_them_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    started(RunRequest("r", Recovery.REPLAY))
    kept = {"logs", "quality", "quarantine", "sources", "staged", "flights_quarantine"}
    assert {path.name: oct(path.stat().st_mode)[-3:] for path in tmp_path.iterdir()} == dict.fromkeys(kept, "700")
    assert not [*tmp_path.glob("*/*")]
