"""Reads the transaction versions of all applications of a Delta table in one pass over its log.

delta-rs answers for only one application id at a time and reads the log's files again for each.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow.parquet as pq

from sluice.storage import file_system

__all__ = ["transaction_versions"]


def transaction_versions(root: str, version: int) -> dict[str, int] | None:
    """Return the newest transaction version of a table by application id.

    Parameters
    ----------
    root
        Path or URL of the table.
    version
        The table's version that was opened; later commits are not read.

    Returns
    -------
    dict or None
        None if the log has an unsupported form (a checkpoint in parts or of another version), or a file cannot be read;
        the caller then falls back to delta-rs.
    """
    fs, base = file_system(root)
    fs.invalidate_cache()
    log = f"{base}/_delta_log"
    try:
        begin, found = _checkpoint(fs, log, version)
        for number in range(begin, version + 1):
            with fs.open(f"{log}/{number:020}.json", "rb") as file:
                for line in file.read().splitlines():  # a client of an object store may ask for each byte by itself
                    if b'"txn"' in line and (txn := json.loads(line).get("txn")) is not None:
                        found[txn["appId"]] = int(txn["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def _checkpoint(fs: Any, log: str, version: int) -> tuple[int, dict[str, int]]:
    """Return the version after the log's last checkpoint, and the transaction versions in that checkpoint."""
    try:
        with fs.open(f"{log}/_last_checkpoint", "rb") as file:
            last = json.loads(file.read())
    except FileNotFoundError:
        return 0, {}
    if last.get("parts") or "v2Checkpoint" in last or int(last["version"]) > version:
        raise ValueError("unsupported form of checkpoint")
    with fs.open(f"{log}/{int(last['version']):020}.checkpoint.parquet", "rb") as file:
        rows = pq.ParquetFile(file).read(columns=["txn.appId", "txn.version"]).column("txn").drop_null().to_pylist()
    return int(last["version"]) + 1, {row["appId"]: int(row["version"]) for row in rows if row["appId"] is not None}
