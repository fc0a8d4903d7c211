"""Looks into a quarantine table: what its records broke, in which runs, and the newest of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sluice.delta.table import Table
from sluice.text import instant

__all__ = ["Group", "Look", "Sample", "look"]

_LONGEST = 300
"""Characters of a record that are shown."""
_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_run", "_errors")


@dataclass
class Group:
    """The records that broke one rule in one column.

    Attributes
    ----------
    runs
        How many runs refused some.
    first, last
        Their earliest and latest record time, in microseconds since 1970.
    """

    rule: str
    column: str | None
    records: int = 0
    first: int | None = None
    last: int | None = None
    _runs: set[str] = field(default_factory=set)

    @property
    def runs(self) -> int:
        """How many runs refused some."""
        return len(self._runs)

    def add(self, run: str, moment: int) -> None:
        """Count one record."""
        self.records += 1
        self._runs.add(run)
        self.first = moment if self.first is None else min(self.first, moment)
        self.last = moment if self.last is None else max(self.last, moment)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        found = {"rule": self.rule, "column": self.column, "records": self.records, "runs": self.runs}
        return found | {
            name: None if (stamp := getattr(self, name)) is None else instant(stamp) for name in ("first", "last")
        }


@dataclass(frozen=True)
class Sample:
    """One refused record.

    Attributes
    ----------
    detail
        The offending text, or what is wrong with the record.
    text
        The record's value; cut.
    """

    topic: str
    partition: int
    offset: int
    timestamp: str
    run: str
    rule: str
    column: str | None
    detail: str | None
    key: str | None
    text: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


@dataclass(frozen=True)
class Look:
    """What a quarantine holds, most first, and its newest records."""

    path: str
    records: int
    groups: list[Group]
    samples: list[Sample]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "path": self.path,
            "records": self.records,
            "groups": [group.as_dict() for group in self.groups],
            "samples": [sample.as_dict() for sample in self.samples],
        }


def look(
    path: str,
    *,
    rule: str | None = None,
    run: str | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
    show: int = 0,
    explain: Callable[[Mapping[str, Any]], str | None] = lambda _: None,
) -> Look:
    """Return what a quarantine holds; nothing if there is no table.

    Parameters
    ----------
    rule, run
        Only records that broke this rule, or were refused by this run.
    since
        Only records with this record time or a later one; aware.
    before
        Only records with an earlier record time, or with none; aware.
    show
        How many samples: the newest by record time. Keys and values are read only if there are to be some.
    explain
        Returns why a record was refused, from its row; where it does not know, the table may.

    Raises
    ------
    SinkError
        If the table exists and cannot be read.
    """
    groups: dict[tuple[str, str | None], Group] = {}
    newest: list[tuple[int, str, int, int, int, Mapping[str, Any]]] = []
    table = Table.open("quarantine", path)
    earliest, end = (
        None if time is None else (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        for time in (since, before)
    )
    for number, row in enumerate(_rows(table, values=show > 0)):
        error = (row["_errors"] or [{"rule": "unknown", "column": None}])[0]
        moment = row["_timestamp"] or 0
        if (
            rule not in (None, error["rule"])
            or run not in (None, row["_run"])
            or (earliest is not None and moment < earliest)
            or (end is not None and row["_timestamp"] is not None and moment >= end)
        ):
            continue
        key = error["rule"], error["column"]
        groups.setdefault(key, Group(*key)).add(str(row["_run"]), moment)
        if show:
            entry = (moment, row["_topic"], row["_partition"], row["_offset"], number, row)
            (heapq.heappush if len(newest) < show else heapq.heappushpop)(newest, entry)
    found = sorted(groups.values(), key=lambda group: (-group.records, group.rule, group.column or ""))
    samples = [_sample(entry[-1], explain) for entry in sorted(newest, reverse=True)]
    return Look(path, sum(group.records for group in found), found, samples)


def _rows(table: Table, *, values: bool) -> Iterator[dict[str, Any]]:
    if table.delta is None:
        return
    for batch in table.rows([*_COLUMNS, *(("key", "value", "headers") if values else ())]):
        at = _COLUMNS.index("_timestamp")  # as a number: a record may have a time that Python does not
        yield from batch.set_column(at, "_timestamp", batch.column(at).cast("int64")).to_pylist()


def _sample(row: Mapping[str, Any], explain: Callable[[Mapping[str, Any]], str | None]) -> Sample:
    error = (row["_errors"] or [{"rule": "unknown", "column": None}])[0]
    column = error["column"]
    moment = row["_timestamp"]
    return Sample(
        row["_topic"],
        row["_partition"],
        row["_offset"],
        "" if moment is None else instant(moment),
        row["_run"],
        error["rule"],
        column,
        explain(row) or error.get("detail"),
        _text(row["key"]),
        _text(row["value"]),
    )


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return _cut(value.decode())
    except UnicodeDecodeError:
        return _cut(f"0x{value[:_LONGEST].hex()}")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
