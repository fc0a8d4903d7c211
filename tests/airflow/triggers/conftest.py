"""Looks at a backlog, as the watcher takes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sluice.errors import SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag
from sluice_airflow.triggers.crossing import Runs

NOW = datetime(2026, 11, 2, 5, tzinfo=UTC)

IDLE = Runs(7, 0)


def seen(
    position: int, end: int, *, limits: Limits | None = None, start: int = 0, age: float = 0.0, **more: Any
) -> Backlog:
    part = PartitionLag("demo", 0, position, start, end, age)
    return Backlog("demo", (part,), limits or Limits(10), **{"at": NOW, **more})


SILENT = Backlog(
    "demo", (PartitionLag("demo", 0, 0, None, None),), Limits(10), SourceUnreachableError("no broker answers"), at=NOW
)
