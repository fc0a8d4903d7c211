"""Rows of a real PostgreSQL are landed once, in whatever order their transactions commit."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from tests.fixtures.postgres import binaries, new_database, server

from sluice.connections import variable_of
from sluice.errors import (
    AuthorizationError,
    ConfigError,
    OffsetsGoneError,
    SluiceError,
    SourceUnreachableError,
    TopicRecreatedError,
)
from sluice.home import Home
from sluice.ranges import OffsetRange
from sluice.sources.jdbc import source as module
from sluice.sources.jdbc.config import JdbcSource
from sluice.sources.jdbc.source import TableRows
from sluice.sources.landed import intake as intake_module

TABLE = "CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT)"


@dataclass
class Shop:
    """A database, and a pipeline's source that reads it."""

    root: Path
    url: str
    keys: dict[str, Any] = field(default_factory=lambda: {"table": "orders", "key": "id"})

    def __post_init__(self) -> None:
        self.engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        self.connect()

    def connect(self, **parts: Any) -> None:
        url = sa.make_url(self.url)
        own = {"host": url.host, "port": url.port, "login": url.username, "schema": url.database}
        os.environ[variable_of("postgres_default")] = json.dumps({"conn_type": "postgres", **own, **parts})

    def sql(self, *statements: str) -> Any:
        with self.engine.connect() as connection:
            for statement in statements:
                found = connection.exec_driver_sql(statement)
            return [tuple(row) for row in found] if found.returns_rows else None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Another client's transaction, which is committed at the block's end."""
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            yield connection.exec_driver_sql
        engine.dispose()

    def source(self) -> TableRows:
        return TableRows(JdbcSource.model_validate(self.keys), Home(str(self.root)), "shop")

    def look(self) -> TableRows:
        with self.source() as source:
            (state,) = source.snapshot()
            intake = source.intake
            at = intake.start
            for part in intake.parts:  # offsets without a gap
                table = pq.read_table(intake.rows / part.name)
                assert table.column("offset").to_pylist() == list(range(at, at + part.rows))
                at += part.rows
            assert state.partitions[0].end == at == intake.position.end
        return source

    def records(self) -> list[dict[str, Any]]:
        """What was landed, in the order of offsets."""
        intake = self.source().intake
        return [row for part in intake.parts for row in pq.read_table(intake.rows / part.name).to_pylist()]

    def values(self) -> list[dict[str, Any]]:
        return [json.loads(row["value"]) for row in self.records()]

    def exact(self, columns: str = "id") -> None:
        """Check that each row of the table was landed once."""
        expected = Counter(json.dumps(row[0]) for row in self.sql(f"SELECT json_build_array({columns}) FROM orders"))
        names = columns.split(", ")
        assert Counter(json.dumps([v[n] for n in names]) for v in self.values()) == expected


@pytest.fixture
def shop(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv(variable_of("postgres_default"), "{}")
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    shop = Shop(tmp_path, new_database(postgres))
    shop.sql(TABLE)
    yield shop
    shop.engine.dispose()


def add(shop: Shop, count: int) -> None:
    shop.sql(f"INSERT INTO orders (name) SELECT 'x' FROM generate_series(1, {count})")


def test_an_empty_table_gives_nothing_and_later_its_rows(shop: Shop) -> None:
    assert shop.look().intake.position.end == 0
    add(shop, 3)
    shop.look()
    shop.exact()
    assert [row["key"] for row in shop.records()] == [b'{"id": 1}', b'{"id": 2}', b'{"id": 3}']
    versions = shop.look().intake
    assert shop.look().intake.position == versions.position  # nothing new: no commit
    assert [(n, h["value"]) for n, row in enumerate(shop.records(), 1) for h in row["headers"]] == [
        (n, str(n).encode()) for n in (1, 2, 3)
    ]


def test_that_there_is_something_to_read_is_told_before_it_is_landed(shop: Shop) -> None:
    told = list[int]()
    for count in (0, 3, 0):
        add(shop, count)
        with shop.source() as source:
            source.found = lambda s=source: told.append(s.intake.position.end)  # type: ignore[misc]
            source.snapshot()
    assert told == [0]


def test_a_number_that_is_committed_after_greater_ones_is_read(shop: Shop) -> None:
    add(shop, 2)
    shop.look()
    with shop.transaction() as late:
        late("INSERT INTO orders (name) VALUES ('late')")  # takes 3
        add(shop, 3)
        shop.look()
        add(shop, 1)
        shop.look()
        assert shop.source().intake.position.floor == 2
        assert len(shop.values()) == 6
    shop.look()
    shop.exact()
    assert shop.values()[-1] == {"id": 3, "name": "late"}
    assert shop.look().intake.position.floor == 7
    shop.exact()


def test_a_transaction_that_has_not_written_yet_holds_the_floor(shop: Shop) -> None:
    with shop.transaction() as slow:
        slow("SELECT nextval(pg_get_serial_sequence('orders', 'id'))")  # takes 1
        add(shop, 2)
        shop.look()
        shop.look()
        slow("INSERT INTO orders (id, name) OVERRIDING SYSTEM VALUE VALUES (1, 'slow')")
    shop.look()
    shop.exact()


def test_a_prepared_transaction_holds_the_floor(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = binaries()
    assert programs is not None
    monkeypatch.setenv(variable_of("postgres_default"), "{}")
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    with server(programs) as running:
        running.crash()
        replace(running, options=running.options + " -c max_prepared_transactions=2").start()
        shop = Shop(tmp_path, new_database(running.url))
        shop.sql(TABLE)
        add(shop, 2)
        shop.look()
        with shop.transaction() as late:
            late("INSERT INTO orders (name) VALUES ('late')")
            add(shop, 1)
            shop.look()
            late("PREPARE TRANSACTION 'two phases'")
        shop.look()
        shop.look()
        assert shop.source().intake.position.floor == 2
        shop.sql("COMMIT PREPARED 'two phases'")
        shop.look()
        shop.exact()
        assert shop.source().intake.position.floor == 4
        shop.engine.dispose()


def test_looks_go_on_while_many_commit(shop: Shop) -> None:
    from random import Random
    from threading import Event, Thread

    stop, engine = Event(), sa.create_engine(shop.url, pool_size=4)

    def write(seed: int) -> None:
        random = Random(seed)
        while not stop.is_set():
            with engine.connect() as connection:
                for _ in range(random.randint(1, 5)):
                    connection.exec_driver_sql("INSERT INTO orders (name) VALUES ('x')")
                    if random.random() < 0.3:
                        stop.wait(0.01)
                connection.commit() if random.random() < 0.9 else connection.rollback()

    writers = [Thread(target=write, args=(n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(15):
            shop.look()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    engine.dispose()
    shop.look()
    shop.exact()
    assert (shop.source().intake.position.floor or 0) > 0


@pytest.mark.parametrize("kind", ["TIMESTAMPTZ", "TIMESTAMP", "DATE"])
def test_times_may_tie_and_come_late(shop: Shop, kind: str) -> None:
    shop.sql("DROP TABLE orders", f"CREATE TABLE orders (n INT PRIMARY KEY, at {kind} DEFAULT now())")
    shop.sql("CREATE INDEX ON orders (at)")
    shop.keys = {"table": "orders", "key": "at", "lag": "0s"}
    shop.sql("INSERT INTO orders SELECT n FROM generate_series(1, 4) n")
    shop.look()
    with shop.transaction() as late:
        late("INSERT INTO orders VALUES (10)")
        shop.sql("INSERT INTO orders VALUES (11)")
        shop.look()
        shop.sql("INSERT INTO orders SELECT 12, max(at) FROM orders")  # the very time that was read last
        shop.look()
    shop.look()
    shop.exact("n")
    shop.sql("UPDATE orders SET at = now() + interval '2 days' WHERE n = 1")
    shop.look()
    assert Counter(v["n"] for v in shop.values()) == Counter([1, 1, 2, 3, 4, 10, 11, 12])
    shop.sql("INSERT INTO orders VALUES (13)")  # before the time that lies in the future
    shop.look()
    assert shop.values()[-1]["n"] == 13


def test_a_lag_lets_numbers_come_that_were_drawn_long_ago(shop: Shop) -> None:
    shop.keys["lag"] = "1h"
    ((drawn,),) = shop.sql("SELECT nextval(pg_get_serial_sequence('orders', 'id'))")
    add(shop, 3)
    shop.look()
    shop.look()
    shop.sql(f"INSERT INTO orders (id) OVERRIDING SYSTEM VALUE VALUES ({drawn})")
    shop.look()
    shop.exact()


def test_values_are_told_without_loss(shop: Shop) -> None:
    shop.sql("SET TimeZone = 'Asia/Tokyo'")
    shop.sql(
        "ALTER TABLE orders ADD n NUMERIC, ADD t TIMESTAMPTZ, ADD a INT[], ADD j JSONB, ADD b BYTEA, ADD f FLOAT8",
        "INSERT INTO orders (name, n, t, a, j, b, f) VALUES (E'\"\\n\u20ac', 12345678901234567890.123456789, "
        "'2026-03-01 12:00:00.123456+02', '{1,NULL}', '{\"a\": [1.10]}', '\\xdead', 0.1), "
        "(NULL, 'NaN', NULL, NULL, NULL, NULL, 'Infinity')",
    )
    shop.look()
    first, second = (row["value"].decode() for row in shop.records())
    assert first == (
        '{"id":1,"name":"\\"\\n\u20ac","n":12345678901234567890.123456789,"t":"2026-03-01T10:00:00.123456+00:00",'
        '"a":[1,null],"j":{"a": [1.10]},"b":"\\\\xdead","f":0.1}'
    )
    assert second == '{"id":2,"name":null,"n":"NaN","t":null,"a":null,"j":null,"b":null,"f":"Infinity"}'


def test_names_may_be_odd(shop: Shop) -> None:
    shop.sql(
        'CREATE SCHEMA "Sch ""x"',
        'CREATE TABLE "Sch ""x"."t\'%%" ("the ""Key" SMALLINT PRIMARY KEY, "{}" TEXT)',
        'INSERT INTO "Sch ""x"."t\'%%" VALUES (1, \'a\')',
    )
    shop.keys = {"table": "Sch \"x.t'%", "key": 'the "Key'}
    shop.look()
    assert shop.values() == [{'the "Key': 1, "{}": "a"}]
    assert json.loads(shop.records()[0]["key"]) == {'the "Key': 1}


def test_a_query_is_read_and_rows_that_cannot_be_told_apart_are_refused(shop: Shop) -> None:
    add(shop, 4)
    shop.keys = {"query": "SELECT id, id / 2 AS half FROM orders WHERE id > 1 -- a comment", "key": "half"}
    with pytest.raises(ConfigError, match="two rows have the same"):
        shop.look()
    shop.keys["unique"] = ["id"]
    shop.look()
    assert [v["id"] for v in shop.values()] == [2, 3, 4]
    add(shop, 1)
    shop.look()
    shop.look()
    assert [v["id"] for v in shop.values()] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("statements", "keys", "kind", "told"),
    [
        ([], {"table": "nope"}, ConfigError, "does not exist"),
        ([], {"key": "nope"}, ConfigError, "does not exist"),
        ([], {"key": "name"}, ConfigError, "is of type text"),
        ([], {"unique": ["nope"]}, ConfigError, "no column 'nope'"),
        ([], {"table": None, "query": "SELECT 1 AS id, 2 AS id"}, ConfigError, "ambiguous"),
        ([], {"table": None, "query": "SELECT id, 2 AS x, 3 AS x FROM orders"}, ConfigError, "two columns"),
        ([], {"table": None, "query": "SELECT id FRM orders"}, ConfigError, "syntax error|does not exist"),
        (["ALTER TABLE orders DROP CONSTRAINT orders_pkey"], {}, ConfigError, "neither a unique index"),
        (["INSERT INTO orders (name) VALUES ('a')"], {"table": None, "query": "SELECT id, 1/0 FROM orders"},
         ConfigError, "division by zero"),
    ],
)  # fmt: skip
def test_mistakes_are_named(
    shop: Shop, statements: list[str], keys: dict[str, Any], kind: type[SluiceError], told: str
) -> None:
    shop.sql(*statements or ["SELECT 1"])
    shop.keys |= keys
    with pytest.raises(kind, match=told) as caught:
        shop.look()
    assert caught.value.next_step
    assert caught.value.state


def test_what_is_not_indexed_or_has_no_key_is_told(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE events (n INT PRIMARY KEY, at TIMESTAMPTZ)",
        "INSERT INTO events VALUES (1, now()), (2, NULL), (3, 'infinity')",
    )
    shop.keys = {"table": "events", "key": "at"}
    source = shop.look()
    assert [v["n"] for v in shop.values()] == [1]
    assert "no index that begins with 'at'" in source.notes[0]
    assert "NULL or infinite" in source.notes[1]
    shop.keys = {"table": "orders", "key": "id"}


def test_a_sequence_that_gives_numbers_in_advance_is_told(shop: Shop) -> None:
    shop.sql("ALTER TABLE orders ALTER id SET CACHE 10")
    assert "CACHE 10" in shop.look().notes[0]


def test_rights_and_reach(shop: Shop, postgres: str) -> None:
    shop.sql("DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN")
    shop.connect(login="reader", password="hunter2")
    with pytest.raises(AuthorizationError, match="permission denied") as caught:
        shop.look()
    assert "hunter2" not in str(caught.value)
    shop.sql("GRANT SELECT ON orders TO reader")
    add(shop, 2)
    with shop.transaction() as late:
        late("INSERT INTO orders (name) VALUES ('late')")
        add(shop, 1)
        shop.look()
        shop.look()
    shop.look()
    shop.exact()
    shop.sql("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    with pytest.raises(AuthorizationError, match="row-level security"):
        shop.look()
    shop.connect(port=1, password="hunter2")
    with pytest.raises(SourceUnreachableError, match="refused") as unreachable:
        shop.look()
    assert "hunter2" not in str(unreachable.value)
    shop.connect()
    shop.sql("DROP OWNED BY reader", "DROP ROLE reader")


def test_a_table_that_was_made_anew_and_a_key_that_went_back_are_refused(shop: Shop) -> None:
    add(shop, 5)
    shop.look()
    shop.sql("TRUNCATE orders RESTART IDENTITY")
    assert "was rewritten" in " ".join(shop.look().notes)  # empty: nothing to compare
    add(shop, 2)
    with pytest.raises(TopicRecreatedError, match="the largest is 2, and rows up to 5 were read"):
        shop.look()
    shop.sql("DROP TABLE orders", TABLE)
    add(shop, 9)
    with pytest.raises(TopicRecreatedError, match="dropped and made anew"):
        shop.look()
    assert len(shop.values()) == 5


def test_another_key_is_refused(shop: Shop) -> None:
    add(shop, 1)
    shop.look()
    shop.sql("ALTER TABLE orders ADD other BIGINT UNIQUE")
    shop.keys["key"] = "other"
    with pytest.raises(ConfigError, match="was read by the key 'id'"):
        shop.look()


def test_a_look_in_many_files_that_is_interrupted_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 1000)
    monkeypatch.setattr("sluice.sources.jdbc.database._BYTES", 10_000)
    add(shop, 5_500)
    for wanted in ("rows-landed", "position-committed"):
        seen: list[str] = []

        def dying(point: str, wanted: str = wanted, seen: list[str] = seen) -> None:
            seen.append(point)
            if seen.count(wanted) == 2:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(intake_module, "point", dying)
            with pytest.raises(KeyboardInterrupt):
                shop.look()
        assert shop.source().intake.position.floor is None
    assert 0 < len(shop.values()) < 5_500
    shop.look()
    shop.exact()
    assert shop.source().intake.position.floor == 5_500
    assert len(shop.source().intake.parts) > 5


def test_two_looks_at_once_land_each_row_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    add(shop, 3)
    other, begun = shop.source(), []
    written = intake_module.Intake._written

    def meanwhile(self: intake_module.Intake, *arguments: Any) -> Any:
        if not begun:
            begun.append(True)
            other.snapshot()
        return written(self, *arguments)

    monkeypatch.setattr(intake_module.Intake, "_written", meanwhile)
    source = shop.look()
    shop.exact()
    assert len(list(source.intake.rows.iterdir())) == 1


def test_landed_rows_go_when_they_are_old_and_settled(shop: Shop) -> None:
    shop.keys["keep"] = "0s"
    for _ in range(3):
        add(shop, 2)
        shop.look()
    source = shop.source()
    source.done({"public.orders": {0: 4}})
    assert (source.intake.start, source.intake.position.end) == (4, 6)
    (state,) = source.snapshot()
    assert (state.partitions[0].start, state.partitions[0].end) == (4, 6)
    assert source.intake.missing(OffsetRange("public.orders", 0, 1, 6)) == [OffsetRange("public.orders", 0, 1, 4)]
    add(shop, 1)
    shop.look()
    assert [v["id"] for v in shop.values()] == [5, 6, 7]


def test_files_that_nobody_knows_are_swept_after_a_day(shop: Shop) -> None:
    add(shop, 1)
    rows = shop.look().intake.rows
    for name, age in (("old.parquet", 100_000), ("new.parquet", 10)):
        (rows / name).touch()
        os.utime(rows / name, (time.time() - age,) * 2)
    shop.source().done({})
    assert not (rows / "old.parquet").exists()
    assert (rows / "new.parquet").exists()


def test_rows_are_not_found_without_the_landed_ones(shop: Shop) -> None:
    add(shop, 1)
    intake = shop.look().intake
    (intake.rows / intake.parts[0].name).unlink()
    with pytest.raises(OffsetsGoneError, match="is gone"):
        shop.look()


def test_the_book_is_compacted(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "_COMPACTED", 3)
    for _ in range(5):
        add(shop, 1)
        shop.look()
    shop.exact()


def test_offsets_are_found_by_time(shop: Shop) -> None:
    shop.sql("DROP TABLE orders", "CREATE TABLE orders (n INT PRIMARY KEY, at TIMESTAMPTZ UNIQUE)")
    shop.sql(
        "INSERT INTO orders SELECT n, timestamptz '2026-01-01 00:00Z' + n * interval '1h' FROM generate_series(0, 9) n"
    )
    shop.keys = {"table": "orders", "key": "at"}
    source, key = shop.look(), ("public.orders", 0)
    at: Callable[[int, int], datetime] = lambda hour, minute: datetime(2026, 1, 1, hour, minute, tzinfo=UTC)  # noqa: E731
    assert source.offsets_at([key], at(3, 0)) == {key: 3}
    assert source.offsets_at([key], at(3, 1)) == {key: 4}
    assert source.offsets_at([key], at(9, 1)) == {key: None}
