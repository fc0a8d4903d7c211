"""One format of records, as the pipeline file declares it: below ``decode``, or as an entry of ``formats`` there."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from sluice.decoders.avro import AvroDecode
from sluice.decoders.config import BytesDecode, CsvDecode, JsonDecode, Keyed, TextDecode
from sluice.decoders.ddl import types_of
from sluice.decoders.protobuf import ProtobufDecode
from sluice.decoders.wire_format import Registered
from sluice.decoders.xml import XmlDecode
from sluice.fields import Strict, given, one_of

__all__ = ["Format"]


class Format(Strict):
    """How a record's value becomes columns."""

    what: ClassVar[str] = "a format"
    """What messages call it."""

    json_: Annotated[JsonDecode | None, Field(alias="json")] = None
    """One JSON object per record."""
    csv: CsvDecode | None = None
    """One CSV record (RFC 4180) per record."""
    avro: AvroDecode | None = None
    """One Avro record per record, in the wire format of schema registries."""
    protobuf: ProtobufDecode | None = None
    """One Protobuf message per record, in the wire format of schema registries."""
    xml: XmlDecode | None = None
    """One XML document per record."""
    text: TextDecode | None = None
    """``text: {}``: the value as UTF-8 text, in the column ``value``."""
    bytes: BytesDecode | None = None
    """``bytes: {}``: key and value unchanged, in the columns ``key`` and ``value``."""

    @model_validator(mode="after")
    def _one(self) -> Format:
        one_of(self, self.what)
        return self

    @property
    def key(self) -> str:
        """The decoder's key in the file."""
        return given(self)[0]

    @property
    def config(self) -> Any:
        """The decoder's settings in the file."""
        return next(value for value in (getattr(self, name) for name in type(self).model_fields) if value is not None)

    @property
    def columns(self) -> dict[str, str]:
        """The columns that it gives, with their types, without the one of unknown fields (``rescue``)."""
        config = self.config
        if isinstance(config, BytesDecode):
            return {"key": "BINARY", "value": "BINARY"}
        found = {"value": "STRING"} if isinstance(config, TextDecode) else types_of(config.ddl)
        beside = [config.key, *config.headers] if isinstance(config, Keyed) else []
        return found | {name: "STRING" for name in beside if name is not None}

    @property
    def names(self) -> list[str]:
        """The columns that are made of the value; none if the decoder does not say."""
        return self.config.names if isinstance(self.config, Keyed) else []

    @property
    def headers(self) -> dict[str, str]:
        """The columns that are headers, with the names of these."""
        return self.config.headers if isinstance(self.config, Keyed) else {}

    @property
    def deletes(self) -> bool:
        """Whether tombstones delete rows of the sink."""
        return isinstance(self.config, Keyed) and self.config.deletes

    @property
    def needs(self) -> str | None:
        """The connection that decoding needs; None if it needs none."""
        return self.config.registry if isinstance(self.config, Registered) else None

    @property
    def rescues(self) -> bool:
        """Whether unknown fields are kept in a column."""
        return self.json_ is not None and self.json_.rescue
