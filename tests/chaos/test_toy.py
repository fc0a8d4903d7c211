"""A source, a sink and a decoder from a package outside: they work end to end, and a kill neither loses nor doubles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.connections import variable_of
from sluice.home import Home
from sluice.launch import jars
from sluice.launch.submit import archive_file
from sluice.shipped import CHECKOUT

TOY = CHECKOUT / "tests" / "fixtures" / "toy"

KILLED = 256 - signal.SIGKILL
"""How a shell sees the end of ``sluice run`` whose driver was killed."""


@dataclass
class Place:
    """A pipeline of toys, in a folder of its own."""

    root: Path

    def __post_init__(self) -> None:
        (self.root / "in" / "lines").mkdir(parents=True)
        (self.root / "home").mkdir()
        jars.fetch("spark")  # where every home finds them
        (self.root / "home" / "jvm").symlink_to(archive_file(Home.from_env()).parent)
        self.configure()

    def configure(self, **keys: Any) -> None:
        source = {"lines": {"path": str(self.root / "in" / "lines"), "max_records_per_batch": 7}}
        spec = {
            "pipeline": "toy", "source": source, "decode": {"pairs": {"fields": ["id", "name"]}},
            "sink": {"jsonl": {"path": "out"}}, "quality": {"max_quarantined": "100%"},
        }  # fmt: skip
        (self.root / "toy.yaml").write_text(json.dumps(spec | keys))  # JSON is YAML

    def feed(self, count: int) -> None:
        """Append lines to two files; each fifth is no pair."""
        for number in (0, 1):
            file = self.root / "in" / "lines" / str(number)
            done = len(file.read_text().splitlines()) if file.exists() else 0
            with file.open("a") as out:
                out.writelines(f"id={n};name=n{n}\n" if n % 5 else "nothing\n" for n in range(done, done + count))

    def sluice(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "SLUICE"))}
        known = {"SLUICE_HOME": str(self.root / "home"), "PYTHONPATH": str(TOY)}
        spark = {variable_of("spark_default"): json.dumps({"conn_type": "spark", "host": "local[2]"})}
        program = Path(sys.executable).with_name("sluice")
        return subprocess.run(
            [str(program), *arguments], env=inherited | known | spark | env, capture_output=True, text=True, timeout=300
        )

    def run(self, run: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.sluice("run", str(self.root / "toy.yaml"), "--run", run, "--json", *options, **env)

    def sink(self) -> Counter[tuple[int, int]]:
        """Return partition and offset of each visible row."""
        out = self.root / "home" / "out"
        commits = [json.loads(file.read_text()) for file in sorted((out / "_commits").glob("*.json"))]
        files = [out / file for commit in commits for file in commit["files"]]
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return Counter((row["_partition"], row["_offset"]) for row in rows)

    def good(self) -> Counter[tuple[int, int]]:
        files = (self.root / "in" / "lines").iterdir()
        lines = [(int(f.name), n, text) for f in files for n, text in enumerate(f.read_text().splitlines())]
        return Counter((number, n) for number, n, text in lines if text.startswith("id="))

    def quarantine(self) -> Counter[tuple[int, int]]:
        from deltalake import DeltaTable

        found = DeltaTable(str(self.root / "home" / "quarantine" / "toy")).to_pyarrow_table(
            columns=["_partition", "_offset"]
        )
        return Counter((row["_partition"], row["_offset"]) for row in found.to_pylist())

    def assert_exact(self) -> None:
        lines = {int(f.name): len(f.read_text().splitlines()) for f in (self.root / "in" / "lines").iterdir()}
        everything = Counter((number, n) for number, count in lines.items() for n in range(count))
        assert self.sink() == self.good()
        assert self.quarantine() == everything - self.good()
        audit = self.sluice("audit", str(self.root / "toy.yaml"))
        assert audit.returncode == 0, audit.stdout + audit.stderr


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def account(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.parametrize(
    ("strategy", "points"),
    [
        ("replay", ("before-sink-commit", "sink-committed")),
        pytest.param("wal", ("before-seal", "sealed", "sink-committed", "batch-recorded"), marks=pytest.mark.long),
        pytest.param("hot", ("rows-staged", "batch-recorded"), marks=pytest.mark.long),
        pytest.param("ignore_range", ("quarantine-staged", "quarantine-committed"), marks=pytest.mark.long),
    ],
)
def test_toys_lose_and_double_nothing_when_killed(place: Place, strategy: str, points: tuple[str, ...]) -> None:
    place.configure(recovery=strategy)
    for number, point in enumerate(points):
        place.feed(6)
        dead = place.run(f"killed {number}", SLUICE_KILL_AT=point)
        assert dead.returncode == KILLED, dead.stderr
    done = account(place.run("last"))
    assert done["lost"] == done["absent"] == 0
    place.assert_exact()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"sink": {"print": {"path": "x"}}}, "cannot commit a batch atomically with its batch number"),
        ({"source": {"drops": {"path": "x"}}}, "choose recovery: wal"),
        ({"schedule": "on_lag"}, "cannot watch source.lines"),
        (
            {"airflow": {"freshness": {"cron": "@daily", "max_age": "2h"}}},
            "the unread records of source.lines are is not known",
        ),
        ({"lag": {"mirror_group": "g"}}, "is a consumer group"),
        ({"source": {"lines": {"path": "x", "pat": "y"}}}, "did you mean 'path'"),
        ({"source": {"line": {"path": "x"}}}, "source.line: unknown key"),
        ({"source": {"lines": {"path": "x"}, "kafka": {"topics": ["t"]}}}, "source needs exactly one of"),
        ({"source": 5}, "source: expected a mapping, not 5; the keys here are: kafka"),
        ({"source": ["lines"]}, "source: expected a mapping, not a list"),
        ({"sink": {"broken": {"path": "x"}}}, "cannot be imported: RuntimeError: not today"),
        ({"decode": {"nothing": {}}}, "is not a kind of decoders"),
        ({"quarantine": {"delta": {"path": "out"}}}, "quarantine.delta.path: it is, or lies in, the sink"),
        ({"quarantine": {"delta": {"path": "out/refused"}}}, "quarantine.delta.path: it is, or lies in, the sink"),
    ],
)
def test_what_source_or_sink_cannot_do_is_refused_when_the_file_is_read(
    place: Place, keys: dict[str, Any], told: str
) -> None:
    place.configure(**keys)
    refused = place.sluice("validate-spec", "--no-spark", str(place.root / "toy.yaml"))
    assert (refused.returncode, told in refused.stderr.replace("\n", " ")) == (10, True), refused.stderr


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("run", "--start", "2020-01-01", "--end", "2020-01-02"), "has no intervals"),
        (("lag",), "needs source.kafka"),
        (("audit", "--deep"), "needs a Delta table"),
    ],
)
def test_what_only_others_can_do_is_refused_by_name(place: Place, command: tuple[str, ...], told: str) -> None:
    place.feed(1)
    refused = place.sluice(command[0], str(place.root / "toy.yaml"), *command[1:])
    assert (refused.returncode, told in refused.stderr.replace("\n", " ")) == (10, True), refused.stderr


def test_the_lag_of_all_pipelines_is_that_of_those_which_read_kafka(place: Place) -> None:
    asked = place.sluice("lag", "--json", SLUICE_PIPELINES=str(place.root))
    assert (asked.returncode, json.loads(asked.stdout)) == (0, []), asked.stderr
