"""What two runs' leavings have in common when they stopped at the same place: all but ids, times and bytes."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from tests.chaos.states.tree import Tree

__all__ = ["likeness"]

_PASSING = {
    "at", "id", "token", "seconds", "app_id", "path", "folder", "length", "footer", "crc", "bytes", "memory",
}  # fmt: skip


def likeness(tree: Tree) -> dict[str, Any]:
    """Return contents of tables, the checkpoint's batches, staged folders by batch, and the ledger's events."""
    found: dict[str, Any] = {
        "checkpoint": sorted(_batches(tree)),
        "staged": Counter(
            "/".join(p for p in path.split("/")[:-1] if p != "batches").rpartition("-")[0]
            for path in tree.files
            if path.endswith(".parquet") and "/batches/" in path and "_temporary" not in path
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        tree.write(home)
        logs = [log.parent for log in home.rglob("_delta_log")]
        found["tables"] = {log.relative_to(home).as_posix(): _rows(log) for log in logs}
        found["events"] = _events(home / "ledger.db")
    return found


def _batches(tree: Tree) -> list[tuple[str, str]]:
    return [
        (path, inode.data.decode().splitlines()[-1] if "commits" not in path else "")
        for path, inode in tree.files.items()
        if path.startswith("checkpoints/") and path.rpartition("/")[2].isdigit()
    ]


def _rows(path: Path) -> Any:
    try:
        table = DeltaTable(str(path))
    except TableNotFoundError:
        return None
    return table.version(), Counter(map(repr, table.to_pyarrow_table().to_pylist()))


def _events(database: Path) -> list[Any]:
    if not database.exists():
        return []
    with closing(sqlite3.connect(database)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sluice_event'").fetchone():
            return []
        rows = connection.execute("SELECT run, type, payload FROM sluice_event ORDER BY id").fetchall()
    return [(run, kind, _plain(json.loads(payload))) for run, kind, payload in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in sorted(value.items()) if key not in _PASSING}
    return [_plain(item) for item in value] if isinstance(value, list) else value
