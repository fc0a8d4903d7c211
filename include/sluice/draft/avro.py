"""The columns of Avro records, by a schema that they were written with; pure.

Types are those of the table in ``docs/decoding.md``: what is declared here is what the decoder takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sluice.decoders.registry import Schema
from sluice.draft.kinds import DEEPEST, Kind, NoColumnError, merged

__all__ = ["fields_of"]

_SIMPLE = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "string": "STRING",
    "enum": "STRING", "bytes": "BINARY", "fixed": "BINARY",
}  # fmt: skip
_LOGICAL = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
}


def fields_of(found: Schema, number: int, doubts: list[str]) -> Iterator[tuple[str, Kind, bool]]:
    """Yield the name and type of each field of a schema's records, and whether each record has a value of it.

    Parameters
    ----------
    number
        The schema's, for what is doubtful.
    """
    yield from _fields(list(_records(found)), number, doubts)


def _records(found: Schema) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the records that a schema describes, each with all types that have a name; more than one for a union."""
    from fastavro import parse_schema

    names: dict[str, Any] = {}
    for text in found.references:
        parse_schema(_plain(json.loads(text)), named_schemas=names)
    whole = parse_schema(_plain(json.loads(found.text)), named_schemas=names)
    parts = whole if isinstance(whole, list) else [whole]
    records = [part if isinstance(part, dict) and "fields" in part else names.get(_name(part)) for part in parts]
    there = [record for record in records if isinstance(record, dict) and record.get("type") == "record"]
    if not there:
        raise ValueError("it has no record")
    for record in there:
        yield record, names


def _name(part: Any) -> str:
    return str(part["name"] if isinstance(part, dict) and "name" in part else part)


def _plain(schema: Any) -> Any:
    """Return a schema without defaults, which are not looked at, and need not be of the field's type."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if isinstance(schema, dict):
        return {key: _plain(part) for key, part in schema.items() if key != "default"}
    return schema


def _fields(
    branches: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], number: int, doubts: list[str]
) -> Iterator[tuple[str, Kind, bool]]:
    """Yield the name and type of each field of a schema's records, and whether each record has a value of it."""
    found: dict[str, list[tuple[Kind, bool]]] = {}
    kind: Kind | None
    for record, names in branches:
        for item in record["fields"]:
            try:
                kind, nullable = _kind(item["type"], names, (record["name"],))
            except NoColumnError as why:
                doubts.append(f"{item['name']}: {why} in schema {number}, and is left out there")
                continue
            if kind is not None:
                found.setdefault(item["name"], []).append((kind, not nullable))
    for name, several in found.items():
        first, *others = [kind for kind, _ in several]
        try:
            whole = first
            for other in others:
                whole = merged(whole, other)
        except NoColumnError:
            whole = first
            doubts.append(f"{name}: has several types in the union of schema {number}; the first one is taken")
        yield name, whole, len(several) == len(branches) and all(always for _, always in several)


def _kind(avro: Any, names: Mapping[str, Any], within: tuple[str, ...]) -> tuple[Kind | None, bool]:
    """Return the column's type for one of Avro, None for ``null`` alone; and whether it may be null."""
    if len(within) > DEEPEST:
        raise NoColumnError(f"lies deeper than {DEEPEST} levels")
    if isinstance(avro, list):
        parts = [part for part in avro if part != "null"]
        if len(parts) > 1:
            raise NoColumnError("may have one of several types")
        return (_kind(parts[0], names, within)[0] if parts else None), len(parts) < len(avro)
    if isinstance(avro, str) and avro not in _SIMPLE:
        if avro == "null":
            return None, True
        if avro in within:
            raise ValueError(f"its type {avro} contains itself")  # the decoder reads no such schema
        return _kind(names[avro], names, within)
    described: Mapping[str, Any] = avro if isinstance(avro, dict) else {"type": avro}
    name, logic = described["type"], described.get("logicalType")
    if isinstance(name, dict | list):
        return _kind(name, names, within)
    if name in ("array", "map"):
        held, _ = _kind(described["items" if name == "array" else "values"], names, (*within, name))
        if held is None:
            if name == "array":
                raise ValueError("it has an array of null")  # the same
            raise NoColumnError("holds nothing but null")
        return (name.upper(), held), False
    if name == "record":
        inner = (*within, described["name"])
        inside = {f["name"]: _kind(f["type"], names, inner)[0] for f in described["fields"]}
        there = {part: kind for part, kind in inside.items() if kind is not None}
        if not there:
            raise NoColumnError("is a record without fields")
        return there, False
    if logic == "decimal" and name in ("bytes", "fixed"):
        precision, scale = described.get("precision"), described.get("scale", 0)
        if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0):
            raise NoColumnError("is a decimal without a valid precision")
        if precision > 38:
            raise NoColumnError(f"is a decimal of {precision} digits, and 38 are the most")
        return f"DECIMAL({precision},{scale})", False
    if name not in _SIMPLE:
        return _kind(name, names, within)
    return _LOGICAL.get((name, logic or ""), _SIMPLE[name]), False
