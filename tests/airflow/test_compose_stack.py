"""docker-compose.yaml brought up without containers: each service by its own command, environment and health check.

Six minutes on two cores that others use as well: ``make chaos`` runs it.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg2
import pytest
from tests.fixtures.compose_file import services
from tests.fixtures.containers import HOST, Containers, Ui
from tests.fixtures.postgres import binaries

from sluice.local.kafka import Record, Topics

pytestmark = [
    *(getattr(pytest.mark, name) for name in ("airflow", "spark", "kafka", "long")),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(binaries() is None, reason="no PostgreSQL server binaries here: apt-get install postgresql"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here"),
]

PASSWORDS = {"airflow_db_password": "a/b@c:d%e\\f'g\"h $i#?", "ledger_db_password": "?#i$ h\"g'f\\e%d:c@b/a\n"}

PIPELINE = """\
pipeline: {name}
source: {{kafka: {{topics: [{name}]}}}}
decode: {{json: {{schema: "id BIGINT, amount DOUBLE"}}}}
sink: {{delta: {{path: {name}}}}}
quality: {{suite: expectations/orders.json}}
schedule: {schedule}
lag: {{max_records: 0}}
"""
SUITE = {
    "name": "orders",
    "expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}],
}

# as the API server does for a log that it does not find in its own folder
FETCH = """\
import sys
from airflow.utils.log.file_task_handler import _fetch_logs_from_service
print(_fetch_logs_from_service(sys.argv[1], sys.argv[2]).status_code)
"""
STRANGER = """\
import sys
from pyspark.sql import SparkSession
print("read:", SparkSession.builder.master(sys.argv[1]).getOrCreate().range(1).count())
"""
READ = """\
import sys
from airflow.models import Connection
print("read:" + Connection.get_connection_from_secrets(sys.argv[1]).password)
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """All services, healthy, started in the order that the file names."""
    stack = Containers(tmp_path_factory.mktemp("stack"), PASSWORDS)
    try:
        stack.start("postgres")
        stack.start("kafka")
        stack.await_health("postgres")
        stack.init("init")
        stack.start("spark-master")
        stack.await_health("spark-master")
        for name in ("spark-worker", "api-server", "scheduler", "dag-processor", "triggerer"):
            stack.start(name)
        for name, tree in services().items():
            if "healthcheck" in tree:
                print(f"{name}: healthy after {stack.await_health(name):.1f} s more")
        yield stack
    finally:
        stack.end()


@pytest.fixture(scope="module")
def ui(stack: Containers) -> Ui:
    """The API, by the login that the api-server wrote into its volume."""
    return Ui(stack.port("api-server", 8080), stack.volume("login") / "passwords.json")


def produce(stack: Containers, topic: str, count: int) -> None:
    """Produce as a program on this machine would, through the published port."""
    topics = Topics(f"localhost:{stack.port('kafka', 19092)}")
    if not topics.exists(topic):
        topics.create(topic, 2)
    topics.produce(topic, [Record(i % 2, b"k", json.dumps({"id": i, "amount": i / 7}).encode()) for i in range(count)])


def write_pipeline(stack: Containers, name: str, schedule: str = "none") -> None:
    """Write a pipeline into the checkout that is mounted, while everything runs."""
    include = stack.checkout / "include"
    (include / "expectations/orders.json").write_text(json.dumps(SUITE))
    (include / f"pipelines/{name}.yaml").write_text(PIPELINE.format(name=name, schedule=schedule))


def ended(ui: Ui, dag: str, run: str) -> tuple[str, dict[str, str]]:
    """Return how a run and its tasks ended."""
    *_, (state, tasks, _) = ui.states(dag, run)
    return state, tasks


@pytest.fixture(scope="module")
def ran(stack: Containers, ui: Ui) -> str:
    """The run of a pipeline that was written after the start."""
    produce(stack, "orders", 500)
    write_pipeline(stack, "orders")
    ui.wait_for_dag("orders")
    run = ui.trigger("orders")
    state, tasks = ended(ui, "orders", run)
    assert state == "success", (tasks, stack.log("scheduler"))
    return run


def test_compose_stack_runs_a_new_pipeline_on_both_workers(stack: Containers, ran: str) -> None:
    master = httpx.get(f"http://{HOST}:{stack.port('spark-master', 8080)}/json/").json()
    assert master["aliveworkers"] == 2
    (application,) = [app for app in master["completedapps"] if app["name"] == "sluice-orders"]
    assert (application["state"], application["cores"]) == ("FINISHED", 2)


