"""The Spark session of a main, and the conversion of its outcome into an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from sluice.errors import ExitCode, SluiceError, described
from sluice.launch.watchdog import end_with_launcher, tell_launcher
from sluice.pipeline.spark import WEB_UI
from sluice_spark.engine.logs import logger

__all__ = ["run_main", "session"]


def session() -> SparkSession:
    """Return the session that spark-submit configured; log where its web UI is, if it has one.

    The Airflow operator reads that line for its button.
    """
    spark = SparkSession.builder.getOrCreate()
    if spark.conf.get("spark.ui.enabled", "true") == "true":
        with suppress(PySparkException):  # over Spark Connect there is no context to ask
            _tell(spark.sparkContext.uiWebUrl)
    return spark


@cache
def _tell(address: str | None) -> None:
    logger.info("%s%s", WEB_UI, address)


def run_main(main: Callable[[], None]) -> None:
    """Run a main and end the process with its exit code; a typed error is printed without a traceback."""
    code = int(ExitCode.DONE)
    end_with_launcher()
    try:
        main()
    except SluiceError as error:
        print(f"sluice: error: {error}", file=sys.stderr, flush=True)  # noqa: T201
        tell_launcher(error)
        code = int(error.exit_code)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(ExitCode.OTHER)
    except Exception as error:
        traceback.print_exc()
        print(f"sluice: error: {described(error)}", file=sys.stderr, flush=True)  # noqa: T201
        code = int(ExitCode.OTHER)
    # The end of this process ends spark-submit's JVM, whose shutdown hook stops the context and closes the event log.
    # To stop it from here would wait up to a second for the thread that collects accumulators from Python workers.
    if is_remote():
        with suppress(PySparkException):  # also one that another thread began; over Spark Connect the server goes on
            SparkSession.active().stop()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a library's thread must not keep a finished driver alive
