"""Decodes JSON records a chunk at a time, and sets aside each record that the Spark path might decode in another way.

Why what is accepted is right: ``docs/arrow.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql import types as T

from sluice_spark.arrow.base import Decoded, is_text
from sluice_spark.arrow.columns import arrow_type, finish, parsed_type
from sluice_spark.arrow.maps import ESCAPED_NAME, MapReader

__all__ = ["JsonChunks"]

_LITERAL = re.compile(rb"[:\[,\s-](?:NaN|Inf)")
"""NaN and infinity outside of strings; also in some strings, which then are set aside needlessly."""
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")
"""With such escapes a field could be named like one of Sluice's own, unseen."""
_ODD_DECIMAL = (
    r'"(?:[-.]*[0-9][-0-9.]*[+eE][-+0-9.eE]*|[-.]*\+[-+0-9.eE]*|-?\.[0-9]*|-?[0-9]+\.)"'
    r"|[:\[,]\s*-?[0-9.]+[eE]"
    r"|\\u00(?:2[b-eB-E]|3[0-9])"
)
"""A number as text in a form that Java reads as another value or not at all, or with escaped digits or signs, which
may hide such a form; or a number with an exponent, which Arrow may convert to a wrong DECIMAL without an error."""
_OWN = b"__sluice"
_SHORT = 4096
"""In a text of fewer bytes a plain search is as fast as any."""
_LONG = 900
"""A longer value may hold a number or a nesting beyond what the Spark path reads."""
_LONGEST = 32_768
_DEEP = 900
_DIGITS = bytes.maketrans(b"123456789.+-eE", b"0" * 14)
_MANY_DIGITS = b"0" * 900
_PARTS = 8
"""Parts into which a chunk is divided if it fails, and it is not known which record makes it fail."""
_TRIALS = 200
"""Maximum number of parts of a chunk that are tried, approximately."""


