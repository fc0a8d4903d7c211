"""A table of PostgreSQL as a sink: which rows it holds and which it refuses, and who may write to it."""

from __future__ import annotations

import json
import random
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from tests.fixtures.database import CONNECTION, PostgresSandbox
from tests.fixtures.runs import good

from sluice.connections import Connection
from sluice.errors import ConfigError, SinkError
from sluice.pipeline.sections import Sink
from sluice.postgres import url_of
from sluice.sinks.postgres import PostgresSink
from sluice_spark.sinks.base import Staged, StagedFile
from sluice_spark.sinks.postgres.database import connected
from sluice_spark.sinks.postgres.table import PostgresTable
from sluice_spark.sinks.postgres.types import fits, unsupported

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DDL = (
    "i INT, l BIGINT, t TINYINT, h SMALLINT, s STRING, b BOOLEAN, d DOUBLE, f FLOAT, c DECIMAL(12,2), "
    "w DECIMAL(38,10), ts TIMESTAMP, dt DATE, a ARRAY<STRING>, n ARRAY<BIGINT>, ntz TIMESTAMP_NTZ"
)
RECORDS = [
    {
        "i": -(2**31), "l": 2**63 - 1, "t": -128, "h": 32767, "s": "é😀 \\ ' \" \t\n", "b": True, "d": 1e300, "f": 1.5,
        "c": 12.34, "w": 1234567890.0123456789, "ts": "2026-01-31T12:00:00.123456Z", "dt": "2026-01-31",
        "a": ["x", None, "", "{,}"], "n": [1, None], "ntz": "2026-01-31T12:00:00.5",
    },
    {"s": "", "a": [], "d": 0.1},
    {},
]  # fmt: skip


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_values_of_each_type_are_those_that_a_delta_table_gets(
    into_postgres: PostgresSandbox, spark: SparkSession, engine: str
) -> None:
    sandbox = into_postgres
    ddl = DDL if engine == "spark" else ", ".join(p for p in DDL.split(", ") if not p.startswith(("f ", "w ", "ntz ")))
    decode = {"json": {"schema": ddl}}
    sandbox.configure(engine=engine, decode=decode)
    sandbox.produce([(0, b"k", json.dumps(record).encode()) for record in RECORDS])
    said = sandbox.run("r").stderr
    assert ("Spark path" in said) == (engine == "spark"), said
    ours = sandbox.orders()
    sandbox.name += "d"
    sandbox.configure(engine=engine, decode=decode, sink={"delta": {"path": "beside"}})
    sandbox.run("r")
    table = sandbox.rows("beside")
    assert table is not None
    theirs = sorted(table.to_pylist(), key=lambda row: row["_offset"])
    assert [row | {"_run": ""} for row in ours] == [row | {"_run": ""} for row in theirs]
    assert ours[0]["ts"] == datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)
    assert (ours[0]["c"], ours[0]["dt"], ours[0]["a"]) == (Decimal("12.34"), date(2026, 1, 31), ["x", None, "", "{,}"])
    assert [row["s"] for row in ours] == [RECORDS[0]["s"], "", None]


