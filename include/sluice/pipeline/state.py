"""The key ``state`` of a pipeline file: when what Spark keeps from run to run is too much."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sluice.fields import Strict

__all__ = ["State"]


class State(Strict):
    """When a run warns of the state of windows or ``dedupe``."""

    growing_runs: Annotated[int, Field(ge=0)] = 10
    """It warns if the state grew in so many runs one after another, and for as long as state is to be kept, and nothing
    of it was removed. 0: never."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """It warns if keys and values have more bytes than this; by default never."""
