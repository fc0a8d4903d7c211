"""What ``sluice lag PIPELINE --json`` says of real runs against a real broker, exit code included."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.runs import KeptSandbox, Sandbox, await_that
from tests.kafka.conftest import Line, fill

from sluice.cli.lag import show
from sluice.home import Home
from sluice.local.kafka import Broker, Topics

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

OVER = 1
UNREACHABLE = 20
GONE = 21
RECREATED = 22
CONTRADICTS = 41


@pytest.fixture
def sandbox(spark: SparkSession, broker: Broker, topics: Topics, topic: Callable[..., str], tmp_path: Path) -> Sandbox:
    """A pipeline of two partitions, whose limit is a hundred records."""
    sandbox = KeptSandbox(tmp_path / "home", broker, topics, topic(2), spark=spark)
    sandbox.configure(lag={"max_records": 100})
    return sandbox


def lag(sandbox: Sandbox) -> tuple[int, dict[str, Any]]:
    """Ask the command; return its exit code and what it says of the pipeline."""
    asked = sandbox.cli("lag", str(sandbox.file), "--json")
    assert "Traceback" not in asked.stderr
    (told,) = json.loads(asked.stdout)
    assert told["pipeline"] == sandbox.name
    return asked.returncode, told


def statuses(told: dict[str, Any]) -> list[str]:
    return [part["status"] for part in told["partitions"]]


def unread(sandbox: Sandbox) -> dict[int, int]:
    """What an independent consumer reads and no table holds, by partition."""
    left = sandbox.on_broker() - sandbox.sink() - sandbox.quarantine()
    return dict(Counter(partition for _, partition, _ in left))


def numbers(told: dict[str, Any], key: str = "lag") -> dict[int, int]:
    """One number of each partition that has some."""
    return {part["partition"]: part[key] for part in told["partitions"] if part[key]}


def test_the_numbers_are_those_of_an_independent_consumer(sandbox: Sandbox) -> None:
    sandbox.feed(9)
    code, told = lag(sandbox)
    assert (code, told["verdict"], told["lag"]) == (0, "NEW", 9)
    assert numbers(told) == unread(sandbox) == {0: 5, 1: 4}
    sandbox.run("first")
    code, told = lag(sandbox)
    assert (code, told["verdict"], told["lag"], told["age"]) == (0, "OK", 0, 0.0)
    assert numbers(told) == unread(sandbox) == {}
    sandbox.feed(7, bad_every=3)
    code, told = lag(sandbox)
    assert (code, told["verdict"], told["lag"], told["over"]) == (0, "BACKLOG", 7, False)
    assert numbers(told) == unread(sandbox) == {0: 3, 1: 4}
    sandbox.run("second")
    assert sandbox.quarantine()
    assert numbers(lag(sandbox)[1]) == unread(sandbox) == {}
    sandbox.feed(101)
    code, told = lag(sandbox)
    assert (code, told["verdict"], told["lag"], told["over"]) == (OVER, "BACKLOG", 101, True)


def test_deleted_records_are_lost_to_the_last_one_until_a_run_puts_them_on_record(sandbox: Sandbox) -> None:
    sandbox.feed(10)
    sandbox.run("first")
    sandbox.feed(10)
    sandbox.topics.delete_records(sandbox.topic, {0: 8, 1: 6})
    code, told = lag(sandbox)
    assert (code, told["verdict"], told["lost"], told["lag"]) == (OVER, "LOST", 4, 6)
    assert numbers(told, "lost") == {0: 3, 1: 1}
    assert numbers(told) == unread(sandbox) == {0: 2, 1: 4}
    sandbox.run("refuses", expect=GONE)
    assert lag(sandbox)[1]["verdict"] == "LOST", "a run that refuses changes nothing"
    sandbox.configure(lag={"max_records": 100}, recovery="ignore_range")
    sandbox.run("goes on")
    assert sandbox.account("goes on")["lost"] == 4
    code, told = lag(sandbox)
    assert (code, told["verdict"], told["lost"], told["lag"]) == (0, "OK", 0, 0)


@pytest.mark.long  # tests/kafka/lag shows it with runs that are played
def test_a_topic_made_anew_is_recreated_and_has_no_number(sandbox: Sandbox) -> None:
    sandbox.feed(10)
    sandbox.run("first")
    sandbox.topics.recreate(sandbox.topic, 2)
    code, told = lag(sandbox)
    assert (code, told["verdict"], told["lag"], told["lost"]) == (OVER, "RECREATED", None, None)
    sandbox.feed(30)
    code, told = lag(sandbox)  # longer than what was read from its namesake: only its id tells
    assert (code, told["verdict"], statuses(told)) == (OVER, "RECREATED", ["RECREATED", "RECREATED"])
    assert (told["lag"], [part["beyond"] for part in told["partitions"]]) == (None, [0, 0])
    sandbox.run("refuses", expect=RECREATED)


def test_runs_that_do_not_get_on_are_stuck_until_one_does(sandbox: Sandbox) -> None:
    sandbox.configure(lag={"max_records": 100}, transform={"python": "poison:dying"})
    sandbox.feed(6)
    sandbox.run("first", POISON_IDS="7")
    sandbox.feed(6)
    for name in ("a", "b", "c"):
        code, told = lag(sandbox)
        assert (code, told["verdict"], told["lag"]) == (0, "BACKLOG", 6), "fewer than three are bad luck"
        sandbox.run(name, expect=1, POISON_IDS="7")
    code, told = lag(sandbox)
    assert (code, told["verdict"], told["lag"], told["over"]) == (OVER, "STUCK", 6, False)
    assert numbers(told) == unread(sandbox)
    sandbox.run("cured")
    code, told = lag(sandbox)
    assert (code, told["verdict"]) == (0, "OK")
    sandbox.assert_exact()


@pytest.mark.long  # tests/kafka/lag shows it with runs that are played
def test_runs_that_find_more_each_time_are_growing(sandbox: Sandbox) -> None:
    sandbox.configure(lag={"max_records": 5})
    for count in (2, 4, 6):
        sandbox.feed(count)
        sandbox.run(f"finds {count}")
    sandbox.feed(5)
    code, told = lag(sandbox)
    assert (code, told["verdict"]) == (0, "BACKLOG"), "growth within the limits is none"
    sandbox.feed(1)
    code, told = lag(sandbox)
    assert (code, told["verdict"], told["lag"]) == (OVER, "GROWING", 6)


@pytest.mark.long  # tests/kafka/lag shows it with runs that are played
def test_a_checkpoint_restored_from_a_copy_is_rewound(sandbox: Sandbox) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    checkpoint = Path(Home(str(sandbox.home)).checkpoint(sandbox.name, 1))
    shutil.copytree(checkpoint, sandbox.home / "copy")
    sandbox.feed(6)
    sandbox.run("second")
    assert lag(sandbox)[1]["verdict"] == "OK"
    shutil.rmtree(checkpoint)
    shutil.copytree(sandbox.home / "copy", checkpoint)
    code, told = lag(sandbox)
    assert (code, told["verdict"], statuses(told)) == (OVER, "REWOUND", ["REWOUND", "REWOUND"])
    assert told["lag"] == 6
    sandbox.run("refuses", expect=CONTRADICTS)


class Watch:
    """A ``sluice lag --watch`` in a process of its own, which a person watches."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._out, self._err = sandbox.home / "watch.out", sandbox.home / "watch.err"
        program = str(Path(sys.executable).with_name("sluice"))
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [program, "lag", str(sandbox.file), "--watch", "--interval", "0.2", "--json"],
                env=sandbox.env(),
                stdout=out,
                stderr=err,
                text=True,
                # who runs the tests in the background has SIGINT ignored, and so would the child
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def looks(self) -> list[dict[str, Any]]:
        """What it has said so far, oldest first."""
        return [json.loads(line)[0] for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def await_verdict(self, verdict: str) -> dict[str, Any]:
        """Return the newest look when it has this verdict."""
        await_that(
            lambda: [x["verdict"] for x in self.looks()[-1:]] == [verdict], f"the watch says {verdict}", self.process
        )
        return next(x for x in reversed(self.looks()) if x["verdict"] == verdict)

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit code and what stood on stderr."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60), self._err.read_text()


@contextlib.contextmanager
def watching(sandbox: Sandbox) -> Iterator[Watch]:
    watch = Watch(sandbox)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.wait()


def test_a_watch_sees_a_run_and_ends_with_the_code_of_its_last_look(sandbox: Sandbox) -> None:
    sandbox.feed(4)
    with watching(sandbox) as watch:
        assert watch.await_verdict("NEW")["lag"] == 4
        sandbox.run("first")
        assert watch.await_verdict("OK")["lag"] == 0
        sandbox.feed(102)
        await_that(lambda: watch.looks()[-1]["over"], "the watch sees them", watch.process)
        seen = len(watch.looks())
        await_that(lambda: len(watch.looks()) >= seen + 2, "two more looks", watch.process)
        times = [look["at"] for look in watch.looks()]
        assert times == sorted(set(times)), "each look is one of its own"
        code, said = watch.interrupt()
    assert (code, said) == (OVER, "")


def test_a_broker_that_is_stopped_is_unknown_and_the_watch_recovers_by_itself(sandbox: Sandbox) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    sandbox.feed(3)
    with watching(sandbox) as watch:
        assert watch.await_verdict("BACKLOG")["lag"] == 3
        sandbox.broker.stop()
        try:
            down = watch.await_verdict("UNKNOWN")
            code, told = lag(sandbox)
        finally:
            sandbox.broker.start()
        assert (down["lag"], down["age"], down["lost"], down["over"]) == (None, None, None, False)
        assert sandbox.broker.bootstrap in down["error"]["what"]
        assert (code, told["verdict"], told["lag"], told["incomplete"]) == (UNREACHABLE, "UNKNOWN", None, True)
        assert watch.await_verdict("BACKLOG")["lag"] == 3
        code, said = watch.interrupt()
    assert (code, said) == (0, "")


def test_the_command_tells_scripts_and_prometheus(
    line: Callable[..., Line], topics: Topics, broker: Broker, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    p = line()
    fill(topics, p, 5)
    p.run("r1", {0: 3})
    file, prom = tmp_path / "line.yaml", tmp_path / "sluice.prom"
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    extra = {"bootstrap.servers": broker.bootstrap}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))

    def lag(limit: int, *, as_json: bool = False, metrics: str | None = None) -> tuple[int, str]:
        spec = p.spec(max_records=limit).model_dump(mode="json", by_alias=True, exclude_unset=True)
        file.write_text(json.dumps(spec))
        code = show(str(file), watch=False, interval=1, as_json=as_json, metrics=metrics)
        return code, capsys.readouterr().out

    assert lag(2)[0] == 0
    code, out = lag(1, as_json=True, metrics=str(prom))
    assert code == 1
    (told,) = json.loads(out)
    assert (told["verdict"], told["lag"], told["over"]) == ("BACKLOG", 2, True)
    assert f'sluice_lag_records{{pipeline="line",topic="{p.topic}",partition="0"}} 2' in prom.read_text()
    broker.kill()
    try:
        code, out = lag(1, metrics="-")
    finally:
        broker.start()
    assert code == 20
    assert "sluice_lag_records{" not in out
    assert out.endswith("# EOF\n")
