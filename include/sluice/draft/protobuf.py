"""The columns of Protobuf messages, by the descriptors that a schema registry has of them.

Types are those of the table in ``docs/decoding.md``: what is declared here is what the decoder takes.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sluice.decoders.protobuf import message_name, message_path
from sluice.decoders.registry import Schema
from sluice.draft.infer import problem
from sluice.draft.kinds import DEEPEST, Kind, NoColumnError
from sluice.draft.sample import Sampled

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

__all__ = ["Messages", "paths_of"]

_SIMPLE = {
    "DOUBLE": "DOUBLE", "FLOAT": "FLOAT", "BOOL": "BOOLEAN", "STRING": "STRING", "BYTES": "BINARY", "ENUM": "STRING",
    **dict.fromkeys(("INT32", "SINT32", "SFIXED32"), "INT"),
    **dict.fromkeys(("INT64", "SINT64", "SFIXED64", "UINT32", "FIXED32"), "BIGINT"),
    **dict.fromkeys(("UINT64", "FIXED64"), "DECIMAL(20,0)"),
}  # fmt: skip
_KNOWN = {
    ".google.protobuf.Timestamp": "TIMESTAMP",
    **{
        f".google.protobuf.{name}Value": kind
        for name, kind in {
            "Double": "DOUBLE", "Float": "FLOAT", "Int64": "BIGINT", "UInt64": "DECIMAL(20,0)", "Int32": "INT",
            "UInt32": "BIGINT", "Bool": "BOOLEAN", "String": "STRING", "Bytes": "BINARY",
        }.items()
    },
}  # fmt: skip


def paths_of(records: Sequence[Sampled]) -> dict[int, Counter[tuple[int, ...]]]:
    """Return, by the number of the schema, which of its messages records say that they are, and how many do."""
    found: dict[int, Counter[tuple[int, ...]]] = {}
    for record in records:
        value = record.value or b""
        if value[:1] != b"\0":
            continue
        try:
            path, _ = message_path(value)
        except ValueError:
            continue
        found.setdefault(int.from_bytes(value[1:5]), Counter())[path] += 1
    return found


class Messages:
    """The messages of a schema and of those that it imports.

    Parameters
    ----------
    schema
        With the descriptors as text, as the registry gives them for ``format=serialized``.

    Raises
    ------
    ValueError
        If they are none.
    """

    def __init__(self, schema: Schema) -> None:
        self._messages: dict[str, tuple[DescriptorProto, FileDescriptorProto]] = {}
        self._file = self._add(schema.text)
        for text in schema.references:
            self._add(text)

    def name(self, path: Sequence[int]) -> str:
        """Return the full name of a message of the schema; raises IndexError if there is none."""
        return message_name(self._file, path)

    def has(self, name: str) -> bool:
        """Return whether there is a message of a full name."""
        return f".{name}" in self._messages

    def fields(self, name: str, number: int, doubts: list[str]) -> Iterator[tuple[str, Kind, bool]]:
        """Yield the name and type of each field of a message, and whether each message has a value of it."""
        message, file = self._messages[f".{name}"]
        for field in message.field:
            try:
                kind = self._kind(field, (f".{name}",))
            except NoColumnError as error:
                doubts.append(f"{field.name}: {error} in schema {number}, and is left out")
                continue
            yield field.name, kind, _is_always_there(field, file)

    def _add(self, text: str) -> FileDescriptorProto:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        self._index(f".{file.package}" if file.package else "", file.message_type, file)
        return file

    def _index(self, within: str, messages: Sequence[DescriptorProto], file: FileDescriptorProto) -> None:
        for message in messages:
            self._messages[f"{within}.{message.name}"] = message, file
            self._index(f"{within}.{message.name}", message.nested_type, file)

    def _kind(self, field: FieldDescriptorProto, within: tuple[str, ...]) -> Kind:
        entry = self._messages.get(field.type_name, (None, None))[0]
        if entry is not None and entry.options.map_entry:
            key, value = entry.field
            if key.type != key.TYPE_STRING:
                raise NoColumnError("is a map without text keys")
            return "MAP", self._single(value, within)
        kind = self._single(field, within)
        return ("ARRAY", kind) if field.label == field.LABEL_REPEATED else kind

    def _single(self, field: FieldDescriptorProto, within: tuple[str, ...]) -> Kind:
        name = type(field).Type.Name(field.type).removeprefix("TYPE_")
        if name not in ("MESSAGE", "GROUP"):
            return _SIMPLE[name]
        if (known := _KNOWN.get(field.type_name)) is not None:
            return known
        found: Any = self._messages.get(field.type_name, (None, None))[0]
        if found is None:
            raise NoColumnError(f"is a {field.type_name.removeprefix('.')}, which no column takes")
        if field.type_name in within or len(within) > DEEPEST:
            raise NoColumnError("contains itself")
        taken: dict[str, str] = {}
        parts: dict[str, Kind] = {}
        for part in found.field:
            if (wrong := problem(part.name, top=False, taken=taken)) is not None:
                raise NoColumnError(f"has a field {part.name!r}, which {wrong}")
            taken[part.name.lower()] = part.name
            parts[part.name] = self._kind(part, (*within, field.type_name))
        if not parts:
            raise NoColumnError("is a message without fields")
        return parts


def _is_always_there(field: FieldDescriptorProto, file: FileDescriptorProto) -> bool:
    if field.label == field.LABEL_REPEATED:
        return True
    if file.syntax == "proto3":
        alone = not field.HasField("oneof_index")
        return alone and field.type not in (field.TYPE_MESSAGE, field.TYPE_GROUP)
    return False  # what proto2 requires may be missing nevertheless: the decoder does not look
