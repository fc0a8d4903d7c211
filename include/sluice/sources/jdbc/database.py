"""What is asked of a PostgreSQL database so that the rows of a table can be landed once."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sluice.connections import Connection
from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError, quoted
from sluice.postgres import WRONG, literal, name_of, text_of, url_of
from sluice.sources.jdbc.config import JdbcSource

__all__ = ["Database", "Described", "Session", "retold"]

_STATE = "nothing was read or written now; what earlier runs wrote is in the sink"
_BYTES = 8 << 20
"""About how many bytes of rows are fetched at a time."""


@dataclass(frozen=True)
class _Type:
    """A type of keys: how a column of it is a whole number, and the other way round."""

    number: str
    literal: str
    infinite: str | None = None
    micros: int | None = None
    """Microseconds of one unit of the number; None if it is no time."""
    lag: float = 0.0
    """How many seconds later than others a row may appear, if the pipeline file does not say it."""


_TOO_LATE = "294247-01-01"
"""From here on, microseconds since 1970 have more than 64 bits."""
_MICROS = "(extract(epoch from {}) * 1000000)::int8"
_WHOLE = _Type("{}::int8", "{}")
_TYPES = {
    "smallint": _WHOLE,
    "integer": _WHOLE,
    "bigint": _WHOLE,
    "date": _Type("({} - date 'epoch')::int8", "(date 'epoch' + {})", "date", 86_400_000_000, 300.0),
    "timestamp without time zone": _Type(
        # of an unknown time zone: an hour, since its clock may go back at the end of summer
        _MICROS,
        "(timestamp 'epoch' + {} * interval '1 microsecond')",
        "timestamp",
        1,
        3900.0,
    ),
    "timestamp with time zone": _Type(
        _MICROS, "(timestamptz 'epoch' + {} * interval '1 microsecond')", "timestamptz", 1, 300.0
    ),
}


_ALIKE = {"smallint": "integer", "bigint": "integer", "character varying": "text"}


@dataclass(frozen=True)
class Described:
    """What rows are read from.

    Attributes
    ----------
    server
        The id of the server's data; None if the role may not know it.
    table
        The table's object id; None for a query.
    file
        The number of the table's file, which changes when it is rewritten; None if it has none.
    unique
        The columns that identify a row, without the key.
    sure
        Whether a unique index says that they do.
    notes
        What the user should know.
    types
        The types of the key and of these columns; those whose values have the same text have the same name.
    exact
        The same types as the table has them, such as ``numeric(10,2)``; none for a query.
    """

    server: str | None
    table: int | None
    file: int | None
    kind: _Type
    unique: tuple[str, ...]
    sure: bool
    notes: tuple[str, ...]
    types: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()


class Database:
    """The database of a pipeline's source; it holds secrets."""

    def __init__(self, connection: Connection, config: JdbcSource) -> None:
        self._url = url_of(connection)
        self.config = config
        # a table is no subquery, so that PostgreSQL may use its indexes whatever its version
        self._source = name_of(*config.table.split(".")) if config.table else f"(\n{config.query}\n)"

    @contextmanager
    def opened(self, isolation: str = "READ COMMITTED") -> Iterator[Session]:
        """Open a session, and a transaction in it that only reads.

        Raises
        ------
        SluiceError
            By type, for each error of the database in the block.
        """
        import adbc_driver_manager
        import adbc_driver_postgresql.dbapi as adbc

        try:
            with adbc.connect(self._url, autocommit=False) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation} READ ONLY")
                for name, value in _SETTINGS.items():
                    cursor.execute(f"SET LOCAL {name} = {literal(value)}")
                yield Session(cursor, self._source, self.config)
                connection.rollback()
        except (adbc_driver_manager.Error, _BrokenOffError) as error:
            raise self._described(error) from error

    def _described(self, error: Any) -> SluiceError:
        code, text = getattr(error, "sqlstate", None) or "", text_of(error)
        what = f"{self.config.shown}: {quoted(text)}"
        if code == "42501" or code[:2] == "28" or (not code and ("authentication" in text or "password" in text)):
            return AuthorizationError(
                what,
                state=_STATE,
                next_step="correct login and password; the role needs CONNECT to the database, USAGE of the schema and "
                "SELECT of the table, and must not be subject to its row security",
            )
        if code == "55P03":
            return SourceUnreachableError(
                f"{self.config.shown} is locked by another transaction for ten minutes",
                state=_STATE,
                next_step="SELECT pid, state, query FROM pg_stat_activity shows it; run again when it has ended",
            )
        broken = not code and (WRONG.search(text) or "invalid byte sequence" in text)
        if code[:2] in ("0A", "22", "25", "3D", "3F", "42") or broken:
            return ConfigError(
                what, state=_STATE, next_step="correct source.jdbc in the pipeline file, or the connection; run again"
            )
        return SourceUnreachableError(
            what, state=_STATE, next_step="run again when the database answers; the next run catches up"
        )


