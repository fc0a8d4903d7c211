"""The section ``tables`` of a pipeline file: Delta tables that the transform can join, and what goes with them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AwareDatetime, Field, model_validator

from sluice.fields import Strict, TablePath

__all__ = ["DeltaLookup", "Lookup", "check_names"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class DeltaLookup(Strict):
    """A Delta table that the transform reads; no run writes to it."""

    path: TablePath
    """Relative to ``SLUICE_HOME``, absolute, or a URL."""
    version: Annotated[int, Field(ge=0)] | None = None
    """The version that every batch reads, also one that is processed again; by default the newest when a run begins."""
    timestamp: AwareDatetime | None = None
    """Instead of ``version``: the newest version that was committed by this time, such as ``2026-01-01T00:00:00Z``."""

    @model_validator(mode="after")
    def _one(self) -> DeltaLookup:
        if self.version is not None and self.timestamp is not None:
            raise ValueError("version and timestamp each name a version: write one of them")
        return self


class Lookup(Strict):
    """A table that the transform can join."""

    delta: DeltaLookup
    """A Delta table."""


def check_names(tables: dict[str, Lookup]) -> dict[str, Lookup]:
    """Return the tables, if SQL can call them by their names.

    Raises
    ------
    ValueError
        With a name that it cannot use.
    """
    for name in tables:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r}: use a-z, 0-9 and _, beginning with a letter, at most 63 characters")
        if name == "source":
            raise ValueError("'source' is the name of the batch's own records: choose another")
    return tables
