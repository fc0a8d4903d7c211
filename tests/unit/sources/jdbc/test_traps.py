"""Tables, servers and clocks with which rows could silently be lost, or read wrongly."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.postgres import Server, new_database
from tests.unit.sources.jdbc.conftest import Shop

from sluice.errors import SourceUnreachableError, TopicRecreatedError
from sluice.sources.jdbc import database as database_module
from sluice.sources.jdbc import source as module

INSERT = "INSERT INTO orders (name) VALUES ('x')"
ODD = (
    "CREATE MATERIALIZED VIEW seen AS SELECT * FROM orders",
    "CREATE VIEW over AS SELECT * FROM seen",
    "CREATE FOREIGN DATA WRAPPER nothing",
    "CREATE SERVER far FOREIGN DATA WRAPPER nothing",
    "CREATE TABLE parts (id BIGINT) PARTITION BY RANGE (id)",
    "CREATE TABLE near PARTITION OF parts FOR VALUES FROM (0) TO (9)",
    "CREATE FOREIGN TABLE away PARTITION OF parts FOR VALUES FROM (9) TO (99) SERVER far",
)
HIDDEN = (
    "CREATE SCHEMA like_it",
    "CREATE VIEW like_it.pg_locks AS SELECT * FROM pg_catalog.pg_locks WHERE false",
    "ALTER DATABASE {database} SET search_path = like_it, pg_catalog, public",
)


def query(text: str, **keys: Any) -> dict[str, Any]:
    return {"table": None, "query": text, **keys}


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "a missing table": ({"table": "nope"}, (), "nope"),
    "a missing key": ({"key": "nope"}, (), "nope"),
    "a text as the key": ({"key": "name"}, (), "text"),
    "a missing column of unique": ({"unique": ["nope"]}, (), "'nope'"),
    "a query with two keys": (query("SELECT 1 AS id, 2 AS id"), (), "ambiguous"),
    "a query with a column twice": (query("SELECT id, 2 AS x, 3 AS x FROM orders"), (), "two columns"),
    "a query that does not parse": (query("SELECT id FRM orders"), (), "syntax error|does not exist"),
    "a query that fails": (query("SELECT id, 1/0 FROM orders"), (), "division by zero"),
    "a query without unique": (query("SELECT n / 2 AS h FROM orders, generate_series(2, 3) n", key="h"), (), "unique"),
    "no unique index": ({}, ("ALTER TABLE orders DROP CONSTRAINT orders_pkey",), "unique index"),
    "a materialized view": ({"table": "seen", "unique": ["id"]}, ODD, "materialized view seen"),
    "a view of a materialized view": ({"table": "over", "unique": ["id"]}, ODD, "materialized view seen"),
    "a foreign partition": ({"table": "parts", "unique": ["id"]}, ODD, "foreign table away"),
    "a server that hides its transactions": ({}, HIDDEN, "transactions"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_jdbc_refuses(shop: Shop, what: str) -> None:
    keys, statements, named = REFUSED[what]
    shop.keys |= keys
    database = sa.make_url(shop.url).database
    shop.sql(INSERT, *(statement.format(database=database) for statement in statements))
    shop.refused(named)


def test_jdbc_unique_index_over_nulls_does_not_tell_rows_apart(shop: Shop) -> None:
    shop.table("id BIGINT, name TEXT, UNIQUE (id, name)", unique=["name"])
    shop.sql("INSERT INTO orders VALUES (1, NULL), (1, 'a')")
    shop.exact("id, name")
    shop.sql("INSERT INTO orders VALUES (1, NULL)")
    shop.refused("unique")


def test_jdbc_unique_index_of_a_key_that_may_be_null_tells_rows_apart(shop: Shop) -> None:
    shop.sql("ALTER TABLE orders ADD at TIMESTAMPTZ UNIQUE DEFAULT now()", INSERT)
    shop.keys["key"] = "at"
    shop.exact("at")


def test_jdbc_tables_that_inherit_are_not_in_the_index_of_their_parent(shop: Shop) -> None:
    shop.sql("CREATE TABLE more () INHERITS (orders)", INSERT)
    shop.exact()
    shop.sql("INSERT INTO more VALUES (1, 'another')")
    shop.refused("unique")


@pytest.mark.parametrize("keys", [{}, query("SELECT * FROM orders")], ids=["table", "query"])
def test_jdbc_column_named_like_a_row_hides_none(shop: Shop, keys: dict[str, str | None]) -> None:
    shop.sql("ALTER TABLE orders ADD q JSONB, ADD o INT", "INSERT INTO orders (name, q) VALUES ('x', '{\"a\": 1}')")
    shop.keys |= keys
    shop.look()
    assert shop.values() == [{"id": 1, "name": "x", "q": {"a": 1}, "o": None}]


@pytest.mark.parametrize("key", ["DATE", "TIMESTAMP"])
def test_jdbc_refuses_another_type_of_the_key(shop: Shop, key: str) -> None:
    shop.table(f"n INT PRIMARY KEY, at {key} DEFAULT now()", key="at")
    shop.sql("INSERT INTO orders VALUES (1), (2)")
    shop.exact("n")
    shop.sql("ALTER TABLE orders ALTER at TYPE TIMESTAMPTZ")
    shop.refused("types")


@pytest.mark.parametrize(
    ("before", "now", "other"),
    [
        ("numeric(10,2)", "numeric(10,3)", True), ("numeric(10,2)", "numeric(12,2)", False),
        ("numeric(10,2)", "numeric", False), ("numeric", "numeric(10,2)", True), ("character(1)", "character(2)", True),
        ("timestamp without time zone", "timestamp(0) without time zone", True),
        ("timestamp(3) with time zone", "timestamp(6) with time zone", False), ("bigint", "bigint", False),
        ("character varying(3)", "character varying(9)", False), ("integer", "bigint", False),
    ],
)  # fmt: skip
def test_jdbc_type_with_other_digits_gives_values_another_text(before: str, now: str, other: bool) -> None:
    assert database_module.retold(before, now) == other


def test_jdbc_key_may_grow_wider_and_not_get_other_digits(shop: Shop) -> None:
    shop.table("id INT, name VARCHAR(9), code NUMERIC(10,2), PRIMARY KEY (id, name, code)")
    shop.sql("INSERT INTO orders VALUES (1, 'a', 1), (1, 'a', 2)")
    shop.look()
    shop.sql("ALTER TABLE orders ALTER id TYPE BIGINT, ALTER name TYPE TEXT, ALTER code TYPE NUMERIC(12,2)")
    shop.sql("INSERT INTO orders VALUES (2, 'b', 1)")
    shop.exact("id, name")
    shop.sql("ALTER TABLE orders ALTER code TYPE NUMERIC(12,3)")
    shop.refused(r"numeric\(12,2\).*numeric\(12,3\)")


def test_jdbc_clock_without_a_zone_may_go_back_an_hour(shop: Shop) -> None:
    shop.table("n INT PRIMARY KEY, at TIMESTAMP", key="at")
    west = "(now() AT TIME ZONE 'UTC') - interval '5h'"
    shop.sql(f"INSERT INTO orders VALUES (1, {west})")
    shop.look(2)
    shop.sql(f"INSERT INTO orders VALUES (2, {west} - interval '1h')")  # the end of summer, a moment later
    shop.exact("n")


@pytest.mark.parametrize(
    ("zone", "kind", "noted"),
    [("Europe/Rome", "TIMESTAMP", True), ("Etc/UTC", "TIMESTAMP", False), ("Europe/Rome", "TIMESTAMPTZ", False)],
)
def test_jdbc_notes_a_short_lag_of_a_local_clock(shop: Shop, zone: str, kind: str, noted: bool) -> None:
    shop.sql(f"ALTER DATABASE {sa.make_url(shop.url).database} SET TimeZone = '{zone}'")
    shop.table(f"n INT PRIMARY KEY, at {kind} UNIQUE", key="at", lag="10s")
    assert ("hour" in shop.notes()) is noted


@pytest.mark.parametrize("keys", [{"table": "moved"}, query("SELECT * FROM moved")], ids=["table", "query"])
def test_jdbc_refuses_another_table_before_a_row_has_an_offset(shop: Shop, keys: dict[str, str | None]) -> None:
    shop.add(2)
    shop.look()
    shop.sql("ALTER TABLE orders RENAME TO moved", "INSERT INTO moved (name) VALUES ('x')")
    before, shop.keys = shop.keys, shop.keys | keys
    shop.refused(r"public\.orders")
    shop.sql("ALTER TABLE moved RENAME TO orders")
    shop.keys = before
    shop.exact()
    assert {row["topic"] for row in shop.records()} == {"public.orders"}


def test_jdbc_server_that_ends_an_answer_halfway_is_unreachable(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_BYTES", 1 << 16)
    shop.sql("INSERT INTO orders (name) SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
    ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sluice'"
    with monkeypatch.context() as patch:
        patch.setattr(module.TableRows, "_unlike", lambda *_: shop.sql(ends))
        with pytest.raises(SourceUnreachableError):
            shop.look()
    shop.exact()


def test_jdbc_notes_a_changed_query_once(shop: Shop) -> None:
    shop.add(2)
    shop.keys = {"query": "SELECT id FROM orders", "key": "id"}
    assert not shop.notes()
    shop.keys["query"] = "SELECT id, name FROM orders"
    assert "source.jdbc.query" in shop.notes()
    assert not shop.notes()


def test_jdbc_refuses_a_restored_server_and_a_standby(own_server: Server, tmp_path: Path) -> None:
    shop = Shop(tmp_path, new_database(own_server.url))
    shop.add(3)
    shop.look()
    shop.engine.dispose()
    own_server.crash()
    data, copy = own_server.folder / "data", own_server.folder / "copy"
    shutil.copytree(data, copy)
    own_server.start()
    with shop.transaction() as open_one:  # holds the floor, so that keys do not tell it
        open_one("SELECT 1")
        shop.add(2)
        shop.sql("CREATE TABLE much AS SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
        shop.look()
    shop.engine.dispose()
    own_server.crash()
    for file in copy.rglob("*"):
        shutil.copy(file, data / file.relative_to(copy)) if file.is_file() else None
    own_server.start()
    shop.sql("SELECT setval(pg_get_serial_sequence('orders', 'id'), 3)")
    shop.add(2)  # other rows, with keys that were read
    shop.refused("older", TopicRecreatedError)
    assert len(shop.values()) == 5
    own_server.crash()
    (data / "standby.signal").touch()  # a standby that takes over: another timeline
    own_server.start()
    shop.engine.dispose()
    shop.refused("standby")
    own_server.promote()
    # on its way past the log's end of the last look it is known by the timeline only
    shop.sql("CREATE TABLE more AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
    shop.sql("SELECT setval(pg_get_serial_sequence('orders', 'id'), 100)")
    shop.add(1)
    assert "timeline 2, before 1" in shop.notes()
    assert not shop.notes()
    shop.engine.dispose()
