"""An Airflow of its own: home, database and folders; nothing of the developer's is read or written."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice.errors import SluiceError, SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from sluice_airflow.sensors.kafka_lag import KafkaLagSensor
    from sluice_airflow.triggers.kafka_lag import KafkaLagTrigger

PROJECT = Path(__file__).resolve().parents[2]

# Airflow reads its configuration at its first import: this has to come before any.
_HOME = tempfile.mkdtemp(prefix="sluice-airflow-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(
    AIRFLOW_HOME=_HOME,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=str(PROJECT / "dags"),
    AIRFLOW__CORE__PLUGINS_FOLDER=str(PROJECT / "plugins"),
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    AIRFLOW__LOGGING__BASE_LOG_FOLDER=f"{_HOME}/logs",
)
for _name in [n for n in os.environ if n.startswith("AIRFLOW_CONN_")]:
    del os.environ[_name]

SECRET = "hunter2-not-for-logs"

PIPELINE = """\
pipeline: {name}
source: {{kafka: {{connection: kafka_default, topics: [{name}], max_records_per_batch: 1000}}}}
decode: {{text: {{}}}}
sink: {{delta: {{path: {name}}}}}
quality: {{on_failed: {on_failed}}}
lag: {{max_records: 10}}
"""


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """Airflow's tables, made once."""
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True, timeout=300)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``SLUICE_HOME`` of the test's own, the two connections, and no need for the jars."""
    home = tmp_path / "home"
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    extra = {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": SECRET,
    }
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    monkeypatch.setattr("sluice.launch.submit.jars.paths", lambda _set: [])
    return home


@pytest.fixture
def pipeline_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a small pipeline file, and return its path."""

    def write(name: str = "demo", *, on_failed: str = "fail", more: str = "") -> Path:
        folder = tmp_path / "pipelines"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.yaml"
        path.write_text(PIPELINE.format(name=name, on_failed=on_failed) + more)
        return path

    return write


@dataclass
class FakeSpark:
    """A ``spark-submit`` that does as it is told; see ``fakes/spark_submit.py``."""

    binary: str
    folder: Path

    def plan(self, main: str, *, only: str | None = None, **what: Any) -> None:
        """Say what the main will do: ``code``, ``say`` (lines), ``written``, ``verdict``, ``judgement``, ``hang``,
        ``result`` (what it writes into the file of its result).

        With ``only``: for that pipeline, whatever is planned for others.
        """
        (self.folder / (f"{only}.{main}.plan" if only else f"{main}.plan")).write_text(json.dumps(what))

    def call(self, main: str) -> dict[str, Any] | None:
        """Return argv and environment of the last call of a main, None when it was not called."""
        file = self.folder / f"{main}.call"
        return json.loads(file.read_text()) if file.exists() else None


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    """The fake, in place of the real one."""
    folder = tmp_path / "fake"
    folder.mkdir()
    binary = folder / "spark-submit"
    script = Path(__file__).parent / "fakes" / "spark_submit.py"
    binary.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    binary.chmod(0o755)
    monkeypatch.setenv("FAKE_SPARK", str(folder))
    return FakeSpark(str(binary), folder)


@pytest.fixture
def dag(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> DAG:
    """The DAG ``flights``, whose topic has 12 records that wait, whose Spark is the fake, and which tries once."""
    from sluice_airflow.factory import build_dag

    full = Backlog("flights", (PartitionLag("flights", 0, 0, 0, 12),))
    monkeypatch.setattr("sluice_airflow.sensors.kafka_lag.look", lambda *_, **__: full)
    dag = build_dag("flights")
    for task in ("ingest", "validate"):
        dag.get_task(task)._spark_binary = spark.binary
        dag.get_task(task).retries = 0
    return dag


@pytest.fixture
def dags_in(airflow_db: None) -> Callable[[Path], dict[str, DAG]]:
    """Read DAG files as Airflow does, into its database: then ``dag.test()`` has what it needs."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    def read(folder: Path) -> dict[str, DAG]:
        DagBundlesManager().sync_bundles_to_db()
        bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")
        assert bag.import_errors == {}
        sync_bag_to_db(bag, "dags-folder", None)
        return dict(bag.dags)

    return read


