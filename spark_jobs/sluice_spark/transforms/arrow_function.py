"""A transform that is a function of an Arrow table: called by Python workers, of the Arrow path or of Spark."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.errors import described, quoted

__all__ = ["ArrowFunction", "WrongResultError", "on_spark"]


class WrongResultError(ValueError):
    """A function returned what is no table, or a table of other columns than for an empty table."""


@dataclass
class ArrowFunction:
    """The function of ``transform.arrow``. It is pickled by its name, and imported where it is called.

    Parameters
    ----------
    target
        ``package.module:function``.
    """

    target: str
    _function: Any = field(default=None, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.target,)

    def load(self) -> None:
        """Import it; what its import raises passes through."""
        if self._function is None:
            module, _, name = self.target.partition(":")
            self._function = getattr(importlib.import_module(module), name)

    def __call__(self, source: pa.Table) -> pa.Table:
        """Return what the function returns.

        Raises
        ------
        WrongResultError
            If it is no table, or if the function ended the process instead.
        """
        self.load()
        try:
            made = self._function(source)
        except SystemExit as error:  # within a batch, Spark would wait for an answer that never comes
            code = error.code if isinstance(error.code, int | None) else quoted(str(error.code))
            told = f"transform.arrow called exit({code}) instead of returning a table"
            raise WrongResultError(told) from error
        if not isinstance(made, pa.Table):
            raise WrongResultError(f"transform.arrow returned {type(made).__name__}, not a pyarrow.Table")
        return made

    def rows(self, source: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return what the function returns, in the columns that it has for an empty table.

        Raises
        ------
        WrongResultError
            If it has other columns, or values that do not fit their types.
        """
        made = self(source)
        if made.schema.equals(schema):
            return made
        if made.column_names != schema.names:
            raise WrongResultError(
                f"transform.arrow returned the columns {made.column_names}; for an empty table it was {schema.names}"
            )
        try:
            return made.cast(schema)
        except pa.ArrowException as error:
            told = f"transform.arrow returned other types than for an empty table: {described(error)}"
            raise WrongResultError(told) from error

    def shape(self, source: DataFrame) -> tuple[StructType, pa.Schema]:
        """Return the result's columns in Spark's types, and as Spark passes them to Python: for an empty table.

        Parameters
        ----------
        source
            A frame with the columns of the input; none of its rows is read.
        """
        made = self(source.limit(0).toArrow())
        frame = source.sparkSession.createDataFrame(made.slice(0, 0))
        return frame.schema, frame.toArrow().schema


def on_spark(function: ArrowFunction) -> Callable[[DataFrame], DataFrame]:
    """Return the transform as a function of a Spark DataFrame, which calls it for pieces of each partition."""
    known: list[tuple[StructType, pa.Schema]] = []

    def run(source: DataFrame) -> DataFrame:
        if not known:
            known.append(function.shape(source))
        schema, columns = known[0]

        def pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from function.rows(pa.Table.from_batches([batch]), columns).to_batches()

        return source.mapInArrow(pieces, schema)

    return run
