"""Tables, servers and clocks with which rows could be lost, or told wrongly, without a word."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from tests.fixtures.postgres import binaries, new_database, server
from tests.unit.sources.jdbc.test_source import TABLE, Shop, add, shop

from sluice.connections import variable_of
from sluice.errors import ConfigError, SourceUnreachableError, TopicRecreatedError
from sluice.sources.jdbc import database as database_module
from sluice.sources.jdbc import source as module
from sluice.sources.landed import intake as intake_module

__all__ = ["shop"]


@pytest.mark.parametrize("keys", [{}, {"table": None, "query": "SELECT * FROM orders"}])
def test_a_column_with_the_name_of_the_rows_hides_none_of_them(shop: Shop, keys: dict[str, str | None]) -> None:
    shop.sql("ALTER TABLE orders ADD q JSONB, ADD o INT", "INSERT INTO orders (name, q) VALUES ('x', '{\"a\": 1}')")
    shop.keys |= keys
    shop.look()
    assert shop.values() == [{"id": 1, "name": "x", "q": {"a": 1}, "o": None}]


def test_a_unique_index_of_columns_that_may_be_null_does_not_tell_rows_apart(shop: Shop) -> None:
    shop.sql("DROP TABLE orders", "CREATE TABLE orders (id BIGINT, name TEXT, UNIQUE (id, name))")
    shop.sql("INSERT INTO orders VALUES (1, NULL), (1, 'a')")
    shop.keys["unique"] = ["name"]
    shop.look()
    shop.exact("id, name")
    shop.sql("INSERT INTO orders VALUES (1, NULL)")
    with pytest.raises(ConfigError, match="two rows have the same"):
        shop.look()


def test_a_unique_index_of_a_key_that_may_be_null_does(shop: Shop) -> None:
    shop.sql("ALTER TABLE orders ADD at TIMESTAMPTZ UNIQUE DEFAULT now()")
    shop.keys["key"] = "at"
    add(shop, 1)
    shop.look()
    shop.exact("at")


def test_a_server_that_does_not_say_what_runs_is_refused(shop: Shop) -> None:
    add(shop, 1)
    shop.sql(
        "CREATE SCHEMA like_it",
        "CREATE VIEW like_it.pg_locks AS SELECT * FROM pg_catalog.pg_locks WHERE false",
        f"ALTER DATABASE {sa.make_url(shop.url).database} SET search_path = like_it, pg_catalog, public",
    )
    with pytest.raises(ConfigError, match="does not say which transactions run"):
        shop.look()


def test_tables_that_inherit_are_not_in_the_index_of_their_parent(shop: Shop) -> None:
    shop.sql("CREATE TABLE more () INHERITS (orders)")
    add(shop, 1)
    shop.look()
    shop.exact()
    shop.sql("INSERT INTO more VALUES (1, 'another')")
    with pytest.raises(ConfigError, match="two rows have the same"):
        shop.look()


@pytest.mark.parametrize("key", ["DATE", "TIMESTAMP"])
def test_another_type_of_the_key_is_refused(shop: Shop, key: str) -> None:
    shop.sql(f"ALTER TABLE orders ADD at {key} DEFAULT now()")
    add(shop, 2)
    shop.keys["key"] = "at"
    shop.look()
    shop.sql("ALTER TABLE orders ALTER at TYPE TIMESTAMPTZ", "ALTER TABLE orders ALTER at SET DEFAULT now()")
    with pytest.raises(ConfigError, match="types"):
        shop.look()
    assert len(shop.values()) == 2


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ("numeric(10,2)", "numeric(10,3)", True), ("numeric(10,2)", "numeric(12,2)", False),
        ("numeric(10,2)", "numeric", False), ("numeric", "numeric(10,2)", True), ("character(1)", "character(2)", True),
        ("timestamp without time zone", "timestamp(0) without time zone", True),
        ("timestamp(3) with time zone", "timestamp(6) with time zone", False), ("bigint", "bigint", False),
        ("character varying(3)", "character varying(9)", False), ("integer", "bigint", False),
    ],
)  # fmt: skip
def test_digits_of_a_type_that_give_values_another_text(before: str, now: str, told: bool) -> None:
    assert database_module.retold(before, now) == told


def test_rows_that_are_told_apart_by_digits_that_change_are_refused(shop: Shop) -> None:
    shop.sql("DROP TABLE orders", "CREATE TABLE orders (id INT, code NUMERIC(10,2), PRIMARY KEY (id, code))")
    shop.sql("INSERT INTO orders VALUES (1, 1), (1, 2)")
    shop.look()
    shop.sql("ALTER TABLE orders ALTER code TYPE NUMERIC(12,2)")
    shop.look()
    shop.sql("ALTER TABLE orders ALTER code TYPE NUMERIC(12,3)")
    with pytest.raises(
        ConfigError, match=r"had the types integer, numeric\(12,2\), and have integer, numeric\(12,3\) now"
    ):
        shop.look()
    assert len(shop.values()) == 2


def test_a_key_may_grow_wider(shop: Shop) -> None:
    shop.sql("DROP TABLE orders", "CREATE TABLE orders (id INT, name VARCHAR(9), PRIMARY KEY (id, name))")
    shop.sql("INSERT INTO orders VALUES (1, 'a')")
    shop.look()
    shop.sql("ALTER TABLE orders ALTER id TYPE BIGINT, ALTER name TYPE TEXT", "INSERT INTO orders VALUES (2, 'b')")
    shop.look()
    shop.exact("id, name")


@pytest.mark.parametrize("below", [False, True])
def test_a_materialized_view_is_refused(shop: Shop, below: bool) -> None:
    shop.sql("CREATE MATERIALIZED VIEW seen AS SELECT * FROM orders", "CREATE VIEW over AS SELECT * FROM seen")
    shop.keys |= {"table": "over" if below else "seen", "unique": ["id"]}
    with pytest.raises(ConfigError, match="materialized view seen"):
        shop.look()


def test_a_foreign_partition_is_refused(shop: Shop) -> None:
    shop.sql(
        "CREATE FOREIGN DATA WRAPPER nothing",
        "CREATE SERVER far FOREIGN DATA WRAPPER nothing",
        "CREATE TABLE parts (id BIGINT) PARTITION BY RANGE (id)",
        "CREATE TABLE near PARTITION OF parts FOR VALUES FROM (0) TO (9)",
        "CREATE FOREIGN TABLE away PARTITION OF parts FOR VALUES FROM (9) TO (99) SERVER far",
    )
    shop.keys |= {"table": "parts", "unique": ["id"]}
    with pytest.raises(ConfigError, match="foreign table away"):
        shop.look()


def test_a_clock_without_a_zone_may_go_back_an_hour(shop: Shop) -> None:
    shop.sql("DROP TABLE orders", "CREATE TABLE orders (n INT PRIMARY KEY, at TIMESTAMP)")
    shop.keys["key"] = "at"
    west = "(now() AT TIME ZONE 'UTC') - interval '5h'"
    shop.sql(f"INSERT INTO orders VALUES (1, {west})")
    shop.look()
    shop.look()
    shop.sql(f"INSERT INTO orders VALUES (2, {west} - interval '1h')")  # the end of summer, a moment later
    shop.look()
    shop.exact("n")


@pytest.mark.parametrize(
    ("zone", "kind", "told"),
    [
        ("America/New_York", "TIMESTAMP", True),
        ("Etc/UTC", "TIMESTAMP", False),
        ("America/New_York", "TIMESTAMPTZ", False),
    ],
)
def test_a_short_lag_of_a_local_clock_is_told(shop: Shop, zone: str, kind: str, told: bool) -> None:
    shop.sql(f"ALTER DATABASE {sa.make_url(shop.url).database} SET TimeZone = '{zone}'")
    shop.sql("DROP TABLE orders", f"CREATE TABLE orders (n INT PRIMARY KEY, at {kind} UNIQUE)")
    shop.keys |= {"key": "at", "lag": "10s"}
    assert ("the hour that comes twice" in " ".join(shop.look().notes)) is told


@pytest.mark.parametrize("keys", [{"table": "moved"}, {"table": None, "query": "SELECT * FROM moved"}])
def test_another_name_of_the_table_is_refused_before_a_row_has_an_offset(
    shop: Shop, keys: dict[str, str | None]
) -> None:
    add(shop, 2)
    shop.look()
    shop.sql("ALTER TABLE orders RENAME TO moved", "INSERT INTO moved (name) VALUES ('x')")
    before, shop.keys = shop.keys, shop.keys | keys
    with pytest.raises(ConfigError, match=r"the rows that were read are of public\.orders, and source\.jdbc names"):
        shop.look()
    shop.sql("ALTER TABLE moved RENAME TO orders")
    shop.keys = before
    shop.look()
    shop.exact()
    assert {row["topic"] for row in shop.records()} == {"public.orders"}


def test_bytes_that_are_no_text_are_named(shop: Shop) -> None:
    name = f"{shop.engine.url.database}_ascii"
    shop.sql(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
    shop.url = f"{shop.url.rpartition('/')[0]}/{name}"
    shop.engine = sa.create_engine(shop.url, isolation_level="AUTOCOMMIT")
    shop.connect()
    shop.sql(TABLE, "INSERT INTO orders (name) VALUES (convert_from('\\xff'::bytea, 'SQL_ASCII'))")
    with pytest.raises(ConfigError, match='invalid byte sequence for encoding "UTF8"'):
        shop.look()


def test_a_server_that_ends_an_answer_halfway_does_not_answer(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_BYTES", 1 << 16)
    shop.sql("INSERT INTO orders (name) SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
    ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sluice'"
    with monkeypatch.context() as patch:
        patch.setattr(module.TableRows, "_unlike", lambda *_: shop.sql(ends))
        with pytest.raises(SourceUnreachableError, match=r"terminating|closed the connection"):
            shop.look()
    shop.look()
    shop.exact()


def test_a_query_that_was_changed_is_told(shop: Shop) -> None:
    add(shop, 2)
    shop.keys = {"query": "SELECT id FROM orders", "key": "id"}
    assert not shop.look().notes
    shop.keys["query"] = "SELECT id, name FROM orders"
    assert "source.jdbc.query was changed" in " ".join(shop.look().notes)
    assert not shop.look().notes


def test_a_server_that_was_restored_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server binaries here: apt-get install postgresql")
    monkeypatch.setenv(variable_of("postgres_default"), "{}")
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    with server(programs) as running:
        shop = Shop(tmp_path, new_database(running.url))
        shop.sql(TABLE)
        add(shop, 3)
        shop.look()
        shop.engine.dispose()
        running.crash()
        data, copy = running.folder / "data", running.folder / "copy"
        shutil.copytree(data, copy)
        running.start()
        with shop.transaction() as open_one:  # holds the floor, so that keys do not tell it
            open_one("SELECT 1")
            add(shop, 2)
            shop.sql("CREATE TABLE much AS SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
            shop.look()
        shop.engine.dispose()
        running.crash()
        for file in copy.rglob("*"):
            shutil.copy(file, data / file.relative_to(copy)) if file.is_file() else None
        running.start()
        shop.sql("SELECT setval(pg_get_serial_sequence('orders', 'id'), 3)")
        add(shop, 2)  # other rows, with keys that were read
        with pytest.raises(TopicRecreatedError, match="older than at the last run"):
            shop.look()
        assert len(shop.values()) == 5
        running.crash()
        (data / "standby.signal").touch()  # a standby that takes over: another timeline
        running.start()
        shop.engine.dispose()
        with pytest.raises(ConfigError, match="standby"):
            shop.look()
        running.promote()
        # on its way past the log's end of the last look it is known by the timeline only
        shop.sql("CREATE TABLE more AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
        shop.sql("SELECT setval(pg_get_serial_sequence('orders', 'id'), 100)")
        add(shop, 1)
        assert "timeline 2, before 1" in " ".join(shop.look().notes)
        assert not shop.look().notes
        shop.engine.dispose()


def test_the_book_does_not_grow_with_looks_that_find_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "_COMPACTED", 4)
    shop.sql("DROP TABLE orders", "CREATE TABLE orders (n INT PRIMARY KEY, at TIMESTAMPTZ)")
    shop.sql("INSERT INTO orders VALUES (1, now() + interval '1 day')")
    shop.keys["key"] = "at"
    for _ in range(9):
        shop.look()
    book = pa.RecordBatchReader.from_stream(DeltaTable(shop.source().intake._book_path).scan()).read_all()
    assert book.column("name").null_count <= 4
    shop.exact("n")
