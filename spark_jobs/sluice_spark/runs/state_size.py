"""How large the state is that a run leaves behind, from what Spark says of its batches.

Spark does not count the keys of RocksDB's stores, because that would read each key once more as often as a changelog is
replayed. But each batch goes through the whole state to find what is over, and says how many bytes it has read so:
that is the size of all keys and values. Keys and windows are counted in the state itself, if it is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from sluice.errors import SluiceError
from sluice.ledger import Lease, Ledger
from sluice.ledger.events import Degraded, StateMeasured
from sluice.run.growth import warning
from sluice_spark.batch.stateful import StatefulWriter
from sluice_spark.engine.logs import logger
from sluice_spark.runs.tables import Tables

__all__ = ["MOST", "measure", "operators_of"]

MOST = 1000
"""Batches of a query whose progress Spark keeps; for a longer query, the last ones count."""

_SMALL = 8_000_000
"""A state of so many bytes has some 100,000 keys, which are counted in about a second."""


def operators_of(progress: Sequence[StreamingQueryProgress]) -> list[dict[str, Any]]:
    """Return, of each stateful operator of a query, what it keeps, and what its batches changed.

    Parameters
    ----------
    progress
        The progress of the query's batches, oldest first.
    """
    found = []
    for number, last in enumerate(progress[-1].stateOperators if progress else ()):
        batches = [batch.stateOperators[number] for batch in progress if number < len(batch.stateOperators)]
        found.append(
            {
                "operator": last.operatorName,
                "live": int(last.customMetrics.get("rocksdbTotalBytesReadThroughIterator", 0)),
                "updated": sum(each.numRowsUpdated for each in batches),
                "removed": sum(each.numRowsRemoved for each in batches),
                "memory": last.memoryUsedBytes,
            }
        )
    return found


def measure(
    spark: SparkSession,
    ledger: Ledger,
    lease: Lease,
    writer: StatefulWriter,
    tables: Tables,
    progress: Sequence[StreamingQueryProgress],
) -> None:
    """Record the state that a query leaves behind, and warn if it grows without being cleaned.

    Parameters
    ----------
    tables
        Those of the stream that has the state.
    """
    try:
        operators, committed = operators_of(progress), tables.checkpoint.committed()
        if not operators or not committed:
            return
        epoch, batch = tables.epoch.number, committed[-1]
        watermark, size = tables.checkpoint.watermark(batch), tables.checkpoint.state_bytes()
        counted: dict[str, int | None] = {"keys": None, "windows": None}
        if writer.live(sum(each["live"] for each in operators), size) <= _SMALL:
            counted |= writer.counted(spark, tables.checkpoint, batch)
    except (OSError, SluiceError, PySparkException) as error:  # what the run wrote is whole
        logger.warning("the state could not be measured: %s", error)
        return
    measured = StateMeasured(
        epoch=epoch, batch=batch, watermark=watermark, bytes=size, operators=operators,
        keys=counted["keys"], windows=counted["windows"],
    )  # fmt: skip
    ledger.record(lease, measured)
    wrong = warning(ledger, writer.pipeline)
    if wrong is not None:
        logger.warning("%s", wrong)
        ledger.record(lease, Degraded(note=wrong))
