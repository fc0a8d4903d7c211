"""``sluice lag PIPELINE --json`` beside real runs against a real broker, exit code included."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.runs import Sandbox, await_that

from sluice.errors import ExitCode

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

OVER = 1


@pytest.fixture
def sandbox(sandbox: Sandbox) -> Sandbox:
    """A pipeline whose limit is a hundred records."""
    sandbox.configure(lag={"max_records": 100})
    return sandbox


def lag(sandbox: Sandbox) -> tuple[int, dict[str, Any]]:
    """Ask the command; return its exit code and its answer for the pipeline."""
    asked = sandbox.cli("lag", str(sandbox.file), "--json")
    assert "Traceback" not in asked.stderr
    (answer,) = json.loads(asked.stdout)
    assert answer["pipeline"] == sandbox.name
    return asked.returncode, answer


def unread(sandbox: Sandbox) -> dict[int, int]:
    """Records that an independent consumer reads and no table holds, by partition."""
    left = sandbox.on_broker() - sandbox.sink() - sandbox.quarantine()
    return dict(Counter(partition for _, partition, _ in left))


def numbers(answer: dict[str, Any], key: str = "lag") -> dict[int, int]:
    """One number of each partition that has some."""
    return {part["partition"]: part[key] for part in answer["partitions"] if part[key]}


def test_lag_of_real_runs_is_that_of_an_independent_consumer(sandbox: Sandbox) -> None:
    sandbox.feed(9)
    code, found = lag(sandbox)
    assert (code, found["verdict"], found["lag"]) == (0, "NEW", 9)
    assert numbers(found) == unread(sandbox) == {0: 5, 1: 4}
    sandbox.run("first")
    code, found = lag(sandbox)
    assert (code, found["verdict"], found["lag"], found["age"]) == (0, "OK", 0, 0.0)
    sandbox.feed(7, bad_every=3)
    sandbox.run("second")
    assert sandbox.quarantine()
    assert numbers(lag(sandbox)[1]) == unread(sandbox) == {}
    sandbox.feed(102)
    sandbox.topics.delete_records(sandbox.topic, {0: 9, 1: 10})
    code, found = lag(sandbox)
    assert (code, found["verdict"], found["lost"], found["lag"]) == (OVER, "LOST", 3, 99)
    assert numbers(found) == unread(sandbox)


class Watch:
    """A ``sluice lag --watch`` in a process of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._out, self._err = sandbox.home / "watch.out", sandbox.home / "watch.err"
        program = str(Path(sys.executable).with_name("sluice"))
        with self._out.open("w") as out, self._err.open("w") as err:
            argv = [program, "lag", str(sandbox.file), "--watch", "--interval", "0.2", "--json"]
            # who runs the tests in the background has SIGINT ignored, and so would the child
            heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
            self.process = subprocess.Popen(argv, env=sandbox.env(), stdout=out, stderr=err, text=True, preexec_fn=heed)

    def looks(self) -> list[dict[str, Any]]:
        """Its answers so far, oldest first."""
        return [json.loads(line)[0] for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def await_verdict(self, verdict: str) -> dict[str, Any]:
        """Return the newest answer when it has this verdict."""
        said = f"the watch says {verdict}"
        await_that(lambda: [x["verdict"] for x in self.looks()[-1:]] == [verdict], said, self.process)
        return next(x for x in reversed(self.looks()) if x["verdict"] == verdict)

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit code and stderr."""
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


@pytest.mark.long
def test_lag_watch_sees_a_run_and_a_stopped_broker_and_ends_with_the_code_of_its_last_look(sandbox: Sandbox) -> None:
    sandbox.feed(4)
    with watching(sandbox) as watch:
        assert watch.await_verdict("NEW")["lag"] == 4
        sandbox.run("first")
        assert watch.await_verdict("OK")["lag"] == 0
        sandbox.broker.stop()
        try:
            down = watch.await_verdict("UNKNOWN")
            code, found = lag(sandbox)
        finally:
            sandbox.broker.start()
        assert (down["lag"], down["age"], down["lost"], down["over"]) == (None, None, None, False)
        assert sandbox.broker.bootstrap in down["error"]["what"]
        assert (code, found["verdict"], found["lag"]) == (ExitCode.SOURCE_UNREACHABLE, "UNKNOWN", None)
        assert found["incomplete"] is True
        sandbox.feed(102)
        await_that(lambda: watch.looks()[-1]["over"], "the watch recovers, and sees them", watch.process)
        seen = len(watch.looks())
        await_that(lambda: len(watch.looks()) >= seen + 2, "two more looks", watch.process)
        times = [look["at"] for look in watch.looks()]
        assert times == sorted(set(times)), "each look is one of its own"
        assert watch.interrupt() == (OVER, "")
