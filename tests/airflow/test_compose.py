"""docker-compose.yaml and Dockerfile, read; that the stack comes up as they say is in ``test_compose_stack.py``."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.fixtures.compose_file import (
    CHECKOUT,
    EXAMPLE,
    MissingVariableError,
    Service,
    commands,
    compose,
    image,
    services,
)

from sluice.local.kafka import DEFAULT_PORT

pytestmark = pytest.mark.airflow

SHARED = ("AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__CORE__FERNET_KEY")
AIRFLOW = ("init", "api-server", "scheduler", "dag-processor", "triggerer")
SPARK = ("spark-master", "spark-worker")
NASTY = "a/b@c:d%e\\f'g\"h $i#?"
DOCKERFILE = (CHECKOUT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The secrets that the commands of ``.env.example`` make in an empty folder."""
    folder = tmp_path_factory.mktemp("checkout")
    done = subprocess.run(["bash", "-euc", commands()], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "secrets"


def entry(folder: Path, secrets: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the image's entry point, with the secrets where they are here."""
    script = folder / "entrypoint.sh"
    script.write_text((CHECKOUT / "docker/entrypoint.sh").read_text().replace("/run/secrets", str(secrets)))
    conf = {"PGPASSFILE": str(folder / "pgpass"), "SPARK_CONF_DIR": str(folder / "spark")}
    env = {"PATH": os.environ["PATH"], **conf, **environment}
    return subprocess.run(["sh", str(script), *command], env=env, capture_output=True, text=True)


def mounts(name: str) -> dict[str, str]:
    return {volume.split(":")[1]: volume.split(":")[0] for volume in services()[name]["volumes"]}


def test_compose_file_follows_the_specification() -> None:
    schema = json.loads((CHECKOUT / "tests/fixtures/compose/compose-spec.json").read_text())
    jsonschema.validate(compose(), schema)
    with pytest.raises(MissingVariableError, match=r"\.env\.example"):
        compose({})


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose here")
def test_compose_file_is_read_by_docker_compose() -> None:
    command = ["docker-compose", "--env-file", str(EXAMPLE), "config"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(services())


def test_compose_services_restart_have_health_checks_and_publish_to_this_machine_only() -> None:
    once = {"init"}
    assert {name for name, tree in services().items() if tree["restart"] == "no"} == once
    assert {tree["restart"] for name, tree in services().items() if name not in once} == {"unless-stopped"}
    assert {name for name, tree in services().items() if "healthcheck" not in tree} == once
    # the server that makes the databases has a socket only
    assert "-h" in services()["postgres"]["healthcheck"]["test"]
    ports = [port for tree in services().values() for port in tree.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:8080:8080", "127.0.0.1:8081:8080", f"127.0.0.1:{DEFAULT_PORT}:19092"]


def test_compose_and_dockerfile_name_each_image_of_others_with_version_and_digest() -> None:
    based = re.findall(r"^FROM (\S+)", (CHECKOUT / "Dockerfile").read_text(), re.MULTILINE)
    named = {service["image"] for service in services().values() if "build" not in service} - {"sluice"}
    assert (len(based), len(named)) == (1, 2)
    for name in (*based, *named):
        assert re.fullmatch(r"[a-z/]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", name)


def test_compose_broker_has_one_listener_for_containers_and_one_for_this_machine() -> None:
    kafka = services()["kafka"]
    settings = kafka["environment"]
    advertised = dict(item.split("://") for item in settings["KAFKA_ADVERTISED_LISTENERS"].split(","))
    listening = dict(item.split("://:") for item in settings["KAFKA_LISTENERS"].split(","))
    assert advertised == {"PLAINTEXT": "kafka:9092", "HOST": "localhost:9092"}
    assert kafka["ports"] == [f"127.0.0.1:9092:{listening['HOST']}"]
    mapped = settings["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    assert {item.split(":")[0] for item in mapped} == set(listening)


def test_compose_spark_workers_serve_two_applications() -> None:
    worker, master = services()["spark-worker"], services()["spark-master"]
    assert worker["deploy"]["replicas"] == 2
    (cores,) = re.findall(r"defaultCores=(\d+)", master["environment"]["SPARK_MASTER_OPTS"])
    assert int(cores) == 2  # one of each worker: strategy hot needs two executors
    assert worker["environment"]["SPARK_WORKER_CORES"] == 2
    scheduler = services()["scheduler"]["environment"]
    connection: dict[str, Any] = json.loads(scheduler["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert connection["host"] == "spark://spark-master:7077"
    assert connection["host"] in Service("spark-worker", worker).command
    assert int(scheduler["AIRFLOW__CORE__PARALLELISM"]) <= 4


def test_compose_services_read_secrets_from_files_and_share_the_keys() -> None:
    found = {name: services()[name]["environment"] for name in AIRFLOW}
    assert all(len({found[name][f"{key}_CMD"] for name in AIRFLOW}) == 1 for key in SHARED)
    assert len({json.dumps(each, sort_keys=True) for each in found.values()}) == 1
    for name, tree in services().items():
        environment = {key: str(value) for key, value in tree.get("environment", {}).items()}
        read = {value.split("/")[-1] for value in environment.values() if "/run/sec" in value}
        assert read <= set(tree.get("secrets", [])) <= set(compose()["secrets"]), name
        for key, value in environment.items():
            assert not re.search("PASSWORD|SECRET|FERNET", key) or key.endswith(("_CMD", "_FILE")), key
            assert not re.search(r"://[^/@]*:[^/@]*@", value), key  # user:password@host
    assert all(set(secret) == {"file"} for secret in compose()["secrets"].values())
    for name in SPARK:  # executors inherit it
        assert services()[name]["secrets"] == ["spark_secret"]
        assert not [key for key in services()[name].get("environment", {}) if key.startswith(("AIRFLOW", "PG"))]


def test_compose_secrets_are_left_out_of_git_and_of_the_image() -> None:
    ignored = (CHECKOUT / ".gitignore").read_text().splitlines()
    assert {"/.env", "/secrets/"} <= set(ignored)
    first, *allowed = (CHECKOUT / ".dockerignore").read_text().splitlines()
    assert first == "*"
    assert not {"!.env", "!secrets", "!."} & set(allowed)


def test_compose_commands_of_env_example_make_every_secret(secrets: Path) -> None:
    assert {path.name for path in secrets.iterdir()} == {Path(s["file"]).name for s in compose()["secrets"].values()}
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets.iterdir()} == {0o644}
    assert len(base64.urlsafe_b64decode((secrets / "fernet_key").read_text().strip())) == 32
    assert len((secrets / "jwt_secret").read_text().strip()) >= 64  # bytes, for HS512
    assert len({path.read_text() for path in secrets.iterdir()}) == 7


def test_compose_entrypoint_takes_passwords_with_characters_that_a_url_cannot_hold(
    secrets: Path, tmp_path: Path
) -> None:
    mine = shutil.copytree(secrets, tmp_path / "mine")
    (mine / "airflow_db_password").write_text(NASTY + "\n")
    (mine / "ledger_db_password").write_text(NASTY[::-1])  # no line break
    done = entry(tmp_path, mine, "echo", "started")
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
    file = tmp_path / "pgpass"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    spark = tmp_path / "spark/spark-defaults.conf"
    assert stat.S_IMODE(spark.stat().st_mode) == 0o600
    assert spark.read_text().splitlines() == [
        "spark.authenticate true", f"spark.authenticate.secret {(mine / 'spark_secret').read_text().strip()}"
    ]  # fmt: skip
    lines = [re.sub(r"\\(.)", r"\1", line) for line in file.read_text().splitlines()]
    assert lines == [f"*:*:airflow:airflow:{NASTY}", f"*:*:ledger:ledger:{NASTY[::-1]}"]
    bare = entry(tmp_path, tmp_path / "none", "echo", "started", PGPASSFILE="", SPARK_CONF_DIR="")
    assert bare.stdout == "started\n", "without any"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "") for name in ("airflow_db_password", "ledger_db_password", "fernet_key", "spark_secret")),
        ("fernet_key", "0123456789abcdef" * 4),  # in hex: refused before the first connection is saved
    ],
)
def test_compose_entrypoint_refuses_a_secret_that_is_missing_or_wrong(
    secrets: Path, tmp_path: Path, name: str, value: str
) -> None:
    mine = shutil.copytree(secrets, tmp_path / "mine")
    (mine / name).write_text(value)
    done = entry(tmp_path, mine, "echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    token = "Fernet" if value else name
    assert token in done.stderr
    assert value or ".env.example" in done.stderr


def test_compose_mounts_the_checkout_read_only_and_one_home_without_logins() -> None:
    for name in (*AIRFLOW, *SPARK):
        for folder in ("dags", "include", "plugins", "spark_jobs"):
            assert f"./{folder}:/opt/sluice/{folder}:ro" in services()[name]["volumes"]
    home, airflow = image()["SLUICE_HOME"], image()["AIRFLOW_HOME"]
    assert {mounts(name)[home] for name in (*AIRFLOW, *SPARK)} == {"home"}
    assert {mounts(name)[f"{airflow}/logs"] for name in AIRFLOW} == {"logs"}
    logins = Path(services()["api-server"]["environment"]["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    assert not str(logins).startswith(home)
    assert [name for name in services() if str(logins.parent) in mounts(name)] == ["api-server"]


def test_compose_declares_every_volume_and_the_image_owns_its_folders() -> None:
    sources = {source for name in services() for source in mounts(name).values()}
    assert {source for source in sources if not source.startswith(".")} == set(compose()["volumes"])
    assert all((CHECKOUT / source).exists() for source in sources if source.startswith("."))
    # a new volume belongs to root otherwise, and no process in the containers is root
    made = re.search(r"mkdir -p (/opt/airflow.*?) \\", DOCKERFILE)
    assert made
    volumes = {t for name in (*AIRFLOW, *SPARK) for t, s in mounts(name).items() if not s.startswith(".")}
    assert set(made[1].split()) == volumes
    assert re.search(r"^USER (?!root|0)\w+$", DOCKERFILE.rpartition("FROM ")[2], re.MULTILINE)


def test_compose_dockerfile_copies_files_that_dockerignore_allows_and_sets_one_variable_a_line() -> None:
    allowed = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = DOCKERFILE.splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert {name for names in copies for name in names} == allowed
    assert all((CHECKOUT / name).exists() for name in allowed)
    # test_compose_stack takes the image's environment from it
    assert all(re.fullmatch(r"ENV \w+=\S+", line) for line in lines if line.startswith("ENV"))
    assert {"SLUICE_HOME", "SLUICE_JARS", "SLUICE_JVM_ARCHIVE", "AIRFLOW_HOME", "LANG"} <= set(image())
