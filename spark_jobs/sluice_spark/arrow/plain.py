"""Values that stay as they are, as text or as bytes, on the Arrow path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sluice_spark.arrow.base import Decoded, is_text

__all__ = ["BytesChunks", "TextChunks"]


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
