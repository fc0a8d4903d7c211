"""A decoder for each record, chosen by its topic or a header."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.decoders.config import RESCUED
from sluice.decoders.format import Format
from sluice.decoders.per_record import UNMATCHED, ByHeader, PerRecord
from sluice_spark.decoders.base import COLUMN, DATA, RULE, decode, last_header

__all__ = ["PerRecordDecoder", "choice_of"]

_CHOICE = "__sluice_format"
_ASIDE = "__sluice_value"


@dataclass(frozen=True)
class PerRecordDecoder:
    """The decoder of ``decode: {by_topic: ...}`` and ``decode: {by_header: ...}``."""

    config: PerRecord

    def decode(self, records: DataFrame) -> DataFrame:
        """Decode each record by the format that the file names for it, in one pass; see :class:`Decoder`.

        Each decoder sees all records, and has the values of its own only: a value of null costs it nothing.
        """
        names = records.columns
        frame = records.withColumn(_CHOICE, choice_of(self.config))
        for number, (_, form) in enumerate(self.config.entries):
            frame = _decoded(frame, number, form)
        header = self.config.name if isinstance(self.config, ByHeader) else "_topic"
        found = {RULE: F.lit(UNMATCHED), COLUMN: F.lit(header)}
        shape = self._columns(frame)
        data = F.lit(None)
        for number in range(len(self.config.entries)):
            own = F.col(_CHOICE) == number
            found = {name: F.when(own, F.col(_of(name, number))).otherwise(column) for name, column in found.items()}
            there = frame.schema[_of(DATA, number)].dataType.fieldNames()
            parts = [
                (F.col(_of(DATA, number)).getField(name) if name in there else F.lit(None).cast("string")).alias(name)
                for name in shape
            ]
            data = F.when(own, F.struct(*parts)).otherwise(data)
        return frame.select(
            *(name for name in names if name not in (DATA, RULE, COLUMN)),
            data.alias(DATA),
            *(column.alias(name) for name, column in found.items()),
        )

    def _columns(self, frame: DataFrame) -> list[str]:
        """Return the names of the columns, in the order of the first format; unknown fields are all but one's."""
        found = [frame.schema[_of(DATA, n)].dataType.fieldNames() for n in range(len(self.config.entries))]
        kept = any(RESCUED in names for names in found) and RESCUED not in found[0]
        return [*found[0], *([RESCUED] if kept else [])]


def choice_of(config: PerRecord) -> Column:
    """Return the number of the entry that a record chooses, as :meth:`PerRecord.chosen` does; null if there is none."""
    if isinstance(config, ByHeader):
        value = last_header(config.name).cast("string")
        value = F.when(F.is_valid_utf8(value), value)
    else:
        value = F.substring_index("topic", ":", -1) if config.clusters else F.col("topic")
    found = F.when(F.lit(False), 0)
    for name, number in config.exact.items():
        found = found.when(value == name, number)
    for pattern, number in config.patterns:
        found = found.when(value.rlike(rf"{pattern}\z"), number)
    return found if config.default is None else found.otherwise(len(config.formats))


def _decoded(frame: DataFrame, number: int, form: Format) -> DataFrame:
    """Add what a decoder makes of the records that chose it, below names of its own."""
    own = frame.withColumns({_ASIDE: F.col("value"), "value": F.when(F.col(_CHOICE) == number, F.col("value"))})
    found = decode(own, form)
    kept = [name for name in frame.columns if name != "value"]
    return found.select(
        *kept,
        F.col(_ASIDE).alias("value"),
        *(F.col(name).alias(_of(name, number)) for name in (DATA, RULE, COLUMN)),
    )


def _of(name: str, number: int) -> str:
    return f"{name}_{number}"
