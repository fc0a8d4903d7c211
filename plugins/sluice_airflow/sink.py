"""The table that a pipeline writes to, as tasks see it."""

from __future__ import annotations

from sluice.delta.table import Table
from sluice.home import Home
from sluice.pipeline import Pipeline

__all__ = ["version_of"]


def version_of(pipeline: Pipeline) -> int | None:
    """Return the version of a Delta sink, None for another one or one that is not there."""
    if not pipeline.sink.kind.delta:
        return None
    delta = Table.open("the sink", Home.from_env().resolve(pipeline.delta_path)).delta
    return None if delta is None else int(delta.version())
