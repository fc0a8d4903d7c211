"""A user's function of an Arrow table as a transform on the Arrow path."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sluice_spark.arrow.base import METADATA
from sluice_spark.sources.inputs import UnreadableError
from sluice_spark.transforms.arrow_function import ArrowFunction

__all__ = ["UserFunction"]

_FIRST = -2_177_452_800_000_000
"""The beginning of 1901, in microseconds since 1970."""


@dataclass(frozen=True)
class UserFunction:
    """Calls the function for each chunk, and looks whether its rows have the metadata of records.

    Parameters
    ----------
    schema
        The result's columns, in the sink's types.
    """

    function: ArrowFunction
    schema: pa.Schema

    def apply(self, source: pa.Table) -> pa.Table:
        """Return the rows of a chunk; see :class:`sluice_spark.arrow.base.Transform`."""
        made = self.function.rows(source, self.schema)
        gc.collect(0)  # the collector rests, and the function may leave reference cycles
        for column in made.columns:
            least = pc.min(column) if pa.types.is_temporal(column.type) else None
            if least is not None and least.is_valid and least.cast(pa.timestamp("us")).value < _FIRST:
                raise UnreadableError("transform.arrow returns a time from before 1901, which some readers rebase")
        names = METADATA.names
        if not all(made.column(name).equals(source.column(name)) for name in names):
            # some were filtered, multiplied or moved
            there, here = source.select(names), made.select(names)
            if here.join(there, keys=names, join_type="left anti").num_rows:
                raise UnreadableError("transform.arrow changes metadata columns")  # Spark tells which
        return made
