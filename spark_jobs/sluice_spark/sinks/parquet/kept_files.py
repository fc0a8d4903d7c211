"""What sinks have in common whose rows cannot be read back: staged files are kept until their run is judged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.errors import ConfigError, SinkError
from sluice.storage import file_system
from sluice_spark.paths import literal
from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.parquet.attempts import remove, written_to
from sluice_spark.sinks.parquet.staging import StagesParquet

__all__ = ["KeepsStaged", "kept_as"]


def kept_as(staged: Staged, schema: StructType) -> dict[str, Any]:
    """Return what a mark says of the staged files of its batch."""
    return {"staged": staged.folder, "rows": staged.rows, "schema": schema.jsonValue()}


class _Place(Protocol):
    path: str
    keep: timedelta

    @property
    def staging(self) -> str: ...

    def marks(self) -> Iterable[Mapping[str, Any]]: ...


class KeepsStaged(StagesParquet):
    """The part of a :class:`~sluice_spark.sinks.base.ReadableSink` that reads the rows of a run from staged files.

    A sink has ``marks()``: the commit metadata of its commits, as far as their files may be there, with what
    :func:`kept_as` says, and ``sent``, the time in milliseconds since 1970.
    """

    ordered = True
    """Whoever gets the rows of a source partition gets them in the order of their offsets."""

    def rows_of(self: _Place, spark: SparkSession, runs: Sequence[str]) -> tuple[DataFrame, int]:
        """Return the rows that these runs wrote, and their number.

        Raises
        ------
        SinkError
            If the files were removed, since they are kept for a while only.
        """
        sent = [mark for mark in self.marks() if mark["run"] in runs and mark["staged"]]
        fs, base = file_system(self.staging)
        if not sent or not all(fs.exists(f"{base}/{mark['staged']}") for mark in sent):
            raise SinkError(
                f"rows of {', '.join(runs)} can no longer be validated: {self.path} cannot be read back, and the files "
                "that were staged are removed some time after a run is judged",
                state="the rows were written",
                next_step="validate later runs again before that",
            )
        folders = [f"{self.staging}/{mark['staged']}" for mark in sent]
        columns = StructType.fromJson(sent[-1]["schema"])
        return spark.read.schema(columns).parquet(*map(literal, folders)), sum(int(mark["rows"]) for mark in sent)

    def rows(self: _Place, spark: SparkSession) -> DataFrame:
        """Refuse: what was written is not read back as a whole."""
        raise ConfigError(
            f"{self.path} cannot be read back as a whole",
            state="nothing was read or written",
            next_step="choose another sink for expectations on the whole table",
        )

    def sweep(self: _Place, batch: str) -> None:
        """Remove the staged files of attempts at a batch that were not committed."""
        folders = written_to(self.staging, batch)
        sent = {mark["staged"].rpartition("/")[2] for mark in self.marks() if mark["staged"]} if folders else set()
        remove(self.staging, (folder for folder in folders if folder.rpartition("/")[2] not in sent))

    def settled(self: _Place) -> None:
        """Remove staged files that are older than ``keep``. All runs are judged, and no batch is being staged."""
        before = time.time() - self.keep / timedelta(seconds=1)
        fs, base = file_system(self.staging)
        fs.invalidate_cache()
        for folder in fs.ls(f"{base}/batches", detail=True) if fs.exists(f"{base}/batches") else ():
            if folder["mtime"] <= before:
                fs.rm(folder["name"], recursive=True)
