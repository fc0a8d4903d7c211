"""Profiles of the rows of a batch or a run, column by column; pure.

Profiles of parts add up to that of the whole, in any order. A figure that one part lacks is unknown of the whole.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Self

from sluice.facts.base import BatchFact

__all__ = ["NO_ROWS", "SKETCH", "ColumnProfile", "Profile"]

SKETCH = 512
"""How many of the smallest hashes a sketch keeps. Fewer distinct values are counted exactly; the standard error of more
is about 4.4 %, 1/sqrt(SKETCH - 2). K minimum values: Bar-Yossef et al., "Counting distinct elements in a data stream",
RANDOM 2002; the estimator without bias: Beyer et al., SIGMOD 2007."""

_HASHES = 1 << 64
_FIGURES = ("rows", "nulls", "kind", "low", "high", "total", "values")


@dataclass(frozen=True)
class ColumnProfile:
    """One column of some rows.

    Parameters
    ----------
    rows
        How many rows have the column: fewer than all if the table got it meanwhile.
    nulls
        None if unknown, as the next ones.
    kind
        The kind of ``low`` and ``high``: ``number``, ``decimal`` (as text), ``date``, ``time`` (in UTC), ``local`` (a
        time without a zone). None if the column has no value, or holds text, nested values or masked ones.
    total, values
        Sum and number of the finite values, for the mean.
    sketch
        The smallest hashes of its values, ascending.
    """

    rows: int
    nulls: int | None = None
    kind: str | None = None
    low: Any = None
    high: Any = None
    total: float | None = None
    values: int | None = None
    sketch: tuple[int, ...] | None = None

    def __or__(self, other: ColumnProfile) -> ColumnProfile:
        """Return the profile of both parts; no row may be in both."""
        kind, low, high = self._ends(other)
        total = _sum(self.total, other.total)
        return ColumnProfile(
            self.rows + other.rows,
            _sum(self.nulls, other.nulls),
            kind,
            low,
            high,
            total if total is None or math.isfinite(total) else None,
            _sum(self.values, other.values),
            None if self.sketch is None or other.sketch is None else _smallest(self.sketch + other.sketch),
        )

    @property
    def null_share(self) -> float | None:
        """The share of the rows that have no value."""
        return None if self.nulls is None or not self.rows else self.nulls / self.rows

    @property
    def mean(self) -> float | None:
        """The mean of the finite values."""
        return None if self.total is None or not self.values else self.total / self.values

    @property
    def distinct(self) -> int | None:
        """About how many distinct values there are; NaN is one, null is none."""
        if self.sketch is None or len(self.sketch) < SKETCH:
            return None if self.sketch is None else len(self.sketch)
        return round((SKETCH - 1) * _HASHES / max(self.sketch[-1], 1))

    @property
    def exact(self) -> bool:
        """Whether :attr:`distinct` is counted, not estimated."""
        return self.sketch is not None and len(self.sketch) < SKETCH

    def end(self, which: str) -> float | None:
        """Return ``low`` or ``high`` as a number; None if it is none."""
        value = getattr(self, which)
        return float(value) if value is not None and self.kind in ("number", "decimal") else None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form, without what is unknown."""
        told = {name: value for name in _FIGURES if (value := getattr(self, name)) is not None}
        if self.sketch is not None:
            told["sketch"] = base64.b64encode(struct.pack(f">{len(self.sketch)}Q", *self.sketch)).decode()
        return told

    @classmethod
    def from_dict(cls, told: Mapping[str, Any], rows: int) -> ColumnProfile:
        """Return what :meth:`as_dict` told; ``rows`` if that is left out."""
        found = {"rows": rows, **{name: told[name] for name in _FIGURES if name in told}}
        packed = base64.b64decode(told["sketch"]) if "sketch" in told else None
        return cls(**found, sketch=None if packed is None else struct.unpack(f">{len(packed) // 8}Q", packed))

    def told(self) -> dict[str, Any]:
        """Return the figures, for people and programs."""
        names = ("rows", "nulls", "null_share", "low", "high", "mean", "distinct")
        return {name: getattr(self, name) for name in names}

    def _ends(self, other: ColumnProfile) -> tuple[str | None, Any, Any]:
        if self._empty or other._empty:
            there = other if self._empty else self
            return there.kind, there.low, there.high
        if self.kind is None or self.kind != other.kind:
            return None, None, None
        order = Decimal if self.kind == "decimal" else None
        low, high = min(self.low, other.low, key=order), max(self.high, other.high, key=order)
        return self.kind, low, high

    @property
    def _empty(self) -> bool:
        return self.nulls == self.rows


@dataclass(frozen=True)
class Profile(BatchFact):
    """Some rows. However many there are, it stays small."""

    name: ClassVar[str] = "profile"
    event: ClassVar[str] = "RowsProfiled"
    accounted: ClassVar[bool] = False

    rows: int = 0
    columns: Mapping[str, ColumnProfile] = field(default_factory=dict)

    def __or__(self, later: Self) -> Self:
        """Return the profile of both parts; no row may be in both."""
        columns = dict(self.columns)
        for name, column in later.columns.items():
            columns[name] = columns[name] | column if name in columns else column
        return type(self)(self.rows + later.rows, columns)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        columns = {}
        for name, column in self.columns.items():
            told = column.as_dict()
            if column.rows == self.rows:
                del told["rows"]
            columns[name] = told
        return {"rows": self.rows, "columns": columns}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read :meth:`as_dict`."""
        rows = data["rows"]
        return cls(rows, {name: ColumnProfile.from_dict(one, rows) for name, one in data["columns"].items()})


NO_ROWS = Profile()
"""The profile of no rows."""


def _sum(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one + other


def _smallest(hashes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(hashes))[:SKETCH])
