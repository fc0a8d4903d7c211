"""The wheel, installed beside Airflow where there is no checkout: everything it needs is in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fixtures.airflow_tables import copy_tables

from sluice import __version__
from sluice.launch import jars
from sluice.ledger import Ledger
from sluice.local.kafka import Broker, Record, Topics
from sluice.shipped import CHECKOUT

pytestmark = pytest.mark.airflow

PIPELINE = """\
pipeline: orders
source: {kafka: {topics: [TOPIC]}}
decode: {json: {schema: "id BIGINT"}}
sink: {delta: {path: orders}}
quality: {suite: expectations/orders.json}
"""
SUITE = {
    "name": "orders",
    "expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}],
}
LOOK = """\
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.plugins_manager import get_fastapi_plugins
import sluice, sluice_airflow, sluice_spark
from sluice.connections import Connection
from sluice.launch.submit import submit
from sluice.run.actions import RunRequest
from sluice.pipeline import load

bag = DagBag(sys.argv[1])
spark, kafka = Connection("spark_default", "spark", host="local[1]"), Connection("kafka_default", "kafka")
started = submit(load("orders"), RunRequest("r"), spark=spark, find=lambda _: kafka)
(log4j,) = (o.split("file:")[1] for o in started.java_options.split() if "log4j2" in o)
print(json.dumps({
    "errors": {str(k): str(v) for k, v in bag.import_errors.items()},
    "dags": {dag.dag_id: dag.task_ids for dag in bag.dags.values()},
    "pipelines": {t.pipeline for dag in bag.dags.values() for t in dag.tasks}.pop(),
    "packages": [p.__file__ for p in (sluice, sluice_airflow, sluice_spark)],
    "application": str(started.application),
    "log4j": log4j,
    "class_path": started.conf["spark.driver.extraClassPath"].split(":"),
    "home": started.env["SLUICE_HOME"],
    "pages": [app["url_prefix"] for app in get_fastapi_plugins()[0]],
}))
"""


@dataclass
class Installed:
    """An environment with the wheel in it, and an empty folder to work in."""

    venv: Path
    where: Path
    env: dict[str, str]

    def run(self, *command: str | Path, fails: int = 0, timeout: float = 300, **env: str) -> str:
        """Run a program of the environment; return what it said on stdout, or on both when it is to fail."""
        program = self.venv / "bin" / str(command[0])
        done = subprocess.run(
            [program, *command[1:]], cwd=self.where, env=self.env | env, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == fails, done.stdout[-4000:] + done.stderr[-6000:]
        return done.stdout + done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=CHECKOUT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (found,) = folder.glob("sluice-*.whl")
    return found


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that sees what is installed here, Airflow among it, but not the editable Sluice."""
    venv = tmp_path_factory.mktemp("venv")
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    uv = shutil.which("uv", path=beside)
    assert uv, "make setup brings uv"
    subprocess.run([uv, "venv", "-q", "--allow-existing", "--python", sys.executable, venv], check=True, timeout=120)
    python = venv / "bin" / "python"
    subprocess.run(
        [uv, "pip", "install", "-q", "--offline", "--no-deps", "--python", python, wheel], check=True, timeout=120
    )
    (ours,) = (venv / "lib").glob("python*/site-packages")
    # a .pth names a folder; the .pth files in that folder, the editable Sluice's among them, are not read
    (ours / "third-party.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv


@pytest.fixture
def installed(venv: Path, tmp_path: Path) -> Installed:
    where = tmp_path / "work"
    where.mkdir()
    folder = tmp_path / "project" / "pipelines"
    folder.mkdir(parents=True)
    (folder / "orders.yaml").write_text(PIPELINE.replace("TOPIC", "orders"))
    suites = folder.parent / "expectations"
    suites.mkdir()
    (suites / "orders.json").write_text(json.dumps(SUITE))
    (tmp_path / "dags").mkdir()
    (packages,) = (venv / "lib").glob("python*/site-packages")
    shutil.copy(packages / "sluice" / "data" / "dags" / "pipelines.py", tmp_path / "dags")
    ours = ("SLUICE_", "AIRFLOW", "PYTHON", "VIRTUAL_ENV", "XDG_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    env |= {
        # spark-submit is beside Airflow
        "PATH": os.pathsep.join([str(venv / "bin"), str(Path(sys.executable).parent), env.get("PATH", "")]),
        "SLUICE_PIPELINES": str(folder),
        "SLUICE_JARS": str(jars.fetch("spark")[0].parents[1]),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    return Installed(venv, where, env)


def test_wheel_has_the_packages_and_the_files_that_they_need(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    mains = {f"sluice/data/spark_jobs/{main.name}" for main in (CHECKOUT / "spark_jobs").glob("*.py")}
    assert mains == {name for name in names if name.startswith("sluice/data/spark_jobs/")}
    wanted = {"jars.lock", "spark-log4j2.properties", "pipeline.schema.json", "pipelines/flights.yaml"}
    assert {f"sluice/data/include/{name}" for name in wanted} < set(names)
    tops = {name.split("/")[0] for name in names}
    assert tops == {"sluice", "sluice_airflow", "sluice_spark", f"sluice-{__version__}.dist-info"}
    assert f"sluice-{__version__}.dist-info/licenses/LICENSE" in names
    assert not [name for name in names if "__pycache__" in name]
    points = zipfile.ZipFile(wheel).read(f"sluice-{__version__}.dist-info/entry_points.txt").decode()
    assert "sluice_airflow.provider:get_provider_info" in points
    page = "plugins/sluice_airflow/page/static"
    static = {str(f.relative_to(CHECKOUT / "plugins")) for f in (CHECKOUT / page).rglob("*") if f.is_file()}
    assert {"index.html", "page.js", "vendor/uplot/LICENSE", "vendor/bootstrap/LICENSE"} <= {
        name.removeprefix("sluice_airflow/page/static/") for name in static
    }
    assert static < set(names)


def test_installed_commands_work_in_an_empty_folder(installed: Installed) -> None:
    assert installed.run("sluice", "--version") == f"sluice {__version__}\n"
    (checked,) = json.loads(installed.run("sluice", "validate-spec", "--no-spark", "--json", "orders"))
    assert checked["valid"] is True
    said = installed.run("sluice", "validate-spec", "--no-spark", fails=10, SLUICE_PIPELINES="")
    assert f"{installed.where}/include/pipelines" in said
    assert "SLUICE_PIPELINES" in said
    assert list(installed.where.iterdir()) == []  # checking makes no state


def test_installed_airflow_finds_a_dag_for_the_pipeline_and_its_application(installed: Installed) -> None:
    dags = Path(installed.env["AIRFLOW__CORE__DAGS_FOLDER"])
    copy_tables(Path(installed.env["AIRFLOW_HOME"]) / "airflow.db")
    found = json.loads(installed.run("python", "-c", LOOK, dags).splitlines()[-1])
    assert found["errors"] == {}
    assert list(found["dags"]) == ["orders"]
    assert set(found["dags"]["orders"]) == {"wait_for_lag", "ingest", "validate", "account"}
    assert found["pipelines"] == "orders"
    inside = [*found["packages"], found["application"], found["log4j"]]
    assert [file for file in inside if not (Path(file).is_file() and Path(file).is_relative_to(installed.venv))] == []
    assert Path(found["application"]).name == "job.py"
    assert all(Path(jar).is_file() for jar in found["class_path"])
    assert found["pages"] == ["/sluice"]
    assert found["home"] == str(installed.where / "var")
    assert "of no action" in installed.run("python", found["application"], fails=10)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_installed_dag_runs_in_real_spark(
    installed: Installed, broker: Broker, topics: Topics, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(2)
    topics.produce(name, [Record(i % 2, b"k", json.dumps({"id": i}).encode()) for i in range(100)])
    file = Path(installed.env["SLUICE_PIPELINES"]) / "orders.yaml"
    file.write_text(PIPELINE.replace("TOPIC", name))
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": broker.bootstrap}}
    env = {
        "SLUICE_HOME": str(tmp_path / "new-home"),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    copy_tables(Path(installed.env["AIRFLOW_HOME"]) / "airflow.db")
    installed.run("python", "-m", "airflow", "dags", "test", "orders", timeout=600, **env)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/new-home/ledger.db")
    (run,) = ledger.runs.newest("orders")
    account = ledger.runs.account("orders", run.run)
    assert (account["planned"], account["written"], account["verdict"]) == (100, 100, "passed")
    installed.run("sluice", "audit", "orders", "--deep", **env)
