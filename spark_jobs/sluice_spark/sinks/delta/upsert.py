"""A Delta table with one row for each key: a newer row replaces an older one, and a tombstone deletes it.

A commit finds the files that hold rows of the batch's keys, and puts others in their place, in one transaction directly
after the version of the table that it has read. What others commit meanwhile is looked at again, and never overwritten.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyspark.sql import types as T

from sluice.delta.names import KEY
from sluice.errors import START_OVER, ConfigError
from sluice.sinks.base import SinkConfig
from sluice.storage import file_system
from sluice_spark.sinks.base import Fence, Staged, of_table
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.merge import Merge

__all__ = ["DeltaUpsert"]

_COMPARED = (
    T.StringType, T.VarcharType, T.CharType, T.BinaryType, T.BooleanType, T.ByteType, T.ShortType, T.IntegerType,
    T.LongType, T.DecimalType, T.DateType, T.TimestampType, T.TimestampNTZType,
)  # fmt: skip
"""Types whose values are the same, or one is greater, whoever wrote them."""


class DeltaUpsert(DeltaSink):
    """A Delta table with one row for each key; the first commit creates it.

    Parameters
    ----------
    config
        ``key``, ``sequence`` and ``evolve`` of it.
    """

    def __init__(self, config: SinkConfig, path: str, app_id: str) -> None:
        self._key: tuple[str, ...] = getattr(config, "key", ())
        self._sequence: str = getattr(config, "ordering", "_offset")
        evolve, limit = getattr(config, "evolve", "refuse"), getattr(config, "widened_bytes", 0)
        settings = {KEY: json.dumps(list(self._key))}
        super().__init__(path, app_id, settings=settings, evolve=evolve, widen_up_to=limit)

    def check(self, schema: T.StructType) -> None:
        """Refuse rows that do not fit the table, or whose key cannot be compared.

        Raises
        ------
        ConfigError
            If they do not, or rows of the table cannot be replaced.
        """
        rows = of_table(schema)
        kinds = {field.name: field.dataType for field in rows.fields}
        problems = [f"{name} of the key is no column" for name in self._compared if name not in kinds]
        problems += [
            f"{name} is {kinds[name].simpleString().upper()}, which cannot be compared exactly: cast it"
            for name in self._compared
            if name in kinds and not isinstance(kinds[name], _COMPARED)
        ]
        if problems:
            raise ConfigError(
                f"rows cannot be merged into the table {self.path}: {'; '.join(problems)}",
                state="nothing was read or written; the position stays where it was",
                next_step=f"change key and sequence, or the transform; or, to start over, {START_OVER}",
            )
        super().check(rows)
        self.check_replaceable()

    @property
    def _compared(self) -> list[str]:
        return [*self._key, self._sequence]

    def commit(
        self,
        staged: Staged,
        schema: T.StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        fence: Fence | None = None,
    ) -> bool:
        """Merge staged rows into the table, in one transaction; see :meth:`DeltaSink.commit`.

        Raises
        ------
        RowsRefusedError
            If rows have no value in a column of their key, too.
        """
        rows = of_table(schema)
        if not staged.files:
            return super().commit(staged, rows, version, note, fence=fence)
        if self.version() >= version:  # and whoever committed it removed the files of this attempt
            return False
        self.check_replaceable()
        self._still_there(staged)
        merge = Merge.of(self.path, staged, self._key, self._sequence)
        if self.table() is None:
            self._made(rows)  # another program may do so, too, and put rows there: they are merged with
        done = self.replace(merge, staged, rows, version, note, name=staged.batch, fence=fence) is not None
        if done:
            self._forget(staged, merge.added(self.path, staged.batch, staged))
        return done

    def _forget(self, staged: Staged, added: Staged) -> None:
        """Remove what was staged and is in no version; if the driver dies before, the next run sweeps it."""
        fs, base = file_system(self.path)
        folders = [{posixpath.dirname(file.path) for file in files.files} for files in (staged, added)]
        for folder in folders[0] - folders[1]:
            with suppress(OSError):
                fs.rm(f"{base}/{folder}", recursive=True)
