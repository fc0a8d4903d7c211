"""Values that stay as they are, as text or as bytes, on the Arrow path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from sluice_spark.arrow.base import ChunkDecoder, Decoded, is_text
from sluice_spark.sources.inputs import Headers

__all__ = ["BytesChunks", "TextChunks", "WithKeys", "with_headers"]


class TextChunks:
    """The value as text. A record without a value, or whose value is not UTF-8, is left out."""

    columns = pa.schema([pa.field("value", pa.string())])
    keyed = False

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        """Return the values that are text."""
        whole = None not in values and is_text(b"\n".join(values))  # type: ignore[arg-type]
        kept = None if whole else np.array([n for n, v in enumerate(values) if v is not None and is_text(v)], np.int64)
        chosen = values if kept is None else [values[n] for n in kept]
        return Decoded(pa.table([pa.array(chosen, pa.binary()).cast(pa.string())], schema=self.columns), kept)


class BytesChunks:
    """Key and value as they are. No record is left out."""

    columns = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])
    keyed = True

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        """Return keys and values."""
        return Decoded(
            pa.table([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=self.columns), None
        )


def with_headers(found: Decoded, headers: Sequence[Headers], columns: Mapping[str, str]) -> Decoded:
    """Add headers as last columns: the last one of each name. A record with one that is not UTF-8 is left out.

    Parameters
    ----------
    headers
        Those of each record of the chunk.
    columns
        The names of the headers, by column.
    """
    own = [dict(headers[n] or ()) for n in (range(len(headers)) if found.kept is None else found.kept)]
    table, kept = found.columns, found.kept
    values = {column: [record.get(name) for record in own] for column, name in columns.items()}
    sound = np.array([all(v is None or is_text(v) for v in each) for each in zip(*values.values(), strict=True)], bool)
    for column, each in values.items():
        whole = [value if good else None for value, good in zip(each, sound, strict=True)]
        table = table.append_column(pa.field(column, pa.string()), pa.array(whole, pa.binary()).cast(pa.string()))
    if sound.all():
        return Decoded(table, kept)
    numbers = np.flatnonzero(sound)
    return Decoded(table.take(pa.array(numbers)), numbers if kept is None else kept[numbers])


class WithKeys:
    """Adds the keys as a last column. A record whose key is not UTF-8 is left out.

    Parameters
    ----------
    values
        Decodes the values.
    name
        The name of the column.
    """

    keyed = True

    def __init__(self, values: ChunkDecoder, name: str) -> None:
        self._values = values
        self._name = name
        self.columns = values.columns.append(pa.field(name, pa.string()))

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        """Return the decoded values, and their keys."""
        found = self._values.decode(values, keys)
        table, kept = found.columns, found.kept
        own = keys if kept is None else [keys[n] for n in kept]
        if not is_text(b"\n".join(key for key in own if key is not None)):
            sound = np.array([n for n, key in enumerate(own) if key is None or is_text(key)], np.int64)
            own = [own[n] for n in sound]
            table = table.take(pa.array(sound))
            kept = sound if kept is None else kept[sound]
        column = pa.array(own, pa.binary()).cast(pa.string())
        return Decoded(table.append_column(self.columns.field(self._name), column), kept)
