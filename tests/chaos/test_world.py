"""Disks fill up, the ledger's database ends, files are damaged, clocks are wrong, a supervisor ends the driver.

Whatever a run says then, no record is in a table twice or lost, and when the cause is fixed the next attempt puts the
rest where it belongs.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.chaos.cases import LONG, long
from tests.chaos.commands import drain
from tests.chaos.drivers import PASSING, ended, gated, opened
from tests.fixtures.inside import MODULES
from tests.fixtures.postgres import Server, binaries, new_database, server
from tests.fixtures.runs import KILLED, Sandbox, await_that

from sluice.local.kafka import Broker, Topics

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize("pipeline", [{}, *long({"dedupe": {"keys": ["id"], "time": "_timestamp", "within": "1h"}})])
@pytest.mark.parametrize("engine", ["auto", *long("spark")])
def test_driver_beside_a_hadoop_client_reads_and_writes_its_own_paths(
    sandbox: Sandbox, tmp_path: Path, pipeline: dict[str, object], engine: str
) -> None:
    """The default file system of a Hadoop client is HDFS; a path without a scheme would be there."""
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:1/</value></property></configuration>"
    )
    sandbox.configure(**pipeline, engine=engine)
    sandbox.feed(6, bad_every=3)
    Sandbox.run(sandbox, "r", HADOOP_CONF_DIR=str(tmp_path))
    sandbox.assert_exact()


# --- full disks ------------------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """A small file system of its own, which can be filled up."""

    folder: Path

    def fill(self, leave: int) -> None:
        """Leave so many KiB free."""
        self.relieve()
        with (self.folder / "filler").open("wb", buffering=0) as filler:
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(4096))
            size = filler.tell() // 4096 * 4096 - leave * 1024
            filler.truncate(max(size, 0))

    def relieve(self) -> None:
        """Take out what filled it."""
        (self.folder / "filler").unlink(missing_ok=True)


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[Disk]:
    """Put a disk of 32 MiB at a folder; what is in it moves there."""
    aside = folder.with_name(folder.name + "-aside")
    folder.mkdir(parents=True, exist_ok=True)
    folder.rename(aside)
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True, symlinks=True)
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


PLACES = {"sink": "table", "checkpoint": "checkpoints", "quarantine": "table_quarantine", "log": "logs", "ledger": "."}


@pytest.mark.parametrize("place", ["sink", *long(*(p for p in PLACES if p != "sink"))])
def test_full_disk_stops_the_run_by_name_and_costs_no_record(sandbox: Sandbox, place: str, tmp_path: Path) -> None:
    sandbox.configure(recovery="wal" if place == "log" else "replay")
    drain(sandbox, 6, "before", bad_every=3)
    alone = place == "ledger"
    if alone:  # everything else lies elsewhere
        for other in [path for path in PLACES.values() if path != "."]:
            elsewhere = tmp_path / "elsewhere" / other
            (sandbox.home / other).mkdir(exist_ok=True)
            elsewhere.parent.mkdir(exist_ok=True)
            (sandbox.home / other).rename(elsewhere)
            (sandbox.home / other).symlink_to(elsewhere)
        for number in range(1, 9):  # what runs say, too
            (sandbox.home / f"run-{number}.log").symlink_to(tmp_path / "elsewhere" / f"run-{number}.log")
    # a driver that cannot let go of its lease keeps it for as long as its process lives
    run = functools.partial(Sandbox.run if alone else type(sandbox).run, sandbox)
    with disk(sandbox.home / PLACES[place]) as small:
        sandbox.feed(12, bad_every=4)
        codes = []
        for leave in (0, 24) if alone else (0, 4, 12, 24):  # KiB: it ends at one step or the other
            small.fill(leave)
            end = run("full", expect=None)
            codes.append(end.code)
            assert end.code == 0 or any(sign in end.message for sign in ("No space", "full", "os error 28")), end
            assert "Traceback" not in end.stderr
            small.relieve()  # for those who look, too
            assert set((sandbox.sink() + sandbox.quarantine()).values()) <= {1}
        assert codes[0] != 0, "the disk was not full"
        run("full")
        sandbox.assert_exact()
        assert sandbox.orphans() == sandbox.orphans("table_quarantine") == set()


# --- the ledger's database -------------------------------------------------------------------------------------------


@dataclass
class OnPostgres(Sandbox):
    """A sandbox whose ledger is in PostgreSQL."""

    url: str = ""

    @property
    def ledger_url(self) -> str:
        return self.url

    def env(self, **extra: str) -> dict[str, str]:
        return super().env(SLUICE_LEDGER_URL=self.url, **extra)


@pytest.fixture
def database() -> Iterator[Server]:
    programs = binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server binaries here: apt-get install postgresql")
    with server(programs) as running:
        yield running


@LONG
@pytest.mark.parametrize("point", ["rows-staged", "sink-committed"])
def test_ledger_database_that_ends_during_a_run_is_caught_up_by_the_next(
    broker: Broker, topics: Topics, topic: Callable[..., str], tmp_path: Path, database: Server, point: str
) -> None:
    sandbox = OnPostgres(tmp_path / "home", broker, topics, topic(2, retention_ms=-1), url=new_database(database.url))
    sandbox.configure(**PASSING)
    sandbox.feed(9, bad_every=4)
    driver = gated(sandbox, point)
    database.crash()
    assert "the ledger does not answer" in opened(driver, 1).message
    assert set((sandbox.sink() + sandbox.quarantine()).values()) <= {1}
    database.start()
    ended(sandbox.start("r"))
    sandbox.assert_exact()


# --- damaged and missing files ---------------------------------------------------------------------------------------


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: (len(path.name), path.name))


def victim(sandbox: Sandbox, name: str) -> Path:
    """The file or folder of that name."""
    (checkpoint,) = {path.parent for path in (sandbox.home / "checkpoints").rglob("offsets")}
    return {
        "offsets": lambda: newest(checkpoint / "offsets", "[0-9]*"),
        "commits": lambda: newest(checkpoint / "commits", "[0-9]*"),
        "metadata": lambda: checkpoint / "metadata",
        "checkpoint": lambda: sandbox.home / "checkpoints",
        "sink": lambda: newest(sandbox.home / "table" / "_delta_log", "*.json"),
        "whole-sink": lambda: sandbox.home / "table",
        "quarantine": lambda: newest(sandbox.home / "table_quarantine" / "_delta_log", "*.json"),
        "log": lambda: newest(sandbox.home / "logs" / sandbox.name / "_delta_log", "*.json"),
        "ledger": lambda: sandbox.home / "ledger.db",
    }[name]()


CODES = {"sink": {30, 41}, "quarantine": {30, 41}, "log": {30, 41}, "ledger": {0, 1}}
"""How a run may end, where it is not 41 alone: an empty ledger is filled from the sink's notes."""


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("checkpoint", "gone"),
        # before 4.2 Spark took it for a new query, and doubled rows in sinks that trust its ids
        pytest.param("metadata", "gone", marks=LONG),
        pytest.param("whole-sink", "gone", marks=LONG),
        pytest.param("commits", "half", marks=LONG),
        *long(
            ("commits", "empty"),
            *((n, damage) for n in ("offsets", "sink", "quarantine", "log", "ledger") for damage in ("half", "empty")),
        ),
    ],
)
def test_damaged_file_is_refused_or_does_no_harm_and_restored_the_run_goes_on(
    sandbox: Sandbox, name: str, damage: str
) -> None:
    sandbox.configure(recovery="wal" if name == "log" else "replay")
    drain(sandbox, 8, "first", bad_every=4)
    sandbox.feed(8, bad_every=4)
    before = sandbox.sink() + sandbox.quarantine()
    file, aside = victim(sandbox, name), sandbox.home / "aside"
    if damage == "gone":
        file.rename(aside)
    else:
        shutil.copy(file, aside)
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2 if damage == "half" else 0])
    end = sandbox.run("second", expect=None)
    again = (name, damage) == ("commits", "empty")  # Spark marks a batch once more that the sink holds
    assert end.code in ({0} if again else CODES.get(name, {41})), end.message
    assert not end.code or "next:" in end.message
    assert damage != "gone" or not file.exists()
    aside.replace(file)
    seen = sandbox.sink() + sandbox.quarantine()
    assert set(seen.values()) <= {1}
    assert before <= seen <= sandbox.on_broker()
    sandbox.run("second")
    sandbox.assert_exact()


