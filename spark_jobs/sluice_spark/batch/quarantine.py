"""The quarantine (dead-letter table): refused records, verbatim, with the rule that each one broke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from sluice.ranges import OffsetRange, RangeAccount
from sluice_spark.decoders.base import COLUMN, RULE
from sluice_spark.sinks.base import NOTHING, Staged, TakenBackError
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sinks.parquet.staged import read_back
from sluice_spark.sources.base import RECORD_SCHEMA

__all__ = ["SCHEMA", "refused_again", "refused_records", "take_out"]

SCHEMA = StructType(
    [
        *(RECORD_SCHEMA[name] for name in ("key", "value", "headers")),
        *(
            StructField(f"_{name}", RECORD_SCHEMA[name].dataType)
            for name in ("topic", "partition", "offset", "timestamp")
        ),
        StructField("_run", StringType()),
        StructField(
            "_errors", ArrayType(StructType([StructField(n, StringType()) for n in ("rule", "severity", "column")]))
        ),
    ]
)
"""The columns of every quarantine table."""


def refused_records(decoded: DataFrame, run_id: str) -> DataFrame:
    """Return the records that broke a rule, in the columns of :data:`SCHEMA`."""
    error = F.struct(F.col(RULE).alias("rule"), F.lit("critical").alias("severity"), F.col(COLUMN).alias("column"))
    return decoded.where(F.col(RULE).isNotNull()).select(
        "key",
        "value",
        "headers",
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        F.lit(run_id).alias("_run"),
        F.array(error).alias("_errors"),
    )


def take_out(quarantine: DeltaSink, ranges: Sequence[OffsetRange], batch: int, run_id: str, *, name: str) -> None:
    """Remove the records of some offsets from the quarantine, whichever files hold them now. Idempotent.

    Parameters
    ----------
    batch
        The sink's batch into which these records were written.
    name
        The name of the batch's folders.

    Raises
    ------
    LeaseHeldError, SinkError
        As :meth:`DeltaSink.replace`.
    """
    quarantine.replace(Slice(ranges), NOTHING, SCHEMA, batch, {"run": run_id}, name=name)


def refused_again(
    quarantine: DeltaSink, note: Mapping[str, Any], accounts: Sequence[RangeAccount], *, forgo: bool = False
) -> Staged:
    """Return the refused records that a commit of the sink names, from the files in which they were staged.

    Parameters
    ----------
    note
        The commit metadata of the sink's commit.
    accounts
        The accounts of the commit, which say how many records there are.
    forgo
        Whether to return the remaining records if some are missing.

    Raises
    ------
    TakenBackError
        If there are fewer or more records than the commit says.
    """
    folder, due = note.get("refused"), sum(account.counts.quarantined for account in accounts)
    staged = read_back(quarantine.path, folder, offsets=False) if folder else NOTHING
    if staged.rows != due and not forgo:
        raise TakenBackError(
            f"batch {note['version']} of run {note['run']!r} refused {due:,} records and staged them in "
            f"{quarantine.path}/{folder}, where {staged.rows:,} are now: somebody removed files there",
            state="the batch's rows are in the sink; its refused records are in no table yet; the ledger does not have "
            "the batch. Nothing was changed now",
            next_step="restore the folder from a copy, and run again. If there is none, run once with --recovery "
            "ignore_range: it records the batch, counts these records as lost if their offsets are known, and reports "
            "that; then sluice redrive reads them again while Kafka or the write-ahead log has them",
        )
    return staged
