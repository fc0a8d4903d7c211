"""The statements that merge staged rows into a table by key: of two rows of a key, the newer one stays.

The higher value of the sequence column is newer; null is the lowest, and ties are decided by record time, topic,
partition and offset. So it does not matter in which order, how often or in which batches rows arrive.

A row that only deletes is one of them. If it is the newest of its key, the table has no row of the key, and a table
beside it remembers what the deleting row was; an older row that comes later is compared with that. A key is in one of
the two tables at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.fields import TAKES_AWAY
from sluice.postgres import name_of

__all__ = ["Upsert", "remembered"]

_LAST = ("_timestamp", "_topic", "_partition", "_offset")
_FLAG = name_of(TAKES_AWAY)
NEWEST = "pg_temp.sluice_newest"
"""The temporary table of the newest staged row of each key."""


def remembered(key: Sequence[str], sequence: str) -> list[str]:
    """Return the columns of the table that remembers deleted keys."""
    return list(dict.fromkeys([*key, sequence, *_LAST]))


@dataclass(frozen=True)
class Upsert:
    """The merge of one batch.

    Parameters
    ----------
    table, staged
        The names of both tables, as SQL.
    columns
        Each staged column's value as SQL.
    key
        The columns of which the table allows one row each.
    sequence
        The column that orders rows.
    deleted
        The name of the table that remembers deleted keys, as SQL, if rows can delete: they have ``TAKES_AWAY``.
    ordered
        Whether rows are written in the order of their records: one may take a value that another one's key gave up.
    """

    table: str
    staged: str
    columns: Mapping[str, str]
    key: Sequence[str]
    sequence: str
    deleted: str | None = None
    ordered: bool = False

    def begin(self, *, view: bool = False) -> Iterator[str]:
        """Yield the statements that come before the merge.

        Parameters
        ----------
        view
            Whether other rows are staged meanwhile, and merged by the same statements.
        """
        yield f"DROP TABLE IF EXISTS {NEWEST}"  # of a session that a pooler lends
        yield f"CREATE TEMPORARY {'VIEW' if view else 'TABLE'} sluice_newest AS {self._newest}"

    def merge(self) -> Iterator[str]:
        """Yield the statements that merge what is staged, in their order."""
        if self.deleted is None:
            yield self._insert("true")
            return
        yield (
            f"DELETE FROM {self.table} AS held USING {NEWEST} AS came "
            f"WHERE came.{_FLAG} AND {self._same} AND {self._is_newer}"
        )
        names = remembered(self.key, self.sequence)
        yield (
            f"INSERT INTO {self.deleted} AS held ({_listed(names)}) SELECT {_listed(names)} FROM {NEWEST} AS came "
            f"WHERE came.{_FLAG} AND NOT EXISTS (SELECT FROM {self.table} AS held WHERE {self._same}) "
            f"ON CONFLICT ({self._by}) DO UPDATE SET {_from_excluded(names)} WHERE {self._over('excluded')}"
        )
        yield self._insert(
            f"NOT came.{_FLAG} AND NOT EXISTS (SELECT FROM {self.deleted} AS held WHERE {self._same} "
            f"AND NOT ({self._is_newer}))"
        )
        yield (
            f"DELETE FROM {self.deleted} AS held USING {NEWEST} AS came "
            f"WHERE NOT came.{_FLAG} AND {self._same} AND {self._is_newer}"
        )

    def left(self) -> str:
        """Return the query for how many keys' newest rows had no effect, although nothing newer is known."""
        missing = f"held.{name_of(self.key[0])} IS NULL"
        joined = f"FROM {NEWEST} AS came LEFT JOIN {self.table} AS held ON {self._same}"
        if self.deleted is None:
            return f"SELECT count(*) {joined} WHERE {missing} OR {self._is_newer}"
        known = f"EXISTS (SELECT FROM {self.deleted} AS held WHERE {self._same})"
        return f"SELECT count(*) {joined} WHERE CASE WHEN {missing} THEN NOT {known} ELSE {self._is_newer} END"

    def _insert(self, chosen: str) -> str:
        names = list(self.columns)
        order = f"ORDER BY {_listed(_LAST)} " if self.ordered else ""
        return (
            f"INSERT INTO {self.table} AS held ({_listed(names)}) SELECT {_listed(names)} FROM {NEWEST} AS came "
            f"WHERE {chosen} {order}ON CONFLICT ({self._by}) DO UPDATE SET {_from_excluded(names)} "
            f"WHERE {self._over('excluded')}"
        )

    @property
    def _by(self) -> str:
        return _listed(self.key)

    @property
    def _same(self) -> str:
        """The condition that a row that came and one that is held have one key."""
        return " AND ".join(f"held.{name_of(name)} = came.{name_of(name)}" for name in self.key)

    @property
    def _is_newer(self) -> str:
        return self._over("came")

    @property
    def _newest(self) -> str:
        """The query for the newest staged row of each key."""
        flag = "" if self.deleted is None else f", coalesce({_FLAG}, false) AS {_FLAG}"
        compared = {*self.key, self.sequence}
        first = {n: value if n in compared else name_of(n) for n, value in self.columns.items()}
        then = {n: name_of(n) if n in compared else value for n, value in self.columns.items()}
        # what is compared, is compared as the table has it; other columns are converted where they are written
        rows = f"(SELECT {_named(first)}{flag} FROM {self.staged}) AS staged"
        return f"SELECT {_named(then)}{flag and f', {_FLAG}'} FROM ({self._chosen(rows)}) AS newest"

    def _chosen(self, rows: str) -> str:
        last = ", ".join(f"{name_of(name)} DESC" for name in _LAST)
        order = f"{self._by}, {name_of(self.sequence)} DESC NULLS LAST, {last}"
        return f"SELECT DISTINCT ON ({self._by}) * FROM {rows} ORDER BY {order}"

    def _over(self, came: str) -> str:
        """Return the condition under which the row that came replaces the one that is held."""
        mine, theirs = f"{came}.{name_of(self.sequence)}", f"held.{name_of(self.sequence)}"
        return (
            f"(({mine} IS NOT NULL AND ({theirs} IS NULL OR {mine} > {theirs})) OR ({mine} IS NOT DISTINCT FROM "
            f"{theirs} AND coalesce({_tuple(came, _LAST)} > {_tuple('held', _LAST)}, true)))"
        )


def _named(values: Mapping[str, str]) -> str:
    return ", ".join(f"{value} AS {name_of(name)}" for name, value in values.items())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(name_of, names))


def _from_excluded(names: Sequence[str]) -> str:
    return ", ".join(f"{name_of(name)} = excluded.{name_of(name)}" for name in names)


def _tuple(of: str, names: Sequence[str]) -> str:
    return f"({', '.join(f'{of}.{name_of(name)}' for name in names)})"
