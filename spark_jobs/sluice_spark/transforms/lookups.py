"""The tables that a transform joins, as temporary views: each is pinned to a version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.delta.pinned_table import PinnedTable, pin
from sluice.errors import SourceUnreachableError, described
from sluice.home import Home
from sluice.pipeline import Pipeline
from sluice_spark.paths import literal, located

__all__ = ["NO_LOOKUPS", "Lookups"]

_FILES = 1000
"""The most files whose paths Spark gets one by one."""


@dataclass(frozen=True)
class Lookups:
    """The tables of a pipeline's key ``tables``, each at the version that a batch reads."""

    tables: tuple[PinnedTable, ...] = ()

    @classmethod
    def of(cls, pipeline: Pipeline, home: Home, recorded: dict[str, dict[str, Any]] | None = None) -> Lookups:
        """Decide the versions: those of the pipeline file, else those that are recorded, else the newest.

        Parameters
        ----------
        recorded
            :meth:`as_dict` of the batch that is processed again.

        Raises
        ------
        ConfigError
            If a table or a version is gone.
        SourceUnreachableError
            If a storage does not answer.
        """
        return cls(
            tuple(
                pin(
                    name,
                    lookup.delta.path,
                    home.resolve(lookup.delta.path),
                    version=lookup.delta.version,
                    timestamp=lookup.delta.timestamp,
                    recorded=(recorded or {}).get(name),
                )
                for name, lookup in pipeline.tables.items()
            )
        )

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return what ledger and commit metadata have of them, by name."""
        return {table.name: table.as_dict() for table in self.tables}

    def around(self, transform: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
        """Return the transform as one that finds the tables in the session of its batch."""
        if not self.tables:
            return transform

        def joined(source: DataFrame) -> DataFrame:
            for table in self.tables:
                _read(source.sparkSession, table).createOrReplaceTempView(table.name)
            return transform(source)

        return joined

    def refuse_gone(self) -> None:
        """Refuse to go on if a table, its version or a file of it is gone; see :meth:`PinnedTable.refuse_gone`."""
        for table in self.tables:
            table.refuse_gone()

    def check(self, spark: SparkSession) -> None:
        """Read each table to its end. Call it before records are blamed for a failure.

        Raises
        ------
        ConfigError
            If a table or a version is gone.
        SourceUnreachableError
            If one cannot be read.
        """
        self.refuse_gone()
        for table in self.tables:
            try:
                _read(spark, table).write.format("noop").mode("overwrite").save()
            except Exception as error:
                raise SourceUnreachableError(
                    f"tables.{table.name}: version {table.version} of the Delta table {table.path} cannot be read: "
                    f"{described(error)}",
                    state="nothing of this batch is visible in the sink; batches that were committed stay",
                    next_step="fix the storage of that table, then run again",
                ) from error


NO_LOOKUPS = Lookups()


def _read(spark: SparkSession, table: PinnedTable) -> DataFrame:
    files = table.files
    if files is None or len(files) > _FILES:
        return spark.read.format("delta").option("versionAsOf", table.version).load(located(table.path))
    # Spark's Delta reader reconstructs the table's state in a job of its own; the log was read here already
    schema = StructType.fromJson(json.loads(table.table.schema().to_json()))
    return spark.read.schema(schema).parquet(*map(literal, files)) if files else spark.createDataFrame([], schema)
