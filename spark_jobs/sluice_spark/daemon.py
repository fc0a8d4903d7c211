"""Forks Spark's Python workers from a process that has imported what they need: ``spark.python.daemon.module``.

Spark's own daemon imports nothing, and each worker imports NumPy, Arrow, pandas and PySpark for itself: more than a
second of CPU in each, and memory that is not shared. It does so because a library may start threads when it is
imported, which a fork does not copy. Those that are imported here know about forks: NumPy's and Arrow's threads are
started again where they are needed. What a fork does copy is the state of NumPy's random numbers: each worker gets one
of its own.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
from pyspark import daemon

__all__ = ["MODULES"]

MODULES = (
    "pyspark.worker",
    "sluice_spark.arrow.json",
    "sluice_spark.arrow.worker",
    "sluice_spark.sources.kafka_input",
)
"""What workers of the Arrow path need, and with it what most others do."""


@contextmanager
def _silent() -> Iterator[None]:
    """Send what is printed to stderr: on stdout, the JVM waits for the daemon's port."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _run() -> None:
    os.setpgid(0, 0)  # as Spark's daemon does later: a terminal's Ctrl-C is the driver's
    with _silent():
        for module in MODULES:
            with suppress(Exception):  # who needs it tells why it cannot be had
                importlib.import_module(module)
    os.register_at_fork(after_in_child=np.random.seed)
    gc.collect()
    gc.freeze()  # a worker collects after each task: it neither looks at all this again, nor copies it
    daemon.manager()


if __name__ == "__main__":
    _run()
