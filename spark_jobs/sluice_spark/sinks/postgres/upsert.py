"""The statement that merges staged rows into a table by key: of two rows of a key, the newer one stays.

Of two rows from one partition, that of the higher offset is newer. Of two from different partitions, that of the later
record time is (then of the greater topic and partition). With a sequence column, the higher value is newer, whatever
the offsets are; null is the lowest, and ties are decided by record time, topic, partition and offset. So it does not
matter in which order, how often or in which batches rows arrive, as long as a key's records are in one partition or in
the order of their times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.postgres import name_of

__all__ = ["Upsert"]

_PLACE = ("_topic", "_partition")
_LAST = ("_timestamp", *_PLACE, "_offset")


@dataclass(frozen=True)
class Upsert:
    """The merge of one batch.

    Parameters
    ----------
    table, staged
        The names of both tables, as SQL.
    columns
        Of each staged column, its value as SQL.
    key
        The columns of which the table allows one row each.
    sequence
        The column that orders rows; None means offsets.
    """

    table: str
    staged: str
    columns: Mapping[str, str]
    key: Sequence[str]
    sequence: str | None

    def merge(self) -> str:
        """Return the statement that merges."""
        names = [name_of(name) for name in self.columns]
        changes = ", ".join(f"{name} = excluded.{name}" for name in names)
        return (
            f"INSERT INTO {self.table} AS held ({', '.join(names)}) {self._newest()} "
            f"ON CONFLICT ({self._by}) DO UPDATE SET {changes} WHERE {_is_newer(self.sequence)}"
        )

    def left(self) -> str:
        """Return the query for how many keys' newest rows the table neither took nor had newer ones of."""
        same = " AND ".join(f"held.{name_of(name)} = excluded.{name_of(name)}" for name in self.key)
        return (
            f"SELECT count(*) FROM ({self._newest()}) AS excluded LEFT JOIN {self.table} AS held ON {same} "
            f"WHERE held.{name_of(self.key[0])} IS NULL OR {_is_newer(self.sequence)}"
        )

    @property
    def _by(self) -> str:
        return ", ".join(map(name_of, self.key))

    def _newest(self) -> str:
        """Return the query for the newest staged row of each key."""
        by = self._by
        last = ", ".join(f"{name_of(name)} DESC" for name in _LAST)
        if self.sequence is None:
            place = ", ".join(map(name_of, _PLACE))
            # the newest of each partition, and of these the latest
            newest = f"SELECT DISTINCT ON ({by}, {place}) * FROM {self.staged} ORDER BY {by}, {place}, _offset DESC"
            chosen = f"SELECT DISTINCT ON ({by}) * FROM ({newest}) AS each ORDER BY {by}, {last}"
        else:
            order = f"{by}, {name_of(self.sequence)} DESC NULLS LAST, {last}"
            chosen = f"SELECT DISTINCT ON ({by}) * FROM {self.staged} ORDER BY {order}"
        values = ", ".join(f"{value} AS {name_of(name)}" for name, value in self.columns.items())
        return f"SELECT {values} FROM ({chosen}) AS newest"


def _is_newer(sequence: str | None) -> str:
    """Return the condition under which the row that came replaces the one that is held."""
    if sequence is None:
        came, held = _tuple("excluded", _LAST[:-1]), _tuple("held", _LAST[:-1])
        # a row that somebody else put there has no offset
        return (
            "coalesce(CASE WHEN (held._topic, held._partition) = (excluded._topic, excluded._partition) "
            f"THEN excluded._offset > held._offset ELSE {came} > {held} END, true)"
        )
    mine, theirs = f"excluded.{name_of(sequence)}", f"held.{name_of(sequence)}"
    return (
        f"({mine} IS NOT NULL AND ({theirs} IS NULL OR {mine} > {theirs})) OR ({mine} IS NOT DISTINCT FROM {theirs} "
        f"AND coalesce({_tuple('excluded', _LAST)} > {_tuple('held', _LAST)}, true))"
    )


def _tuple(of: str, names: Sequence[str]) -> str:
    return f"({', '.join(f'{of}.{name_of(name)}' for name in names)})"
