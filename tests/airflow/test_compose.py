"""docker-compose.yaml and Dockerfile, read: that the stack comes up as they say is in ``test_compose_stack.py``."""

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


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands of ``.env.example`` make in an empty folder."""
    folder = tmp_path_factory.mktemp("checkout")
    done = subprocess.run(["bash", "-euc", commands()], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "secrets"


def entry(folder: Path, secrets: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the image's entry point, with the secrets where they are here."""
    script = folder / "entrypoint.sh"
    script.write_text((CHECKOUT / "docker/entrypoint.sh").read_text().replace("/run/secrets", str(secrets)))
    env = {"PATH": os.environ["PATH"], "PGPASSFILE": str(folder / "pgpass"), **environment}
    return subprocess.run(["sh", str(script), *command], env=env, capture_output=True, text=True)


# --- the file --------------------------------------------------------------------------------------------------------


def test_it_is_what_the_compose_specification_allows() -> None:
    schema = json.loads((CHECKOUT / "tests/fixtures/compose/compose-spec.json").read_text())
    jsonschema.validate(compose(), schema)


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose here")
def test_docker_compose_reads_it() -> None:
    done = subprocess.run(
        ["docker-compose", "--env-file", str(EXAMPLE), "config"], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(services())


def test_without_settings_it_says_what_to_do_first() -> None:
    with pytest.raises(MissingVariableError, match=r"copy \.env\.example to \.env, and run the commands in it"):
        compose({})


def test_all_come_back_after_a_crash_but_the_one_that_ends() -> None:
    restarts = {name: tree["restart"] for name, tree in services().items()}
    assert restarts.pop("init") == "no"
    assert set(restarts.values()) == {"unless-stopped"}


def test_all_that_stay_up_have_a_health_check() -> None:
    assert {name for name, tree in services().items() if "healthcheck" not in tree} == {"init"}


def test_everything_is_published_for_this_machine_only() -> None:
    ports = [port for tree in services().values() for port in tree.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:8080:8080", "127.0.0.1:8081:8080", f"127.0.0.1:{DEFAULT_PORT}:19092"]


def test_postgres_is_asked_over_the_network() -> None:
    # the server that makes the databases has a socket only
    assert "-h" in services()["postgres"]["healthcheck"]["test"]


def test_a_broker_has_one_listener_for_containers_and_one_for_this_machine() -> None:
    kafka = services()["kafka"]
    advertised = dict(item.split("://") for item in kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(","))
    listening = dict(item.split("://:") for item in kafka["environment"]["KAFKA_LISTENERS"].split(","))
    assert advertised == {"PLAINTEXT": "kafka:9092", "HOST": "localhost:9092"}
    assert kafka["ports"] == [f"127.0.0.1:9092:{listening['HOST']}"]
    mapped = kafka["environment"]["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]
    assert {item.split(":")[0] for item in mapped.split(",")} == set(listening)


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_all_parts_of_airflow_have_the_same_keys() -> None:
    found = {name: services()[name]["environment"] for name in AIRFLOW}
    for key in SHARED:
        assert len({found[name][f"{key}_CMD"] for name in AIRFLOW}) == 1
    assert len({json.dumps(each, sort_keys=True) for each in found.values()}) == 1


def test_each_command_reads_a_secret_that_the_service_has() -> None:
    for name, tree in services().items():
        read = {value.split("/")[-1] for value in map(str, tree.get("environment", {}).values()) if "/run/sec" in value}
        assert read <= set(tree.get("secrets", [])), name
        assert set(tree.get("secrets", [])) <= set(compose()["secrets"]), name


def test_no_value_is_a_secret() -> None:
    for tree in services().values():
        for key, value in tree.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|FERNET", key):
                assert key.endswith(("_CMD", "_FILE")), key
            # user:password@host
            assert not re.search(r"://[^/@]*:[^/@]*@", str(value)), key
    assert all(set(secret) == {"file"} for secret in compose()["secrets"].values())


def test_executors_get_no_secrets() -> None:
    for name in SPARK:
        assert "secrets" not in services()[name]
        assert not [key for key in services()[name].get("environment", {}) if key.startswith(("AIRFLOW", "PG"))]


def test_git_and_the_image_leave_secrets_out() -> None:
    ignored = (CHECKOUT / ".gitignore").read_text().splitlines()
    assert {"/.env", "/secrets/"} <= set(ignored)
    first, *allowed = (CHECKOUT / ".dockerignore").read_text().splitlines()
    assert first == "*"
    assert not {"!.env", "!secrets", "!."} & set(allowed)


def test_the_named_commands_make_every_secret(secrets: Path) -> None:
    assert {path.name for path in secrets.iterdir()} == {Path(s["file"]).name for s in compose()["secrets"].values()}
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets.iterdir()} == {0o644}
    assert len(base64.urlsafe_b64decode((secrets / "fernet_key").read_text().strip())) == 32
    # HS512 wants 64 bytes
    assert len((secrets / "jwt_secret").read_text().strip()) >= 64
    assert len({path.read_text() for path in secrets.iterdir()}) == 6


def test_a_password_may_hold_what_a_url_cannot(secrets: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(secrets, tmp_path / "mine")
    (mine / "airflow_db_password").write_text(NASTY + "\n")
    (mine / "ledger_db_password").write_text(NASTY[::-1])  # no line break
    done = entry(tmp_path, mine, "echo", "started")
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
    file = tmp_path / "pgpass"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = [re.sub(r"\\(.)", r"\1", line) for line in file.read_text().splitlines()]
    assert lines == [f"*:*:airflow:airflow:{NASTY}", f"*:*:ledger:ledger:{NASTY[::-1]}"]


@pytest.mark.parametrize("name", ["airflow_db_password", "ledger_db_password", "fernet_key", "api_secret_key"])
def test_nothing_starts_without_a_secret(secrets: Path, tmp_path: Path, name: str) -> None:
    mine = shutil.copytree(secrets, tmp_path / "mine")
    (mine / name).write_text("")
    done = entry(tmp_path, mine, "echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the secret {name} is missing or empty" in done.stderr
    assert ".env.example" in done.stderr


def test_a_key_in_hex_is_refused_before_the_first_connection_is_saved(secrets: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(secrets, tmp_path / "mine")
    (mine / "fernet_key").write_text("0123456789abcdef" * 4)
    done = entry(tmp_path, mine, "echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no Fernet key" in done.stderr


def test_a_container_without_secrets_just_starts(tmp_path: Path) -> None:
    assert entry(tmp_path, tmp_path / "none", "echo", "started", PGPASSFILE="").stdout == "started\n"


# --- folders and the image -------------------------------------------------------------------------------------------


def mounts(name: str) -> dict[str, str]:
    """Target and source of what a service mounts."""
    return {volume.split(":")[1]: volume.split(":")[0] for volume in services()[name]["volumes"]}


def test_what_is_written_in_the_checkout_needs_no_new_image() -> None:
    for name in (*AIRFLOW, *SPARK):
        for folder in ("dags", "include", "plugins", "spark_jobs"):
            assert mounts(name)[f"/opt/sluice/{folder}"] == f"./{folder}"
            assert f"./{folder}:/opt/sluice/{folder}:ro" in services()[name]["volumes"]


def test_the_home_is_one_for_airflow_and_spark_and_holds_no_login() -> None:
    home = image()["SLUICE_HOME"]
    assert {mounts(name)[home] for name in (*AIRFLOW, *SPARK)} == {"home"}
    logins = services()["api-server"]["environment"]["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]
    assert not logins.startswith(home)
    folder = str(Path(logins).parent)
    assert [name for name in services() if folder in mounts(name)] == ["api-server"]
    assert f"{image()['AIRFLOW_HOME']}/logs" in mounts("api-server")
    assert {mounts(name)[f"{image()['AIRFLOW_HOME']}/logs"] for name in AIRFLOW} == {"logs"}


def test_every_volume_is_declared() -> None:
    named = {source for name in services() for source in mounts(name).values() if not source.startswith(".")}
    assert named == set(compose()["volumes"])
    for name in services():
        for source in mounts(name).values():
            assert not source.startswith(".") or (CHECKOUT / source).exists(), source


def test_a_volume_takes_the_owner_of_a_folder_of_the_image() -> None:
    # a new volume belongs to root otherwise, and nobody in the containers is root
    text = (CHECKOUT / "Dockerfile").read_text()
    made = re.search(r"mkdir -p (/opt/airflow.*?) \\", text)
    assert made
    volumes = {t for name in (*AIRFLOW, *SPARK) for t, s in mounts(name).items() if not s.startswith(".")}
    assert set(made[1].split()) == volumes
    last = text.rpartition("FROM ")[2]
    assert re.search(r"^USER (?!root|0)\w+$", last, re.MULTILINE)


def test_the_image_gets_all_that_it_copies() -> None:
    allowed = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for line in (CHECKOUT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            copied |= set(line.split()[1:-1])
    assert copied == allowed
    assert all((CHECKOUT / name).exists() for name in copied)


def test_the_dockerfile_can_be_read_line_by_line() -> None:
    # what test_compose_stack takes the image's environment from: one setting a line
    text = (CHECKOUT / "Dockerfile").read_text()
    assert all(re.fullmatch(r"ENV \w+=\S+", line) for line in text.splitlines() if line.startswith("ENV"))
    assert {"SLUICE_HOME", "SLUICE_JARS", "SLUICE_JVM_ARCHIVE", "AIRFLOW_HOME", "LANG"} <= set(image())


def test_two_workers_serve_two_applications() -> None:
    worker, master = services()["spark-worker"], services()["spark-master"]
    assert worker["deploy"]["replicas"] == 2
    (cores,) = re.findall(r"defaultCores=(\d+)", master["environment"]["SPARK_MASTER_OPTS"])
    assert int(cores) == 2  # one of each worker: strategy hot needs two executors
    assert worker["environment"]["SPARK_WORKER_CORES"] == 2
    connection: dict[str, Any] = json.loads(services()["scheduler"]["environment"]["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert connection["host"] == "spark://spark-master:7077"
    assert connection["host"] in Service("spark-worker", worker).command
    assert int(services()["scheduler"]["environment"]["AIRFLOW__CORE__PARALLELISM"]) <= 4
