"""How many records had fields that the schema does not have, and which; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from sluice.facts.base import BatchFact

__all__ = ["NONE", "Rescued"]

_SHOWN = 20
"""Fields that are named."""
_LONGEST = 100
"""Characters of a name that are kept."""


@dataclass(frozen=True)
class Rescued(BatchFact):
    """Unknown fields of some records. However many there are, it stays small.

    Parameters
    ----------
    records
        The number of records that had any.
    fields
        By name, how many records had it; only the most frequent 20, so what is added up may lack rare ones.
    """

    name: ClassVar[str] = "rescued"
    event: ClassVar[str] = "FieldsRescued"

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

    def __bool__(self) -> bool:
        """Return whether any record had one."""
        return self.records > 0

    def __or__(self, later: Self) -> Self:
        """Return the fields of both; no record may be in both."""
        return type(self)(self.records + later.records, _most(Counter(self.fields) + Counter(later.fields)))

    def account(self) -> dict[str, Any]:
        """Return ``rescued``, the most frequent fields first."""
        return {"rescued": self.as_dict()} if self else {}

    @classmethod
    def lines(cls, account: Mapping[str, Any]) -> Iterator[str]:
        """Yield how many records had unknown fields, and which."""
        if told := account.get("rescued"):
            names = ", ".join(f"{name!r} ({count:,})" for name, count in told["fields"].items())
            had = f"{told['records']:,} records have fields that the schema does not have"
            yield f"rescued: {had}, kept in _rescued: {names}"


def _most(found: Counter[str]) -> dict[str, int]:
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN])


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else name[:_LONGEST] + "…"


NONE = Rescued()
"""No record had any."""
