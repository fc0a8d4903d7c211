"""The log of a main: short lines on stderr, each with a time and ``sluice:``."""

from __future__ import annotations

import logging
import sys

from pyspark.logger import PySparkLogger

__all__ = ["logger", "set_up"]

logger = logging.getLogger("sluice")


def set_up() -> None:
    """Configure :data:`logger` to write to stderr; leave PySpark's own line of each failed query, of 20 kB, out."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)  # whoever catches the error tells it
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s sluice: %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
