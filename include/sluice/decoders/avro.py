"""The key ``decode.avro`` of a pipeline file."""

from __future__ import annotations

from sluice.decoders.base import DecoderKind
from sluice.decoders.wire_format import Registered

__all__ = ["AVRO", "AvroDecode"]


class AvroDecode(Registered):
    """One Avro record per record, in the wire format of schema registries; the contract is in ``docs/decoding.md``."""

    format = "Avro"


AVRO = DecoderKind(AvroDecode, "sluice_spark.decoders.avro:Avro")