class JsonChunks:
    """Decodes chunks of JSON records into typed columns.

    Parameters
    ----------
    schema
        The declared columns; each type must be supported: :func:`~sluice_spark.arrow.columns.unsupported`.
    """

    def __init__(self, schema: T.StructType) -> None:
        self._schema = schema
        maps = {f.name: f.dataType for f in schema.fields if isinstance(f.dataType, T.MapType)}
        self._parsed = pa.schema([(f.name, parsed_type(f.dataType)) for f in schema.fields if f.name not in maps])
        self._maps = MapReader(maps) if maps else None
        self.columns = pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in schema.fields])
        self._suspicious = False
        self._decimals = any(isinstance(f.dataType, T.DecimalType) for f in schema.fields)

    keyed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._schema,)  # msgspec's decoders do not travel to a worker

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] = ()) -> Decoded:
        """Decode the values of a chunk; those that may be decoded in another way by Spark are left out."""
        kept: Any | None = None
        lines: Sequence[Any] = values
        text = b"\n".join(values) if None not in values else None  # type: ignore[arg-type]
        if text is None or not _sound(text, lines):
            kept = np.array([n for n, value in enumerate(values) if _sound_alone(value)], dtype=np.int64)
            lines = [values[n] for n in kept]
            text = b"\n".join(lines)
        table = None if self._suspicious else self._parse(text, len(lines))
        if table is None:
            # records of the wrong type or form: they seldom come alone, so the next chunk is searched at once
            fits = [n for n, line in enumerate(lines) if self._fits(line)]
            self._suspicious = len(fits) < len(lines)
            if len(fits) < len(lines):
                chosen = np.array(fits, dtype=np.int64)
                kept = chosen if kept is None else kept[chosen]
                lines = [lines[n] for n in fits]
                text = b"\n".join(lines)
            table = self._parse(text, len(lines))
        if table is None:
            table, good = self._by_parts(lines)
            kept = good if kept is None else kept[good]
            lines = [lines[n] for n in good]
        return self._finished(table, lines, kept)

    def _parse(self, text: bytes, count: int) -> pa.Table | None:
        if not count:
            return self._parsed.empty_table()
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(text),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=self._parsed, unexpected_field_behavior="ignore"
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return table.select(self._parsed.names) if table.num_rows == count else None

    def _by_parts(self, lines: Sequence[bytes]) -> tuple[pa.Table, Any]:
        """Decode those parts that can be decoded, found by dividing; records beyond a number of trials are left out."""
        tables, good, trials = [self._parsed.empty_table()], [np.empty(0, np.int64)], _TRIALS
        parts = [range(len(lines))]
        while parts and trials:
            whole = parts.pop()
            size = max(1, -(-len(whole) // _PARTS))
            for start in range(whole.start, whole.stop, size):
                part = range(start, min(start + size, whole.stop))
                trials -= 1
                found = self._parse(b"\n".join(lines[part.start : part.stop]), len(part))
                if found is not None:
                    tables.append(found)
                    good.append(np.array(part, dtype=np.int64))
                elif len(part) > 1:
                    parts.insert(0, part)
        chosen = np.concatenate(good)
        order = np.argsort(chosen)
        return pa.concat_tables(tables).take(pa.array(order)), chosen[order]

    def _finished(self, table: pa.Table, lines: Sequence[bytes], kept: Any | None) -> Decoded:
        arrays, doubtful = [], None
        maps: dict[str, pa.Array] = {}
        if self._maps is not None:
            maps, doubtful = self._maps.read(lines)
        for f in self._schema.fields:
            array = maps[f.name] if f.name in maps else _whole(table.column(f.name))
            found = finish(array, f.dataType, nullable=f.nullable)
            arrays.append(found.array)
            if found.doubtful is not None:
                doubtful = found.doubtful if doubtful is None else doubtful | found.doubtful
        if self._decimals:
            odd = pc.match_substring_regex(pa.array(lines, pa.binary()), _ODD_DECIMAL)
            marked = odd.to_numpy(zero_copy_only=False)
            if marked.any():
                doubtful = marked if doubtful is None else doubtful | marked
        made = pa.Table.from_arrays(arrays, schema=self.columns)
        if doubtful is None or not doubtful.any():
            return Decoded(made, kept)
        sure = np.flatnonzero(~doubtful)
        return Decoded(made.take(pa.array(sure)), sure if kept is None else kept[sure])

    @cached_property
    def _check(self) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(_model(self._schema, "Record")).decode

    def _fits(self, line: bytes) -> bool:
        """Return whether a record seems to fit. Only speed depends on it: what does not fit is set aside."""
        try:
            self._check(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return False
        return True


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _sound(text: bytes, values: Sequence[bytes]) -> bool:
    """Return whether each of these values, joined by line breaks, is one object that Arrow reads as Spark does.

    If every line begins with ``{`` and ends with ``}``, no object spans two lines: between two lines stand ``}``, a
    line break and ``{``, which JSON allows neither between two tokens of an object nor in a string. So each line has
    at least one object, and if there are as many objects as lines, each has exactly one.
    """
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return False
    # no line break is the first letter or the last one
    letters = np.frombuffer(text, np.uint8)
    breaks = np.flatnonzero(letters == ord("\n"))
    return (
        len(breaks) == len(values) - 1
        and bool((letters[breaks - 1] == ord("}")).all())
        and bool((letters[breaks + 1] == ord("{")).all())
        and _harmless(text)
        and (max(map(len, values)) <= _LONG or all(map(_shallow, values)))
    )


def _sound_alone(value: bytes | None) -> bool:
    return (
        value is not None
        and value.startswith(b"{")
        and value.endswith(b"}")
        and b"\n" not in value
        and _harmless(value)
        and _shallow(value)
    )


def _harmless(text: bytes) -> bool:
    if _has(text, _OWN):
        return False
    if (_has(text, b"NaN") or _has(text, b"Inf")) and _LITERAL.search(text):
        return False
    if b"\\" in text and b"\\u00" in text and _ESCAPED_LETTER.search(text):
        return False
    return is_text(text)


def _has(text: bytes, word: bytes) -> bool:
    """Return whether a word is in a text. NumPy looks for its first two bytes first, in a third of the time."""
    if len(text) > _SHORT:
        pair = int.from_bytes(word[:2], "little")
        pairs = (np.frombuffer(text, "<u2", (len(text) - at) // 2, at) for at in (0, 1))
        if not any((found == pair).any() for found in pairs):
            return False
    return word in text


def _shallow(value: bytes) -> bool:
    if len(value) <= _LONG:
        return True
    return (
        len(value) <= _LONGEST
        and value.count(b"[") + value.count(b"{") <= _DEEP
        and _MANY_DIGITS not in value.translate(_DIGITS)
    )


def _model(kind: T.StructType, name: str) -> type:
    # msgspec takes no names that JSON escapes, and maps have a reader of their own; such fields are not checked
    checked = [
        (n, f)
        for n, f in enumerate(kind.fields)
        if not isinstance(f.dataType, T.MapType) and not ESCAPED_NAME.search(f.name)
    ]
    fields = [(f"f{n}", _hint(f.dataType, f"{name}{n}"), None) for n, f in checked]
    names = {f"f{n}": f.name for n, f in checked}
    return msgspec.defstruct(name, fields, rename=names.get)


def _hint(kind: T.DataType, name: str) -> Any:
    bits = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}.get(type(kind))
    if bits is not None:
        limit = 2 ** (bits - 1)
        # its limits are of 64 bits by themselves, and it takes no larger ones
        return int | None if bits == 64 else Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)] | None
    if isinstance(kind, T.BooleanType):
        return bool | None
    if isinstance(kind, T.DoubleType):
        return float | None
    if isinstance(kind, T.DecimalType):
        return int | float | str | None
    if isinstance(kind, T.StructType):
        return _model(kind, name) | None
    if isinstance(kind, T.ArrayType):
        element = _hint(kind.elementType, f"{name}e")
        return list[element] | None  # type: ignore[valid-type]
    return str | None
