"""The key ``decode.protobuf`` of a pipeline file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from sluice.decoders.base import DecoderKind
from sluice.decoders.wire_format import Registered

__all__ = ["PROTOBUF", "ProtobufDecode", "message_name", "message_path"]

_HEADER = 5
_DEEPEST = 100
"""Indexes of a message within messages."""


class ProtobufDecode(Registered):
    """One Protobuf message per record, in the wire format of schema registries: ``docs/decoding.md``."""

    format = "Protobuf"

    message: Annotated[str | None, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")] = None
    """The full name of the message, as ``shop.Order``: other messages are refused. Without it, each is read."""


PROTOBUF = DecoderKind(ProtobufDecode, "sluice_spark.decoders.protobuf:Protobuf")


def message_path(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return which message of its schema's file a record is, by indexes, and where in the record it begins.

    Confluent's serializers write behind the schema's number how many indexes there are, and then these, each as a
    zigzag varint. A single zero is the first message.

    Raises
    ------
    ValueError
        If that is not there.
    """
    count, at = _zigzag(value, _HEADER)
    if not count:
        return (0,), at
    if not 0 < count <= _DEEPEST:
        raise ValueError("no number of indexes")
    path = []
    for _ in range(count):
        index, at = _zigzag(value, at)
        if index < 0:
            raise ValueError("no index")
        path.append(index)
    return tuple(path), at


def message_name(file: Any, path: Sequence[int]) -> str:
    """Return the full name of a message by its indexes in a file.

    Parameters
    ----------
    file
        A ``FileDescriptorProto``.

    Raises
    ------
    IndexError
        If it has no such message.
    """
    names, messages = [file.package] if file.package else [], file.message_type
    for index in path:
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for here in range(at, min(len(value), at + 5)):
        number |= (value[here] & 0x7F) << shift
        shift += 7
        if value[here] < 0x80:
            return (number >> 1) ^ -(number & 1), here + 1
    raise ValueError("no varint")
