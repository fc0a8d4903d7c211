"""Starts a run's Spark application: here, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.connections import Connection
from sluice.launch.submit import Connections, SparkSubmit, bounded_run
from sluice.pipeline import Pipeline
from sluice.run.request import RunRequest

__all__ = ["Interrupted", "Launcher", "LocalProcess"]


class Interrupted(SystemExit):
    """A signal ended this process while an application was at work; its exit code is a shell's for the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


class Launcher(Protocol):
    """Carries out run requests: by a new Spark application, or by one that is kept.

    What a run did is on record in the ledger, whoever launched it; a launcher only says how it ended.
    """

    def launch(self, pipeline: Pipeline, request: RunRequest, *, waiting: int | None = None) -> int:
        """Carry out one run and wait for its end; return its exit code, see :class:`~sluice.errors.ExitCode`.

        A launcher that is killed leaves nothing that the next run does not fix.

        Parameters
        ----------
        waiting
            About how many records wait, when the caller knows.
        """


@dataclass(frozen=True)
class LocalProcess:
    """Starts ``spark-submit`` here for each run. Its log goes to stderr.

    Parameters
    ----------
    spark
        The connection to Spark.
    source
        The connection of the source, if it needs one.
    sink
        The connection of the sink, if it needs one.
    decoder
        The connection that decoding needs, if it needs one.
    """

    spark: Connection
    source: Connections
    sink: Connection | None = None
    decoder: Connection | None = None

    def launch(self, pipeline: Pipeline, request: RunRequest, *, waiting: int | None = None) -> int:
        """Carry out one run; see :class:`Launcher`."""
        submission = bounded_run(
            pipeline,
            request,
            spark=self.spark,
            kafka=self.source,
            sink=self.sink,
            decoder=self.decoder,
            waiting=waiting,
        )
        return self.start(submission)

    @staticmethod
    def start(submission: SparkSubmit) -> int:
        """Start an application, wait for it, and return its exit code.

        The process is a group of its own: Ctrl-C and SIGTERM end the driver whole, JVM and Python.

        Raises
        ------
        Interrupted
            If this process got one of these signals; the application has ended then.
        """
        env = {**os.environ, **submission.env}
        with subprocess.Popen(
            submission.argv(), env=env, stdout=sys.stderr, stderr=sys.stderr, start_new_session=True
        ) as child:

            def end(number: int, _frame: Any) -> None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGTERM)
                raise Interrupted(number)

            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, end)
            return child.wait()
