"""The quarantine (dead-letter table): refused records, verbatim, with the rule that each one broke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from sluice.decoders.per_record import UNMATCHED
from sluice.pipeline.sections import Decode
from sluice.ranges import OffsetRange, RangeAccount
from sluice_spark.decoders.base import COLUMN, RULE, last_header
from sluice_spark.decoders.per_record import choice_of
from sluice_spark.sinks.base import NOTHING, Staged, TakenBackError
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sinks.parquet.staged_files import read_back
from sluice_spark.sources.base import RECORD_SCHEMA, within

__all__ = ["SCHEMA", "held_records", "opened", "refused_again", "refused_records", "take_out"]

_LONGEST, _END = 200, 60
"""Characters of a record's text that a detail has."""

SCHEMA = StructType(
    [
        *(RECORD_SCHEMA[name] for name in ("key", "value", "headers")),
        *(
            StructField(f"_{name}", RECORD_SCHEMA[name].dataType)
            for name in ("topic", "partition", "offset", "timestamp")
        ),
        StructField("_run", StringType()),
        StructField(
            "_errors",
            ArrayType(StructType([StructField(n, StringType()) for n in ("rule", "severity", "column", "detail")])),
        ),
    ]
)
"""The columns of every quarantine table. One of an earlier version gets what it lacks with the next refused records."""


def opened(path: str, app_id: str) -> DeltaSink:
    """Open the quarantine of a writer; it need not exist."""
    return DeltaSink(path, app_id, evolve="add")


def refused_records(decoded: DataFrame, run_id: str, decode: Decode) -> DataFrame:
    """Return the records that broke a rule, in the columns of :data:`SCHEMA`.

    Parameters
    ----------
    decode
        What decoded them.

    Notes
    -----
    The offending text is looked up here, so that only refused records pay for it, and by Spark itself: an executor's
    Python need not have this package. :class:`sluice.decoders.explain.Explainer` says more, to whoever asks.
    """
    error = F.struct(
        F.col(RULE).alias("rule"),
        F.lit("critical").alias("severity"),
        F.col(COLUMN).alias("column"),
        _detail_of(decode).alias("detail"),
    )
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


def _detail_of(decode: Decode) -> Column:
    """Return the offending text of records that are JSON, and the header that chose no format."""
    nothing = F.lit(None).cast("string")
    if decode.chosen is None:
        return _detail() if decode.key == "json" else nothing
    known = [number for number, form in enumerate(decode.formats) if form.key == "json"]
    detail = F.when(choice_of(decode.chosen).isin(known), _detail()) if known else nothing
    if decode.by_header is None:
        return detail
    text = F.left(last_header(decode.by_header.name).cast("string"), F.lit(_LONGEST))
    return F.when(F.col(RULE) == UNMATCHED, F.when(F.is_valid_utf8(text), text)).otherwise(detail)


def _detail() -> Column:
    """Return the text of the field that broke a rule, or the end of a text that is no JSON object; cut."""
    text = F.col("value").cast("string")
    path = F.concat(F.lit("$['"), F.col(COLUMN), F.lit("']"))
    field = F.left(F.call_function("get_json_object", text, path), F.lit(_LONGEST))
    end = F.concat(F.length(text), F.lit(" characters, ending in "), F.right(text, F.lit(_END)))
    return F.when(F.col(COLUMN).isNotNull(), field).when(F.col(RULE) == "json", end)


def held_records(
    spark: SparkSession,
    quarantine: DeltaSink,
    *,
    of_run: str | None = None,
    ranges: Sequence[OffsetRange] | None = None,
    rule: str | None = None,
    before: datetime | None = None,
) -> DataFrame:
    """Return the records of a quarantine in the columns of a source's record, beside those of the table.

    Parameters
    ----------
    of_run, ranges, rule
        Only what this run refused, what lies in these ranges, what broke this rule; None means all.
    before
        Only records of an earlier record time, or of none; aware. None means all.
    """
    rows = quarantine.rows(spark)
    if of_run is not None:
        rows = rows.where(F.col("_run") == of_run)
    if rule is not None:
        rows = rows.where(F.col("_errors")[0]["rule"] == rule)
    if before is not None:
        rows = rows.where(F.col("_timestamp").isNull() | (F.col("_timestamp") < F.lit(before)))
    raw = rows.select(
        *rows.columns,
        *(F.col(f"_{name}").alias(name) for name in ("topic", "partition", "offset", "timestamp")),
    )
    return raw if ranges is None else raw.where(within(ranges))


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
            f"{quarantine.path}/{folder}, where {staged.rows:,} are now: a user removed files there",
            state="the batch's rows are in the sink; its refused records are in no table yet; the ledger does not have "
            "the batch. Nothing was changed now",
            next_step="restore the folder from a copy, and run again. If there is none, run once with --recovery "
            "ignore_range: it records the batch, counts these records as lost if their offsets are known, and reports "
            "that; then sluice redrive reads them again while Kafka or the write-ahead log has them",
        )
    return staged
