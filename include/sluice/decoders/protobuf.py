"""The key ``decode.protobuf`` of a pipeline file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sluice.decoders.base import DecoderKind
from sluice.decoders.registered import Registered

__all__ = ["PROTOBUF", "ProtobufDecode"]


class ProtobufDecode(Registered):
    """One Protobuf message per record, in the wire format of schema registries: ``docs/decoding.md``."""

    format = "Protobuf"

    message: Annotated[str | None, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")] = None
    """The full name of the message, as ``shop.Order``: other messages are refused. Without it, each is read."""


PROTOBUF = DecoderKind(ProtobufDecode, "sluice_spark.decoders.protobuf:Protobuf")
