"""What sinks have in common that stage Parquet files below a folder of theirs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import reduce
from typing import Any, Protocol
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.errors import SinkError
from sluice.storage import file_system, make_folder
from sluice_spark.paths import literal, located
from sluice_spark.sinks.base import NOTHING, Staged
from sluice_spark.sinks.parquet.attempts import new_folder
from sluice_spark.sinks.parquet.staged_files import offsets_of, read_back

__all__ = ["StagesParquet"]

_PIECE = 1 << 24


class _Place(Protocol):
    path: str
    partition_by: list[str]

    @property
    def staging(self) -> str: ...


class StagesParquet:
    """The part of a :class:`~sluice_spark.sinks.base.Sink` that writes and reads staged files."""

    plain = True
    """Whether staged files have the rows, and nothing beside them."""

    def stage(
        self: _Place, rows: DataFrame, batch: str, *, offsets: bool = True, options: Mapping[str, str] | None = None
    ) -> Staged:
        """Write rows to a folder of their own, and read the files back.

        Parameters
        ----------
        batch
            The name of the batch, by which folders of earlier attempts are found.
        options
            Options of Spark's Parquet writer.

        Raises
        ------
        PySparkException
            If the job fails; reading, transforming and writing are one pass.
        """
        folder = new_folder(batch)
        writer = rows.write.mode("errorifexists").options(**(options or {}))
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.parquet(located(f"{self.staging}/{folder}"))
        staged = read_back(self.staging, folder, offsets=offsets)
        if not staged.files:  # no commit will name the folder
            fs, base = file_system(self.staging)
            fs.rm(f"{base}/{folder}", recursive=True)
            return NOTHING
        return staged

    def copied(self: _Place, root: str, staged: Staged, batch: str, *, offsets: bool = True) -> Staged:
        """Copy staged files of the same rows to a folder of their own, and read the copies back.

        Parameters
        ----------
        root
            Below which the files are. Their sink is :attr:`plain` and not partitioned, and so is this one.
        staged
            The files.
        batch, offsets
            As for :meth:`stage`.
        """
        folder = new_folder(batch)
        source, base = file_system(root)
        target, own = file_system(self.staging)
        make_folder(f"{self.staging}/{folder}")
        for number, file in enumerate(staged.files):  # of several folders, which may have files of the same name
            name = f"{own}/{folder}/part-{number:05}.parquet"
            with source.open(f"{base}/{unquote(file.path)}", "rb") as read, target.open(name, "wb") as written:
                shutil.copyfileobj(read, written, _PIECE)
        return read_back(self.staging, folder, offsets=offsets)

    def staged_rows(self: _Place, spark: SparkSession, staged: Staged, schema: StructType) -> DataFrame:
        """Return the rows of staged files, which may be of several writes, each with a folder of its own.

        Parameters
        ----------
        schema
            The schema of the staged rows.
        """
        if not staged.files:
            return spark.createDataFrame([], schema)
        # the root may be a URL, and the path of a file in a log is one: only the file's own part is quoted
        paths = [f"{self.staging}/{unquote(file.path)}" for file in staged.files]
        if not self.partition_by:
            return spark.read.schema(schema).parquet(*map(literal, paths))
        folders = {f"{self.staging}/{'/'.join(file.path.split('/')[:2])}" for file in staged.files}
        written = [
            spark.read.schema(schema).option("basePath", located(f)).parquet(literal(f)) for f in sorted(folders)
        ]
        return reduce(DataFrame.unionByName, written)

    def refuse_missing(self: _Place, staged: Staged, next_step: str) -> None:
        """Refuse to commit files that a user removed.

        Raises
        ------
        SinkError
            If one is gone.
        """
        fs, base = file_system(self.staging)
        for file in staged.files:
            if not fs.exists(f"{base}/{file.path}"):
                raise SinkError(
                    f"the staged file {file.path} of the {self.path} is gone",
                    state="nothing of this batch was committed; the next run writes its files again",
                    next_step=next_step,
                )

    def staged_offsets(self: _Place, staged: Staged) -> dict[tuple[str, int], Any]:
        """Return the distinct offsets of staged rows per topic and partition, ascending."""
        return offsets_of(self.staging, staged)
