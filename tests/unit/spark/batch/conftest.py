"""Refused records, staged without a JVM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from tests.fixtures.parquet import stage

from sluice_spark.sinks.base import Staged

ERRORS = pa.list_(pa.struct([("rule", pa.string()), ("severity", pa.string()), ("column", pa.string())]))
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def refuse(path: Path, batch: int, found: Sequence[tuple[int, int]]) -> Staged:
    """Stage records of these partitions and offsets, as a batch that refused them does."""
    count, error = len(found), [{"rule": "json", "severity": "critical", "column": None}]
    columns = {
        "key": pa.array([b"k"] * count, pa.binary()),
        "value": pa.array([b"?"] * count, pa.binary()),
        "headers": pa.nulls(count, HEADERS),
        "_topic": pa.array(["t"] * count, pa.string()),
        "_partition": pa.array([p for p, _ in found], pa.int32()),
        "_offset": pa.array([o for _, o in found], pa.int64()),
        "_timestamp": pa.array([1_356_998_400_000_000 + o for _, o in found], pa.timestamp("us", "UTC")),
        "_run": pa.array(["r"] * count, pa.string()),
        "_errors": pa.array([error] * count, ERRORS),
    }
    return stage(path, batch, pa.table(columns), offsets=False)
