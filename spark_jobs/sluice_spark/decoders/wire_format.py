"""Records in the wire format of schema registries: a zero byte, the number of a schema, and what was written with it.

Workers import this, so it imports little.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol

from pyspark.sql import types as T

from sluice.decoders.registry import Registry, Schema
from sluice.errors import ConfigError, SluiceError
from sluice_spark.decoders.conversions import Broken

__all__ = ["HEADER", "RegisteredReader", "Writer", "rows"]

HEADER = struct.Struct(">bI")
"""What a record begins with."""
_LARGEST = 2**31 - 1
"""The largest number that a registry gives. Asked for more, some answer as if the address did not exist."""


class Writer(Protocol):
    """How records of one schema are read."""

    def read(self, value: bytes) -> tuple[Any, ...]:
        """Return the values of the columns; raises :class:`Broken` if the record, which has a header, is refused."""


class RegisteredReader(ABC):
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

    package: ClassVar[str]
    """The package that reads the format."""
    key: ClassVar[str]
    """The decoder's key below ``decode``. A schema that cannot be read breaks the rule ``<key>_schema``."""

    def __init__(self, registry: Registry, columns: T.StructType, days: tuple[int, int], *, tombstones: str) -> None:
        self._registry, self._columns, self._days, self._tombstones = registry, columns, days, tombstones
        self._known: dict[int, Writer | Broken] = {}

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
        if len(value) < HEADER.size or value[0] != 0:
            raise Broken("wire_format")
        number = HEADER.unpack_from(value)[1]
        if number > _LARGEST:
            raise Broken("schema_id")
        writer = self._known.get(number)
        if writer is None:
            writer = self._known[number] = self._writer(number)
        if isinstance(writer, Broken):
            raise Broken(writer.rule, writer.column)
        return writer.read(value)

    def _writer(self, number: int) -> Writer | Broken:
        if find_spec(self.package) is None:  # which is no fault of the schema
            raise ConfigError(
                f"decode.{self.key} cannot read records here: the package {self.package} is missing",
                state="nothing of the open batch was written",
                next_step=f"install the extra sluice[{self.key}] where Spark's driver and workers run",
            )
        found = self._asked(number)
        if found is None:
            return Broken("schema_id")
        try:
            return self._compiled(found)
        except Broken as broken:
            return broken
        except SluiceError:
            raise
        except Exception:  # a schema that is odd in an unforeseen way must not end each run that meets it
            return Broken(f"{self.key}_schema")

    def _asked(self, number: int) -> Schema | None:
        """Return the schema with a number, as the registry has it."""
        return self._registry.schema(number)

    @abstractmethod
    def _compiled(self, found: Schema) -> Writer:
        """Return how records of a schema are read; raises :class:`Broken` if none is."""


def rows(reader: RegisteredReader, values: Sequence[bytes | None]) -> Iterator[tuple[Any, ...] | Broken]:
    """Yield the values of each record's columns, or what it breaks."""
    for value in values:
        try:
            yield reader.read(value)
        except Broken as broken:
            yield broken
