"""Arrow arrays as JSON, column by column: each row of a file becomes an object."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

__all__ = ["UnfitError", "check", "member", "moments", "rows_of", "text_of", "text_of_bytes"]

_LARGEST = 64 << 20
"""Bytes of a batch that are turned into text at a time."""
_ESCAPED = re.compile(rb'["\\\x00-\x1f]')
_WHOLE = r"^-?[0-9]+$"


class UnfitError(Exception):
    """A file whose rows cannot be written as JSON; the text says why."""


def check(schema: Any) -> None:
    """Raise :class:`UnfitError` if rows of an Arrow schema cannot be written as JSON objects.

    That is the case if a column has a type without a form in JSON, or if two have one name.
    """
    import pyarrow as pa

    _distinct([field.name for field in schema])
    for field in schema:
        try:
            _values(pa.array([], field.type))
        except (pa.ArrowException, TypeError) as error:
            raise UnfitError(f"its column {field.name!r} is {field.type}, which has no form in JSON") from error


def rows_of(batch: Any) -> list[bytes]:
    """Return the rows of a record batch as JSON objects. ``docs/sources.md`` says how each type is written."""
    parts = max(1, batch.nbytes // _LARGEST)
    size = max(1, -(-batch.num_rows // parts))
    found: list[bytes] = []
    for start in range(0, batch.num_rows, size):
        part = batch.slice(start, size)
        found += _objects(part.schema.names, part.columns, part.num_rows).to_pylist()
    return found


def text_of(value: str) -> str:
    """Return a text as JSON."""
    return json.dumps(value, ensure_ascii=False)


def text_of_bytes(value: bytes) -> str:
    """Return bytes as JSON: their Base64."""
    return f'"{base64.b64encode(value).decode()}"'


def member(name: str) -> str:
    """Return the name of an object's member, with its colon."""
    return f"{text_of(name)}:"


def _values(array: Any) -> Any:
    """Return the JSON of each element, as bytes; none is null."""
    import pyarrow.compute as pc

    return pc.fill_null(_told(array), b"null")


def _told(array: Any) -> Any:
    """Return the JSON of each element, as bytes; null where the element is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, t = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _uuids(array.storage) if kind.extension_name == "arrow.uuid" else _told(array.storage)
    if t.is_dictionary(kind):
        return _told(array.dictionary_decode())
    if t.is_null(kind):
        return pa.nulls(len(array), pa.binary())
    if t.is_boolean(kind):
        return pc.if_else(array, pa.scalar(b"true"), pa.scalar(b"false"))
    if t.is_integer(kind):
        return _plain(array)
    if t.is_floating(kind):
        return _floats(array)
    if t.is_decimal(kind):
        return _decimals(array)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return _strings(array)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind):
        found = [None if value is None else base64.b64encode(value) for value in array.to_pylist()]
        return _quoted(pa.array(found, pa.binary()))
    if t.is_date(kind) or t.is_timestamp(kind) or t.is_time(kind):
        text = moments(array)
        # of some values Arrow says that they are out of range: without quotes, the decoder refuses the row
        return pc.if_else(pc.starts_with(text, "<"), text, _quoted(text))
    if t.is_duration(kind):
        return _plain(array.cast(pa.int64()))
    if t.is_struct(kind):
        names = [kind.field(n).name for n in range(kind.num_fields)]
        _distinct(names)
        return _where(array, _objects(names, array.flatten(), len(array)))
    if t.is_map(kind):
        return _maps(array)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return _gathered(array, _values(array.flatten()), b"[", b"]")
    raise TypeError(str(kind))


def moments(array: Any) -> Any:
    """Return the text of each date or time, as bytes; null where the element is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_date(kind):
        return _plain(array.cast(pa.date32()))
    if pa.types.is_timestamp(kind):
        text = _plain(array.view(pa.timestamp(kind.unit)))  # in UTC; with a zone it would take ten times as long
        return text if kind.tz is None else _joined(text, b"Z")
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
    number = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    whole = pc.equal(number, pa.scalar(86_400 * 10**digits, number.type))  # PostgreSQL and others have 24:00
    end = b"24:00:00" + (b"." + b"0" * digits if digits else b"")
    return pc.if_else(whole, pa.scalar(end), _plain(array))


