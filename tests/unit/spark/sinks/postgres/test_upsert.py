"""A table of PostgreSQL that keeps the newest row of each key, in any order of records and batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from tests.contract.sinks import PostgresUpsert, put, records
from tests.fixtures.postgres import new_database

from sluice.errors import ConfigError, SinkError
from sluice.postgres import name_of
from sluice_spark.sinks.postgres.upsert import Upsert, remembered

META = "_topic text, _partition int, _offset bigint, _timestamp timestamptz, _run text"
LONG, TEXT = pa.int64(), pa.string()


@pytest.fixture
def orders(case: Callable[..., PostgresUpsert]) -> PostgresUpsert:
    return case(PostgresUpsert)


def ordered(orders: PostgresUpsert, monkeypatch: pytest.MonkeyPatch, sequence: str | None) -> None:
    """Let the file name a sequence column, or none."""
    keys = {"table": "orders", "mode": "upsert", "key": ["id"], "sequence": sequence}
    monkeypatch.setattr(orders, "settings", lambda: keys)


def send(orders: PostgresUpsert, batch: int, *values: tuple[Any, str | None], first: int) -> None:
    """Commit names of keys as one batch, at offsets from ``first`` on."""
    rows = records(*({"id": key, "name": name} for key, name in values), first=first, id=LONG, name=TEXT)
    put(orders, orders.writer(check=False), batch, rows)


def names(orders: PostgresUpsert) -> dict[int, str]:
    return dict(tuple(row) for row in orders.execute("SELECT id, name FROM public.orders"))


@pytest.mark.parametrize("sequence", [None, "at"])
def test_postgres_upsert_keeps_the_newest_row_of_a_key(
    orders: PostgresUpsert, monkeypatch: pytest.MonkeyPatch, sequence: str | None
) -> None:
    ordered(orders, monkeypatch, sequence)
    chance = random.Random(7)
    sent = [{"id": chance.randrange(5), "at": chance.choice([None, *range(8)]), "name": str(n)} for n in range(60)]
    for batch, first in enumerate((15, 0, 45, 30)):  # also lost records that are driven again
        rows = records(*sent[first : first + 15], first=first, id=LONG, at=LONG, name=TEXT)
        put(orders, orders.writer("1" if first else "redriven", check=False), batch, rows)
    ranks = [(row["id"], (-1 if row["at"] is None or not sequence else row["at"], n)) for n, row in enumerate(sent)]
    assert names(orders) == {key: str(max(rank for k, rank in ranks if k == key)[1]) for key in range(5)}


def test_postgres_upsert_compares_keys_by_collation(orders: PostgresUpsert, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"table": "orders", "mode": "upsert", "key": ["name"]}
    monkeypatch.setattr(orders, "settings", lambda: keys)
    orders.execute(
        "CREATE COLLATION public.caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        f"CREATE TABLE public.orders (id bigint, name text COLLATE public.caseless PRIMARY KEY, {META})",
    )
    for batch, sent in enumerate([(("a", 1), ("A", 2)), (("b", 3), ("a", 4))]):
        rows = records(*({"id": n, "name": name} for name, n in sent), first=2 * batch, id=LONG, name=TEXT)
        put(orders, orders.writer(check=False), batch, rows)
    assert sorted(tuple(row) for row in orders.execute("SELECT id FROM public.orders")) == [(3,), (4,)]


def test_postgres_upsert_takes_a_value_that_another_key_gave_up(orders: PostgresUpsert) -> None:
    orders.execute(f"CREATE TABLE public.orders (id bigint PRIMARY KEY, name text UNIQUE, {META})")
    send(orders, 0, (2, "five"), first=0)
    send(orders, 1, (2, "six"), (1, "five"), (7, "seven"), first=1)
    assert names(orders) == {1: "five", 2: "six", 7: "seven"}


def test_postgres_upsert_needs_a_unique_index(orders: PostgresUpsert) -> None:
    orders.execute(
        f"CREATE TABLE public.orders (id bigint, name text, {META})",
        "CREATE UNIQUE INDEX ON public.orders (id) WHERE id > 5",
        "CREATE UNIQUE INDEX ON public.orders (id, name)",
        "INSERT INTO public.orders VALUES (1, 'mine')",
    )
    statement = 'CREATE UNIQUE INDEX ON "public"."orders" ("id")'
    with pytest.raises(ConfigError) as error:
        orders.writer()
    assert statement in error.value.what
    orders.execute(statement)
    send(orders, 0, (0, "zero"), (1, "one"), first=0)
    assert names(orders) == {0: "zero", 1: "one"}


@pytest.mark.parametrize("sequence", [None, "id"])
@pytest.mark.parametrize("when", ["INSERT", "UPDATE"])
def test_postgres_trigger_that_keeps_a_merge_back_is_no_silent_loss(
    orders: PostgresUpsert, monkeypatch: pytest.MonkeyPatch, when: str, sequence: str | None
) -> None:
    ordered(orders, monkeypatch, sequence)
    send(orders, 0, (0, "a"), (1, "b"), first=0)
    orders.execute(
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        f"CREATE TRIGGER skips BEFORE {when} ON public.orders FOR EACH ROW EXECUTE FUNCTION skip()",
    )
    # newer ones of both keys; a merge inserts before it finds that it has to update
    with pytest.raises(SinkError, match="2 keys"):
        send(orders, 1, (0, "newer"), (1, "newer"), first=2)
    orders.execute("DROP TRIGGER skips ON public.orders")
    send(orders, 1, (0, "newer"), (1, "newer"), first=2)
    assert set(names(orders).values()) == {"newer"}


def test_postgres_trigger_that_makes_keys_the_same_is_named(orders: PostgresUpsert) -> None:
    send(orders, 0, (0, "a"), first=0)
    orders.execute(
        "CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := 0; RETURN NEW; END $$",
        "CREATE TRIGGER sames BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION same()",
    )
    with pytest.raises(ConfigError, match="a trigger of the table makes them the same"):
        send(orders, 1, (1, "b"), (2, "c"), first=1)
    assert set(names(orders).values()) == {"a"}


def delete(orders: PostgresUpsert, batch: int) -> None:
    """Commit the tombstone of key 1, or in batch 0 its row."""
    row = {"id": 1, "name": None if batch else "a", "__sluice_deleted": batch > 0}
    types = {"id": LONG, "name": TEXT, "at": LONG, "__sluice_deleted": pa.bool_()}
    put(orders, orders.writer(check=False), batch, records(row, first=batch, **types))


def test_postgres_trigger_that_keeps_a_row_is_no_silent_deletion(orders: PostgresUpsert) -> None:
    delete(orders, 0)
    orders.execute(
        "CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER stays BEFORE DELETE ON public.orders FOR EACH ROW EXECUTE FUNCTION stay()",
    )
    with pytest.raises(SinkError, match="1 keys"):
        delete(orders, 1)
    remembered = "public.sluice_deleted_orders"
    orders.execute("DROP TRIGGER stays ON public.orders", f"ALTER TABLE {remembered} RENAME COLUMN id TO x")
    with pytest.raises(ConfigError, match="by \\(x, "):
        delete(orders, 1)
    orders.execute(f"DROP TABLE {remembered}")
    delete(orders, 1)
    assert names(orders) == {}


def test_postgres_upsert_refuses_unordered_tombstones(orders: PostgresUpsert, monkeypatch: pytest.MonkeyPatch) -> None:
    ordered(orders, monkeypatch, "at")
    delete(orders, 0)
    with pytest.raises(SinkError, match="a tombstone has no value in the sequence column at"):
        delete(orders, 1)


@pytest.mark.parametrize("sequence", ["_offset", "_timestamp", "at"])
def test_postgres_upsert_does_not_depend_on_the_order_of_records(postgres: str, sequence: str) -> None:
    """Batches of any cut, in any order, some of them twice, give what all records in one batch give."""
    engine = sa.create_engine(new_database(postgres))
    key = ["id", 'Se"q']
    kinds = 'id uuid, "Se""q" text, at int, _topic text, _partition int, _offset bigint, _timestamp timestamptz'
    names = [*key, "at", "_topic", "_partition", "_offset", "_timestamp"]
    values = {n: f"{name_of(n)}::uuid" if n == "id" else name_of(n) for n in names}
    upsert = Upsert("rows", "pg_temp.sluice_staged", values, key, sequence, "gone")
    forgotten = ", ".join(map(name_of, remembered(key, sequence)))
    chance, deleted = random.Random(3), "__sluice_deleted boolean"
    ids = ["7d444840-9dc0-11d1-b245-5ffdce74fad2", "7D444840-9DC0-11D1-B245-5FFDCE74FAD2",
           "00000000-0000-0000-0000-000000000000"]  # fmt: skip

    def record(n: int) -> str:
        place, partition = chance.randrange(3), n % 3
        at, one = chance.choice(["NULL", *"0123"]), ids[2 if place else chance.randrange(2)]
        gone = chance.random() < 0.4 and (sequence != "at" or at != "NULL")
        return f"('{one}', 'k{place}', {at}, 't', {partition}, {n // 3}, to_timestamp({chance.randrange(5)}), {gone})"

    with engine.connect() as connection:
        run = connection.exec_driver_sql

        def merged(batches: list[list[str]]) -> list[Any]:
            run("DROP TABLE IF EXISTS rows, gone")
            run(f'CREATE TABLE rows ({kinds}, PRIMARY KEY (id, "Se""q"))')
            run(f"CREATE TABLE gone AS SELECT {forgotten} FROM rows WITH NO DATA")
            run('ALTER TABLE gone ADD PRIMARY KEY (id, "Se""q")')
            for batch in batches:
                run("DROP TABLE IF EXISTS pg_temp.sluice_staged")
                run(f"CREATE TEMPORARY TABLE sluice_staged ({kinds.replace('uuid', 'text')}, {deleted})")
                run(f"INSERT INTO sluice_staged VALUES {', '.join(batch)}")
                for statement in (*upsert.begin(), *upsert.merge()):
                    run(statement.replace("%", "%%"))
                assert run(upsert.left()).scalar() == 0
            return [run(f"SELECT * FROM {t} ORDER BY 1, 2").all() for t in ("rows", "gone")]

        for _ in range(40):
            sent = list(map(record, range(30)))
            whole = merged([sent])
            shuffled = chance.sample(sent, len(sent)) + chance.sample(sent, 5)
            cuts = sorted(chance.sample(range(1, len(shuffled)), 6))
            batches = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(shuffled)], strict=True)]
            assert merged(batches) == whole
    engine.dispose()
