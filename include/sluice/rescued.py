"""How many records had fields that the schema does not have, and which; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["NONE", "Rescued"]

_SHOWN = 20
"""Fields that are told."""
_LONGEST = 100
"""Characters of a name that are told."""


@dataclass(frozen=True)
class Rescued:
    """Unknown fields of some records. However many there are, it stays small.

    Parameters
    ----------
    records
        The number of records that had any.
    fields
        By name, how many records had it; only the most frequent 20, so what is added up may lack rare ones.
    """

    records: int = 0
    fields: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Iterable[Iterable[str]], times: Iterable[int] | None = None) -> Rescued:
        """Count the names of each record, or of as many records as ``times`` says of each."""
        records, found = 0, Counter[str]()
        for own, count in zip(names, times, strict=True) if times is not None else ((own, 1) for own in names):
            records += count
            for name in own:
                found[_cut(name)] += count
        return cls(records, _most(found))

    def __or__(self, other: Rescued) -> Rescued:
        """Return those of both; no record may be in both."""
        return Rescued(self.records + other.records, _most(Counter(self.fields) + Counter(other.fields)))

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form, the most frequent fields first."""
        return {"records": self.records, "fields": dict(self.fields)}


def _most(found: Counter[str]) -> dict[str, int]:
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN])


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else name[:_LONGEST] + "…"


NONE = Rescued()
"""No record had any."""
