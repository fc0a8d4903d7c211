"""The rest of the world fails: disks fill up, the ledger's database ends, files are damaged.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.fixtures.inside import MODULES
from tests.fixtures.postgres import Server, binaries, new_database, server
from tests.fixtures.runs import KILLED, Sandbox

from sluice.local.kafka import Broker, Topics

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

LONG = pytest.mark.long


# --- full disks ----------------------------------------------------------------------------------------------------


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


PLACES = ["checkpoints", "table", "table_quarantine", "logs", "."]
"""Of checkpoint, sink, quarantine, write-ahead log and ledger, below the home."""


@pytest.mark.parametrize("place", ["table", *(pytest.param(p, marks=LONG) for p in PLACES if p != "table")])
def test_a_full_disk_stops_the_run_by_name_and_costs_no_record(sandbox: Sandbox, place: str, tmp_path: Path) -> None:
    sandbox.configure(recovery="wal" if place == "logs" else "replay")
    sandbox.feed(6, bad_every=3)
    sandbox.run("before")
    if place == ".":  # the ledger's disk alone: everything else lies elsewhere
        for other in PLACES[:-1]:
            elsewhere = tmp_path / "elsewhere" / other
            (sandbox.home / other).mkdir(exist_ok=True)
            elsewhere.parent.mkdir(exist_ok=True)
            (sandbox.home / other).rename(elsewhere)
            (sandbox.home / other).symlink_to(elsewhere)
        for number in range(1, 9):  # what runs say, too
            (sandbox.home / f"run-{number}.log").symlink_to(tmp_path / "elsewhere" / f"run-{number}.log")
    # a driver that cannot let go of its lease keeps it for as long as its process lives
    run = functools.partial(Sandbox.run if place == "." else type(sandbox).run, sandbox)
    with disk(sandbox.home / place) as small:
        sandbox.feed(12, bad_every=4)
        codes = []
        for leave in (0, 24) if place == "." else (0, 4, 12, 24):  # KiB: it ends at one step or the other
            small.fill(leave)
            ended = run("full", expect=None)
            codes.append(ended.code)
            assert ended.code == 0 or any(sign in ended.message for sign in ("No space", "full", "os error 28")), ended
            assert "Traceback" not in ended.stderr
            small.relieve()  # for those who look, too
            assert set((sandbox.sink() + sandbox.quarantine()).values()) <= {1}
        assert codes[0] != 0, "the disk was not full"
        run("full")
        sandbox.assert_exact()
        assert sandbox.orphans() == sandbox.orphans("table_quarantine") == set()


# --- the ledger's database -----------------------------------------------------------------------------------------


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


@pytest.mark.long
@pytest.mark.parametrize("point", ["rows-staged", "sink-committed"])
def test_a_ledger_that_ends_in_the_middle_of_a_run_is_caught_up_by_the_next_one(
    broker: Broker, topics: Topics, topic: Callable[..., str], tmp_path: Path, database: Server, point: str
) -> None:
    sandbox = OnPostgres(tmp_path / "home", broker, topics, topic(2, retention_ms=-1), url=new_database(database.url))
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(9, bad_every=4)
    driver = sandbox.start("r", gate_at=point)
    driver.await_gate()
    database.crash()
    driver.open_gate()
    ended = driver.wait()
    assert ended.code == 1, ended.stderr[-4000:]
    assert "the ledger does not answer" in ended.message
    assert set((sandbox.sink() + sandbox.quarantine()).values()) <= {1}
    database.start()
    assert sandbox.start("r").wait().code == 0
    sandbox.assert_exact()


# --- damaged and missing files -------------------------------------------------------------------------------------


@contextlib.contextmanager
def put_back(file: Path) -> Iterator[None]:
    """Restore a file as a copy would after the block."""
    content = file.read_bytes()
    try:
        yield
    finally:
        file.write_bytes(content)


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: (len(path.name), path.name))


def damaged(sandbox: Sandbox, what: str) -> Path:
    (checkpoint,) = {path.parent for path in (sandbox.home / "checkpoints").rglob("offsets")}
    return {
        "offsets": lambda: newest(checkpoint / "offsets", "[0-9]*"),
        "commits": lambda: newest(checkpoint / "commits", "[0-9]*"),
        "table": lambda: newest(sandbox.home / "table" / "_delta_log", "*.json"),
        "quarantine": lambda: newest(sandbox.home / "table_quarantine" / "_delta_log", "*.json"),
        "log": lambda: newest(sandbox.home / "logs" / sandbox.name / "_delta_log", "*.json"),
        "ledger": lambda: sandbox.home / "ledger.db",
    }[what]()


REFUSED = {
    "offsets": {41},
    "commits": {41},
    "table": {30, 41},
    "quarantine": {30, 41},
    "log": {30, 41},
    "ledger": {0, 1},
}
"""What is damaged, and how a run may end: an empty ledger is filled from the sink's notes."""


