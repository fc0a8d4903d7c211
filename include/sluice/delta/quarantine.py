"""What a quarantine table holds, by the rule that each record broke."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from sluice.delta.table import Table

__all__ = ["Refused", "refused"]


@dataclass(frozen=True)
class Refused:
    """How many of the records in quarantine broke a rule, in a column if the rule names one."""

    rule: str
    column: str | None
    records: int

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


def refused(path: str) -> list[Refused]:
    """Return what the quarantine at ``path`` holds, most first; empty if there is no table.

    One column of each file is read, in pieces; memory does not grow with the number of records.

    Raises
    ------
    SinkError
        If the table exists and cannot be read.
    """
    table = Table.open("quarantine", path)
    if table.delta is None:
        return []
    found: Counter[tuple[str, str | None]] = Counter()
    for batch in table.rows(["_errors"]):
        broken = batch.column(0).flatten()
        names, columns = (broken.field(name).to_pylist() for name in ("rule", "column"))
        found.update(zip(names, columns, strict=True))
    return [Refused(rule, column, records) for (rule, column), records in found.most_common()]
