"""Starts a run's Spark application: here, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from sluice.connections import Connection
from sluice.launch.submit import SparkSubmit, is_small, submit
from sluice.launch.watchdog import LAST_WORDS, LAUNCHER
from sluice.ledger import Holder
from sluice.pipeline import Pipeline
from sluice.run.actions import RunRequest

__all__ = ["NOISE", "Interrupted", "Launcher", "LocalProcess", "last_words"]

NOISE = (
    "WARNING: Using incubator modules: ",
    "Warning: Java versions > Java 11 can only operate in restricted mode",
)
"""How lines begin that the JVM writes because Spark asks for its vector module, and that DataSketches writes when Spark
looks for what is most frequent; no option hides them."""

_FILTER = """
import signal, sys
ended = []
signal.signal(signal.SIGURG, lambda *_: ended.append(True))
noise = tuple(text.encode() for text in sys.argv[1:])
for line in sys.stdin.buffer:
    if not line.startswith(noise) and (not ended or b"sluice: " in line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""
_ENDED = signal.SIGURG
"""Tells the filter that the application was ended: what Spark's threads say to that is of no use, what Sluice says is.
Whoever does not know the signal ignores it."""

_heard: list[dict[str, str]] = []

_LINGERING = 5
"""Seconds in which the rest of a log comes after its writer has ended."""


def last_words() -> dict[str, str] | None:
    """Return the error with which the last application ended that this process started; None if it left none."""
    return _heard[-1] if _heard else None


class Interrupted(SystemExit):
    """A signal ended this process while an application was at work; its exit code is a shell's for the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


class Launcher(Protocol):
    """Carries out run requests: by a new Spark application, or by one that is kept.

    What a run did is on record in the ledger, whoever launched it; a launcher only says how it ended.
    """

    def launch(
        self, pipeline: Pipeline, request: RunRequest, *, waiting: int | None = None, engine: str | None = None
    ) -> int:
        """Carry out one run and wait for its end; return its exit code, see :class:`~sluice.errors.ExitCode`.

        A launcher that is killed leaves nothing that the next run does not fix.

        Parameters
        ----------
        waiting
            About how many records wait, when the caller knows.
        engine
            What processed the records of the run before, when the caller knows.
        """


@dataclass(frozen=True)
class LocalProcess:
    """Starts ``spark-submit`` here for each run. Its log goes to stderr.

    Parameters
    ----------
    spark
        The connection to Spark.
    find
        As of :func:`~sluice.launch.submit.submit`.
    """

    spark: Connection
    find: Callable[[str], Connection]

    def launch(
        self, pipeline: Pipeline, request: RunRequest, *, waiting: int | None = None, engine: str | None = None
    ) -> int:
        """Carry out one run; see :class:`Launcher`."""
        small = is_small(pipeline, request, waiting=waiting, engine=engine)
        return self.start(submit(pipeline, request, spark=self.spark, find=self.find, small=small))

    @staticmethod
    def start(submission: SparkSubmit) -> int:
        """Start an application, wait for it, and return its exit code.

        The process is a group of its own: Ctrl-C and SIGTERM end the driver whole, JVM and Python. If this process is
        killed, the driver ends by itself.

        Raises
        ------
        Interrupted
            If this process got one of these signals; the application has ended then.
        """
        # its group outlives a SIGKILL of this process, so it looks for itself whether this one is there
        env = {**os.environ, **submission.env, LAUNCHER: json.dumps(asdict(Holder.me("launcher")))}
        _heard.clear()
        asked: list[int] = []
        started: list[int] = []

        def end(number: int, _frame: Any) -> None:
            if not started:  # it may exist already
                asked.append(number)
                return
            screen.send_signal(_ENDED)
            with suppress(ProcessLookupError):
                os.killpg(started[0], signal.SIGTERM)
            raise Interrupted(number)

        for handled in (signal.SIGINT, signal.SIGTERM):
            signal.signal(handled, end)
        with (
            tempfile.TemporaryDirectory(prefix="sluice-") as folder,
            _without_noise() as screen,
            subprocess.Popen(
                submission.argv(),
                env={**env, LAST_WORDS: f"{folder}/error.json"},
                stdout=screen.stdin,
                stderr=screen.stdin,
                start_new_session=True,
            ) as child,
        ):
            started.append(child.pid)
            for number in asked:
                end(number, None)
            code = child.wait()
            with suppress(OSError, ValueError):
                _heard.append(json.loads(Path(folder, "error.json").read_text(encoding="utf-8")))
            return code


@contextmanager
def _without_noise() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process whose stdin is a file for a log that goes to stderr without :data:`NOISE`.

    A process of its own takes the line out, so that the application can go on writing if this one is killed.
    """
    argv = [sys.executable, "-I", "-S", "-c", _FILTER, *NOISE]
    # in a session of its own, Ctrl-C does not end it before the application has said its last words
    screen = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=sys.stderr, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert screen.stdin is not None
    try:
        with screen.stdin:
            yield screen
    finally:
        with suppress(subprocess.TimeoutExpired):  # a worker of Spark may hold the log open for longer
            screen.wait(_LINGERING)
