"""Reads Protobuf messages into the values of declared columns, or says which rule they break; without Spark's JVM."""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import DecodeError
from pyspark.sql import types as T

from sluice.decoders.protobuf import message_name, message_path
from sluice.decoders.registry import Registry, Schema
from sluice.errors import ConfigError
from sluice_spark.decoders.conversions import Broken
from sluice_spark.decoders.protobuf_types import Get, Types
from sluice_spark.decoders.wire_format import RegisteredReader, Writer

__all__ = ["ProtobufReader"]

_WELL_KNOWN = ("google/protobuf/", "google/type/")
"""Where the files are that each registry takes to be known."""


@dataclass(frozen=True)
class _Message:
    """How messages of one type are read."""

    make: Any
    columns: Sequence[tuple[str, Get]]

    def read(self, value: bytes) -> tuple[Any, ...]:
        """Return the values of the columns."""
        try:
            message = self.make.FromString(value)
        except DecodeError as error:
            raise Broken("protobuf") from error
        try:
            return tuple([get(message) for _, get in self.columns])
        except UnicodeDecodeError as error:  # a map's key, of a file in proto2
            raise Broken("utf8") from error


@dataclass
class _File:
    """How the messages of one file are read."""

    file: FileDescriptorProto
    pool: DescriptorPool
    reader: ProtobufReader
    known: dict[tuple[int, ...], _Message | Broken] = field(default_factory=dict)

    def read(self, value: bytes) -> tuple[Any, ...]:
        """Return the values of the columns of a record."""
        try:
            path, start = message_path(value)
            message = self.known.get(path) or self._met(path)
        except (ValueError, IndexError):
            raise Broken("protobuf") from None
        if isinstance(message, Broken):
            raise Broken(message.rule, message.column)
        return message.read(value[start:])

    def _met(self, path: tuple[int, ...]) -> _Message | Broken:
        """Return how a message is read that was not met before; an index that no message has is not kept in mind."""
        name = message_name(self.file, path)
        self.known[path] = self.reader.message(self.pool, name)
        return self.known[path]


class ProtobufReader(RegisteredReader):
    """Reads messages of any Protobuf schema that the registry has.

    Parameters
    ----------
    message
        The full name of the message that is read, for example ``shop.Order``; None for any message.
    """

    package, key = "google.protobuf", "protobuf"

    def __init__(
        self,
        registry: Registry,
        columns: T.StructType,
        days: tuple[int, int],
        *,
        tombstones: str,
        message: str | None = None,
    ) -> None:
        super().__init__(registry, columns, days, tombstones=tombstones)
        self._message = message

    def message(self, pool: DescriptorPool, name: str) -> _Message | Broken:
        """Return how messages of a type are read."""
        if self._message not in (None, name):
            return Broken("message")
        try:
            found = pool.FindMessageTypeByName(name)
            return _Message(
                message_factory.GetMessageClass(found), Types(self._days).columns(found, self._columns.fields)
            )
        except Broken as broken:
            return broken
        except Exception:  # some pools look at a file only now
            return Broken("protobuf_schema")

    def _asked(self, number: int) -> Schema | None:
        return self._registry.schema(number, serialized=True)

    def _compiled(self, found: Schema) -> Writer:
        if found.kind != "PROTOBUF":
            raise Broken("protobuf_schema")
        pool = DescriptorPool()
        parts = [_file(text, name) for name, text in zip(found.names, found.references, strict=True)]
        whole = _file(found.text, "the schema of the record")
        own = {part.name for part in parts}
        for part in (*parts, whole):
            for name in part.dependency:
                if name not in own:
                    _add_well_known(pool, name)
            pool.Add(part)
        return _File(whole, pool, self)


def _file(text: str, name: str) -> FileDescriptorProto:
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError):
        raise ConfigError(
            f"the schema registry answers with the text of a schema and not with its descriptor ({name})",
            state="nothing of the open batch was written",
            next_step="decode.protobuf needs a registry that knows ?format=serialized, as Confluent's and Karapace do",
        ) from None
    found.name = name
    return found


def _add_well_known(pool: DescriptorPool, name: str) -> None:
    """Add a file that registries do not store, after those that it imports."""
    if not name.startswith(_WELL_KNOWN):
        raise Broken("protobuf_schema")
    importlib.import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    for found in _with_imports(Default().FindFileByName(name)):
        proto = FileDescriptorProto()
        found.CopyToProto(proto)
        pool.Add(proto)


def _with_imports(file: Any) -> Iterator[Any]:
    for part in file.dependencies:
        yield from _with_imports(part)
    yield file
