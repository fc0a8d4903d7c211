"""A table of PostgreSQL: rows that it holds, tables that fit, and changes by triggers, roles and users."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema
from tests.contract.sinks import Postgres, commit, note, put, records, rows

from sluice.connections import Connection
from sluice.errors import CheckpointError, ConfigError, SinkError, SluiceError
from sluice.postgres import name_of, url_of
from sluice.ranges import OffsetRange
from sluice.sinks.postgres import PostgresSink
from sluice_spark.sinks.base import RowsRefusedError, Staged, StagedFile
from sluice_spark.sinks.parquet.rows_by_key import RowsByKey
from sluice_spark.sinks.parquet.rows_by_time import RowsByTime
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sinks.parquet.staged_files import read_back
from sluice_spark.sinks.postgres import refused_rows as module
from sluice_spark.sinks.postgres.database import connected
from sluice_spark.sinks.postgres.table import PostgresTable
from sluice_spark.sinks.postgres.types import beyond_decimal, fits, held_type, unsupported

META = "_topic text, _partition int, _offset bigint, _timestamp timestamptz, _run text"
LONG, TEXT = pa.int64(), pa.string()


@pytest.fixture
def orders(case: Callable[..., Postgres]) -> Postgres:
    return case(Postgres)


def table_of(columns: str) -> str:
    return f"CREATE TABLE public.orders ({columns}, {META})"


def refused(orders: Postgres, rows: pa.Table, kind: type[SluiceError] = SinkError) -> SluiceError:
    """Return the error of a batch that must not be there."""
    sink = orders.writer(check=False)
    batch = sink.version() + 1
    with pytest.raises(kind) as error:
        put(orders, sink, batch, rows)
    return error.value


def refused_rows(orders: Postgres, rows: pa.Table) -> dict[int, Any]:
    """Return what is wrong with each row that is refused, by its offset."""
    error = refused(orders, rows)
    assert isinstance(error, RowsRefusedError)
    assert "4111" not in str(error), "values are not for logs"
    return {offset: why for (_, _, offset), why in sorted(error.rows.items())}


def test_postgres_holds_values_of_each_type_unchanged(orders: Postgres) -> None:
    types = {
        "i": pa.int32(), "l": LONG, "t": pa.int8(), "h": pa.int16(), "s": TEXT, "b": pa.bool_(), "d": pa.float64(),
        "f": pa.float32(), "c": pa.decimal128(12, 2), "w": pa.decimal128(38, 10), "ts": pa.timestamp("us", "UTC"),
        "dt": pa.date32(), "a": pa.list_(TEXT), "n": pa.list_(LONG), "ntz": pa.timestamp("us"),
    }  # fmt: skip
    full = {
        "i": -(2**31), "l": 2**63 - 1, "t": -128, "h": 32767, "s": "é😀 \\ ' \" \t\n", "b": True, "d": 1e300, "f": 1.5,
        "c": Decimal("12.34"), "w": Decimal("1234567890.0123456789"),
        "ts": datetime(2026, 1, 31, 12, 0, 0, 123456, UTC), "dt": date(2026, 1, 31), "a": ["x", None, "", "{,}"],
        "n": [1, None], "ntz": datetime(2026, 1, 31, 12, 0, 0, 500000),
    }  # fmt: skip
    put(orders, orders.writer(check=False), 0, records(full, {"s": "", "a": [], "d": 0.1}, {}, **types))
    found = orders.execute(f"SELECT {', '.join(types)} FROM public.orders ORDER BY _offset")
    nothing = dict.fromkeys(types)
    assert [dict(row._mapping) for row in found] == [full, {**nothing, "s": "", "a": [], "d": 0.1}, nothing]


def test_postgres_table_of_a_user_takes_what_its_types_can_hold(orders: Postgres) -> None:
    who = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
    orders.execute(table_of("nr serial PRIMARY KEY, id numeric, doc jsonb, who uuid, short varchar(5)"))
    values = {"id": 5, "doc": '{"a": [1]}', "who": who, "short": "12345"}
    put(orders, orders.writer(check=False), 0, records(values, id=LONG, doc=TEXT, who=TEXT, short=TEXT))
    (row,) = orders.execute("SELECT nr, id, doc, who::text, short FROM public.orders")
    assert tuple(row) == (1, 5, {"a": [1]}, who, "12345")


@pytest.mark.parametrize(
    ("value", "token"),
    [
        pytest.param({"short": "123456"}, "character varying(5)", id="too-long"),
        pytest.param({"short": "1234  "}, "length(short) <= 5", id="blanks-that-would-be-cut"),
        pytest.param({"doc": "{"}, "doc", id="no-json"),
        pytest.param({"doc": "1\u0000"}, "zero character", id="zero-character"),
        pytest.param({"short": "4111"}, "orders_short_check", id="check-constraint"),
    ],
)
def test_postgres_refuses_a_row_and_writes_nothing(orders: Postgres, value: dict[str, str], token: str) -> None:
    orders.execute(table_of("doc json, short varchar(5) CHECK (short <> '4111')"))
    error = refused(orders, records({"short": "a"}, value, doc=TEXT, short=TEXT))
    assert token in f"{error}"
    assert "4111" not in str(error), "values are not for logs"
    assert isinstance(error, RowsRefusedError)
    assert [*error.rows] == [("t", 0, 1)]
    assert orders.held() == {}


@pytest.mark.parametrize("key", [[], ["id"]], ids=["append", "upsert"])
def test_postgres_names_each_refused_row(orders: Postgres, monkeypatch: pytest.MonkeyPatch, key: list[str]) -> None:
    if key:
        monkeypatch.setattr(orders, "settings", lambda: {"table": "orders", "mode": "upsert", "key": key})
    orders.execute(
        "CREATE TABLE public.kinds (kind text PRIMARY KEY)",
        "INSERT INTO public.kinds VALUES ('a'), ('b')",
        table_of(
            "id bigint UNIQUE, kind text REFERENCES public.kinds DEFERRABLE INITIALLY DEFERRED, day date, "
            "amount numeric(4,2), doc jsonb, short varchar(3)"
        ),
    )
    usual = {"doc": "{}", "short": "abc"}
    found = [usual | {"id": n, "kind": "ab"[n % 2], "amount": Decimal(n % 90)} for n in range(9000)]
    found[17] |= {"kind": "c"}
    found[4999] |= {"amount": Decimal(100)}
    found[5000] |= {"doc": r'"\u0000"'}
    found[5001] |= {"short": "abcd"}
    found[8999] |= {"day": -2_500_000}
    found[6000] |= {"id": None if key else 30}
    types = {"id": LONG, "kind": TEXT, "day": pa.date32(), "amount": pa.decimal128(12, 2), "doc": TEXT, "short": TEXT}
    said = refused_rows(orders, records(*found, **types))
    assert {offset: (why.column, why.detail) for offset, why in said.items()} == {
        17: (None, 'insert or update on table "orders" violates foreign key constraint "orders_kind_fkey"'),
        4999: (None, "numeric field overflow"),
        5000: (None, "unsupported Unicode escape sequence"),
        5001: ("short", "a text of column short is longer than character varying(3) holds"),
        6000: (None, "there is no value in a column of its key (id)")
        if key
        else (None, 'duplicate key value violates unique constraint "orders_id_key"'),
        8999: ("day", "date out of range"),
    }
    assert orders.held() == {}
    rest = [row for number, row in enumerate(found) if number not in said]
    assert put(orders, orders.writer(check=False), 0, records(*rest, **types))


def test_postgres_finds_refused_rows_whatever_the_columns_are_called(orders: Postgres) -> None:
    names = ["first", "detail", "SQLSTATE", "n", "faulty", 'a "b" $$ %s', "sluice_row"]
    columns = ", ".join(f"{name_of(name)} bigint CHECK ({name_of(name)} < 5)" for name in names)
    orders.execute(table_of(columns))
    plain = [f"c{number}" for number in range(len(names))]
    rows = records(*(dict.fromkeys(plain, n) for n in range(7)), **dict.fromkeys(plain, LONG))
    assert list(refused_rows(orders, rows.rename_columns([*names, *rows.column_names[len(names) :]]))) == [5, 6]


@pytest.mark.parametrize(
    ("bad", "code"), [(3, "SH001"), (None, "SH001"), (3, "55000")], ids=["one-row", "all-rows", "code-of-a-server"]
)
@pytest.mark.parametrize(
    "how",
    [
        "CREATE TRIGGER orders BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.fails()",
        "CREATE CONSTRAINT TRIGGER orders AFTER INSERT ON public.orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION public.fails()",
        "ALTER TABLE public.orders ADD CHECK (to_tsquery(CASE WHEN id > 0 THEN 'a b' ELSE 'a' END) IS NOT NULL)",
    ],
)
def test_postgres_finds_the_row_behind_an_error_of_another_kind(
    orders: Postgres, how: str, bad: int | None, code: str
) -> None:
    orders.execute(
        table_of("id bigint"),
        "CREATE OR REPLACE FUNCTION public.fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF NEW.id > 0 THEN RAISE EXCEPTION 'it is not wanted' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$",
        how,
    )
    with pytest.raises(SluiceError) as caught:
        put(orders, orders.writer(check=False), 0, records(*({"id": int(bad in (n, None))} for n in range(5)), id=LONG))
    rows = caught.value.rows if isinstance(caught.value, RowsRefusedError) else {}
    assert ([*rows], orders.held()) == ([("t", 0, 3)] if bad else [], {})


def test_postgres_refuses_no_row_that_only_needs_a_later_one(orders: Postgres) -> None:
    orders.execute(table_of("id bigint PRIMARY KEY, above bigint REFERENCES public.orders, n bigint CHECK (n > 0)"))
    found = [{"id": 1, "above": 4, "n": 1}, {"id": 2, "above": None, "n": 0}, {"id": 4, "above": 3, "n": 1}]
    found.append({"id": 3, "above": None, "n": 1})
    types = {"id": LONG, "above": LONG, "n": LONG}
    assert list(refused_rows(orders, records(*found, **types))) == [1]
    rest = [row if row["n"] else {**row, "n": 1} for row in found]
    assert put(orders, orders.writer(check=False), 0, records(*rest, **types))


def test_postgres_takes_the_rows_of_a_record_together(orders: Postgres) -> None:
    """Offset 0 has a row that is refused; so its other one does not stand in the way of offset 1."""
    orders.execute(table_of("id bigint UNIQUE CHECK (id > 0)"))
    rows = pa.concat_tables([records({"id": 7}, {"id": 7}, {"id": 8}, id=LONG), records({"id": 0}, id=LONG)])
    assert list(refused_rows(orders, rows)) == [0]


def test_postgres_sequence_without_numbers_is_no_fault_of_rows(orders: Postgres) -> None:
    orders.execute(
        "CREATE SEQUENCE public.few MAXVALUE 2", table_of("id bigint, nr bigint DEFAULT nextval('public.few')")
    )
    error = refused(orders, records(*({"id": n} for n in range(5)), id=LONG))
    assert not isinstance(error, RowsRefusedError)


def test_postgres_upsert_finds_many_refused_rows(orders: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction holds a lock on each table that it made: there must not be one for each part."""
    monkeypatch.setattr(orders, "settings", lambda: {"table": "orders", "mode": "upsert", "key": ["id"]})
    orders.execute(table_of("id bigint PRIMARY KEY CHECK (id % 2 = 0)"))
    assert len(refused_rows(orders, records(*({"id": n} for n in range(9000)), id=LONG))) == 4500