@pytest.mark.parametrize("left", ["half", pytest.param("nothing", marks=LONG)])
@pytest.mark.parametrize("what", ["commits", *(pytest.param(w, marks=LONG) for w in REFUSED if w != "commits")])
def test_a_damaged_file_is_refused_or_does_no_harm_and_restored_the_run_goes_on(
    sandbox: Sandbox, what: str, left: str
) -> None:
    sandbox.configure(recovery="wal" if what == "log" else "replay")
    sandbox.feed(8, bad_every=4)
    sandbox.run("first")
    sandbox.feed(8, bad_every=4)
    file = damaged(sandbox, what)
    before = sandbox.sink() + sandbox.quarantine()
    with put_back(file):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2 if left == "half" else 0])
        said = sandbox.run("second", expect=None)
        again = (what, left) == ("commits", "nothing")  # Spark marks a batch anew that the sink holds
        assert said.code in ({0} if again else REFUSED[what]), said.message
        if said.code:
            assert "next:" in said.message
    seen = sandbox.sink() + sandbox.quarantine()
    assert set(seen.values()) <= {1}
    assert before <= seen <= sandbox.on_broker()
    sandbox.run("second")
    sandbox.assert_exact()


def test_a_checkpoint_without_its_metadata_is_refused_and_put_back_goes_on(sandbox: Sandbox) -> None:
    """Before 4.2 Spark took it for a new query, and doubled rows in sinks that trust its ids."""
    sandbox.feed(8, bad_every=4)
    sandbox.run("first")
    sandbox.feed(8)
    (metadata,) = (sandbox.home / "checkpoints").rglob("metadata")
    with put_back(metadata):
        metadata.unlink()
        assert "metadata" in sandbox.run("second", expect=41).message
    sandbox.run("second")
    sandbox.assert_exact()


# --- clocks --------------------------------------------------------------------------------------------------------


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


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["replay", "wal"])
def test_a_clock_that_is_set_back_in_the_middle_of_a_run_costs_nothing(
    sandbox: Sandbox, clock: Clock, strategy: str
) -> None:
    sandbox.configure(recovery=strategy, engine="spark", transform={"python": "gate:passing"})
    sandbox.feed(16, bad_every=4)
    clock.ahead(7200)
    driver = sandbox.start("r", gate_at="batch-started:2", **clock.env)
    driver.await_gate()
    clock.ahead(-600)
    driver.open_gate()
    end = driver.wait()
    assert end.code == 0, end.stderr[-4000:]
    assert moments(sandbox) != sorted(moments(sandbox)), "no time went back"
    sandbox.assert_exact()
    sandbox.run("next")
    sandbox.assert_exact()


@pytest.mark.long
def test_a_driver_that_died_in_the_future_is_followed_at_once(sandbox: Sandbox, clock: Clock) -> None:
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


# --- brokers and supervisors ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_broker_that_does_not_answer_for_a_while_is_waited_for(sandbox: Sandbox) -> None:
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(12, bad_every=4)
    driver = sandbox.start("r", gate_at="batch-started")
    driver.await_gate()
    sandbox.broker.pause()
    driver.open_gate()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            driver.process.wait(10)
    finally:
        sandbox.broker.resume()
    end = driver.wait()
    assert end.code == 0, end.stderr[-4000:]
    sandbox.assert_exact()


@pytest.mark.parametrize("point", [pytest.param("batch-started", marks=LONG), "before-sink-commit"])
def test_what_airflow_ends_by_sigterm_ends_by_itself_and_the_retry_mends(sandbox: Sandbox, point: str) -> None:
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(9, bad_every=4)
    driver = sandbox.start("r", gate_at=point)
    driver.await_gate()
    driver.signal(signal.SIGTERM)
    driver.open_gate()
    assert driver.wait().code not in (0, KILLED), "it ends by itself, and says that it did not get to its end"
    assert set((sandbox.sink() + sandbox.quarantine()).values()) <= {1}
    sandbox.run("r")
    sandbox.assert_exact()
