"""The keys ``mode``, ``key`` and ``sequence`` of sinks in which a newer row can replace an older one of its key."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from pydantic import model_validator

from sluice.sinks.base import SinkConfig, SinkKind

__all__ = ["UpsertConfig"]


class UpsertConfig(SinkConfig):
    """A sink that appends rows, or merges them by a key."""

    mode: Literal["append", "upsert"] = "append"
    """What a row does: ``append`` adds it, ``upsert`` replaces the row of the same key if it is newer."""
    key: tuple[str, ...] = ()
    """With ``upsert``, the columns that identify a row."""
    sequence: str | None = None
    """With ``upsert``, the column by which one of two rows is newer. It may be left out where the source has one
    partition: then the offset decides. ``_offset`` says that the records of a key are in one partition."""

    @model_validator(mode="after")
    def _keyed(self) -> UpsertConfig:
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode: upsert needs the key: the columns that identify a row, for example key: [id]")
        if self.mode == "append" and (self.key or self.sequence):
            raise ValueError("key and sequence are for mode: upsert: add it, or remove them")
        if len(set(self.key)) < len(self.key):
            raise ValueError("a column stands twice in the key")
        return self

    def of(self, kind: SinkKind) -> SinkKind:
        """Return what it can do: rows that replaced others do not come back, so intervals are not replaced."""
        return replace(kind, replaceable=False) if self.mode == "upsert" else kind

    @property
    def keyed(self) -> bool:
        """Whether it is ``upsert``."""
        return self.mode == "upsert"

    @property
    def ordering(self) -> str:
        """The column that orders the rows of a key: the higher value is newer, null is the lowest."""
        return self.sequence or "_offset"

    @property
    def by_offset(self) -> bool:
        """Whether offsets decide."""
        return self.keyed and self.ordering == "_offset"

    @property
    def deletes(self) -> bool:
        """Whether it is ``upsert``."""
        return self.keyed

    def undeletable(self, columns: Collection[str]) -> str | None:
        """Return why tombstones cannot delete: the key, or what tells the newer row, is among these columns."""
        for name in self.key:
            if name in columns:
                return (
                    f"{name!r} of the key is a column of the record's value, which a tombstone does not have: make it "
                    "of the record's key, in transform.sql or by its name in decode"
                )
        if self.sequence in columns:
            return (
                f"sequence: {self.sequence!r} is a column of the record's value, which a tombstone does not have: "
                f"give tombstones one in transform.sql, such as coalesce({self.sequence}, …) AS {self.sequence}, take "
                "a header, or choose sequence: _offset"
            )
        return None
