"""``make demo-sources``: real servers from Debian's packages, real runs, and an end that leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.home import Home
from sluice.launch import jars
from sluice.launch.submit import archive_file, is_whole
from sluice.local.servers import Postgres, Redis

SERVERS = Postgres(Path()).program(), Redis(Path()).program()

pytestmark = [
    pytest.mark.kafka, pytest.mark.spark, pytest.mark.long,
    pytest.mark.skipif(None in SERVERS, reason="needs postgresql and redis-server"),
]  # fmt: skip


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "jars").mkdir()
    for name in ("kafka", "spark"):
        (tmp_path / "jars" / name).symlink_to(jars.fetch(name)[0].parent)
    archive = archive_file(Home.from_env())
    if is_whole(archive):
        (tmp_path / "jvm").symlink_to(archive.parent)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "SLUICE", "PYSPARK"))}
    environment = inherited | {"SLUICE_HOME": str(tmp_path)}
    yield environment
    _demo("down", environment)


def _demo(action: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sluice_demo.sources", action]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _sluice(environment: Mapping[str, str], *arguments: str) -> Any:
    command = 'source "$0"; "$@"'
    argv = ["bash", "-c", command, f"{environment['SLUICE_HOME']}/sources-demo/demo.env", *arguments]
    said = subprocess.run(argv, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True)
    return json.loads(said.stdout.splitlines()[-1])


def test_demo_of_sources_moves_each_flight_once_and_down_leaves_nothing(environment: dict[str, str]) -> None:
    done = _demo("up", environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr.count("each of the 709 flights exactly once") == 3
    result = json.loads(done.stdout.splitlines()[-1])
    assert [(run["pipeline"], run["written"], run["quarantined"], run["lost"]) for run in result["runs"]] == [
        ("files_to_postgres", 709, 2, 0),
        ("queue_to_delta", 709, 2, 0),
        ("delta_to_kafka", 709, 0, 0),
    ]

    feeder = [sys.executable, "-m", "sluice_demo.flights", "--until", "2013-01-02", "--into"]
    for target, fed in (("table:public.fed", (709, 0)), ("table:public.fed", (0, 709)), ("stream:flights", (0, 709))):
        counts = _sluice(environment, *feeder, target)
        assert (counts["produced"], counts["already"]) == fed, target

    home = Path(environment["SLUICE_HOME"]) / "sources-demo"
    data = Postgres(home / "servers" / "postgres").known["home"]
    assert Path(data).exists()
    assert _demo("down", environment).returncode == 0
    assert not home.exists()
    assert not Path(data).exists()
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if str(home) in str(p.info["cmdline"])]
    assert left == []