@pytest.fixture
def events(airflow_db: None) -> Callable[[], list[tuple[str, dict[str, Any]]]]:
    """Return URI and extra of the asset events that came since the test began."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    with create_session() as session:
        before = session.scalar(select(func.max(AssetEvent.id))) or 0

    def since() -> list[tuple[str, dict[str, Any]]]:
        with create_session() as session:
            found = session.scalars(select(AssetEvent).where(AssetEvent.id > before).order_by(AssetEvent.id)).all()
            return [(event.asset.uri, event.extra) for event in found]

    return since


@pytest.fixture
def call_back(airflow_db: None) -> Callable[[Any, Path], None]:
    """Let Airflow's DAG processor call what a DAG file names for a failed run, in a process of its own, as it does."""
    import structlog
    from airflow.dag_processing.manager import _make_execution_api
    from airflow.dag_processing.processor import DagFileProcessorProcess
    from airflow.models.dagrun import DagRun
    from airflow.sdk.api.client import Client
    from airflow.utils.session import create_session
    from uuid6 import uuid7

    client = Client(base_url=None, token="", dry_run=True, transport=_make_execution_api().transport)
    client.base_url = "http://in-process.invalid./"

    def call(run: Any, file: Path) -> None:
        with create_session() as session:
            known = session.get(DagRun, run.id)
            assert known is not None
            last = max(known.get_task_instances(session=session), key=lambda ti: ti.end_date)
            request = known.produce_dag_callback(dag=None, success=False, relevant_ti=last, reason="task_failure")
        with (file.parent / "processor.log").open("wb") as log:
            process = DagFileProcessorProcess.start(
                id=uuid7(), path=file, bundle_path=file.parent, bundle_name="dags-folder", dag_file_rel_path=file.name,
                callbacks=[request], logger=structlog.get_logger(), logger_filehandle=log, client=client,
            )  # fmt: skip
            while not process.is_ready:
                process._service_subprocess(0.1)

    return call


class FakeTaskInstance:
    """What operators ask of a task instance."""

    def __init__(self, try_number: int = 1) -> None:
        self.try_number = try_number
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = json.loads(json.dumps(value))


@pytest.fixture
def context() -> Callable[..., dict[str, Any]]:
    """Make a context without any date, as an asset-triggered or dateless manual run has."""

    def make(try_number: int = 1, **params: Any) -> dict[str, Any]:
        return {"params": params, "run_id": "manual__1", "ti": FakeTaskInstance(try_number)}

    return make


DOWN = SourceUnreachableError("no broker answers", state="untouched", next_step="start it")


def behind(records: int, *, position: int = 5, **more: Any) -> Backlog:
    return Backlog("demo", (PartitionLag("demo", 0, position, 0, position + records),), Limits(10), **more)


def unknown(error: SluiceError = DOWN) -> Backlog:
    return Backlog("demo", (), Limits(10), error)


class Looks:
    """Answers in turn; the last one again and again."""

    def __init__(self, *answers: Backlog | SluiceError) -> None:
        self.answers = list(answers)
        self.count = 0
        self.limits: Any = None

    def __call__(self, pipeline: str, settings: Any, *, limits: Any, timeout: float) -> Backlog:
        answer = self.answers[min(self.count, len(self.answers) - 1)]
        self.count += 1
        self.limits = limits
        if isinstance(answer, SluiceError):
            raise answer
        return answer


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Looks]:
    """Let sensor and trigger see these backlogs, in turn."""

    def use(*answers: Backlog | SluiceError) -> Looks:
        fake = Looks(*answers)
        monkeypatch.setattr("sluice_airflow.sensors.kafka_lag.look", fake)
        monkeypatch.setattr("sluice_airflow.triggers.kafka_lag.look", fake)
        return fake

    return use


@pytest.fixture
def sensor(pipeline_file: Callable[..., Path]) -> Callable[..., KafkaLagSensor]:
    """Make the sensor of a small pipeline."""
    from sluice_airflow.sensors.kafka_lag import KafkaLagSensor

    def make(**kwargs: Any) -> KafkaLagSensor:
        kwargs = {"timeout": 60, "poke_interval": 1, **kwargs}
        return KafkaLagSensor(task_id="wait", pipeline=str(pipeline_file()), **kwargs)

    return make


@pytest.fixture
def trigger(pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., KafkaLagTrigger]:
    """Make the trigger that this sensor would defer to."""
    from sluice_airflow.triggers.kafka_lag import KafkaLagTrigger

    async def no_sleep(_seconds: float) -> None: ...

    monkeypatch.setattr("sluice_airflow.triggers.kafka_lag.asyncio.sleep", no_sleep)

    def make(on_idle: str = "wait", deadline: float | None = None) -> KafkaLagTrigger:
        return KafkaLagTrigger(
            pipeline=str(pipeline_file()),
            kafka_conn_id="kafka_default",
            on_idle=on_idle,
            poll_interval=5,
            broker_timeout=2,
            deadline=time.time() + 60 if deadline is None else deadline,
        )

    return make
