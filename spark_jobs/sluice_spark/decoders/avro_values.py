"""Reads Avro records into the values of declared columns, or says which rule they break; without Spark's JVM.

The binary format is read by fastavro. Its own conversions of logical types are not used, since they lose or refuse what
Python's types do not hold (nanoseconds, years after 9999): the numbers are taken as they were written, and converted
here. See `Avro's specification <https://avro.apache.org/docs/1.12.0/specification/>`_.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.decoders.registry import Schema
from sluice_spark.decoders.avro_types import Types
from sluice_spark.decoders.conversions import SAME, Broken, Convert
from sluice_spark.decoders.wire_format import HEADER, RegisteredReader

__all__ = ["AvroReader"]

_PARSED = "__fastavro_parsed__"
"""A key by which fastavro takes a schema without checking it."""
_AROUND, _VALUE = "__sluice_around_", "value"
_DEEPEST = 200
"""Levels of a schema: reading uses the stack of the process, which ends without an error."""
_IDLEST = 2000
"""Parts of a record that take no byte."""


@dataclass(frozen=True)
class _Writer:
    """How records of one schema are read."""

    schema: Any
    columns: Sequence[tuple[str, Convert | None]]
    """Fields, each with the conversion of its value; None if it is the column's already."""
    within: bool = False
    """Whether the record is the only field of what the schema describes."""

    def read(self, value: bytes, start: int = HEADER.size) -> tuple[Any, ...]:
        """Return the values of the columns of a record that begins at ``start``."""
        record = _parsed(value, self.schema, start)
        if self.within:
            record = record[_VALUE]
        get = record.get
        return tuple([get(name) if convert is None else convert(get(name)) for name, convert in self.columns])


@dataclass(frozen=True)
class _Union:
    """How records of a schema that is a union are read: by its branches, in their order."""

    branches: Sequence[_Writer | Broken]

    def read(self, value: bytes) -> tuple[Any, ...]:
        """Return the values of the columns of a record."""
        writer, start = self._chosen(value)
        if isinstance(writer, Broken):
            raise Broken(writer.rule, writer.column)
        return writer.read(value, start)

    def _chosen(self, value: bytes) -> tuple[_Writer | Broken, int]:
        """Return how a record is read, and where its branch's value begins."""
        number = shift = 0
        for at in range(HEADER.size, min(len(value), HEADER.size + 5)):
            number |= (value[at] & 0x7F) << shift
            shift += 7
            if value[at] < 0x80:
                index = (number >> 1) ^ -(number & 1)
                return (self.branches[index] if 0 <= index < len(self.branches) else Broken("avro")), at + 1
        return Broken("avro"), len(value)


class AvroReader(RegisteredReader):
    """Reads records of any Avro schema that the registry has."""

    package, key = "fastavro", "avro"

    def _compiled(self, found: Schema) -> _Writer | _Union:
        if found.kind != "AVRO":
            raise Broken("avro_schema")
        names: dict[str, Any] = {}
        try:
            texts = [*found.references, found.text]
            schemas = [json.loads(text) for text in texts]
            plain: dict[str, Any] = {}
            # registries have schemas whose defaults are not of the field's type; records are read without them
            *_, whole = [_parse(_without(schema, "default"), names) for schema in schemas]
            *_, bare = [_parse(_without(schema, "default", "logicalType"), plain) for schema in schemas]
        except Exception as error:  # fastavro has many names for what is no schema
            raise Broken("avro_schema") from error
        if isinstance(whole, list):
            return _Union([self._branch(n, part, names, plain) for n, part in enumerate(whole)])
        return _Writer(bare, self._read(whole, names))

    def _branch(self, number: int, part: Any, names: dict[str, Any], plain: dict[str, Any]) -> _Writer | Broken:
        """Return how records of one type of a union are read; what is wrong with it is no fault of the others."""
        name = part["name"] if isinstance(part, dict) and "name" in part else part
        try:
            columns = self._read(names.get(name) if isinstance(name, str) else None, names)
            # types that the registry's other schemas define are known only to what is parsed beside them; a name with
            # a namespace would have them looked for in it
            around = {"type": "record", "name": f"{_AROUND}{number}", "fields": [{"name": _VALUE, "type": name}]}
            return _Writer(_parse(around, plain), columns, within=True)
        except Broken as broken:
            return broken

    def _read(self, whole: Any, names: Mapping[str, Any]) -> Sequence[tuple[str, Convert | None]]:
        """Return the fields of a record that are columns, with their conversions."""
        if not isinstance(whole, dict) or whole.get("type") != "record":
            raise Broken("avro_schema")
        _Shapes(names).of(whole)
        written = {f["name"]: f["type"] for f in whole["fields"]}
        types = Types(names, self._days)
        read = [
            (c.name, types.convert(written.get(c.name, "null"), c.dataType, c.name, nullable=c.nullable))
            for c in self._columns.fields
        ]
        return [(name, None if convert == SAME else convert) for name, convert in read]


