"""Rows of a PostgreSQL table as a :class:`~sluice.sources.base.Source`.

A table cannot be read again: rows are changed and deleted. So the rows that a run finds are landed first
(:class:`~sluice.sources.landed.intake.Intake`), which gives them offsets; all strategies then read them there.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sluice.connections import find
from sluice.errors import START_OVER, ConfigError, SinkError, TopicRecreatedError
from sluice.home import Home
from sluice.sources.base import SourceKind
from sluice.sources.jdbc.config import JdbcSource
from sluice.sources.jdbc.database import Database, Described, Session, retold
from sluice.sources.landed.intake import OvertakenError, digests
from sluice.sources.landed.position import Mark, Position, settled, thinned
from sluice.sources.landed.source import LandedSource
from sluice.sources.state import TopicState

__all__ = ["KIND", "TableRows"]

logger = logging.getLogger("sluice")

_ATTEMPTS = 5
_PATIENCE = 10.0
"""Seconds for which a first look waits for the transactions that were running before it."""
_LONG = 3600.0
"""Seconds after which a transaction that holds the floor back is named."""
_ROWS, _SIZE = 200_000, 64 << 20
"""Rows, and bytes, from which on a file of landed rows is full."""
_UNIVERSAL = re.compile(r"(?i)(etc/.*|utc|uct|gmt[-+0]*|zulu|universal|greenwich)$")
"""Time zones whose clock never goes back."""
_STATE = "nothing was read or written now; what earlier runs wrote is in the sink"


class TableRows(LandedSource):
    """The rows of a pipeline's table: those that were landed, and those that a look lands.

    Attributes
    ----------
    notes
        What the user should know, as far as :meth:`snapshot` found it.
    found
        As in :class:`~sluice.sources.base.Announcing`.
    """

    def __init__(self, config: JdbcSource, home: Home, pipeline: str) -> None:
        self.config = config
        self.database = Database(find(config.connection), config)
        self.notes: list[str] = []
        self.found: Callable[[], None] = lambda: None
        self._path = home.source(pipeline)

    def snapshot(self) -> list[TopicState]:
        """Land what is new in the table, and return the state of what was landed: one stream with one partition.

        Raises
        ------
        SourceUnreachableError, AuthorizationError
            If the database does not answer, or refuses.
        ConfigError
            If the table or a column is not there, or the key does not do.
        TopicRecreatedError
            If it is another table than the one that was read, or its keys went back.
        SinkError
            If rows cannot be landed.
        """
        for _ in range(_ATTEMPTS):
            self.intake.refresh()
            self.notes.clear()
            try:
                self._look()
            except OvertakenError:
                continue
            break
        else:
            raise SinkError(
                f"the pipeline's landed rows, {self._path}, are added to by others all the time",
                state=_STATE,
                next_step="run again when no other run of the pipeline looks for rows",
            )
        for note in self.notes:
            logger.warning("%s", note)
        return self.recorded()

    def _look(self) -> None:
        before = self.intake.position
        with self.database.opened() as session:
            described = session.describe()
            what = self._same(before, described)
            written = session.written()
            self._refuse_restored(before.written, written)
            self.notes += described.notes
            if session.unkeyed(described.kind):
                self.notes.append(f"{self.config.shown}: rows whose key is NULL, infinite or after 294246 are not read")
            if described.kind.lag > self._lag(described) and not _UNIVERSAL.match(zone := session.zone()):
                self._warn_of_clock(zone, described)
            mark = self._mark(session, described, before.floor)
        marks = before.marks if mark is None else (*before.marks, mark)
        at, floor = self._settled(before.floor, marks, described)
        left = tuple(m for m in marks if floor is None or m.key > floor)
        after = Position(before.end, floor, thinned(left), what, written)
        with self.database.opened("REPEATABLE READ") as session:  # its snapshot begins with the first query
            pending: tuple[Any, int] | None = None
            for full in self._files(session, described, before.floor, at):
                if pending is not None:  # only the last commit has the new floor: a look may be killed before it
                    self.intake.land(*pending, replace(before, what=what, written=written))
                pending = full
        if pending is not None:
            self.intake.land(*pending, after)
        elif (floor, what, _line(written), _newest(left)) != (
            before.floor,
            before.what,
            _line(before.written),
            _newest(before.marks),
        ):
            self.intake.land(None, 0, after)

    def _same(self, before: Position, now: Described) -> dict[str, Any]:
        """Return what rows are read from, after checking that it is what was read before."""
        config = self.config
        query = None if config.query is None else hashlib.sha256(config.query.encode()).hexdigest()
        what = {"server": now.server, "table": now.table, "file": now.file, "key": config.key, "unique": [*now.unique]}
        (stream,) = config.streams
        what |= {"query": query, "types": [*now.types], "exact": [*now.exact], "stream": stream}
        known = before.what
        if known is None:
            return what
        if before.end and known.get("stream", stream) != stream:
            raise ConfigError(
                f"the rows that were read are of {known['stream']}, and source.jdbc names {stream} now: an "
                "offset would stand for rows of both",
                state=_STATE,
                next_step=f"let source.jdbc name {known['stream']} again (ALTER TABLE ... RENAME gives a table its "
                f"former name back); or, to read another one, {START_OVER}",
            )
        if (known["key"], known["unique"]) != (what["key"], what["unique"]):
            raise ConfigError(
                f"{config.shown} was read by the key {known['key']!r}, and rows were told apart by {known['unique']}; "
                f"now they are {what['key']!r} and {what['unique']}",
                state=_STATE,
                next_step=f"set source.jdbc.key and source.jdbc.unique as they were; or {START_OVER}",
            )
        for kind, have, other in (("types", now.types, operator.ne), ("exact", now.exact, retold)):
            had = [str(one) for one in known.get(kind, have)]
            if any(other(one, another) for one, another in zip(had, have, strict=False)):
                cast = "" if config.query is None else ", or cast the columns in source.jdbc.query"
                raise ConfigError(
                    f"{config.shown}: {', '.join((config.key, *now.unique))} had the types {', '.join(had)}, "
                    f"and have {', '.join(have)} now: rows that were read could not be told from others",
                    state=_STATE,
                    next_step=f"change the types back{cast}; or {START_OVER}",
                )
        elsewhere = None not in (known["server"], now.server) and known["server"] != now.server
        if elsewhere or known["table"] != now.table:
            raise TopicRecreatedError(
                f"{config.shown} is not the table that was read before: "
                + ("the connection leads to another server" if elsewhere else "it was dropped and made again"),
                state=_STATE,
                next_step="let the connection and source.jdbc lead to the former table; to read this one, "
                f"{START_OVER}",
            )
        if known["file"] != now.file:
            self.notes.append(
                f"{config.shown} was rewritten since the last run (TRUNCATE, VACUUM FULL, CLUSTER or ALTER TABLE). If "
                "it was emptied and its keys started over, rows with keys that were read before are not read"
            )
        if known.get("query", query) != query:
            floor = "" if before.floor is None else f", except those with keys below {before.floor}"
            self.notes.append(
                f"source.jdbc.query was changed since the last run. Rows that it finds now are read{floor}; those that "
                "were read before are told apart by their key and the columns in unique only"
            )
        return what

    def _refuse_restored(self, before: tuple[int, int] | None, now: tuple[int, int] | None) -> None:
        """Refuse a server that was put back to before the last look, since it gives the same keys to other rows.

        Raises
        ------
        TopicRecreatedError
            If its log ends earlier than it did then.
        """
        if before is None or now is None:
            return
        if now[1] < before[1]:
            raise TopicRecreatedError(
                f"{self.config.shown}: the server's data are older than at the last run: it was restored from a copy, "
                "or a standby took over that lacked the newest transactions. It may have given keys that were read "
                "before to other rows, which would not be seen",
                state=_STATE,
                next_step=f"let the connection lead to the server with the newer data; to read this one, {START_OVER}",
            )
        if now[0] != before[0]:
            self.notes.append(
                f"{self.config.shown}: the server was restored from a copy, or a standby took over (timeline "
                f"{now[0]}, before {before[0]}). If it lost rows that were read, and gave their keys to others, these "
                "others are not read: compare the table with the sink"
            )

    def _mark(self, session: Session, described: Described, floor: int | None) -> Mark | None:
        """Return a mark; None if there are no rows.

        Raises
        ------
        TopicRecreatedError
            If the largest number is below the floor.
        """
        at, key = session.clock(), session.largest(described.kind)
        micros = described.kind.micros
        if key is None:
            return None
        if micros is None and floor is not None and key < floor:
            raise TopicRecreatedError(
                f"{self.config.shown}: the key {self.config.key!r} went back: the largest is {key}, and rows up to "
                f"{floor} were read. New rows with smaller keys would not be seen",
                state=_STATE,
                next_step="if only rows at the end were deleted, run again when a greater key is there; if the keys "
                f"started over, {START_OVER}",
            )
        if micros is not None:  # a time in the future is no floor: others may come before it
            key = min(key, int(at * 1_000_000) // micros) - -(-int(self._lag(described) * 1_000_000) // micros)
        running, _, _ = session.running()  # after the snapshot in which the key was seen
        return Mark(key, at, tuple(running))

    def _warn_of_clock(self, zone: str, described: Described) -> None:
        if described.kind.infinite == "timestamp":
            self.notes.append(
                f"{self.config.shown}: the key {self.config.key!r} has no time zone, and the database's is {zone}. If "
                "it is local time, rows of the hour that comes twice at the end of summer are not read with such a "
                "short source.jdbc.lag: leave it out, or make the key a timestamptz"
            )

    def _lag(self, described: Described) -> float:
        if self.config.lag is not None:
            return self.config.lag.total_seconds()
        return described.kind.lag

    def _settled(self, known: int | None, marks: tuple[Mark, ...], described: Described) -> tuple[float, int | None]:
        """Return the server's clock, and the floor for rows of a snapshot that is taken later."""
        age = 0.0 if described.kind.micros is not None else self._lag(described)
        until = time.monotonic() + (_PATIENCE if known is None and marks and not age else 0.0)
        while True:
            with self.database.opened() as session:
                running, pids, prepared = session.running()
                at = session.clock()
            floor, left = settled(known, marks, None if prepared else running, at, age)
            if floor is not None or time.monotonic() >= until:
                break
            time.sleep(0.05)
        if left and at - left[0].at > max(_LONG, 2 * age):
            who = "a prepared transaction" if prepared else f"the processes {', '.join(map(str, sorted(pids)[:5]))}"
            self.notes.append(
                f"{self.config.shown}: a transaction that is open for more than an hour ({who}) may still add rows, so "
                "all rows with keys from that time on are compared in each run. pg_stat_activity and pg_prepared_xacts "
                "show it"
            )
        return at, floor

    def _files(self, session: Session, described: Described, floor: int | None, at: float) -> Iterator[tuple[Any, int]]:
        """Yield the rows that were not landed yet, as Arrow tables that fill a file, each with its largest key."""
        import pyarrow as pa

        highest = max((part.high for part in self.intake.parts), default=None)
        known = self.intake.known(floor) if highest is not None else set()
        held: list[Any] = []
        last = None
        for batch in session.rows(described, floor):
            rows = pa.Table.from_batches([batch])
            last = self._unlike(last, rows, described)
            if known and batch.num_rows and rows.column("number")[0].as_py() <= highest:
                mask = pa.array([digest not in known for digest in digests(rows.column("key").cast(pa.binary()))])
                rows = rows.filter(mask)
            if rows.num_rows:
                self.found()
                held.append(rows)
            if sum(r.num_rows for r in held) >= _ROWS or sum(r.nbytes for r in held) >= _SIZE:
                yield _records(held, described, at)
                held = []
        if held:
            yield _records(held, described, at)

    def _unlike(self, last: str | None, rows: Any, described: Described) -> str | None:
        """Return the last row's key, after checking that no two rows have the same."""
        if described.sure or not rows.num_rows:
            return last
        keys = rows.column("key").to_pylist()
        for one, other in zip([last, *keys], keys, strict=False):
            if one == other:
                raise ConfigError(
                    f"{self.config.shown}: two rows have the same {other[:200]}, and cannot be told apart",
                    state="rows that were landed before are in the log once; the others are not read yet",
                    next_step="name all columns that identify a row in source.jdbc.unique",
                )
        return str(keys[-1])