def retold(before: str, now: str) -> bool:
    """Return whether values have another text since the modifier of their type changed, as in ``numeric(10,2)``."""
    kind, limited, rest = now.partition("(")
    after = rest.partition(")")[0].rpartition(",")[2]
    given = before.partition("(")[2].partition(")")[0].rpartition(",")[2]
    if not limited or not before.startswith(kind) or after == given:
        return False
    if kind in ("timestamp", "time", "interval"):  # rounded if it has fewer digits
        return int(after) < int(given or 6)
    return kind in ("numeric", "character", "bit")


class _BrokenOffError(Exception):
    """The server ended an answer after its first rows."""


_SETTINGS = {
    "TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "iso_8601", "bytea_output": "hex",
    "extra_float_digits": "1", "client_encoding": "UTF8", "statement_timeout": "0", "lock_timeout": "600s",
    "row_security": "off", "idle_in_transaction_session_timeout": "0", "standard_conforming_strings": "on",
}  # fmt: skip
"""The same values have the same text in each session, whatever a role's defaults are."""


class Session:
    """A transaction that reads."""

    def __init__(self, cursor: Any, source: str, config: JdbcSource) -> None:
        self._cursor = cursor
        self._source = source
        self._config = config

    def _rows(self, sql: str) -> list[Any]:
        self._cursor.execute(sql)
        found: list[Any] = self._cursor.fetchall()
        return found

    @cached_property
    def _key(self) -> str:
        return f"q.{name_of(self._config.key)}"

    def describe(self) -> Described:
        """Return what rows are read from.

        Raises
        ------
        ConfigError
            If it cannot be read by this key.
        """
        config = self._config
        ((standby,),) = self._rows("SELECT pg_is_in_recovery()")
        if standby:
            raise ConfigError(
                f"{config.connection} leads to a standby, which does not know the running transactions of its primary",
                state=_STATE,
                next_step="let the connection lead to the primary (extra: target_session_attrs: read-write)",
            )
        if config.table is not None:
            self._refuse_copies(f"{literal(self._source)}::regclass")
        ((kind,),) = self._rows(f"SELECT pg_typeof((SELECT {self._key} FROM {self._source} AS q LIMIT 0))::text")
        if kind not in _TYPES:
            raise ConfigError(
                f"{config.shown}: the key {config.key!r} is of type {kind}",
                state=_STATE,
                next_step="name a column of type smallint, integer, bigint, date, timestamp or timestamptz; or read a "
                "query that casts it",
            )
        columns = self._columns()
        gone = [name for name in config.unique or () if name not in columns]
        if gone:
            raise ConfigError(
                f"{config.shown} has no column {gone[0]!r}", state=_STATE, next_step="correct source.jdbc.unique"
            )
        if len(set(columns)) < len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            raise ConfigError(
                f"{config.shown} has two columns of the name {twice!r}",
                state=_STATE,
                next_step="name them apart in source.jdbc.query, with AS",
            )
        server = self._server()
        if config.table is None:
            unique = tuple(name for name in config.unique or () if name != config.key)
            found = Described(server, None, None, _TYPES[kind], unique, False, ())
        else:
            found = self._of_table(server, _TYPES[kind])
        names = [config.key, *found.unique]
        exact = () if config.table is None else self._exact(names)
        return replace(found, types=self._types(names), exact=exact)

    def _exact(self, names: Sequence[str]) -> tuple[str, ...]:
        found = self._rows(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = {literal(self._source)}::regclass AND attnum > 0 AND NOT attisdropped"
        )
        types = dict(found)
        return tuple(types.get(name, "") for name in names)  # a system column has none

    def _types(self, names: Sequence[str]) -> tuple[str, ...]:
        of = (f"(SELECT q.{name_of(name)} FROM {self._source} AS q LIMIT 0)" for name in names)
        (found,) = self._rows(f"SELECT {', '.join(f'pg_typeof({one})::text' for one in of)}")
        return tuple(_ALIKE.get(name, name) for name in found)

    def _columns(self) -> list[str]:
        self._cursor.execute(f"SELECT * FROM {self._source} AS q LIMIT 0")
        return [column[0] for column in self._cursor.description]

    def _server(self) -> str | None:
        ((allowed,),) = self._rows("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')")
        return self._rows("SELECT system_identifier::text FROM pg_control_system()")[0][0] if allowed else None

    def _of_table(self, server: str | None, kind: _Type) -> Described:
        config, notes = self._config, []
        at = f"{literal(self._source)}::regclass"
        ((oid, relkind, file),) = self._rows(
            f"SELECT oid::int8, relkind::text, pg_relation_filenode(oid)::int8 FROM pg_class WHERE oid = {at}"
        )
        # an index over columns that may be NULL admits two rows of the same NULL; rows without a key are not read
        whole = [
            (primary, unique, json.loads(names))
            for primary, unique, names in self._rows(
                "SELECT i.indisprimary, i.indisunique AND i.indpred IS NULL AND i.indimmediate AND ("
                "coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::bool, false) OR NOT EXISTS (SELECT FROM "
                "unnest(i.indkey) WITH ORDINALITY AS k(n, o) JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND "
                f"a.attnum = k.n WHERE k.o <= i.indnkeyatts AND NOT a.attnotnull AND a.attname <> {literal(config.key)}"
                ")), to_json(ARRAY("
                "SELECT a.attname FROM unnest(i.indkey) WITH ORDINALITY AS k(n, o) JOIN pg_attribute AS a "
                "ON a.attrelid = i.indrelid AND a.attnum = k.n WHERE k.o <= i.indnkeyatts ORDER BY k.o))::text "
                f"FROM pg_index AS i WHERE i.indrelid = {at} AND i.indisvalid AND i.indexprs IS NULL"
            )
        ]
        indexes = [set(names) for _, unique, names in whole if unique]
        named = config.unique
        if named is None and {config.key} not in indexes:
            named = next((names for primary, _, names in whole if primary), None)
            if named is None and relkind in "rp":
                raise ConfigError(
                    f"{config.shown} has neither a unique index of {config.key!r} nor a primary key",
                    state=_STATE,
                    next_step="name the columns that identify a row in source.jdbc.unique",
                )
        unique = tuple(name for name in named or () if name != config.key)
        # the indexes of a table do not reach those that inherit from it, unlike those of a partitioned one
        ((heirs,),) = self._rows(f"SELECT EXISTS (SELECT FROM pg_inherits WHERE inhparent = {at})")
        sure = any(index <= {config.key, *unique} for index in indexes) and (relkind == "p" or not heirs)
        if relkind in "rp" and not any(names[:1] == [config.key] for _, _, names in whole):
            notes.append(f"{config.shown} has no index that begins with {config.key!r}: each run reads the whole table")
        ((cached,),) = self._rows(
            "SELECT max(s.seqcache) FROM pg_sequence AS s JOIN pg_depend AS d ON d.objid = s.seqrelid "
            f"AND d.refobjid = {at} AND d.deptype IN ('a', 'i') "
            f"JOIN pg_attribute AS a ON a.attrelid = {at} AND a.attnum = d.refobjsubid "
            f"WHERE a.attname = {literal(config.key)}"
        )
        if cached is not None and cached > 1:
            notes.append(
                f"the sequence of {config.key!r} has CACHE {cached}: a session may use a number long after others used "
                "greater ones, and later than source.jdbc.lag such a row is not seen. ALTER SEQUENCE ... CACHE 1"
            )
        return Described(server, oid, file, kind, unique, sure, tuple(notes))

    def _refuse_copies(self, at: str) -> None:
        """Refuse rows that appear in this database later than in their own, also below a view or a parent table."""
        found = self._rows(
            f"WITH RECURSIVE r(oid) AS (SELECT {at}::oid UNION SELECT n.oid FROM r, LATERAL ("
            "SELECT h.inhrelid AS oid FROM pg_inherits AS h WHERE h.inhparent = r.oid UNION ALL "
            "SELECT d.refobjid FROM pg_rewrite AS w JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass "
            "AND d.objid = w.oid AND d.refclassid = 'pg_class'::regclass WHERE w.ev_class = r.oid) AS n) "
            "SELECT c.relkind::text, c.oid::regclass::text FROM r JOIN pg_class AS c USING (oid) "
            "WHERE c.relkind IN ('f', 'm') ORDER BY 1, 2"
        )
        if not found:
            return
        kind, name = found[0]
        if kind == "f":
            raise ConfigError(
                f"{self._config.shown} is or has the foreign table {name}: the running transactions of its server are "
                "not known here",
                state=_STATE,
                next_step="let the connection lead to that server",
            )
        raise ConfigError(
            f"{self._config.shown} is or has the materialized view {name}: its rows appear when it is refreshed, in "
            "whatever order, so rows with smaller keys than those that were read would not be seen",
            state=_STATE,
            next_step="read the tables that it is made of, with source.jdbc.query",
        )

    def written(self) -> tuple[int, int] | None:
        """Return the server's timeline, and up to where its log is on disk; None if the server does not say it."""
        import adbc_driver_manager

        self._cursor.execute("SAVEPOINT written")
        try:
            ((file, at),) = self._rows(
                "SELECT pg_walfile_name(l), (l - '0/0'::pg_lsn)::int8 FROM pg_current_wal_flush_lsn() AS l"
            )
        except adbc_driver_manager.Error:
            self._cursor.execute("ROLLBACK TO SAVEPOINT written")
            return None
        return int(file[:8], 16), int(at)

    def running(self) -> tuple[list[str], list[int], bool]:
        """Return the virtual ids of all transactions that run now, their processes, and whether one is prepared."""
        # of other databases: they cannot write to this one, and might last for days. The order matters: a transaction
        # that is prepared has lost its virtual id, and is in the other list before
        found = self._rows(
            "SELECT l.virtualtransaction, l.pid, l.pid = pg_backend_pid() FROM pg_locks AS l "
            "LEFT JOIN pg_stat_activity AS a USING (pid) "
            "WHERE l.locktype = 'virtualxid' AND l.granted AND l.mode = 'ExclusiveLock' "
            "AND (a.datname IS NULL OR a.datname = current_database()) "
            "AND a.backend_type IS DISTINCT FROM 'autovacuum worker'"
        )
        if not any(own for _, _, own in found):  # others speak its language, and have an empty pg_locks
            raise ConfigError(
                f"{self._config.connection} leads to a server that does not say which transactions run, as PostgreSQL "
                "does in pg_locks: rows that are committed late would not be seen",
                state=_STATE,
                next_step="read another copy of the table, in PostgreSQL",
            )
        ((prepared,),) = self._rows("SELECT count(*) > 0 FROM pg_prepared_xacts WHERE database = current_database()")
        others = [(vxid, pid) for vxid, pid, own in found if not own]
        return [vxid for vxid, _ in others], [pid for _, pid in others], prepared

    def zone(self) -> str:
        """Return the time zone in which the database gives local times, unless a client asks for another."""
        return str(self._rows("SELECT reset_val FROM pg_settings WHERE name = 'TimeZone'")[0][0])

    def clock(self) -> float:
        """Return the server's clock, in seconds since 1970."""
        return float(self._rows("SELECT extract(epoch from clock_timestamp())::float8")[0][0])

    def largest(self, kind: _Type) -> int | None:
        """Return the largest key, as a whole number; None if there is none."""
        of = f"SELECT max({self._key}) AS m FROM {self._source} AS q {self._finite(kind, 'WHERE')}"
        found = self._rows(f"SELECT {kind.number.format('m')} FROM ({of}) AS o")
        return None if found[0][0] is None else int(found[0][0])

    def unkeyed(self, kind: _Type) -> bool:
        """Return whether there are rows whose key is NULL, infinite or too late."""
        wanted = f"{self._key} IS NULL"
        if kind.infinite:
            wanted += f" OR NOT ({self._finite(kind, '')})"
        return bool(self._rows(f"SELECT EXISTS (SELECT FROM {self._source} AS q WHERE {wanted})")[0][0])

    def _finite(self, kind: _Type, word: str) -> str:
        if not kind.infinite:
            return ""
        key, of = self._key, kind.infinite
        return f"{word} {key} > '-infinity'::{of} AND {key} < '{_TOO_LATE}'::{of}"

    def rows(self, described: Described, floor: int | None) -> Iterator[Any]:
        """Yield the rows from a key on, in the order of keys, as Arrow batches of ``number``, ``key`` and ``value``.

        ``number`` is the key as a whole number, ``key`` the JSON object that identifies a row, ``value`` that of all
        its columns. In a database of another encoding than UTF-8, a value with bytes that are none of its characters
        comes as they are, and ends in the quarantine (rule ``utf8``); such a key has them as ``\\u00XX``.
        """
        ((encoding,),) = self._rows("SELECT current_setting('server_encoding')")
        codec = _codec(encoding)

        def text(sql: str) -> str:  # a conversion by the server would end with the first such byte
            return sql if codec is None else f"convert_to({sql}, {literal(encoding)})"

        kind, names = described.kind, dict.fromkeys([*described.unique, self._config.key])
        parts = [
            f"{literal((', ' if n else '{') + json.dumps(name, ensure_ascii=False) + ': ')}"
            f" || coalesce(to_json(q.{name_of(name)})::text, 'null')"
            for n, name in enumerate(names)
        ]
        identity = " || ".join([*parts, "'}'"])
        where = f"WHERE {self._key} IS NOT NULL {self._finite(kind, 'AND')}"
        if floor is not None:
            where += f" AND {self._key} >= {kind.literal.format(f'({floor})')}"
        self._cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BYTES)})
        self._cursor.execute(
            f"SELECT {kind.number.format(self._key)} AS number, {text(identity)} AS key, "
            f"{text('to_json(q.*)::text')} AS value FROM {self._source} AS q {where} "
            f"ORDER BY {self._key}{'' if described.sure else ', 2'}"
        )
        found = self._cursor.fetch_record_batch()
        while True:
            try:
                batch = found.read_next_batch()
            except StopIteration:
                return
            except OSError as error:  # of rows on their way, Arrow's reader tells what the server says
                raise _BrokenOffError(*error.args) from error
            yield batch if codec is None else _converted(batch, codec)


def _codec(encoding: str) -> str | None:
    """Return Python's name of a database's encoding; None if it is UTF-8, or Python does not know it."""
    name = re.sub("^WIN", "cp", encoding.replace("KOI8", "KOI8-"))
    if encoding == "SQL_ASCII":  # any bytes
        return "utf-8"
    with suppress(LookupError):
        return None if encoding == "UTF8" else codecs.lookup(name).name
    return None


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"\\u00{byte:02x}" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("sluice.escaped", _escaped)


def _converted(batch: Any, codec: str) -> Any:
    """Return rows in UTF-8 that came in a database's encoding."""
    import pyarrow as pa

    def readable(value: bytes) -> bytes:
        try:
            return value.decode(codec).encode()
        except UnicodeDecodeError:
            return value

    keys = [key.decode(codec, "sluice.escaped") for key in batch.column("key").to_pylist()]
    values = [*map(readable, batch.column("value").to_pylist())]
    columns = [batch.column("number"), pa.array(keys, pa.string()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["number", "key", "value"])