def test_compose_master_refuses_an_application_without_the_secret(stack: Containers, ran: str) -> None:
    # Spark gives up after a minute
    master = f"spark://{HOST}:{stack.port('spark-master', 7077)}"
    words = [sys.executable, "-c", STRANGER, master]
    done = stack.run("scheduler", *words, variables={"SPARK_CONF_DIR": str(stack.root)})
    assert done.returncode != 0
    assert "read:" not in done.stdout
    assert "All masters are unresponsive" in done.stderr


def test_compose_ledger_is_a_database_of_its_own(stack: Containers, ran: str) -> None:
    # as `docker compose exec scheduler sluice status orders` does
    program = str(Path(sys.executable).with_name("sluice"))
    status = stack.run("scheduler", program, "status", "orders", "--json")
    assert status.returncode == 0, status.stderr
    assert "passed" in status.stdout
    assert not (stack.volume("home") / "ledger.db").exists()
    port = stack.port("postgres", 5432)
    for role, other in (("airflow", "ledger"), ("ledger", "airflow")):
        password = PASSWORDS[f"{role}_db_password"].strip()
        psycopg2.connect(host=HOST, port=port, user=role, dbname=role, password=password).close()
        with pytest.raises(psycopg2.OperationalError, match="permission denied"):
            psycopg2.connect(host=HOST, port=port, user=role, dbname=other, password=password)
        with pytest.raises(psycopg2.OperationalError, match="password"):
            psycopg2.connect(host=HOST, port=port, user=role, dbname=role, password="another")


def test_compose_components_serve_their_logs_to_each_other(stack: Containers, ui: Ui, ran: str) -> None:
    log = ui.call("GET", f"/dags/orders/dagRuns/{ran}/taskInstances/ingest/logs/1?full_content=true")
    assert "sluice:" in json.dumps(log["content"])
    # a log that is still in the scheduler only: the shared key is what opens it
    logs = stack.volume("logs")
    (file,) = (path for path in logs.glob("dag_id=orders/**/task_id=ingest/attempt=1.log") if ran in str(path))
    name = str(file.relative_to(logs))
    url = f"http://{HOST}:{stack.port('scheduler', 8793)}/log/{name}"
    assert stack.run("api-server", sys.executable, "-c", FETCH, url, name).stdout.split()[-1] == "200"
    key = stack.secrets / "api_secret_key"
    shared = key.read_text()
    key.write_text("a key of its own, as each container had once: long enough for HS512, and not the others'\n")
    try:
        assert stack.run("api-server", sys.executable, "-c", FETCH, url, name).stdout.split()[-1] == "403"
    finally:
        key.write_text(shared)


def test_compose_connection_saved_in_the_ui_is_encrypted_and_read_elsewhere(stack: Containers, ui: Ui) -> None:
    secret = "hunter2@/%"
    ui.call("POST", "/connections", {"connection_id": "saved", "conn_type": "kafka", "password": secret})
    found = stack.run("scheduler", sys.executable, "-c", READ, "saved")
    assert f"read:{secret}" in found.stdout.splitlines(), found.stderr[-2000:]
    password = PASSWORDS["airflow_db_password"]
    server = {"host": HOST, "port": stack.port("postgres", 5432), "user": "airflow", "dbname": "airflow"}
    with psycopg2.connect(**server, password=password) as database, database.cursor() as cursor:
        cursor.execute("SELECT password, is_encrypted FROM connection WHERE conn_id = 'saved'")
        ((stored, encrypted),) = cursor.fetchall()
    assert encrypted
    assert secret not in stored


def test_compose_stack_starts_a_run_by_a_backlog(stack: Containers, ui: Ui) -> None:
    # the triggerer decrypts what the DAG processor encrypted
    produce(stack, "arrivals", 100)
    write_pipeline(stack, "arrivals", "on_lag")
    ui.wait_for_dag("arrivals")
    ui.call("PATCH", "/dags/arrivals?update_mask=is_paused", {"is_paused": False})
    (first,) = ui.await_runs("arrivals", lambda run: True)
    state, tasks = ended(ui, "arrivals", first["dag_run_id"])
    assert state == "success", (tasks, stack.log("triggerer"))


def test_compose_services_are_still_up_and_wrote_no_secret_to_a_log(stack: Containers) -> None:
    assert all(stack.alive().values()), stack.alive()
    for name in ("dag-processor", "triggerer", "scheduler", "api-server"):
        stack.await_health(name, 30)
    secrets = [path.read_text().strip() for path in stack.secrets.iterdir()]
    for log in [*stack.root.glob("*.log"), *stack.volume("logs").rglob("*.log")]:
        text = log.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], log
