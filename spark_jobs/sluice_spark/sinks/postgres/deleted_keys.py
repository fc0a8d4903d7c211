"""The table that remembers which keys were deleted, and by what: it is beside the sink's table, in the same schema.

Without it, an older record of a deleted key, which comes late because it was lost and is redriven, would bring the row
back. It has a row for each key that was deleted and did not come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.errors import ConfigError
from sluice.fields import TAKES_AWAY
from sluice.postgres import literal, name_of
from sluice.sinks.postgres import FORGOTTEN, PostgresSink
from sluice_spark.sinks.postgres.commits import one
from sluice_spark.sinks.postgres.reading import columns
from sluice_spark.sinks.postgres.refused_rows import Unfit
from sluice_spark.sinks.postgres.upsert import remembered

__all__ = ["DeletedKeys"]


class DeletedKeys:
    """The table of deleted keys, of a sink with ``mode: upsert``."""

    def __init__(self, config: PostgresSink) -> None:
        schema, table = config.table.split(".")
        self._shown = f"{schema}.{FORGOTTEN}{table}"
        self._of, self.name = name_of(schema, table), name_of(schema, f"{FORGOTTEN}{table}")
        self._key, self._sequence = config.key, config.ordering
        self._columns = remembered(config.key, config.ordering)

    def misfits(self, cursor: Any) -> list[str]:
        """Return what is wrong with the table, if it is there."""
        there = [column.name for column in columns(cursor, self.name)]
        if not there or sorted(there) == sorted(self._columns):
            return []
        return [
            f"the table {self._shown} remembers deleted keys by ({', '.join(there)}), not by "
            f"({', '.join(self._columns)}): DROP TABLE {self.name} forgets them"
        ]

    def make(self, cursor: Any) -> None:
        """Create the table if it is not there, with the types of the sink's.

        Raises
        ------
        ConfigError
            If it has other columns.
        """
        if problems := self.misfits(cursor):
            raise ConfigError(
                f"keys cannot be deleted any more: {problems[0]}",
                state="nothing of this batch was committed",
                next_step="drop it, or change key and sequence back, then run again",
            )
        if one(cursor, f"SELECT to_regclass({literal(self.name)}) IS NULL"):
            cursor.execute(f"CREATE TABLE {self.name} AS SELECT {_listed(self._columns)} FROM {self._of} WITH NO DATA")
            cursor.execute(f"ALTER TABLE {self.name} ADD PRIMARY KEY ({_listed(self._key)})")

    def unfit(self) -> list[Unfit]:
        """Return which rows delete and do not say when, where a sequence column says which row is newer."""
        if self._sequence == "_offset":  # each record has one
            return []
        return [
            Unfit(
                f"{name_of(TAKES_AWAY)} AND {name_of(self._sequence)} IS NULL",
                f"a tombstone has no value in the sequence column {self._sequence}: whether it is newer than a row of "
                "its key is not known",
                f"give tombstones one in transform.sql (a header of theirs, or _timestamp, if {self._sequence} is a "
                "time of the same clock), or choose sequence: _offset",
                self._sequence,
            )
        ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(name_of, names))