# --- clocks ----------------------------------------------------------------------------------------------------------


@dataclass
class Clock:
    """The clock of drivers that are started with its environment, but for their JVM.

    They read by the Spark path: librdkafka's waits (``cnd_timedwait``) are not faked, so each would last as long as the
    clock is ahead.
    """

    file: Path

    def ahead(self, seconds: int) -> None:
        """Set it: so many seconds ahead of the true time, from now on."""
        self.file.write_text(f"{seconds:+d}\n")

    @property
    def env(self) -> dict[str, str]:
        return {"CLOCK": str(self.file), "PYTHONPATH": os.pathsep.join([str(MODULES.parent / "clock"), str(MODULES)])}


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    if not glob.glob("/usr/lib/*/faketime/libfaketime.so.1"):
        pytest.skip("libfaketime is not installed: apt-get install libfaketime")
    return Clock(tmp_path / "clock")


def moments(sandbox: Sandbox) -> list[datetime]:
    return [datetime.fromisoformat(event["at"]) for event in sandbox.ledger.events(sandbox.name, limit=1000)]


@LONG
@pytest.mark.parametrize("strategy", ["replay", "wal"])
def test_clock_that_is_set_back_during_a_run_costs_nothing(sandbox: Sandbox, clock: Clock, strategy: str) -> None:
    sandbox.configure(recovery=strategy, engine="spark", **PASSING)
    sandbox.feed(16, bad_every=4)
    clock.ahead(7200)
    driver = gated(sandbox, "batch-started:2", **clock.env)
    clock.ahead(-600)
    opened(driver)
    assert moments(sandbox) != sorted(moments(sandbox)), "no time went back"
    sandbox.assert_exact()
    sandbox.run("next")
    sandbox.assert_exact()


