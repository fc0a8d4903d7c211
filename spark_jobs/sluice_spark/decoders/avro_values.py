"""Reads Avro records into the values of declared columns, or says which rule they break; without Spark's JVM.

The binary format is read by fastavro. Its own conversions of logical types are not used, since they lose or refuse what
Python's types do not hold (nanoseconds, years after 9999): the numbers are taken as they were written, and converted
here. See `Avro's specification <https://avro.apache.org/docs/1.12.0/specification/>`_.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from pyspark.sql import types as T

from sluice.decoders.registry import Registry, Schema
from sluice.errors import ConfigError
from sluice_spark.decoders.avro_types import SAME, Broken, Convert, Types

__all__ = ["AvroReader", "rows"]

_PARSED = "__fastavro_parsed__"
"""A key by which fastavro takes a schema without checking it."""
_HEADER = struct.Struct(">bI")
_AROUND, _VALUE = "__sluice_around_", "value"
_DEEPEST = 200
"""Levels of a schema: reading uses the stack of the process, which ends without an error."""
_IDLEST = 2000
"""Parts of a record that take no byte."""
_LARGEST = 2**31 - 1
"""The largest number that a registry gives. Asked for more, some answer as if the address did not exist."""


@dataclass(frozen=True)
class _Writer:
    """How records of one schema are read."""

    schema: Any
    columns: Sequence[tuple[str, Convert | None]]
    """Fields, each with the conversion of its value; None if it is the column's already."""
    within: bool = False
    """Whether the record is the only field of what the schema describes."""


@dataclass(frozen=True)
class _Union:
    """How records of a schema that is a union are read: by its branches, in their order."""

    branches: Sequence[_Writer | Broken]

    def chosen(self, value: bytes) -> tuple[_Writer | Broken, int]:
        """Return how a record is read, and where its branch's value begins."""
        number = shift = 0
        for at in range(_HEADER.size, min(len(value), _HEADER.size + 5)):
            number |= (value[at] & 0x7F) << shift
            shift += 7
            if value[at] < 0x80:
                index = (number >> 1) ^ -(number & 1)
                return (self.branches[index] if 0 <= index < len(self.branches) else Broken("avro")), at + 1
        return Broken("avro"), len(value)


class AvroReader:
    """Reads records of any schema that the registry has. It can be pickled.

    Parameters
    ----------
    registry
        Asked once for each schema, by each process.
    columns
        The declared columns.
    days
        The first and the last day that a date or time may have, counted from 1970.
    tombstones
        What a record without a value becomes: ``row`` is one of nulls, and so is what is deleted (``delete``).
    """

    def __init__(self, registry: Registry, columns: T.StructType, days: tuple[int, int], *, tombstones: str) -> None:
        self._registry, self._columns, self._days, self._tombstones = registry, columns, days, tombstones
        self._known: dict[int, _Writer | _Union | Broken] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def read(self, value: bytes | None) -> tuple[Any, ...]:
        """Return the values of the columns: times in microseconds, dates in days, since 1970.

        Raises
        ------
        Broken
            If the record is refused.
        SluiceError
            If the registry cannot be asked, or the reading package is missing; nothing is known of the record then.
        """
        if value is None:
            if self._tombstones == "quarantine":
                raise Broken("null_value")
            for column in self._columns.fields:
                if not column.nullable and self._tombstones == "row":
                    raise Broken("not_null", column.name)
            return (None,) * len(self._columns.fields)
        if len(value) < _HEADER.size or value[0] != 0:
            raise Broken("wire_format")
        number = _HEADER.unpack_from(value)[1]
        if number > _LARGEST:
            raise Broken("schema_id")
        writer = self._known.get(number)
        if writer is None:
            writer = self._known[number] = self._writer(number)
        start = _HEADER.size
        if isinstance(writer, _Union):
            writer, start = writer.chosen(value)
        if isinstance(writer, Broken):
            raise Broken(writer.rule, writer.column)
        record = _parsed(value, writer.schema, start)
        if writer.within:
            record = record[_VALUE]
        get = record.get
        return tuple([get(name) if convert is None else convert(get(name)) for name, convert in writer.columns])

    def _writer(self, number: int) -> _Writer | _Union | Broken:
        if find_spec("fastavro") is None:  # which is no fault of the schema
            raise ConfigError(
                "decode.avro cannot read records here: the package fastavro is missing",
                state="nothing of the open batch was written",
                next_step="install the extra sluice[avro] where Spark's driver and workers run",
            )
        found = self._registry.schema(number)
        if found is None:
            return Broken("schema_id")
        try:
            return self._compiled(found)
        except Broken as broken:
            return broken
        except Exception:  # a schema that is odd in a way nobody thought of must not end each run that meets it
            return Broken("avro_schema")

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
    """Of records: types can use each other in more ways than can be tried."""

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
            if len(set(own)) < len(own):  # which of them a column gets, nobody could say
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


def rows(reader: AvroReader, values: Sequence[bytes | None]) -> Iterator[tuple[Any, ...] | Broken]:
    """Yield the values of each record's columns, or what it breaks."""
    for value in values:
        try:
            yield reader.read(value)
        except Broken as broken:
            yield broken
