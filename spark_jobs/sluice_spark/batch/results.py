"""One batch of a pipeline whose operator aggregates: its rows take the place of those that they were before."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self, cast

from pyspark.sql import Column
from pyspark.sql.types import StructType

from sluice.errors import CheckpointError, ConfigError
from sluice.pipeline.aggregate import Aggregate
from sluice.pipeline.window import Window
from sluice_spark.batch.stateful import Opening, StatefulWriter, way_on
from sluice_spark.sinks.base import Fence, ReplaceableSink, Staged
from sluice_spark.sinks.parquet.all_rows import AllRows
from sluice_spark.sinks.parquet.rows_by_key import RowsByKey
from sluice_spark.windows.aggregate import blamed

__all__ = ["ResultWriter"]

_BLIND = re.compile(
    r"\b(array_agg|approx_\w+|bitmap_\w+|collect_\w+|histogram_numeric|listagg|median|mode|percentile\w*|string_agg"
    r"|\w*sketch\w*)\s*\(",
    re.IGNORECASE,
)
"""Aggregates whose state is bytes, or hashes, to Spark: it reads those of another type without a word."""


@dataclass(frozen=True)
class ResultWriter(StatefulWriter):
    """Prepares and commits the batches of windows, or of an aggregate.

    Parameters
    ----------
    taken
        The columns of the transform's rows.
    """

    taken: StructType = field(default_factory=StructType)

    @property
    @abstractmethod
    def operator(self) -> Window | Aggregate:
        """The operator's section of the pipeline file."""

    @property
    @abstractmethod
    def row_key(self) -> tuple[str, ...]:
        """The columns that tell one row from another."""

    @property
    def output(self) -> str:
        """Spark's output mode."""
        return self.operator.output

    def blamed(self, rule: Column) -> Column:
        """Return the name of the column by which a row breaks a rule."""
        return blamed(self.operator, rule, self.taken)

    @property
    def replaces(self) -> bool:
        """Whether the sink keeps rows that later ones can take the place of."""
        return self.pipeline.sink.kind.by_value

    def checked(self, opening: Opening) -> Self:
        """Return the writer, if it can go on with what the table and the epoch have.

        Raises
        ------
        SluiceError
            If not.
        """
        if self._whole and self.replaces:
            self.refuse_to_empty(opening)
        self.refuse_other_types(opening)
        return self

    def refuse_to_empty(self, opening: Opening) -> None:
        """Refuse to put a first result in place of rows that another program wrote.

        Raises
        ------
        ConfigError
            If the pipeline has never read anything, and the table has files.
        """
        sink, every = cast(ReplaceableSink, self.sink), AllRows(())
        if sink.version() >= 0 or opening.ledger.offsets.reached(self.pipeline.name, ever=True):
            return
        sink.held(every)
        if every.found:
            raise ConfigError(
                f"{sink.path} has rows, and none of them is of pipeline {self.pipeline.name!r}: its first "
                f"batch would take their place ({self.pipeline.keeps}.output: {self.pipeline.output})",
                state="nothing was read or written",
                next_step="name another path in the pipeline file; or, if these rows are not needed, delete them first",
            )

    def refuse_other_types(self, opening: Opening) -> None:
        """Refuse to go on with results whose values Spark would take for those of another type.

        Raises
        ------
        CheckpointError
            With the columns that have another type now.
        """
        checkpoint, types = opening.checkpoint, self.types
        known = checkpoint.types() if checkpoint.planned() else None
        if known is None:  # of an earlier version, or there is no state yet
            checkpoint.note_types(types)
            return
        differing = [(name, known[name], kind) for name, kind in types.items() if known.get(name, kind) != kind]
        if differing:
            told = ", ".join(f"{name} was {old.upper()} and is {new.upper()}" for name, old, new in differing)
            name, old, _ = differing[0]
            raise CheckpointError(
                f"pipeline {self.pipeline.name!r}: epoch {opening.epoch} {self.operator.holding}, with values of "
                f"another type: {told}",
                state="nothing was read or written; what is kept between runs is in the checkpoint as it was",
                next_step=f"CAST({name} AS {old.upper()}) in the transform, or undo the change in "
                f"{self.pipeline.file.name}; or {way_on(self.pipeline)}",
            )

    @property
    def _whole(self) -> bool:
        """Whether a batch takes the place of all rows: also the one row of an aggregate without groups."""
        return self.output == "complete" or not self.row_key

    @property
    def types(self) -> dict[str, str]:
        """The types of the columns whose values Spark keeps in results without their types."""
        blind = [text for text in self.operator.aggregates.values() if _BLIND.search(text)]
        named = {word.lower() for text in blind for word in re.findall(r"\w+", text)}
        return {f.name: f.dataType.simpleString() for f in self.taken.fields if f.name.lower() in named}

    def commit_rows(self, staged: Staged, batch: int, note: Mapping[str, object], fence: Fence | None) -> bool:
        """Commit staged rows, in place of those that ``output`` says.

        With ``update``, those with the same key; with ``complete``, all rows. A sink that keeps no rows is handed those
        that the batch changed, or all of them.
        """
        if self.output == "append" or not self.replaces or not (staged.files or self._whole):
            return super().commit_rows(staged, batch, note, fence)
        sink = cast(ReplaceableSink, self.sink)
        sink.check_replaceable()
        gone = AllRows(()) if self._whole else RowsByKey.of(str(sink.staging), staged, self.row_key)
        name = staged.batch if staged.files else f"nothing-{batch}"  # of which no file is written
        done = sink.replace(gone, staged, self.schema, batch, note, name=name, fence=fence)
        return done is not None
