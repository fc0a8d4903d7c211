"""Rows of a real PostgreSQL are landed once, in whatever order their transactions commit."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from tests.fixtures.postgres import Server, new_database
from tests.unit.sources.jdbc.conftest import TABLE, Shop

from sluice.errors import AuthorizationError, OffsetsGoneError, TopicRecreatedError
from sluice.ranges import OffsetRange
from sluice.sources.jdbc import source as module
from sluice.sources.landed import intake as intake_module

DRAWN = "SELECT nextval(pg_get_serial_sequence('orders', 'id'))"
LATE = "INSERT INTO orders (name) VALUES ('late')"


def test_jdbc_lands_rows_of_a_table_that_was_empty(shop: Shop) -> None:
    assert shop.look().intake.position.end == 0
    shop.add(3)
    shop.exact()
    assert [row["key"] for row in shop.records()] == [b'{"id": 1}', b'{"id": 2}', b'{"id": 3}']
    assert [h["value"] for row in shop.records() for h in row["headers"]] == [b"1", b"2", b"3"]
    before = shop.source().intake.position
    assert shop.look().intake.position == before, "nothing new: no commit"


def test_jdbc_reads_a_number_that_is_committed_after_greater_ones(shop: Shop) -> None:
    shop.add(2)
    shop.look()
    with shop.transaction() as late:
        late(LATE)  # takes 3
        for count in (3, 1):
            shop.add(count)
            shop.look()
        assert (shop.floor, len(shop.values())) == (2, 6)
    shop.exact()
    assert shop.values()[-1] == {"id": 3, "name": "late"}
    shop.exact()
    assert shop.floor == 7


def test_jdbc_waits_for_a_transaction_that_has_not_written_yet(shop: Shop) -> None:
    with shop.transaction() as slow:
        slow(DRAWN)  # takes 1
        shop.add(2)
        shop.look(2)
        slow("INSERT INTO orders (id, name) OVERRIDING SYSTEM VALUE VALUES (1, 'slow')")
    shop.exact()


def test_jdbc_waits_for_a_prepared_transaction(own_server: Server, tmp_path: Path) -> None:
    own_server.crash()
    replace(own_server, options=own_server.options + " -c max_prepared_transactions=2").start()
    shop = Shop(tmp_path, new_database(own_server.url))
    shop.add(2)
    shop.look()
    with shop.transaction() as late:
        late(LATE)
        shop.add(1)
        shop.look()
        late("PREPARE TRANSACTION 'two phases'")
    shop.look(2)
    assert shop.floor == 2
    shop.sql("COMMIT PREPARED 'two phases'")
    shop.exact()
    assert shop.floor == 4
    shop.engine.dispose()


def test_jdbc_lands_each_row_while_many_commit(shop: Shop) -> None:
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
        shop.look(6)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    engine.dispose()
    shop.exact()
    assert (shop.floor or 0) > 0


@pytest.mark.parametrize("kind", ["TIMESTAMPTZ", "TIMESTAMP", "DATE"])
def test_jdbc_times_may_tie_and_come_late(shop: Shop, kind: str) -> None:
    shop.table(f"n INT PRIMARY KEY, at {kind} DEFAULT now()", key="at", lag="0s")
    shop.sql("CREATE INDEX ON orders (at)", "INSERT INTO orders SELECT n FROM generate_series(1, 4) n")
    shop.look()
    with shop.transaction() as late:
        late("INSERT INTO orders VALUES (10)")
        for rows in ("VALUES (11)", "SELECT 12, max(at) FROM orders"):  # the very time that was read last
            shop.sql(f"INSERT INTO orders {rows}")
            shop.look()
    shop.exact("n")
    shop.sql("UPDATE orders SET at = now() + interval '2 days' WHERE n = 1")
    shop.look()
    assert Counter(v["n"] for v in shop.values()) == Counter([1, 1, 2, 3, 4, 10, 11, 12])
    shop.sql("INSERT INTO orders VALUES (13)")  # before the time that lies in the future
    shop.look()
    assert shop.values()[-1]["n"] == 13


def test_jdbc_lag_waits_for_numbers_that_were_drawn_long_ago(shop: Shop) -> None:
    shop.keys["lag"] = "1h"
    ((drawn,),) = shop.sql(DRAWN)
    shop.add(3)
    shop.look(2)
    shop.sql(f"INSERT INTO orders (id) OVERRIDING SYSTEM VALUE VALUES ({drawn})")
    shop.exact()


def test_jdbc_values_are_json_without_loss(shop: Shop) -> None:
    shop.sql(
        "SET TimeZone = 'Asia/Tokyo'",
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


@pytest.mark.parametrize(("encoding", "broken"), [("WIN1252", b"\x81"), ("SQL_ASCII", b"\xff"), ("KOI8R", None)])
def test_jdbc_row_with_bytes_that_are_no_text_stops_no_other(
    postgres: str, quick: None, tmp_path: Path, encoding: str, broken: bytes | None
) -> None:
    options = f"ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    shop = Shop(tmp_path, new_database(postgres, options))
    raw, sound = {"WIN1252": ("e9", "é"), "SQL_ASCII": ("c3a9", "é"), "KOI8R": ("d6", "ж")}[encoding]
    shop.table("id BIGINT, name TEXT, PRIMARY KEY (id, name)", unique=["name"])
    shop.sql(f"INSERT INTO orders VALUES (1, convert_from('\\x{raw}', '{encoding}'))")
    if broken:
        shop.sql(f"INSERT INTO orders VALUES (2, convert_from('\\x{broken.hex()}', 'SQL_ASCII')), (3, 'c')")
    shop.look()
    first, *rest = shop.records()
    assert [json.loads(first[part])["name"] for part in ("key", "value")] == [sound, sound]
    if broken:
        assert (broken in rest[0]["value"], json.loads(rest[0]["key"])["name"]) == (True, chr(broken[0]))
        assert json.loads(rest[1]["value"]) == {"id": 3, "name": "c"}
    shop.engine.dispose()


def test_jdbc_names_may_be_odd(shop: Shop) -> None:
    shop.sql(
        'CREATE SCHEMA "Sch ""x"',
        'CREATE TABLE "Sch ""x"."t\'%%" ("the ""Key" SMALLINT PRIMARY KEY, "{}" TEXT)',
        'INSERT INTO "Sch ""x"."t\'%%" VALUES (1, \'a\')',
    )
    shop.keys = {"table": "Sch \"x.t'%", "key": 'the "Key'}
    shop.look()
    assert shop.values() == [{'the "Key': 1, "{}": "a"}]
    assert json.loads(shop.records()[0]["key"]) == {'the "Key': 1}


def test_jdbc_query_is_read_by_a_unique_key(shop: Shop) -> None:
    shop.add(4)
    query = "SELECT id, id / 2 AS half FROM orders WHERE id > 1 -- a comment"
    shop.keys = {"query": query, "key": "half", "unique": ["id"]}
    shop.look()
    assert [v["id"] for v in shop.values()] == [2, 3, 4]
    shop.add(1)
    shop.look(2)
    assert [v["id"] for v in shop.values()] == [2, 3, 4, 5]


def test_jdbc_notes_missing_indexes_left_out_rows_and_cached_sequences(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE events (n INT PRIMARY KEY, at TIMESTAMPTZ)",
        "INSERT INTO events VALUES (1, now()), (2, NULL), (3, 'infinity'), (4, '294276-12-31Z'), (5, '9999-12-31Z')",
        "ALTER TABLE orders ALTER id SET CACHE 10",
    )
    plain, shop.keys = shop.keys, {"table": "events", "key": "at"}
    index, left_out = shop.look().notes
    assert ("'at'" in index, "NULL" in left_out) == (True, True)
    assert [v["n"] for v in shop.values()] == [1, 5]
    shop.keys, shop.root = plain, shop.root / "other"
    assert "CACHE 10" in shop.notes()


def test_jdbc_reader_needs_the_right_to_select_and_to_see_each_row(shop: Shop) -> None:
    shop.sql("DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN", "GRANT SELECT ON orders TO reader")
    shop.connect(login="reader", password="hunter2")
    shop.add(2)
    with shop.transaction() as late:
        late(LATE)
        shop.add(1)
        shop.look(2)
    shop.exact()
    shop.sql("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    shop.refused("row-level security", AuthorizationError)
    shop.connect()
    shop.sql("DROP OWNED BY reader", "DROP ROLE reader")


def test_jdbc_refuses_a_recreated_table_a_key_that_went_back_and_another_key(shop: Shop) -> None:
    shop.add(5)
    shop.look()
    shop.sql("ALTER TABLE orders ADD other BIGINT UNIQUE")
    shop.keys["key"] = "other"
    shop.refused("'id'")
    shop.keys["key"] = "id"
    shop.sql("TRUNCATE orders RESTART IDENTITY")
    assert "rewritten" in shop.notes(), "empty: nothing to compare"
    shop.add(2)
    shop.refused(r"2.* 5", TopicRecreatedError)
    shop.sql("DROP TABLE orders", TABLE)
    shop.add(9)
    shop.refused("dropped", TopicRecreatedError)
    assert len(shop.values()) == 5


def test_jdbc_look_in_many_files_that_is_interrupted_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 1000)
    monkeypatch.setattr("sluice.sources.jdbc.database._BYTES", 10_000)
    shop.add(5_500)
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
        assert shop.floor is None
    assert 0 < len(shop.values()) < 5_500
    shop.exact()
    assert shop.floor == 5_500
    assert len(shop.source().intake.parts) > 5


def test_jdbc_two_looks_at_once_land_each_row_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.add(3)
    other, begun = shop.source(), []
    written = intake_module.Intake._written

    def meanwhile(self: intake_module.Intake, *arguments: Any) -> Any:
        if not begun:
            begun.append(True)
            other.snapshot()
        return written(self, *arguments)

    monkeypatch.setattr(intake_module.Intake, "_written", meanwhile)
    shop.exact()
    assert len(list(shop.source().intake.rows.iterdir())) == 1


def test_landed_rows_go_when_they_are_old_and_settled(shop: Shop) -> None:
    shop.keys["keep"] = "0s"
    for _ in range(3):
        shop.add(2)
        shop.look()
    source = shop.source()
    old, new = (source.intake.rows / f"{name}.parquet" for name in ("old", "new"))
    for file, age in ((old, 100_000), (new, 10)):
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
    source.done({"public.orders": {0: 4}})
    (state,) = source.snapshot()
    assert source.intake.start == state.partitions[0].start == 4
    assert source.intake.position.end == state.partitions[0].end == 6
    assert source.intake.missing(OffsetRange("public.orders", 0, 1, 6)) == [OffsetRange("public.orders", 0, 1, 4)]
    assert (old.exists(), new.exists()) == (False, True), "a file of no look goes after a day"
    shop.add(1)
    shop.look()
    assert [v["id"] for v in shop.values()] == [5, 6, 7]


def test_landed_rows_that_were_removed_are_gone(shop: Shop) -> None:
    shop.add(1)
    intake = shop.look().intake
    (intake.rows / intake.parts[0].name).unlink()
    shop.refused(r"\.parquet", OffsetsGoneError)


def test_landed_book_does_not_grow_with_looks_that_find_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "_COMPACTED", 4)
    shop.table("n INT PRIMARY KEY, at TIMESTAMPTZ", key="at")
    for number in range(1, 6):
        shop.sql(f"INSERT INTO orders VALUES ({number}, now() + interval '{number} days')")
        shop.exact("n")
    shop.exact("n", looks=9)
    book = pa.RecordBatchReader.from_stream(DeltaTable(shop.source().intake._book_path).scan()).read_all()
    assert book.column("name").null_count <= 4
