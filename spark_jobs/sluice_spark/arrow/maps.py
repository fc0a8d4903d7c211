"""MAP columns of JSON records on the Arrow path; Arrow's own reader has none, so msgspec reads them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

__all__ = ["ESCAPED_NAME", "MapReader", "map_type", "unsupported_map"]

ESCAPED_NAME = re.compile(r'["\\\x00-\x1f]')
"""Names that JSON escapes; msgspec takes none."""
_EXACT = 2.0**53
_LONG = msgspec.Meta(ge=-(2**63), le=2**63 - 1)
_INT = msgspec.Meta(ge=-(2**31), le=2**31 - 1)
_VALUES: dict[type[T.DataType], tuple[Any, pa.DataType]] = {
    T.DoubleType: (float, pa.float64()),
    T.LongType: (Annotated[int, _LONG], pa.int64()),
    T.IntegerType: (Annotated[int, _INT], pa.int32()),
    T.StringType: (str, pa.string()),
    T.BooleanType: (bool, pa.bool_()),
}


def unsupported_map(kind: T.MapType) -> bool:
    """Return whether the Arrow path does not decode a map."""
    return type(kind.keyType) is not T.StringType or type(kind.valueType) not in _VALUES


def map_type(kind: T.MapType) -> pa.DataType:
    """Return the Arrow type of a map."""
    return pa.map_(pa.string(), _VALUES[type(kind.valueType)][1])


class MapReader:
    """Reads the maps of some columns from lines that are known to be JSON objects.

    Parameters
    ----------
    columns
        The map columns, by name.
    """

    def __init__(self, columns: dict[str, T.MapType]) -> None:
        self._columns = list(columns.items())
        empty = msgspec.Raw(b"")
        fields = [(f"f{n}", msgspec.Raw, empty) for n in range(len(self._columns))]
        names = {f"f{n}": name for n, (name, _) in enumerate(self._columns)}
        record = msgspec.defstruct("Record", fields, rename=names.get)
        self._read: Callable[[bytes], Any] = msgspec.json.Decoder(record).decode
        self._maps: list[Callable[[Any], dict[str, Any] | None]] = []
        for _, kind in self._columns:
            value = _VALUES[type(kind.valueType)][0]
            self._maps.append(msgspec.json.Decoder(dict[str, value | None] | None).decode)  # type: ignore[valid-type]

    def read(self, lines: Sequence[bytes]) -> tuple[dict[str, pa.Array], Any]:
        """Return the map columns, and a mask of the lines whose maps may differ from those of the Spark path.

        In a doubtful line all maps are null.
        """
        found: list[list[dict[str, Any] | None]] = [[None] * len(lines) for _ in self._columns]
        doubtful = np.zeros(len(lines), dtype=bool)
        marks = [b'"%s"' % name.encode() for name, _ in self._columns]
        for row, line in enumerate(lines):
            try:
                record = self._read(line)
                for number, mark in enumerate(marks):
                    raw = getattr(record, f"f{number}")
                    if raw:
                        found[number][row] = _distinct(self._maps[number](raw), bytes(raw))
                    if line.count(mark) > 1:  # the column itself may stand there twice
                        raise ValueError(mark)
            except (ValueError, RecursionError):  # msgspec's errors are among them
                doubtful[row] = True
                for column in found:
                    column[row] = None
        arrays = {
            name: _array(column, map_type(kind)) for (name, kind), column in zip(self._columns, found, strict=True)
        }
        return arrays, doubtful


def _distinct(pairs: dict[str, Any] | None, raw: bytes) -> dict[str, Any] | None:
    """Return a map if no key stands in its text twice, and its numbers need no second look.

    Each pair has one colon of its own, and text may have more. So if there are as many colons as keys, there are as
    many pairs as keys.
    """
    if pairs is not None and raw.count(b":") != len(pairs):
        raise ValueError("a key may stand there twice")
    for value in pairs.values() if pairs else ():
        if isinstance(value, float) and (abs(value) >= _EXACT or (value == 0 and math.copysign(1, value) < 0)):
            raise ValueError("the digits decide")
    return pairs


def _array(column: Sequence[dict[str, Any] | None], kind: pa.DataType) -> pa.Array:
    keys: list[str] = []
    values: list[Any] = []
    lengths = np.zeros(len(column) + 1, dtype=np.int64)
    for row, pairs in enumerate(column, start=1):
        if pairs:
            keys.extend(pairs)
            values.extend(pairs.values())
            lengths[row] = len(pairs)
    offsets = pa.array(np.cumsum(lengths).astype(np.int32))
    null = pa.array([pairs is None for pairs in column], pa.bool_())
    made = pa.MapArray.from_arrays(offsets, pa.array(keys, pa.string()), pa.array(values, kind.item_type), mask=null)
    return made.cast(kind)