def _plain(array: Any) -> Any:
    import pyarrow as pa

    return array.cast(pa.string()).cast(pa.binary())


def _joined(*parts: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    told = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*told, pa.scalar(b"", pa.binary()))


def _quoted(array: Any) -> Any:
    return _joined(b'"', array, b'"')


def _where(array: Any, made: Any) -> Any:
    """Return what was made, but null where an array is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return made if not array.null_count else pc.if_else(array.is_valid(), made, pa.scalar(None, pa.binary()))


def _objects(names: Sequence[str], columns: Sequence[Any], count: int) -> Any:
    import pyarrow as pa

    if not names:
        return pa.repeat(pa.scalar(b"{}"), count)
    parts: list[Any] = []
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        parts += [("," if number else "{").encode() + member(name).encode(), _values(column)]
    return _joined(*parts, b"}")


def _gathered(array: Any, elements: Any, begin: bytes, end: bytes) -> Any:
    """Return lists of elements that are JSON already.

    Parameters
    ----------
    array
        The lists, from which lengths and nulls are taken.
    elements
        The elements of those that are not null, one after another.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.if_else(array.is_valid(), pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, elements)
    return _where(array, _joined(begin, pc.binary_join(lists, pa.scalar(b",", pa.binary())), end))


def _maps(array: Any) -> Any:
    import pyarrow as pa

    entry = pa.struct([pa.field("key", array.type.key_type, nullable=False), pa.field("value", array.type.item_type)])
    array = array.cast(pa.list_(entry))
    keys, items = array.flatten().flatten()
    told = _values(keys)
    kind = keys.type.value_type if pa.types.is_dictionary(keys.type) else keys.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        told = _quoted(told)
    elif pa.types.is_floating(kind) or pa.types.is_duration(kind) or pa.types.is_nested(kind):
        raise TypeError(str(array.type))
    return _gathered(array, _joined(told, b":", _values(items)), b"{", b"}")


def _strings(array: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    raw = array.cast(pa.binary())  # what is not UTF-8 is refused by the decoder
    if pc.any(pc.match_substring_regex(raw, _ESCAPED.pattern.decode("latin-1"))).as_py():
        escaped = [None if text is None else _ESCAPED.sub(_escape, text) for text in raw.to_pylist()]
        raw = pa.array(escaped, pa.binary())
    return _quoted(raw)


def _escape(found: re.Match[bytes]) -> bytes:
    return text_of(found[0].decode())[1:-1].encode()


def _floats(array: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    wide = array.cast(pa.float64())  # all digits of a float, not the fewest that tell it from other floats
    text = _plain(wide)
    whole = pc.match_substring_regex(text, _WHOLE)
    text = pc.if_else(whole, _joined(text, b".0"), text)
    if pc.all(pc.is_finite(wide)).as_py() is not False:
        return text
    names = [(float("inf"), b'"Infinity"'), (float("-inf"), b'"-Infinity"')]
    for value, name in names:
        text = pc.if_else(pc.equal(wide, value), pa.scalar(name), text)
    return pc.if_else(pc.is_nan(wide), pa.scalar(b'"NaN"'), text)


def _decimals(array: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = _plain(array)
    if not pc.any(pc.match_substring(text, b"E")).as_py():
        return text
    plain = [None if value is None else format(Decimal(value.decode()), "f").encode() for value in text.to_pylist()]
    return pa.array(plain, pa.binary())


def _uuids(array: Any) -> Any:
    import pyarrow as pa

    found = [None if value is None else str(uuid.UUID(bytes=value)).encode() for value in array.to_pylist()]
    return _quoted(pa.array(found, pa.binary()))


def _distinct(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UnfitError(f"it has two columns of the name {twice[0]!r}")
