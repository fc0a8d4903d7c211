"""The interface of a decoder on the Arrow path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from sluice_spark.sources.inputs import UTC

__all__ = ["METADATA", "ChunkDecoder", "Decoded", "Transform", "is_text"]

METADATA = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", UTC),
    ]
)
"""The columns of a transform's input beside the decoded ones."""


@dataclass(frozen=True)
class Decoded:
    """The records of a chunk that were decoded.

    Attributes
    ----------
    columns
        The decoded columns.
    kept
        The numbers of these records in the chunk, ascending; None means all.
    """

    columns: pa.Table
    kept: Any | None


class ChunkDecoder(Protocol):
    """Decodes chunks of records. It can be pickled, also after use.

    Attributes
    ----------
    columns
        The decoded columns, in the sink's types.
    keyed
        Whether it needs the keys of the records.
    """

    columns: pa.Schema
    keyed: bool

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        """Decode a chunk; leave out each record that the Spark path might decode in another way.

        Parameters
        ----------
        values
            The value of each record, in order.
        keys
            The key of each record, in order; empty unless it needs them.
        """


class Transform(Protocol):
    """Makes rows of decoded records. It can be pickled."""

    @property
    def schema(self) -> pa.Schema:
        """The result's columns."""

    def apply(self, source: pa.Table) -> pa.Table:
        """Return the rows of a chunk, in these columns.

        Parameters
        ----------
        source
            The decoded columns, and those of :data:`METADATA`.

        Raises
        ------
        UnreadableError
            If they cannot be traced to the records.
        """


def is_text(value: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
