"""Hands rows to an object of the user's, one source partition after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from sluice.errors import SinkError, described
from sluice.kinds import imported, not_leaving
from sluice.sinks.foreach import Batch, ForeachSink, Writer
from sluice.storage import file_system
from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.outward.outward import Outward
from sluice_spark.sinks.parquet.staged_files import in_order

__all__ = ["Foreach", "opened"]

_ROWS = 1 << 12


def opened(config: ForeachSink, path: str, app_id: str) -> Foreach:
    """Open the sink of a pipeline."""
    return Foreach(config, path, app_id)


class Foreach(Outward):
    """A writer of the user's, in the driver."""

    def __init__(self, config: ForeachSink, staging: str, app_id: str) -> None:
        super().__init__(f"the writer {config.python}", staging, config.keep, app_id)
        self._target = config.python

    def hand_over(self, staged: Staged, schema: StructType, batch: Batch) -> None:
        """Hand over the rows of each source partition to a writer of its own."""
        make = imported(self._target)
        for partition, rows in groupby(self._rows(staged, schema), _partition):
            self._hand_over(make, partition, rows, batch)

    def _hand_over(self, make: Any, partition: str, rows: Iterator[dict[str, Any]], batch: Batch) -> None:
        at: dict[str, Any] = {}
        try:
            with not_leaving():
                writer: Writer = make()
                try:
                    skipped = writer.open(partition, batch) is False
                    for row in () if skipped else rows:
                        at = row
                        writer.process(row)
                except BaseException as error:
                    writer.close(error)
                    raise
                writer.close(None)
        except Exception as error:
            where = f"{partition} offset {at['_offset']}" if "_offset" in at else partition or "an aggregate"
            raise SinkError(
                f"{self.path} failed at {where} of batch {batch}: {described(error)}",
                state="rows of this batch before it were taken, and will be handed over again: at least once",
                next_step="fix the writer, or add a row rule that refuses such records; run again",
            ) from error

    def _rows(self, staged: Staged, schema: StructType) -> Iterator[dict[str, Any]]:
        fs, base = file_system(self.staging)
        for file in in_order(staged.files):
            with fs.open(f"{base}/{file.path}", "rb") as handle:
                for part in pq.ParquetFile(handle).iter_batches(_ROWS, columns=schema.names):
                    yield from part.to_pylist()


def _partition(row: dict[str, Any]) -> str:
    return f"{row['_topic']}-{row['_partition']}" if "_offset" in row else ""
