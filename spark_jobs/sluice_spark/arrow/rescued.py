"""Fields of JSON objects that the schema does not have: what ``sluice_spark.decoders.rescued`` does, in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from sluice.decoders.config import RESCUED
from sluice_spark.arrow.base import ChunkDecoder, Decoded
from sluice_spark.decoders.rescued import TOKEN, has_objects

__all__ = ["WithRescued", "names_of", "rescued"]

_TOKEN = re.compile(TOKEN)
_BLANKS = " \t\r\n"
_read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_Shape = Union[Mapping[str, "_Shape | None"], "_Array"]
"""What the schema names within a value; of fields that hold no objects nothing."""


@dataclass(frozen=True)
class _Array:
    of: _Shape


class WithRescued:
    """Adds the unknown fields of each object, as text. A record whose names are no text is left out.

    Parameters
    ----------
    values
        Decodes the values.
    schema
        The declared columns.
    """

    keyed = False

    def __init__(self, values: ChunkDecoder, schema: T.StructType) -> None:
        self._values = values
        self._known = _shape(schema)
        self.columns = values.columns.append(pa.field(RESCUED, pa.string()))

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        """Return the decoded values, and what the schema does not have."""
        found = self._values.decode(values, keys)
        table, kept = found.columns, found.kept
        texts: list[str | None] = []
        odd: list[int] = []
        for at, n in enumerate(range(len(values)) if kept is None else kept):
            line = values[n]
            assert line is not None
            try:
                texts.append(rescued(line, self._known))
            except ValueError:  # half a surrogate pair in a name
                texts.append(None)
                odd.append(at)
        column = pa.array(texts, pa.string())
        made = table.append_column(self.columns.field(RESCUED), column)
        if not odd:
            return Decoded(made, kept)
        sure = np.setdiff1d(np.arange(len(texts)), odd)
        return Decoded(made.take(pa.array(sure)), sure if kept is None else kept[sure])


def rescued(value: bytes, known: _Shape) -> str | None:
    """Return what the schema does not have within a value, in the value's shape; None if there is nothing.

    Parameters
    ----------
    value
        Exactly one JSON value. ``null`` has nothing.
    known
        The names that the schema has.

    Raises
    ------
    UnicodeError
        If a name is no text.
    """
    if isinstance(known, _Array):
        found = [rescued(part, known.of) for part in _elements(value)]
        return f"[{','.join(one or 'null' for one in found)}]" if any(found) else None
    kept: list[str] = []
    inner: dict[str, bytes] = {}
    for name, (given, raw) in _members(value).items():
        if name not in known:
            kept.append(f"{given}:{raw.decode()}")
        elif known[name] is not None:
            inner[name] = raw
    for name, shape in known.items():
        if name in inner and shape is not None and (one := rescued(inner[name], shape)) is not None:
            kept.append(f"{json.dumps(name, ensure_ascii=False)}:{one}")
    return f"{{{','.join(kept)}}}" if kept else None


def names_of(texts: Iterable[str | None]) -> list[tuple[str, ...]]:
    """Return the names of the members of each object, sorted; a text that is None has none."""
    return [tuple(sorted(_members(text.encode()))) for text in texts if text is not None]


def _shape(kind: T.DataType) -> _Shape:
    if isinstance(kind, T.ArrayType):
        return _Array(_shape(kind.elementType))
    assert isinstance(kind, T.StructType)  # maps of objects are not decoded here
    return {f.name: _shape(f.dataType) if has_objects(f.dataType) else None for f in kind.fields}


def _members(value: bytes) -> dict[str, tuple[str, bytes]]:
    """Return the members of an object by name: the name as it is given, and the value; of equal names the last."""
    if b"\\" not in value:
        try:
            return {name: (f'"{name}"', bytes(raw)) for name, raw in _read(value).items()}
        except (msgspec.MsgspecError, RecursionError):  # null, or deeper than it reads
            pass
    return {_name(given): (given, raw) for given, raw in _parts(value.decode()) if given is not None}


def _elements(value: bytes) -> list[bytes]:
    """Return the elements of an array, as they are given."""
    try:
        return [bytes(raw) for raw in _read_array(value)]
    except (msgspec.MsgspecError, RecursionError):  # null, or deeper than it reads
        return [raw for given, raw in _parts(value.decode()) if given is None]


def _parts(text: str) -> Iterator[tuple[str | None, bytes]]:
    """Yield the values of an object, with their names, or those of an array, without, as they are given."""
    depth, start, given = 0, 0, None
    array = text.lstrip(_BLANKS).startswith("[")
    for found in _TOKEN.finditer(text):
        token = found[0]
        if depth == 0 and token == "[":
            start = found.end()
        elif depth == 1:
            if token in (",", "]" if array else "}"):
                raw = text[start : found.start()].strip(_BLANKS)
                if given is not None or (array and raw):
                    yield given, raw.encode()
                given, start = None, found.end()
            elif not array and given is None and token[0] == '"':
                given = token
            elif not array and token == ":":
                start = found.end()
        depth += (token in "{[") - (token in "}]")


def _name(given: str) -> str:
    name: Any = json.loads(given)
    name.encode()
    return str(name)