def _newest(marks: tuple[Mark, ...]) -> int | None:
    return max((m.key for m in marks), default=None)


def _line(written: tuple[int, int] | None) -> int | None:
    return None if written is None else written[0]


def _records(held: list[Any], described: Described, at: float) -> tuple[Any, int]:
    """Return rows as records, and their largest key."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.concat_tables(held).combine_chunks()
    numbers = rows.column("number").combine_chunks()
    micros = described.kind.micros
    times = pa.repeat(pa.scalar(int(at * 1_000_000)), rows.num_rows) if micros is None else pc.multiply(numbers, micros)
    pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    pairs = pa.StructArray.from_arrays(
        [pa.repeat(pa.scalar("number"), rows.num_rows), numbers.cast(pa.string()).cast(pa.binary())], fields=list(pair)
    )
    counted = pa.array(np.arange(rows.num_rows + 1), pa.int32())
    records = pa.table(
        {
            "key": rows.column("key").cast(pa.binary()),
            "value": rows.column("value").cast(pa.binary()),
            "headers": pa.ListArray.from_arrays(counted, pairs, type=pa.list_(pair)),
            "timestamp": times.cast(pa.timestamp("us", "UTC")),
        }
    )
    return records, int(pc.max(numbers).as_py())


KIND = SourceKind(
    config=JdbcSource,
    open="sluice.sources.jdbc.source:TableRows",
    reader="sluice_spark.sources.jdbc:JdbcReader",
    replayable=True,
    seek_by_time=True,
    retention=True,
    by_range=True,
)