def _parse(schema: Any, names: dict[str, Any]) -> Any:
    from fastavro import parse_schema

    return parse_schema(schema, named_schemas=names)


def _parsed(value: bytes, schema: Any, start: int) -> Any:
    from fastavro import schemaless_reader

    stream = io.BytesIO(value)
    stream.seek(start)
    try:
        record: Any = schemaless_reader(stream, schema, None)
    except UnicodeDecodeError as error:
        raise Broken("utf8") from error
    except Exception as error:  # end of data, an index that does not exist, a number that is too large
        raise Broken("avro") from error
    if stream.tell() != len(value):
        raise Broken("avro")
    return record


def _without(schema: Any, *keys: str) -> Any:
    """Return a schema without some keys; without ``logicalType`` fastavro gives the written values."""
    if isinstance(schema, list):
        return [_without(part, *keys) for part in schema]
    if isinstance(schema, dict):
        return {key: _without(part, *keys) for key, part in schema.items() if key not in (*keys, _PARSED)}
    return schema


@dataclass(frozen=True)
class _Shape:
    """How deep values of a type can be, how many parts of them take no byte, and whether all do."""

    depth: int
    idle: int
    nothing: bool


@dataclass
class _Shapes:
    """Finds the schemas that a few bytes, or few types, could make fill the memory or the stack."""

    names: Mapping[str, Any]
    known: dict[str, _Shape] = field(default_factory=dict)
    """How deep records are read: types can use each other in more ways than can be tried."""

    def of(self, schema: Any, within: tuple[str, ...] = ()) -> _Shape:
        """Return the shape; raises :class:`Broken` if records of the schema are not to be read."""
        if isinstance(schema, list):
            return self._around(schema, within)
        if isinstance(schema, str):
            if schema == "null":
                return _Shape(0, 1, True)
            return self.of(self.names[schema], within) if schema in self.names else _Shape(0, 0, False)
        kind = schema["type"]
        if kind == "record":
            return self._record(schema, within)
        if kind == "array":
            if self.of(schema["items"], within).nothing:
                raise Broken("avro_schema")
            return self._around([schema["items"]], within)
        if kind == "map":
            return self._around([schema["values"]], within)
        if kind == "fixed":
            return _Shape(0, int(not schema["size"]), not schema["size"])
        return _Shape(0, int(kind == "null"), kind == "null")

    def _around(self, parts: Sequence[Any], within: tuple[str, ...]) -> _Shape:
        return self._bounded(max((self.of(part, within).depth for part in parts), default=0), 0, nothing=False)

    def _record(self, schema: Any, within: tuple[str, ...]) -> _Shape:
        name = schema["name"]
        if name in within:
            raise Broken("avro_schema")
        if name not in self.known:
            own = [f["name"] for f in schema["fields"]]
            if len(set(own)) < len(own):  # which of them a column gets is undefined
                raise Broken("avro_schema")
            parts = [self.of(f["type"], (*within, name)) for f in schema["fields"]]
            depth, idle = max((p.depth for p in parts), default=0), 1 + sum(p.idle for p in parts)
            self.known[name] = self._bounded(depth, idle, nothing=all(p.nothing for p in parts))
        return self.known[name]

    @staticmethod
    def _bounded(depth: int, idle: int, *, nothing: bool) -> _Shape:
        if depth >= _DEEPEST or idle > _IDLEST:
            raise Broken("avro_schema")
        return _Shape(depth + 1, idle, nothing)