@LONG
def test_driver_that_died_in_the_future_is_followed_at_once(sandbox: Sandbox, clock: Clock) -> None:
    """Its lease runs for hours by the clock of those who come after it, and its batch is younger than theirs."""
    sandbox.configure(engine="spark")
    sandbox.feed(16, bad_every=4)
    clock.ahead(7200)
    sandbox.run("r", kill_at="sink-committed:2", **clock.env)
    assert max(moments(sandbox)) > datetime.now(UTC) + timedelta(hours=1)
    sandbox.run("r")
    sandbox.assert_exact()
    assert sandbox.cli("ledger", sandbox.name).returncode == 0
    assert "0 offsets to read" in sandbox.run("r").stderr


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [*long("batch-started"), "before-sink-commit"])
def test_sigterm_as_airflow_sends_it_ends_the_driver_and_the_retry_recovers(sandbox: Sandbox, point: str) -> None:
    sandbox.configure(**PASSING)
    sandbox.feed(9, bad_every=4)
    driver = gated(sandbox, point)
    driver.signal(signal.SIGTERM)
    driver.open_gate()
    assert driver.wait().code not in (0, KILLED), "it ends by itself, and says that it did not get to its end"
    assert set((sandbox.sink() + sandbox.quarantine()).values()) <= {1}
    sandbox.run("r")
    sandbox.assert_exact()


@contextlib.contextmanager
def held(sandbox: Sandbox) -> Iterator[subprocess.Popen[str]]:
    """Give a ``sluice run`` whose driver stands before its commit."""
    sandbox.configure(**PASSING)
    sandbox.feed(8)
    gate = sandbox.home / "gate"
    gate.mkdir()
    env = sandbox.env(GATE_AT="before-sink-commit", GATE_DIR=str(gate))
    with subprocess.Popen(
        [str(Path(sys.executable).with_name("sluice")), "run", str(sandbox.file), "--run", "r", "--no-validate"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # who runs the tests in the background has SIGINT ignored, and so would the child
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        await_that((gate / "reached").exists, "the driver reached its gate", process)
        yield process


@LONG
def test_killed_sluice_run_takes_its_driver_along(sandbox: Sandbox) -> None:
    with held(sandbox) as process:
        assert sandbox.ledger.runs.running(sandbox.name) is not None
        os.killpg(process.pid, signal.SIGKILL)
        await_that(lambda: sandbox.ledger.runs.running(sandbox.name) is None, "the driver is gone")
        process.communicate(timeout=120)
    sandbox.run("next")
    sandbox.assert_exact()
    assert sandbox.account("next")["written"] == 8


def test_ctrl_c_at_sluice_run_closes_the_run_and_the_next_one_goes_on(sandbox: Sandbox) -> None:
    with held(sandbox) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "SIGINT" in err.strip().splitlines()[-1]
    assert out == ""
    row = sandbox.ledger.runs.known(sandbox.name, "r")
    assert (row.state, (row.error or {}).get("what")) == ("abandoned", "interrupted by SIGINT")
    sandbox.run("next")
    sandbox.assert_exact()
    assert sandbox.account("next")["written"] + sandbox.account("r")["written"] == 8
