"""The interface of records that workers read by themselves, without Spark, as Arrow tables or as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from sluice.ranges import OffsetRange

__all__ = [
    "LATEST",
    "RECORDS",
    "UTC",
    "Chunk",
    "Headers",
    "Input",
    "RangeReader",
    "SilentError",
    "UnreadableError",
    "WithInputs",
    "inputs_of",
]

UTC = pa.timestamp("us", "UTC")
LATEST = (2**63 - 1) // 1000
"""The last time that a TIMESTAMP holds, in milliseconds since 1970 (year 294247); later record times count as it."""
RECORDS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", UTC),
        pa.field("timestampType", pa.int32()),
    ]
)
"""The columns of records as they are: those of :data:`sluice_spark.sources.base.RECORD_SCHEMA`."""


Headers = Sequence[tuple[str, bytes | None]] | None
"""The headers of a record; None if it has none."""


class UnreadableError(Exception):
    """A range that could not be read to its end; the Spark path reads it again, and finds out why."""


class SilentError(UnreadableError):
    """No record came for a while: the broker may not answer, and then other ranges would wait as long."""


class Chunk(Protocol):
    """Some records of one partition, in the order of their offsets."""

    @property
    def offsets(self) -> Any:
        """The offsets, ascending, as a NumPy array."""

    @property
    def times(self) -> Any:
        """Record times in milliseconds since 1970 (UTC); negative where the record has none."""

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""

    def headers(self) -> list[Headers]:
        """Return the headers of each record, in their order."""

    def chosen(self, numbers: Any) -> Chunk:
        """Return the records with these numbers in the chunk, which ascend."""

    def records(self) -> pa.Table:
        """Return the records as they are, in the columns of :data:`RECORDS`."""


class RangeReader(Protocol):
    """Reads one range after another."""

    def read(self, span: OffsetRange) -> Iterator[Chunk]:
        """Yield the records of a range.

        Raises
        ------
        UnreadableError
            If it cannot be read to its end. Chunks that were yielded before are right.
        """


class Input(Protocol):
    """Where workers read records by their offsets. It can be pickled, and may hold secrets."""

    def opened(self) -> AbstractContextManager[RangeReader]:
        """Open it, in the process that reads."""


@runtime_checkable
class WithInputs(Protocol):
    """Records (:class:`sluice_spark.sources.base.Records`) that workers can read without Spark."""

    def inputs(self, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
        """Return where the records of these ranges are; ranges that only Spark can read are left out."""


def inputs_of(source: object, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
    """Return where workers find the records of these ranges; nothing if only Spark can read the source."""
    return source.inputs(ranges) if isinstance(source, WithInputs) else []
