"""Finds the rows of some runs in a table's files, for rows that carry no offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice_spark.sinks.parquet.slice import Found, Key, Slice, lacks, opened, partition_of

__all__ = ["RowsByRun"]


@dataclass
class RowsByRun(Slice):
    """The rows whose ``_run`` is one of some ids. No offsets are found; ``ranges`` is empty."""

    runs: frozenset[str] = frozenset()

    def _may_hold(self, files: pa.Table) -> Any:
        return np.ones(files.num_rows, dtype=bool)

    def _look(self, fs: Any, base: str, path: str) -> Found:
        rows = total = 0
        values = partition_of(path)
        with fs.open(f"{base}/{unquote(path)}", "rb") as handle:
            parquet = opened(handle)
            if "_run" in values:
                count = parquet.metadata.num_rows
                return Found(count if values["_run"] in self.runs else 0, count, {})
            if lacks(parquet.metadata, ["_run"]):
                return Found(0, parquet.metadata.num_rows, {})
            for batch in parquet.iter_batches(batch_size=1 << 18, columns=["_run"]):
                total += batch.num_rows
                rows += int(self._mine(batch).sum())
        return Found(rows, total, {})

    def _masks(self, batch: Any, values: Mapping[str, str | None]) -> list[tuple[Key, Any]]:
        return [(("", 0), self._mine(batch))]

    def _mine(self, batch: Any) -> Any:
        names = batch.column("_run").cast(pa.string())
        return pc.is_in(names, pa.array(sorted(self.runs), pa.string())).to_numpy(zero_copy_only=False)