def test_postgres_that_refuses_most_rows_is_at_fault_itself(orders: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 5)
    orders.execute(table_of("id bigint CHECK (id > 6)"))
    for count, known in ((5, 5), (6, 0)):
        assert len(refused_rows(orders, records(*({"id": n} for n in range(count)), {"id": 10}, id=LONG))) == known


def test_postgres_quotes_names_of_any_kind(orders: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.execute('CREATE SCHEMA "O\'Hara ""x"""')
    monkeypatch.setattr(orders, "settings", lambda: {"table": 'O\'Hara "x".We/ird "t"'})
    put(orders, orders.writer(check=False), 0, records({"Sel\"ect'": 7}, {}, **{"Sel\"ect'": LONG}))
    found = orders.execute('SELECT "Sel""ect\'" FROM "O\'Hara ""x"""."We/ird ""t""" ORDER BY _offset')
    assert [row[0] for row in found] == [7, None]


def test_postgres_takes_rows_without_offsets(orders: Postgres) -> None:
    sink, rows = orders.writer(check=False), records({"n": 5}, n=LONG).select(["n", "_run"])
    folder = "batches/p-e1-000000-01234567"
    (Path(sink.staging) / folder).mkdir(parents=True)
    pq.write_table(rows, Path(sink.staging) / folder / "part.parquet")
    staged = read_back(sink.staging, folder, offsets=False)
    assert sink.commit(staged, from_arrow_schema(rows.schema), 0, {"run": "r", "pipeline": "p"})
    assert [tuple(row) for row in orders.execute("SELECT * FROM public.orders")] == [(5, "r")]


def test_postgres_rows_of_a_megabyte_travel_a_few_at_a_time(tmp_path: Path) -> None:
    table = PostgresTable(PostgresSink(table="orders"), str(tmp_path), "sluice:p:1")
    schema = pa.schema([("name", TEXT)])
    pq.write_table(pa.table({"name": ["x" * 1_000_000 + str(n) for n in range(100)]}, schema=schema), tmp_path / "f")
    staged = Staged("", (StagedFile("f", 0, 0, 100, {}, "{}"),), {})
    sizes = [batch.num_rows for batch in table._batches(staged, schema)]
    assert (sum(sizes), max(sizes) <= 40) == (100, True)


def test_postgres_database_with_other_defaults_and_in_latin1(orders: Postgres) -> None:
    name = f"l{uuid.uuid4().hex[:8]}"
    engine = sa.create_engine(orders.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0"))
        for setting in (
            "default_transaction_isolation = 'serializable'", "\"DateStyle\" = 'German'", "bytea_output = 'escape'",
            "standard_conforming_strings = off", "search_path = nowhere", "statement_timeout = '1s'",
            "synchronous_commit = off",
        ):  # fmt: skip
            connection.execute(sa.text(f"ALTER DATABASE {name} SET {setting}"))
    engine.dispose()
    orders.url = orders.url.set(database=name)
    orders.connect()
    put(orders, orders.writer(check=False), 0, records({"id": 1, "name": "é\\ 'x"}, id=LONG, name=TEXT))
    assert [row[0] for row in orders.execute("SELECT name FROM public.orders")] == ["é\\ 'x"]
    orders.execute(
        "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END $$",
        "CREATE TRIGGER slow BEFORE INSERT ON public.orders EXECUTE FUNCTION public.slow()",
    )
    commit(orders, orders.writer(), 1, 3, 4)  # the role's own statements may not take as long
    orders.execute("DROP TRIGGER slow ON public.orders")
    assert "name" in str(refused(orders, records({"id": 1, "name": "\u20ac\u4e2d"}, id=LONG, name=TEXT)))


FITS = table_of("id bigint, name text")
OF_ONES = "CREATE UNLOGGED TABLE public.ones PARTITION OF public.orders FOR VALUES IN (1)"
MISFITS = {
    "missing-column": ([table_of("id bigint")], 'ADD COLUMN "name" text'),
    "narrower-column": ([table_of("id integer, name text")], "id is integer"),
    "column-without-default": ([table_of("id bigint, name text, must int NOT NULL")], "must"),
    "numeric-with-a-scale": ([table_of("id numeric(5,1), name text")], "id is numeric(5,1)"),
    "generated": ([table_of("id bigint GENERATED ALWAYS AS IDENTITY, name text")], "id is a generated column"),
    "unlogged": ([FITS.replace("TABLE", "UNLOGGED TABLE")], "SET LOGGED"),
    "unlogged-partition": ([f"{FITS} PARTITION BY LIST (id)", OF_ONES], "SET LOGGED"),
    "view": ([FITS.replace("orders", "base"), "CREATE VIEW public.orders AS TABLE public.base"], "view"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_postgres_refuses_a_table_that_does_not_fit(orders: Postgres, what: str) -> None:
    made, token = MISFITS[what]
    orders.execute(*made)
    with pytest.raises(ConfigError) as error:
        orders.writer()
    assert token in error.value.what


def test_postgres_refuses_nested_columns_and_system_names(orders: Postgres) -> None:
    nested = records({"o": {"x": 2}, "xmin": 1}, o=pa.struct([("x", pa.int32())]), xmin=LONG)
    error = refused(orders, nested, ConfigError)
    assert ("to_json(o) AS o" in error.what, "'xmin'" in error.what) == (True, True)


def test_postgres_columns_cannot_change_before_the_insert(orders: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(orders, orders.writer(), 0, 0, 2)
    real, tried = PostgresTable._insert, []

    def insert(self: PostgresTable, *arguments: Any) -> None:
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
            orders.execute("SET lock_timeout = '200ms'", "ALTER TABLE public.orders ALTER COLUMN id TYPE smallint")
        tried.append(True)
        real(self, *arguments)

    monkeypatch.setattr(PostgresTable, "_insert", insert)
    assert commit(orders, orders.writer(), 1, 2, 4)
    assert (tried, set(orders.held())) == ([True], set(range(4)))


def test_postgres_tables_that_were_restored_together_go_on_and_one_made_again_is_noticed(orders: Postgres) -> None:
    commit(orders, orders.writer(), 0, 0, 3)
    orders.execute(  # as a dump and its restoration: the same rows in tables with other ids
        "CREATE TABLE public.a AS TABLE public.orders", "CREATE TABLE public.b AS TABLE public.sluice_commits",
        "DROP TABLE public.orders", "DROP TABLE public.sluice_commits",
        "ALTER TABLE public.a RENAME TO orders", "ALTER TABLE public.b RENAME TO sluice_commits",
    )  # fmt: skip
    assert commit(orders, orders.writer(), 1, 3, 6)
    assert set(orders.held()) == set(range(6))
    orders.execute("DROP TABLE public.orders", "CREATE TABLE public.orders (LIKE public.sluice_commits)")
    with pytest.raises(CheckpointError, match="made again"):
        orders.writer()


def test_postgres_trigger_that_keeps_rows_back_is_no_silent_loss(orders: Postgres) -> None:
    commit(orders, orders.writer(), 0, 0, 2)
    orders.execute(
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id = 3 THEN RETURN NULL; END IF; "
        "RETURN NEW; END $$",
        "CREATE TRIGGER skips BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION skip()",
    )
    with pytest.raises(SinkError, match="2 of 3 rows"):
        commit(orders, orders.writer(), 1, 2, 5)
    assert set(orders.held()) == {0, 1}


@pytest.mark.parametrize(
    ("when", "what"),
    [("AFTER", "DELETE FROM public.orders WHERE id = NEW.id AND id = 3"), ("BEFORE", "NEW._offset := NEW._offset + 9")],
    ids=["removes", "moves"],
)
def test_postgres_trigger_that_changes_what_came_is_no_silent_loss(orders: Postgres, when: str, what: str) -> None:
    commit(orders, orders.writer(), 0, 0, 2)
    orders.execute(
        f"CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what}; RETURN NEW; END $$",
        f"CREATE TRIGGER others {when} INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION other()",
    )
    with pytest.raises(SinkError, match="of 3 rows"):
        commit(orders, orders.writer(), 1, 2, 5)
    assert set(orders.held()) == {0, 1}


def test_postgres_backend_that_ends_in_an_insert_leaves_nothing(orders: Postgres) -> None:
    commit(orders, orders.writer(), 0, 0, 3)
    orders.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$",
        "CREATE TRIGGER dies BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION die()",
    )
    with pytest.raises(SinkError) as error:
        commit(orders, orders.writer(), 1, 3, 6)
    assert "nothing of this batch was committed" in error.value.state
    orders.execute("DROP TRIGGER dies ON public.orders")
    assert commit(orders, orders.writer(), 1, 3, 6)
    assert set(orders.held()) == set(range(6))


@pytest.mark.parametrize(
    ("more", "code", "token"),
    [
        pytest.param({"host": "[::1"}, 10, "postgresql://", id="host-without-bracket"),
        pytest.param({"host": "db host"}, 30, "host name", id="unknown-host"),
        pytest.param({"port": 1}, 30, "database answers", id="nothing-listens"),
        pytest.param({"schema": "nodb"}, 10, '"nodb"', id="no-such-database"),
        pytest.param({"login": "noone"}, 10, '"noone"', id="no-such-role"),
        pytest.param({"extra": {"foo": "bar"}}, 10, "URI query parameter", id="unknown-option"),
        pytest.param({"extra": {"options": "-c statement_timeout=0"}}, 0, "", id="option"),
    ],
)
def test_postgres_connection_that_is_wrong_is_named_without_its_password(
    orders: Postgres, more: Mapping[str, Any], code: int, token: str
) -> None:
    orders.connect(password="s3cr3t/:@", **more)
    if code == 0:
        assert orders.writer().version() == -1
        return
    with pytest.raises(SluiceError) as error:
        orders.writer()
    assert (error.value.exit_code, token in str(error.value)) == (code, True)
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "grants", "word"),
    [
        ("nosuch.t", "SELECT 1", "CREATE SCHEMA"),
        ("closed.t", "SELECT 1", "GRANT CREATE ON SCHEMA"),
        ("public.orders", "GRANT SELECT ON public.orders, public.sluice_commits TO clerk", "GRANT INSERT"),
        ("public.orders", "GRANT SELECT, INSERT ON public.orders, public.sluice_commits TO clerk", None),
    ],
)
def test_postgres_table_that_the_role_may_not_write_is_refused_before_anything_is_read(
    orders: Postgres, tmp_path: Path, table: str, grants: str, word: str | None
) -> None:
    commit(orders, orders.writer(), 0, 0, 1)
    for statement in ("DROP SCHEMA IF EXISTS closed", "DROP ROLE IF EXISTS clerk", "CREATE ROLE clerk LOGIN"):
        orders.execute(statement)
    for statement in ("CREATE SCHEMA closed", "GRANT USAGE ON SCHEMA closed TO clerk", grants):
        orders.execute(statement)
    orders.connect(login="clerk")
    sink = PostgresTable(PostgresSink(table=table), str(tmp_path), "sluice:p:1")
    try:
        if word is None:
            assert sink.examine() == []
            return
        with pytest.raises(ConfigError) as error:
            sink.examine()
        assert word in error.value.next_step
    finally:
        orders.connect()
        orders.execute("DROP OWNED BY clerk")
        orders.execute("DROP ROLE clerk")


def test_postgres_url_quotes_what_a_connection_says() -> None:
    odd = Connection("c", "postgres", "/var/run", None, "m e", "p/:@", "d b", {"sslmode": "require", "iam": True})
    assert url_of(odd).startswith("postgresql://m%20e:p%2F%3A%40@%2Fvar%2Frun/d%20b?")
    assert ("sslmode=require" in url_of(odd), "iam" in url_of(odd)) == (True, False)
    with pytest.raises(ConfigError):
        url_of(Connection("c", "kafka", "h"))
    with pytest.raises(ConfigError, match="is a URL") as caught:
        url_of(Connection("c", "postgres", "postgresql://me:s3cr3t@h"))
    assert "s3cr3t" not in str(caught.value)


def test_postgres_server_that_accepts_and_is_silent_is_named_in_seconds(orders: Postgres) -> None:
    assert "connect_timeout=10" in url_of(Connection("c", "postgres", "h"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        orders.connect(port=silent.getsockname()[1], extra={"connect_timeout": "2"})
        with pytest.raises(SinkError, match="timeout"):
            orders.writer()


def test_postgres_errors_are_the_users_or_the_sinks(orders: Postgres) -> None:
    parts = json.loads(orders.connection)
    there = Connection("c", "postgres", parts["host"], parts["port"], parts["login"], schema=parts["schema"])
    with pytest.raises(ConfigError), connected(there, "table x") as opened:
        opened.cursor().execute("SELECT * FROM nowhere")
    with pytest.raises(SinkError, match="table x"), connected(there, "table x") as opened:
        opened.cursor().execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '55P03'; END $$")


@pytest.mark.parametrize(
    ("kind", "there", "expected"),
    [
        (T.ShortType(), "bigint", True),
        (T.LongType(), "integer", False),
        (T.FloatType(), "double precision", True),
        (T.DoubleType(), "real", False),
        (T.DoubleType(), "numeric", False),
        (T.DecimalType(10, 2), "numeric(12,2)", True),
        (T.DecimalType(10, 2), "numeric(12,1)", False),
        (T.DecimalType(10, 2), "numeric", True),
        (T.StringType(), "character varying(3)", True),
        (T.StringType(), "character(3)", False),
        (T.TimestampType(), "timestamp without time zone", False),
        (T.ArrayType(T.LongType()), "bigint[]", True),
        (T.ArrayType(T.LongType()), "integer[]", False),
    ],
)
def test_postgres_columns_fit_types_that_lose_nothing(kind: T.DataType, there: str, expected: bool) -> None:
    assert fits(kind, there) is expected
    assert unsupported(kind) is None


@pytest.mark.parametrize("there", ["numeric", "numeric(40,2)", "numeric(3,5)", "numeric(5,-2)"])
def test_postgres_numbers_beyond_decimal_are_numbers(there: str) -> None:
    assert beyond_decimal(there)
    assert not beyond_decimal("numeric(38,2)")
    assert held_type(there) == T.DecimalType(38, 18)


REFERRING = "CREATE TABLE public.children (parent bigint UNIQUE REFERENCES public.orders (id) {})"


def referred(orders: Postgres, action: str) -> PostgresTable:
    """Return a sink whose row 1 another table refers to."""
    orders.execute(table_of("id bigint PRIMARY KEY, name text"), REFERRING.format(action))
    sink = orders.writer()
    commit(orders, sink, 0, 0, 3)
    orders.execute("INSERT INTO public.children VALUES (1)")
    return sink


def again(orders: Postgres, sink: PostgresTable) -> None:
    """Replace all rows by the same ones."""
    name = "p-1-000001"
    staged = orders.stage(sink, 1, rows(0, 3, "new"))
    sink.replace(Slice([OffsetRange("t", 0, 0, 3)]), staged, orders.schema, 1, note("new", 1), name=name)


@pytest.mark.parametrize("action", ["ON DELETE CASCADE", "ON DELETE SET NULL", "ON DELETE SET DEFAULT"])
def test_postgres_rows_whose_deletion_would_change_another_table_are_not_replaced(
    orders: Postgres, action: str
) -> None:
    sink = referred(orders, action)
    for replace in (sink.check_replaceable, lambda: again(orders, sink)):
        with pytest.raises(ConfigError, match="children_parent_fkey of children"):
            replace()
    assert orders.execute("SELECT parent FROM public.children") == [(1,)]
    assert set(orders.held().values()) == {"r"}


@pytest.mark.parametrize("action", ["DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"])
def test_postgres_rows_that_others_refer_to_come_back_as_they_were(orders: Postgres, action: str) -> None:
    sink = referred(orders, action)
    sink.check_replaceable()
    again(orders, sink)
    assert orders.execute("SELECT parent FROM public.children") == [(1,)]
    assert set(orders.held().values()) == {"new"}


@pytest.mark.parametrize("action", ["", "ON DELETE RESTRICT"])
def test_postgres_that_keeps_rows_which_others_refer_to_blames_no_record(orders: Postgres, action: str) -> None:
    sink = referred(orders, action)
    with pytest.raises(SinkError, match="refer to them") as error:
        again(orders, sink)
    assert not isinstance(error.value, RowsRefusedError)
    assert "DEFERRABLE" in error.value.next_step
    assert set(orders.held().values()) == {"r"}


def test_postgres_finds_rows_by_nulls_and_by_times_beyond_its_own(orders: Postgres) -> None:
    sink = orders.writer()
    kinds = {"id": LONG, "name": TEXT}
    put(orders, sink, 0, records({"id": 1}, {"name": "a"}, {}, **kinds))
    ever = RowsByTime((), -(1 << 52), 1 << 52, column="_timestamp", after=("_timestamp", -(1 << 52)))
    assert (sink.held(ever), ever.found) == ({}, 3)
    staged = orders.stage(sink, 1, records({}, {"name": "a"}, first=2, **kinds))
    keyed = RowsByKey.of(sink.staging, staged, ("_timestamp", "id", "name"))
    sink.replace(keyed, staged, orders.schema, 1, note("new", 1), name="p-1-000001")
    assert keyed.found == 1, "of the same time and without a name"
    assert sorted(orders.held()) == [0, 1, 2, 3]


def test_postgres_finds_rows_by_numbers_without_a_scale(orders: Postgres) -> None:
    sink, kinds = orders.writer(), {"id": pa.decimal128(9, 2), "name": TEXT}
    made = records({"id": Decimal("1.50")}, {"id": Decimal("2.50")}, **kinds)
    put(orders, sink, 0, made)
    orders.execute(
        "ALTER TABLE public.orders ALTER id TYPE numeric", "UPDATE public.orders SET id = 1.5 WHERE id = 1.5"
    )
    staged = orders.stage(sink, 1, made)
    keyed = RowsByKey.of(sink.staging, staged, ("_timestamp", "id"))
    sink.replace(keyed, staged, from_arrow_schema(made.schema), 1, note("new", 1), name="p-1-000001")
    assert (keyed.found, orders.execute("SELECT count(*) FROM public.orders")) == (2, [(2,)])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.date32(), -2147472691),
        (pa.timestamp("us", "UTC"), -9222425352054775808),
        (pa.timestamp("us"), -9222425352054775808),
    ],
)
def test_postgres_time_whose_binary_form_is_infinity_is_refused(orders: Postgres, kind: Any, value: int) -> None:
    made = records({"id": 1}, {"id": 2}, at=kind)
    at = pa.array([None, value], pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    assert set(refused_rows(orders, made.set_column(made.column_names.index("at"), "at", at))) == {1}
