"""An Airflow of its own: home, database and folders; nothing of the developer's is read or written."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import sqlite3
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.airflow_tables import copy_tables

from sluice.errors import SluiceError, SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag
from sluice.ledger import Ledger
from sluice.ledger.events import Judged, RunClosed, RunPlanned, batch_committed
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount
from sluice.run.actions import Validate, parsed

if TYPE_CHECKING:
    from airflow.sdk import DAG

PROJECT = Path(__file__).resolve().parents[2]

# Airflow reads its configuration at its first import: this has to come before any.
_HOME = tempfile.mkdtemp(prefix="sluice-airflow-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(
    AIRFLOW_HOME=_HOME,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=f"{_HOME}/dags",
    AIRFLOW__CORE__PLUGINS_FOLDER=str(PROJECT / "plugins"),
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    AIRFLOW__LOGGING__BASE_LOG_FOLDER=f"{_HOME}/logs",
)
for _name in [n for n in os.environ if n.startswith("AIRFLOW_CONN_")]:
    del os.environ[_name]
Path(_HOME, "dags").mkdir()
Path(_HOME, "dags", "flights.py").write_text(  # Airflow reads its folder before each ``dag.test()``: one DAG is quick
    "from sluice_airflow.factory import build_dag\n\n"
    f"dag = build_dag({str(PROJECT / 'include' / 'pipelines' / 'flights.yaml')!r})\n"
)

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
    copy_tables(Path(_HOME) / "airflow.db")


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger's file, migrated once."""
    file = tmp_path_factory.mktemp("ledger") / "ledger.db"
    Ledger.open(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, empty_ledger: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``SLUICE_HOME`` of the test's own, the two connections, and no need for the jars."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(empty_ledger, home / "ledger.db")
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    extra = {"bootstrap.servers": "broker:9092", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    extra |= {"sasl.username": "reader", "sasl.password": SECRET}
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


class FakeSpark:
    """A ``spark-submit`` that does what a test plans, by the action's name: it writes the ledger, speaks and exits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plans: dict[str, dict[str, Any]] = {}
        self.calls: dict[str, dict[str, Any]] = {}
        self.binary = str(folder / "spark-submit")
        script = Path(__file__).parent / "fakes" / "spark_submit.py"
        Path(self.binary).write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{script}" "$@"\n')
        Path(self.binary).chmod(0o755)
        self.server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def plan(self, name: str, *, only: str | None = None, **what: Any) -> None:
        """Plan what an application does: ``code``, ``say`` (lines), ``written``, ``verdict``, ``judgement``, ``hang``,
        ``result`` (what it writes into the file of its result); with ``once`` the next attempt does nothing of it.

        With ``only``: for that pipeline, whatever is planned for others.
        """
        self.plans[f"{only}.{name}" if only else name] = json.loads(json.dumps(what))

    def _serve(self) -> None:
        with suppress(OSError):  # the server is closed
            while True:
                connection, _ = self.server.accept()
                with connection, connection.makefile("rw") as stream:
                    call = json.loads(stream.readline())
                    try:
                        answer = self._answer(call, call["argv"])
                    except Exception:
                        answer = {"say": traceback.format_exc().splitlines(), "code": 1}
                    stream.write(json.dumps(answer) + "\n")

    def _answer(self, call: dict[str, Any], argv: list[str]) -> dict[str, Any]:
        at = next(n for n, word in enumerate(argv) if word.endswith("/spark_jobs/job.py"))
        file, action = argv[at + 1], parsed(argv[at + 2 :])
        self.calls[action.name] = call | {"action": action}
        only = f"{Path(file).stem}.{action.name}"
        name = only if only in self.plans else action.name
        plan = self.plans.get(name, {})
        if plan.get("once"):
            self.plans[name] = {}
        if "result" in plan:
            action.result.write_text(json.dumps(plan["result"]))
        elif plan.get("record", True) and "hang" not in plan:
            _record(plan, file, action)
        return {**plan, "pids": str(self.folder / "pids")}


def _record(plan: dict[str, Any], file: str, action: Any) -> None:
    """Write what an application would write into the ledger."""
    from sluice.pipeline import load

    pipeline, ledger, run = load(file), Ledger.open(), action.run_id
    verdict = plan.get("verdict") if getattr(action, "validate", True) else None
    judged = [Judged(verdict=verdict, judgement=plan.get("judgement", {}))] if verdict else []
    if isinstance(action, Validate):
        for event in judged:
            ledger.decide(pipeline.name, run, event)
        return
    with ledger.acquire(pipeline.name, run) as lease:
        kind = action.name if action.name in ("retract", "reset") else "live"
        ledger.record(lease, RunPlanned(kind=kind, recovery="replay", epoch=1, ranges=[], topic_ids={}))
        start = 0
        for batch, written in enumerate(plan.get("written", [])):
            part = OffsetRange(pipeline.source.config.streams[0], 0, start, start + written)
            ledger.record(lease, *batch_committed(1, batch, [RangeAccount(part, Counts(written=written))]))
            start += written
        ledger.record(lease, *judged, RunClosed(state="failed" if plan.get("code") else "done", seconds=1.5))


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpark]:
    """The fake, in place of the real one."""
    folder = tmp_path / "fake"
    folder.mkdir()
    fake = FakeSpark(folder)
    monkeypatch.setenv("FAKE_SPARK", str(fake.server.getsockname()[1]))
    yield fake
    fake.server.shutdown(socket.SHUT_RDWR)  # or the thread goes on accepting
    fake.server.close()


def account_for(*spans: tuple[int, int], part: str = "filtered", pipeline: str = "p", run: str = "live") -> None:
    """Let a run of a pipeline account for spans of its topic's partition 0, all of them as one part."""
    ledger = Ledger.open()
    with ledger.acquire(pipeline, run) as lease:
        ranges = [OffsetRange(pipeline, 0, *span) for span in spans]
        recovery = "ignore_range" if part == "lost" else "replay"
        ledger.record(lease, RunPlanned(kind="live", recovery=recovery, epoch=1, ranges=ranges, topic_ids={}))
        for batch, found in enumerate(ranges):
            lost = [LostRange(found, "poison")] if part == "lost" else []
            accounts = [RangeAccount(found, Counts(**{part: len(found)}))]
            ledger.record(lease, *batch_committed(1, batch, accounts, lost=lost))
        ledger.record(lease, RunClosed(state="done", seconds=1.0))


@pytest.fixture
def backlog(monkeypatch: pytest.MonkeyPatch) -> Callable[[Backlog], None]:
    """Let every look at a broker, of sensor, trigger or freshness check, find a backlog; before: 12 records."""

    def find(found: Backlog) -> None:
        for module in ("sensors.kafka_lag", "triggers.kafka_lag", "operators.freshness"):
            monkeypatch.setattr(f"sluice_airflow.{module}.look", lambda *_, **__: found)

    find(Backlog("any", (PartitionLag("any", 0, 0, 0, 12),)))
    return find


@pytest.fixture
def dag(spark: FakeSpark, backlog: Callable[[Backlog], None]) -> DAG:
    """The project's DAG ``flights``, whose topic has 12 records that wait, and whose Spark is the fake."""
    from sluice_airflow.factory import build_dag

    return use(spark, build_dag("flights"))


def use(spark: FakeSpark, dag: DAG) -> DAG:
    """Let the tasks of a DAG start the fake."""
    for task in dag.tasks:
        if hasattr(task, "_spark_binary"):
            task._spark_binary = spark.binary
    return dag


def states(run: Any) -> dict[str, str]:
    """Return the states of a run's tasks."""
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


@pytest.fixture
def dags_in(airflow_db: None, tmp_path: Path) -> Callable[[Path | str], dict[str, DAG]]:
    """Read a folder or the text of a DAG file as Airflow does, into its database, which ``dag.test()`` needs."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    def read(dags: Path | str) -> dict[str, DAG]:
        folder = dags if isinstance(dags, Path) else tmp_path / "dags"
        if isinstance(dags, str):
            folder.mkdir()
            (folder / "all.py").write_text(dags)
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
    """A task instance as far as operators use it."""

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