def test_a_table_that_is_there_takes_what_it_can_hold(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    meta = "_topic text, _partition int, _offset bigint, _timestamp timestamptz, _run text"
    sandbox.change(
        f"CREATE TABLE public.orders (nr serial PRIMARY KEY, id numeric, doc jsonb, who uuid, short varchar(5), {meta})"
    )
    sandbox.configure(decode={"json": {"schema": "id BIGINT, doc STRING, who STRING, short STRING"}})
    who = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
    record = {"id": 5, "doc": '{"a": [1]}', "who": who, "short": "12345"}
    sandbox.produce([(0, b"k", json.dumps(record).encode())])
    sandbox.run("r")
    (row,) = sandbox.orders()
    assert (row["nr"], row["id"], row["doc"], str(row["who"]), row["short"]) == (1, 5, {"a": [1]}, who, "12345")


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"short": "123456"}, "longer than character varying(5) holds"),
        ({"doc": "{"}, "refuses a row"),
        ({"doc": "1\u0000"}, "zero character"),
    ],
)
def test_a_row_that_it_refuses_is_told_and_nothing_is_written(
    into_postgres: PostgresSandbox, record: dict[str, Any], told: str
) -> None:
    sandbox = into_postgres
    meta = "_topic text, _partition int, _offset bigint, _timestamp timestamptz, _run text"
    sandbox.change(f"CREATE TABLE public.orders (doc json, short varchar(5), {meta})")
    sandbox.configure(decode={"json": {"schema": "doc STRING, short STRING"}})
    sandbox.produce([(0, b"k", json.dumps(value).encode()) for value in ({"short": "a"}, record)])
    said = sandbox.run("r", expect=30).message
    assert told in said
    assert "row rule" in said
    assert sandbox.orders() == []
    rule = {"name": "fits", "sql": {"passes": "length(short) <= 5 OR doc IS NULL AND short IS NULL"}}
    if "short" in record:  # the way out that it names
        sandbox.configure(
            decode={"json": {"schema": "doc STRING, short STRING"}}, rules=[rule], quality={"max_quarantined": "100%"}
        )
        sandbox.run("again")
        assert [row["short"] for row in sandbox.orders()] == ["a"]
        sandbox.assert_exact()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("id bigint", "name is missing in the table: ALTER TABLE … ADD COLUMN \"name\" text"),
        ("id integer, name text", "id is integer in the table, and bigint in the pipeline"),
        ("id bigint, name text, must int NOT NULL", "must is only in the table, and must have a value"),
        ("id numeric(5,1), name text", "id is numeric(5,1) in the table"),
        ("id bigint GENERATED ALWAYS AS IDENTITY, name text", "id is a generated column"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused_before_anything_is_read(
    into_postgres: PostgresSandbox, made: str, told: str
) -> None:
    meta = "_topic text, _partition int, _offset bigint, _timestamp timestamptz, _run text"
    into_postgres.change(f"CREATE TABLE public.orders ({made}, {meta})")
    into_postgres.feed(1)
    assert told in into_postgres.run("r", expect=10).message


def test_nested_columns_are_refused_with_the_way_out(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    nested = {"json": {"schema": "id BIGINT, o STRUCT<x: INT>"}}
    sandbox.configure(decode=nested)
    sandbox.produce([(0, b"k", b'{"id":1,"o":{"x":2}}')])
    assert "write to_json(o) AS o in transform.sql" in sandbox.run("r", expect=10).message
    sql = "SELECT id, to_json(o) AS o, _topic, _partition, _offset, _timestamp FROM source"
    sandbox.configure(decode=nested, transform={"sql": sql})
    sandbox.run("r")
    assert [row["o"] for row in sandbox.orders()] == ['{"x":2}']


def test_rows_of_an_aggregate_need_no_offsets(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.configure(rows="aggregate", transform={"sql": "SELECT count(*) AS n, sum(id) AS total FROM source"})
    sandbox.feed(5)
    sandbox.run("r")
    (row,) = sandbox.orders_of("n, total, _run")
    assert row == {"n": 5, "total": 10, "_run": "r"}


def test_another_pipeline_may_not_write_to_it(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.feed(2)
    sandbox.run("r")
    first, sandbox.name = sandbox.name, "other"
    sandbox.file.with_name(f"{first}.yaml").unlink()
    sandbox.configure()
    assert f"belongs to pipeline '{first}'" in sandbox.run("r", expect=10).message


def test_a_table_that_was_dropped_is_noticed(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.feed(2)
    sandbox.run("r")
    sandbox.change("DROP TABLE public.orders")
    sandbox.feed(2)
    assert "was dropped" in sandbox.run("s", expect=41).message
    sandbox.change("CREATE TABLE public.orders (LIKE public.sluice_commits)")
    assert "was dropped and made again" in sandbox.run("s", expect=41).message


def test_the_rows_of_a_run_are_validated(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    suite = {
        "name": "s",
        "expectations": [
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "name"}},
            {"type": "expect_column_values_to_be_between", "kwargs": {"column": "price", "min_value": 1}},
        ],
    }
    (sandbox.home / "suite.json").write_text(json.dumps(suite))
    sandbox.configure(
        decode={"json": {"schema": "name STRING, price DECIMAL(10,2)"}}, quality={"suite": "suite.json"},
    )  # fmt: skip
    for number, price in enumerate((2, 0)):
        sandbox.produce([(0, b"k", json.dumps({"name": "x", "price": price}).encode())])
        sandbox.run(f"r{number}", validate=True, expect=None)
    assert [sandbox.ledger.run(sandbox.name, f"r{n}").verdict for n in (0, 1)] == ["passed", "failed"]  # type: ignore[union-attr]


def test_the_command_line_hands_the_connection_to_the_driver(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.feed(3)
    done = sandbox.cli("run", str(sandbox.file), "--run", "r", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["written"] == 3
    missing = sandbox.cli("run", str(sandbox.file), "--run", "s", **{CONNECTION: ""})
    assert (missing.returncode, "'postgres_default' is not defined" in missing.stderr) == (10, True), missing.stderr


def test_a_server_that_does_not_answer_is_told_without_the_password(into_postgres: PostgresSandbox) -> None:
    secret = "s3cr3t/:@"
    nobody = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "me", "password": secret, "schema": "x"}
    into_postgres.feed(1)
    said = into_postgres.run("r", expect=30, **{CONNECTION: json.dumps(nobody)})
    assert "run again when the database answers" in said.message
    assert secret not in said.stderr


def test_errors_say_what_to_do(into_postgres: PostgresSandbox) -> None:
    url = json.loads(into_postgres.connection)
    there = Connection("c", "postgres", url["host"], url["port"], url["login"], schema=url["schema"])
    with (
        pytest.raises(ConfigError, match="correct the connection, the role's rights"),
        connected(there, "table x") as opened,
    ):
        opened.cursor().execute("SELECT * FROM nowhere")
    with pytest.raises(SinkError, match="keeps table x locked"), connected(there, "table x") as opened:
        opened.cursor().execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '55P03'; END $$")
    with pytest.raises(ConfigError, match="not a PostgreSQL connection"):
        url_of(Connection("c", "kafka", "h"))
    odd = Connection("c", "postgres", "/var/run", None, "m e", "p/:@", "d b", {"sslmode": "require", "iam": True})
    assert url_of(odd).startswith("postgresql://m%20e:p%2F%3A%40@%2Fvar%2Frun/d%20b?")
    assert "sslmode=require" in url_of(odd)
    assert "iam" not in url_of(odd)


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
def test_which_columns_hold_which_values(kind: T.DataType, there: str, expected: bool) -> None:
    assert fits(kind, there) is expected
    assert unsupported(kind) is None


@pytest.mark.parametrize("table", ["a.b.c", "", ".x", "x" * 64])
def test_a_table_is_named_by_one_or_two_parts(table: str) -> None:
    with pytest.raises(ValueError, match=r"SCHEMA\.TABLE"):
        Sink.model_validate({"postgres": {"table": table}})


def test_names_of_any_kind(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.change('CREATE SCHEMA "O\'Hara ""x"""')
    sandbox.configure(
        sink={"postgres": {"table": 'O\'Hara "x".We/ird "t"'}}, decode={"json": {"schema": "`Sel\"ect'` BIGINT"}}
    )
    sandbox.produce([(0, b"k", b'{"Sel\\"ect\'":7}'), (1, b"k", good(1))])
    sandbox.run("r")
    found = sandbox.query('SELECT * FROM "O\'Hara ""x"""."We/ird ""t""" ORDER BY _partition')
    assert [row["Sel\"ect'"] for row in found] == [7, None]


def upserting(sequence: str | None = None, **more: Any) -> dict[str, Any]:
    return {"postgres": {"table": "orders", "mode": "upsert", "key": ["id"], "sequence": sequence} | more}


def test_of_the_rows_of_a_key_the_newest_stays(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.configure(sink=upserting(), kafka={"max_records_per_batch": 4})
    for start in (0, 20):  # in one batch and across batches, in each partition, with times that go backwards
        sandbox.produce(
            [(n % 2, b"k", b'{"id": %d, "name": "v%d"}' % (n % 6, start + n), 10_000 - n) for n in range(20)]
        )  # fmt: skip
        sandbox.run(f"r{start}")
    newest = {key: max(n for n in range(20) if n % 6 == key) + 20 for key in range(6)}
    assert {row["id"]: row["name"] for row in sandbox.orders()} == {k: f"v{n}" for k, n in newest.items()}
    assert sandbox.total("written") == 40
    sandbox.assert_balanced()


def test_a_sequence_decides_whatever_the_offsets_are(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.configure(
        sink=upserting("at"), decode={"json": {"schema": "id BIGINT, at BIGINT, name STRING"}},
        kafka={"max_records_per_batch": 3},
    )  # fmt: skip
    chance = random.Random(7)
    sent = [(chance.randrange(5), chance.choice([None, *range(8)]), n) for n in range(60)]
    for part in (sent[:30], sent[30:]):
        sandbox.produce(
            [(n % 2, b"k", json.dumps({"id": k, "at": at, "name": str(n)}).encode(), 1000 + n) for k, at, n in part]
        )
        sandbox.run(f"r{part[0][2]}")
    wanted = {k: max((-1 if at is None else at, n) for key, at, n in sent if key == k)[1] for k in range(5)}
    assert {row["id"]: int(row["name"]) for row in sandbox.orders()} == wanted


def test_lost_records_that_are_redriven_do_not_replace_newer_rows(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sql = "SELECT assert_true(name <> 'bad') IS NULL AS ok, * FROM source"
    shape = {"sink": upserting(), "recovery": "ignore_batch", "kafka": {"max_records_per_batch": 1}}
    sandbox.configure(transform={"sql": sql}, **shape)
    for name in ("bad", "new"):
        sandbox.produce([(0, b"k", b'{"id": 1, "name": "%s"}' % name.encode())])
    sandbox.produce([(0, b"k", b'{"id": 2, "name": "bad"}')])
    sandbox.run("live", expect=None)
    assert [row["name"] for row in sandbox.orders()] == ["new"]
    sandbox.configure(transform={"sql": "SELECT true AS ok, * FROM source"}, **shape)
    sandbox.run("back", redriven="lost")
    assert sorted((row["id"], row["name"]) for row in sandbox.orders()) == [(1, "new"), (2, "bad")]


def test_a_row_without_a_key_is_told_with_the_rule(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.configure(sink=upserting())
    sandbox.produce([(0, b"k", good(1)), (0, b"k", b'{"name": "x"}')])
    said = sandbox.run("r", expect=30).message
    assert "{name: has_key, not_null: {columns: [id]}}" in said
    sandbox.configure(
        sink=upserting(), rules=[{"name": "has_key", "not_null": {"columns": ["id"]}}],
        quality={"max_quarantined": "100%"},
    )  # fmt: skip
    sandbox.run("r")
    assert sandbox.account("r")["quarantined"] == 1


def test_a_table_that_is_upserted_needs_a_unique_index(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    meta = "_topic text, _partition int, _offset bigint, _timestamp timestamptz, _run text"
    sandbox.change(
        f"CREATE TABLE public.orders (id bigint, name text, {meta})",
        "CREATE UNIQUE INDEX ON public.orders (id) WHERE id > 5",
        "CREATE UNIQUE INDEX ON public.orders (id, name)",
        "INSERT INTO public.orders VALUES (1, 'mine')",
    )
    sandbox.configure(sink=upserting())
    sandbox.feed(3)
    told = 'CREATE UNIQUE INDEX ON "public"."orders" ("id")'
    assert told in sandbox.run("r", expect=10).message
    sandbox.change(told)
    sandbox.run("r")
    assert [row["name"] for row in sandbox.query("SELECT name FROM public.orders ORDER BY id")] == [
        "name 0", "name 1", "name 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"sink": upserting(key=[])}, "needs the key"),
        ({"sink": upserting(mode="append")}, "are for mode: upsert"),
        ({"sink": upserting(), "rows": "many"}, "rows: one or filter"),
    ],
)
def test_what_makes_no_sense_is_refused(into_postgres: PostgresSandbox, keys: dict[str, Any], told: str) -> None:
    into_postgres.configure(**keys)
    refused = into_postgres.cli("validate-spec", "--no-spark", str(into_postgres.file))
    assert (refused.returncode, told in " ".join(refused.stderr.split())) == (10, True), refused.stderr


def test_intervals_of_a_table_that_is_upserted_are_refused(into_postgres: PostgresSandbox) -> None:
    into_postgres.configure(sink=upserting())
    refused = into_postgres.cli("run", str(into_postgres.file), "--start", "2026-01-01", "--end", "2026-01-02")
    assert "sink.postgres with mode: upsert cannot replace rows" in " ".join(refused.stderr.split())


def test_what_a_trigger_keeps_back_is_no_silent_loss(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.feed(2)
    sandbox.run("r")
    sandbox.change(
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id = 3 THEN RETURN NULL; END IF; "
        "RETURN NEW; END $$",
        "CREATE TRIGGER skips BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION skip()",
    )
    sandbox.feed(3)
    assert "took 2 of 3 rows" in sandbox.run("s", expect=30).message
    assert len(sandbox.orders()) == 2


@pytest.mark.parametrize("sequence", [None, "id"])
@pytest.mark.parametrize("when", ["INSERT", "UPDATE"])
def test_nor_is_it_where_rows_are_merged(into_postgres: PostgresSandbox, when: str, sequence: str | None) -> None:
    sandbox = into_postgres
    sandbox.configure(sink=upserting(sequence))
    sandbox.feed(2)
    sandbox.run("r")
    sandbox.change(
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        f"CREATE TRIGGER skips BEFORE {when} ON public.orders FOR EACH ROW EXECUTE FUNCTION skip()",
    )
    # newer ones of both keys; a merge inserts before it finds that it has to update
    sandbox.produce([(n % 2, b"k", b'{"id": %d, "name": "newer"}' % n) for n in range(2)])
    assert "did not take the newest rows of 2 keys" in sandbox.run("s", expect=30).message
    sandbox.change("DROP TRIGGER skips ON public.orders")
    sandbox.run("s")
    assert {row["name"] for row in sandbox.orders()} == {"newer"}


def test_a_role_with_other_defaults_and_a_database_in_latin1(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    name = f"l{uuid.uuid4().hex[:8]}"
    url = sa.make_url(sandbox.database)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0"))
        for setting in (
            "default_transaction_isolation = 'serializable'", "\"DateStyle\" = 'German'", "bytea_output = 'escape'",
            "standard_conforming_strings = off", "search_path = nowhere", "statement_timeout = '2s'",
            "synchronous_commit = off",
        ):  # fmt: skip
            connection.execute(sa.text(f"ALTER DATABASE {name} SET {setting}"))
    engine.dispose()
    sandbox.database = str(url.set(database=name))
    sandbox.produce([(0, b"k", '{"id": 1, "name": "é\\\\ \'x"}'.encode())])
    sandbox.run("r")
    assert sandbox.query("SELECT name FROM public.orders") == [{"name": "é\\ 'x"}]
    sandbox.change(
        "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(2.5); RETURN NULL; END $$"
    )
    sandbox.change("CREATE TRIGGER slow BEFORE INSERT ON public.orders EXECUTE FUNCTION public.slow()")
    sandbox.feed(1)
    sandbox.run("slow")  # the role's statements may not take as long
    sandbox.change("DROP TRIGGER slow ON public.orders")
    sandbox.produce([(0, b"k", '{"id": 1, "name": "\u20ac\u4e2d"}'.encode())])
    assert "refuses a row" in sandbox.run("s", expect=30).message


META = "_topic text, _partition int, _offset bigint, _timestamp timestamptz, _run text"


def test_blanks_at_the_end_of_a_text_are_not_cut_silently(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.change(f"CREATE TABLE public.orders (id bigint, name varchar(3), {META})")
    sandbox.produce([(0, b"k", b'{"id": 1, "name": "abc  "}')])
    said = sandbox.run("r", expect=30).message
    assert "1 texts of column name are longer than character varying(3) holds" in said
    assert "length(name) <= 3" in said


def test_a_view_is_refused(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.change(
        f"CREATE TABLE public.base (id bigint, name text, {META})",
        "CREATE VIEW public.orders AS SELECT * FROM public.base WHERE id <> 1",
    )
    sandbox.feed(1)
    assert "is a view or a foreign table" in sandbox.run("r", expect=10).message


def test_tables_that_were_restored_together_go_on(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.feed(3)
    sandbox.run("r")
    sandbox.change(  # as a dump and its restoration: the same rows in tables with other ids
        "CREATE TABLE public.a AS TABLE public.orders", "CREATE TABLE public.b AS TABLE public.sluice_commits",
        "DROP TABLE public.orders", "DROP TABLE public.sluice_commits",
        "ALTER TABLE public.a RENAME TO orders", "ALTER TABLE public.b RENAME TO sluice_commits",
    )  # fmt: skip
    sandbox.feed(3)
    sandbox.run("s")
    sandbox.assert_exact()
    sandbox.change("CREATE TABLE public.c AS TABLE public.orders", "DROP TABLE public.orders")
    assert "was dropped" in sandbox.run("t", expect=41).message


def test_a_redrive_that_was_restored_away_is_noticed(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    small = [{"name": "small", "sql": {"passes": "id < 100"}}]
    sandbox.configure(quality={"max_quarantined": "100%"}, rules=small)
    sandbox.produce([(0, b"k", b'{"id": %d, "name": "x"}' % n) for n in (1, 2000, 3)])
    sandbox.run("live")
    sandbox.configure(quality={"max_quarantined": "100%"})
    sandbox.run("moved", redriven="quarantined")
    sandbox.change(
        "DELETE FROM public.orders WHERE _run = 'moved'",
        "DELETE FROM public.sluice_commits WHERE writer LIKE '%redriven'",
    )
    sandbox.feed(1)
    for run, kind in (("next", None), ("again", "quarantined")):
        said = sandbox.run(run, expect=41, redriven=kind).message
        assert f"the ledger has batch 0 of sluice:{sandbox.name}:redriven committed" in said


def test_an_interval_that_was_restored_away_is_noticed(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    days = [(0, b"k", b'{"id": %d, "name": "x"}' % n, 1_767_225_600_000 + n * 43_200_000) for n in range(4)]
    sandbox.produce(days)
    sandbox.run("live")
    sandbox.change("CREATE TABLE public.kept AS TABLE public.orders", "CREATE TABLE public.log AS TABLE sluice_commits")
    day = ("2026-01-01", "2026-01-02")
    sandbox.run("first", interval=day)
    sandbox.change(
        "TRUNCATE public.orders", "INSERT INTO public.orders TABLE public.kept",
        "TRUNCATE public.sluice_commits", "INSERT INTO public.sluice_commits TABLE public.log",
    )  # fmt: skip
    for run, interval in (("next", None), ("second", day), ("third", ("2026-01-02", "2026-01-03"))):
        assert ":interval:" in sandbox.run(run, expect=41, interval=interval).message
    sandbox.change("DROP TABLE public.orders", "DROP TABLE public.sluice_commits")
    said = sandbox.run("fourth", expect=41, interval=("2026-01-02", "2026-01-03")).message
    assert "lacks the table of its commits" in said


def test_columns_cannot_change_between_the_look_and_the_insert(
    into_postgres: PostgresSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, real, tried = into_postgres, PostgresTable._insert, []
    sandbox.feed(2)
    sandbox.run("r")
    sandbox.feed(2)

    def insert(self: PostgresTable, *arguments: Any) -> None:
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
            sandbox.change("SET lock_timeout = '200ms'", "ALTER TABLE public.orders ALTER COLUMN id TYPE smallint")
        tried.append(True)
        real(self, *arguments)

    monkeypatch.setattr(PostgresTable, "_insert", insert)
    sandbox.run("s")
    assert tried
    sandbox.assert_exact()


def test_numbers_without_limits_are_read_back_whole(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.change(f"CREATE TABLE public.orders (id numeric, name text, price numeric, {META})")
    not_null = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}
    unique = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}}
    (sandbox.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": [not_null, unique]}))
    decode = {"json": {"schema": "id DECIMAL(38,0), name STRING, price DECIMAL(20,10)"}}
    sandbox.configure(decode=decode, quality={"suite": "suite.json"})
    large = 10**37
    sandbox.produce([(0, b"k", b'{"id": %d, "price": 1.5}' % (large + n)) for n in range(3)])
    sandbox.run("r", validate=True)
    run = sandbox.ledger.run(sandbox.name, "r")
    assert run is not None
    assert run.verdict == "passed"


def test_wide_rows_travel_a_few_at_a_time(into_postgres: PostgresSandbox, tmp_path: Path) -> None:
    sandbox = into_postgres
    config = PostgresSink(table="orders")
    table = PostgresTable(config, str(tmp_path), "sluice:p:1")
    schema = pa.schema([("name", pa.string())])
    pq.write_table(pa.table({"name": ["x" * 1_000_000 + str(n) for n in range(100)]}, schema=schema), tmp_path / "f")
    staged = Staged("", (StagedFile("f", 0, 0, 100, {}, "{}"),), {})
    sizes = [batch.num_rows for batch in table._batches(staged, schema)]
    assert sum(sizes) == 100
    assert max(sizes) <= 40
    assert sandbox.orders() == []


def test_columns_of_ones_own_may_have_any_type(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.change(
        f"CREATE TABLE public.orders (id bigint, name text, price numeric(5,5), a inet DEFAULT '1.2.3.4', "
        f"b uuid[], c numeric(2,4), d interval DEFAULT '1 day', e numeric[] DEFAULT '{{NaN}}', f int4range[], {META})"
    )
    not_null = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "price"}}
    (sandbox.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": [not_null]}))
    decode = {"json": {"schema": "id BIGINT, name STRING, price DECIMAL(5,5)"}}
    sandbox.configure(decode=decode, quality={"suite": "suite.json"})
    sandbox.produce([(0, b"k", b'{"id": 1, "price": 0.12345}')])
    sandbox.run("r", validate=True)
    run = sandbox.ledger.run(sandbox.name, "r")
    assert run is not None
    assert run.verdict == "passed"
    sandbox.configure(decode=decode, recovery="wal", quality={"suite": "suite.json"})  # a commit without rows between
    sandbox.feed(2)
    sandbox.run("w")
    sandbox.assert_exact()


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        ({"host": "[::1"}, 10, "postgresql://..."),
        ({"host": "db host"}, 30, "could not translate host name"),
        ({"schema": "nodb"}, 10, 'database "nodb" does not exist'),
        ({"login": "nobody"}, 10, 'role "nobody" does not exist'),
        ({"extra": {"foo": "bar"}}, 10, "invalid URI query parameter"),
        ({"extra": {"options": "-c statement_timeout=0"}}, 0, ""),
    ],
)
def test_a_wrong_connection_is_told_without_its_password(
    into_postgres: PostgresSandbox, more: dict[str, Any], code: int, told: str
) -> None:
    sandbox = into_postgres
    connection = json.loads(sandbox.connection) | {"password": "s3cr3t!"} | more
    sandbox.feed(1)
    said = sandbox.run("r", expect=code, **{CONNECTION: json.dumps(connection)}).stderr
    assert told in said
    assert "s3cr3t" not in said


def test_what_a_row_holds_is_not_in_the_log(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.change(f"CREATE TABLE public.orders (id bigint, name text CHECK (name <> '4111-1111'), {META})")
    sandbox.produce([(0, b"k", b'{"id": 1, "name": "4111-1111"}')])
    said = sandbox.run("r", expect=30).stderr
    assert 'violates check constraint "orders_name_check"' in said
    assert "4111" not in said
