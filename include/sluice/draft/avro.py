"""The columns of records in a schema registry's wire format, by the schemas that they were written with; pure.

Types are those of the table in ``docs/decoding.md``: what is declared here is what the decoder takes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.decoders.registry import Schema
from sluice.draft.infer import problem, quoted
from sluice.draft.sample import Sampled

__all__ = ["Columns", "columns_of", "schema_numbers"]

Kind = str | tuple[str, Any] | dict[str, Any]
"""A type: a word; ``ARRAY`` or ``MAP`` and what it holds; or a struct's fields."""

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
_WIDER = {frozenset({"INT", "BIGINT"}): "BIGINT", frozenset({"FLOAT", "DOUBLE"}): "DOUBLE"}
_HEAD = 5
_DEEPEST = 50


class _NoColumnError(Exception):
    """No column takes a type; the message says why."""


@dataclass
class Columns:
    """What the schemas of a sample's records have.

    Attributes
    ----------
    columns
        Names and types, as DDL.
    full
        Those that each record has, by its schema, and that are never null.
    doubts
        What a person should look at, in words.
    """

    columns: tuple[tuple[str, str], ...] = ()
    full: tuple[str, ...] = ()
    doubts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Field:
    number: int
    count: int
    kind: Kind
    always: bool


def schema_numbers(records: Sequence[Sampled]) -> Counter[int]:
    """Return how many records begin with a zero byte and the number of a schema, by that number.

    Empty if these are not most of those that have a value.
    """
    values = [record.value for record in records if record.value is not None]
    found = Counter(int.from_bytes(v[1:_HEAD]) for v in values if v[:1] == b"\0" and len(v) >= _HEAD)
    return found if found.total() * 2 > len(values) else Counter()


def columns_of(schemas: Mapping[int, Schema | None], counts: Mapping[int, int]) -> Columns:
    """Return the columns that take the records of all these schemas, as far as there are any.

    Parameters
    ----------
    schemas
        By number; None for one that the registry does not have.
    counts
        How many records were written with each.
    """
    made = Columns()
    fields: dict[str, list[_Field]] = {}
    known = 0
    for number in sorted(schemas, reverse=True):  # the columns of the newest come first
        found, told = schemas[number], f"{counts[number]:,} records were written with schema {number}"
        if found is None:
            made.doubts.append(f"{told}, which the registry does not have: they would be refused")
            continue
        if found.kind != "AVRO":
            made.doubts.append(f"{told}, which is of the kind {found.kind}: only Avro is decoded")
            continue
        try:
            items = list(_fields(list(_records(found)), number, made.doubts))
        except Exception as error:  # fastavro has many names for what is no schema
            made.doubts.append(f"{told}, which is no Avro record that can be read ({error}): they would be refused")
            continue
        known += 1
        for name, kind, always in items:
            fields.setdefault(name, []).append(_Field(number, counts[number], kind, always))
    taken: dict[str, str] = {}
    columns = []
    for name, seen in fields.items():
        if (wrong := problem(name, top=True, taken=taken)) is not None:
            made.doubts.append(f"{name[:80]!r}: {wrong}, and is left out")
            continue
        taken[name.lower()] = name
        columns.append((name, _ddl(_settled(name, seen, made.doubts))))
    made.columns = tuple(columns)
    made.full = tuple(n for n, _ in columns if len(fields[n]) == known and all(f.always for f in fields[n]))
    return made


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
            except _NoColumnError as why:
                doubts.append(f"{item['name']}: {why} in schema {number}, and is left out there")
                continue
            if kind is not None:
                found.setdefault(item["name"], []).append((kind, not nullable))
    for name, several in found.items():
        first, *others = [kind for kind, _ in several]
        try:
            whole = first
            for other in others:
                whole = _merged(whole, other)
        except _NoColumnError:
            whole = first
            doubts.append(f"{name}: has several types in the union of schema {number}; the first one is taken")
        yield name, whole, len(several) == len(branches) and all(always for _, always in several)


def _kind(avro: Any, names: Mapping[str, Any], within: tuple[str, ...]) -> tuple[Kind | None, bool]:
    """Return the column's type for one of Avro, None for ``null`` alone; and whether it may be null."""
    if len(within) > _DEEPEST:
        raise _NoColumnError(f"lies deeper than {_DEEPEST} levels")
    if isinstance(avro, list):
        parts = [part for part in avro if part != "null"]
        if len(parts) > 1:
            raise _NoColumnError("may have one of several types")
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
            raise _NoColumnError("holds nothing but null")
        return (name.upper(), held), False
    if name == "record":
        inner = (*within, described["name"])
        inside = {f["name"]: _kind(f["type"], names, inner)[0] for f in described["fields"]}
        there = {part: kind for part, kind in inside.items() if kind is not None}
        if not there:
            raise _NoColumnError("is a record without fields")
        return there, False
    if logic == "decimal" and name in ("bytes", "fixed"):
        precision, scale = described.get("precision"), described.get("scale", 0)
        if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0):
            raise _NoColumnError("is a decimal without a valid precision")
        if precision > 38:
            raise _NoColumnError(f"is a decimal of {precision} digits, and 38 are the most")
        return f"DECIMAL({precision},{scale})", False
    if name not in _SIMPLE:
        return _kind(name, names, within)
    return _LOGICAL.get((name, logic or ""), _SIMPLE[name]), False


def _settled(name: str, seen: Sequence[_Field], doubts: list[str]) -> Kind:
    """Return the type that takes the values of all schemas, or those of most records."""
    most, *others = sorted(seen, key=lambda one: -one.count)
    kind = most.kind
    for other in others:
        try:
            kind = _merged(kind, other.kind)
        except _NoColumnError:
            doubts.append(
                f"{name}: is {_ddl(other.kind)} in schema {other.number}; as it is declared, "
                f"{other.count:,} records of that schema would be refused"
            )
    return kind


def _merged(one: Kind, other: Kind) -> Kind:
    """Return the type that takes the values of two."""
    if one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        both = {n: _merged(one[n], other[n]) if n in one and n in other else one.get(n, other.get(n)) for n in other}
        return one | both
    if isinstance(one, tuple) and isinstance(other, tuple) and one[0] == other[0]:
        return one[0], _merged(one[1], other[1])
    wider = _WIDER.get(frozenset({one, other})) if isinstance(one, str) and isinstance(other, str) else None
    if wider is None:
        raise _NoColumnError
    return wider


def _ddl(kind: Kind) -> str:
    if isinstance(kind, dict):
        return f"STRUCT<{', '.join(f'{quoted(n)}: {_ddl(part)}' for n, part in kind.items())}>"
    if isinstance(kind, tuple):
        name, held = kind
        return f"MAP<STRING, {_ddl(held)}>" if name == "MAP" else f"ARRAY<{_ddl(held)}>"
    return kind
