"""Prints the first rows of each batch into the driver's log."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from sluice.sinks.console import ConsoleSink
from sluice.sinks.foreach import Batch
from sluice.storage import file_system
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.outward.outward import Outward
from sluice_spark.sinks.parquet.staged_files import in_order

__all__ = ["Console", "opened"]


def opened(config: ConsoleSink, path: str, app_id: str) -> Console:
    """Open the sink of a pipeline."""
    return Console(config, path, app_id)


class Console(Outward):
    """The driver's log."""

    def __init__(self, config: ConsoleSink, staging: str, app_id: str) -> None:
        super().__init__("the console", staging, config.keep, app_id)
        self._most = config.rows

    def hand_over(self, staged: Staged, schema: StructType, batch: Batch) -> None:
        """Print the first rows, a line each."""
        fs, base = file_system(self.staging)
        left = self._most
        logger.info("batch %s: %d rows", batch, staged.rows)
        for file in in_order(staged.files):
            with fs.open(f"{base}/{file.path}", "rb") as handle:
                parts = pq.ParquetFile(handle).iter_batches(left, columns=schema.names)
                for row in islice((row for part in parts for row in part.to_pylist()), left):
                    logger.info("  %s", json.dumps(row, default=_text, ensure_ascii=False))
                    left -= 1
            if not left:
                break
        if staged.rows > self._most:
            logger.info("  and %d more", staged.rows - self._most)


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
