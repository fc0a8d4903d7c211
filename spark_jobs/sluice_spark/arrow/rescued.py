"""Fields of JSON objects that the schema does not have: what ``sluice_spark.decoders.rescued`` does, in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from sluice.decoders.config import RESCUED
from sluice_spark.arrow.base import ChunkDecoder, Decoded
from sluice_spark.decoders.rescued import TOKEN

__all__ = ["WithRescued", "names_of", "rescued"]

_TOKEN = re.compile(TOKEN)
_BLANKS = " \t\r\n"
_Known = Mapping[str, "_Known | None"]
_read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


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
        self._known = _known(schema)
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


def rescued(value: bytes, known: _Known) -> str | None:
    """Return an object of the members that the schema does not have; None if there are none.

    Parameters
    ----------
    value
        Exactly one JSON object, or ``null``.
    known
        The names that the schema has; those of a ``STRUCT`` with the names that it has in turn.

    Raises
    ------
    UnicodeError
        If a name is no text.
    """
    kept: list[str] = []
    inner: dict[str, bytes] = {}
    for name, (given, raw) in _members(value).items():
        if name not in known:
            kept.append(f"{given}:{raw.decode()}")
        elif known[name] is not None:
            inner[name] = raw
    for name, names in known.items():
        if name in inner and names is not None and (found := rescued(inner[name], names)) is not None:
            kept.append(f"{json.dumps(name, ensure_ascii=False)}:{found}")
    return f"{{{','.join(kept)}}}" if kept else None


def names_of(texts: Iterable[str | None]) -> list[tuple[str, ...]]:
    """Return the names of the members of each object, sorted; a text that is None has none."""
    return [tuple(sorted(_members(text.encode()))) for text in texts if text is not None]


def _known(schema: T.StructType) -> _Known:
    return {f.name: _known(f.dataType) if isinstance(f.dataType, T.StructType) else None for f in schema.fields}


def _members(value: bytes) -> dict[str, tuple[str, bytes]]:
    """Return the members of an object by name: the name as it is given, and the value; of equal names the last."""
    if b"\\" not in value:
        try:
            return {name: (f'"{name}"', bytes(raw)) for name, raw in _read(value).items()}
        except (msgspec.MsgspecError, RecursionError):  # null, or deeper than it reads
            pass
    members: dict[str, tuple[str, bytes]] = {}
    text = value.decode()
    depth, start, given = 0, 0, None
    for found in _TOKEN.finditer(text):
        token = found[0]
        if depth == 1:
            if given is None and token[0] == '"':
                given = token
            elif token == ":":
                start = found.end()
            elif token in (",", "}") and given is not None:
                members[_name(given)] = given, text[start : found.start()].strip(_BLANKS).encode()
                given = None
        depth += (token in "{[") - (token in "}]")
    return members


def _name(given: str) -> str:
    name: Any = json.loads(given)
    name.encode()
    return str(name)
