"""The log of a table's commits, which is a table beside it: ``sluice_commits`` in the same schema.

Each commit of rows adds a line to it in the same transaction, under a lock of the table's own. So there is one order of
commits, a commit that may be under way is waited for, and one that a driver does not know of is found here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sluice.postgres import literal, name_of

__all__ = ["Commits", "fetched", "lock_number", "one"]

_TABLE = "sluice_commits"


class Commits:
    """The commits of one table, seen in the transaction of a cursor.

    Parameters
    ----------
    schema, table
        The names of the table, as the catalog writes them.
    """

    def __init__(self, schema: str, table: str) -> None:
        self._schema, self._table = schema, table
        self._log = name_of(schema, _TABLE)
        self._mine = f"sink = {literal(table)}"

    def lock(self, cursor: Any, *, write: bool) -> bool:
        """Wait for commits that are under way, and hold up new ones until the transaction ends.

        Parameters
        ----------
        write
            Whether to commit; readers do not hold up each other.

        Returns
        -------
        bool
            Whether there is a log of commits; without one, nothing was committed yet.
        """
        kind = "pg_advisory_xact_lock" if write else "pg_advisory_xact_lock_shared"
        cursor.execute(f"SELECT {kind}({lock_number(self._schema, self._table)})::text")
        return one(cursor, f"SELECT to_regclass({literal(self._log)}) IS NOT NULL") is True

    def make(self, cursor: Any) -> None:
        """Create the log, for all tables of the schema."""
        cursor.execute(f"SELECT pg_advisory_xact_lock({lock_number(self._schema, _TABLE)})::text")
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._log} (sink text NOT NULL, version bigint NOT NULL, "
            "writer text NOT NULL, batch bigint NOT NULL, relation bigint NOT NULL, log bigint NOT NULL, "
            "note text NOT NULL, "
            "committed_at timestamptz NOT NULL DEFAULT clock_timestamp(), "
            "PRIMARY KEY (sink, version), UNIQUE (sink, writer, batch))"
        )

    def version(self, cursor: Any) -> int:
        """Return the number of the newest commit; -1 if there is none."""
        return int(one(cursor, f"SELECT coalesce(max(version), -1) FROM {self._log} WHERE {self._mine}"))

    def batch(self, cursor: Any, writer: str) -> int:
        """Return the highest batch of a writer; -1 if there is none."""
        mine = f"{self._mine} AND writer = {literal(writer)}"
        return int(one(cursor, f"SELECT coalesce(max(batch), -1) FROM {self._log} WHERE {mine}"))

    def batches(self, cursor: Any) -> dict[str, int]:
        """Return the highest batch of each writer."""
        found = fetched(cursor, f"SELECT writer, max(batch) FROM {self._log} WHERE {self._mine} GROUP BY writer")
        return {str(writer): int(batch) for writer, batch in found}

    def relation(self, cursor: Any) -> int | None:
        """Return the object id that the table had at the newest commit.

        None if there is no commit, or if the log has another id than then: both were restored, and get new ids.
        """
        newest = f"SELECT relation, log = {self._id} FROM {self._log} WHERE {self._mine} ORDER BY version DESC LIMIT 1"
        found = fetched(cursor, newest)
        return int(found[0][0]) if found and found[0][1] else None

    @property
    def _id(self) -> str:
        return f"to_regclass({literal(self._log)})::oid::bigint"

    def notes(self, cursor: Any, writer: str, newer_than: int) -> list[dict[str, Any]]:
        """Return the commit metadata of a writer's batches above a number, newest first."""
        return [
            json.loads(text)
            for (text,) in fetched(
                cursor,
                f"SELECT note FROM {self._log} WHERE {self._mine} AND writer = {literal(writer)} AND batch > "
                f"{int(newer_than)} ORDER BY version DESC",
            )
        ]

    def since(self, cursor: Any, version: int) -> list[dict[str, Any]]:
        """Return the commit metadata of all commits after a version."""
        newer = f"SELECT note FROM {self._log} WHERE {self._mine} AND version > {int(version)} ORDER BY version"
        return [json.loads(text) for (text,) in fetched(cursor, newer)]

    def add(self, cursor: Any, note: Mapping[str, Any], relation: int) -> None:
        """Add a commit; its metadata has ``app_id`` and ``version``, the writer and its batch."""
        values = (
            literal(self._table), str(self.version(cursor) + 1), literal(str(note["app_id"])),
            str(int(note["version"])), str(relation), self._id, literal(json.dumps(note)),
        )  # fmt: skip
        cursor.execute(
            f"INSERT INTO {self._log} (sink, version, writer, batch, relation, log, note) VALUES ({', '.join(values)})"
        )


def fetched(cursor: Any, sql: str) -> list[Any]:
    """Return what a query gives."""
    cursor.execute(sql)
    return list(cursor.fetchall())


def one(cursor: Any, sql: str) -> Any:
    """Return the one value that a query gives."""
    return fetched(cursor, sql)[0][0]


def lock_number(schema: str, table: str) -> int:
    """Return the number of the lock of a table."""
    digest = hashlib.blake2b(f"sluice:{schema}.{table}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
